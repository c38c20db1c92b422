package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"

	"tallyroll/tests/stack"
)

// The rules before somebody mends them: they say nothing of hits.other, and need a country and a tenant.
const firstRules = `
- {stream: HITS, subject: hits.events.*, format: cloudevents, count: [{key: '{type}'}, {key: 'tenant.{tenant}'}, {key: cents, n: data.cents}]}
- {stream: HITS, subject: hits.orders.*, count: [{key: 'orders.{subject.1}'}, {key: 'orders.{subject.1}.{country}'}]}
`

const mendedRules = `
- {stream: HITS, subject: hits.events.*, format: cloudevents, count: [{key: '{type}'}, {key: 'tenant.{tenant}', optional: true}, {key: cents, n: data.cents}]}
- {stream: HITS, subject: hits.orders.*, count: [{key: 'orders.{subject.1}'}, {key: 'orders.{subject.1}.{country}', optional: true}]}
- {stream: HITS, subject: hits.other.*, format: cloudevents, count: [{key: 'other.{subject.1}.{type}'}]}
`

func eventOf(kind, id string) string {
	return fmt.Sprintf(`{"specversion":"1.0","type":%q,"source":"/shop","id":%q,"tenant":"acme","data":{"cents":5}}`, kind, id)
}

// attributesOf are the headers of an event in binary mode, and others.
func attributesOf(kind, id string, more ...string) []string {
	return append([]string{"ce-specversion", "1.0", "ce-type", kind, "ce-source", "/shop", "ce-id", id, "ce-datacontenttype", "application/json"}, more...)
}

// sendWith publishes a message with headers, name and value in turn.
func (s *system) sendWith(subject, body string, headers ...string) {
	s.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = []string{headers[i+1]} // as it is: the names of attributes are in lower case
	}
	if _, err := s.js.PublishMsg(s.t.Context(), m); err != nil {
		s.t.Fatal(err)
	}
}

// CloudEvents in each mode, over HTTP and over NATS, count by the rules. What the rules refuse counts after they
// were mended, once, whether its time, its names and its mode are in the body or in headers.
func TestEventsCountAndRefusedOnesCountAfterAll(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(firstRules)
	s := start(t, "INGEST_RULES="+file)
	collect := stack.Collect(t, s.nats, "COLLECT_SUBJECT=hits.events.http")
	post := func(body string, headers ...string) {
		t.Helper()
		status, detail := posted(t, collect, []byte(body), headers...)
		if status != http.StatusAccepted {
			t.Errorf("%s %v: status %d, %s", body, headers, status, detail)
		}
	}
	const one, batch = "application/cloudevents+json", "application/cloudevents-batch+json"
	post(eventOf("paid", "1"), "Content-Type", one)
	post(eventOf("paid", "1"), "Content-Type", one) // sent again
	post("["+eventOf("paid", "2")+","+eventOf("paid", "3")+"]", "Content-Type", batch)
	post(`{"cents":5}`, append(attributesOf("paid", "4", "ce-tenant", "acme")[:8], "Content-Type", "application/json", "ce-tenant", "acme")...)
	s.sendWith("hits.events.nats", eventOf("paid", "5"), "Content-Type", one)
	s.sendWith("hits.events.nats", "["+eventOf("paid", "6")+","+eventOf("paid", "7")+"]", "Content-Type", batch)
	s.sendWith("hits.events.nats", `{"cents":5}`, attributesOf("paid", "8", "ce-tenant", "acme")...)
	total := func(key string, want int64) {
		t.Helper()
		stack.EventuallyTotal(t, soon, s.query.URL(), key, "1h", want)
	}
	for key, want := range map[string]int64{"paid": 8, "tenant.acme": 8, "cents": 40} {
		total(key, want)
	}

	s.sendWith("hits.other.a", eventOf("sent", "1"), "Content-Type", one)
	s.sendWith("hits.other.b", "", attributesOf("sent", "2")...)
	post(`{"cents":7}`, append(attributesOf("refunded", "9")[:8], "Content-Type", "application/json")...) // of no tenant
	// Of two orders the second says no country. A header is no way to other rules from a subject like this one.
	s.sendWith("hits.orders.web", `[{"country":"de"},{"id":7}]`, "Tallyroll-Subject", "hits.other.c")
	reasons := map[string]int{}
	for _, r := range s.rejects(4) {
		reasons[r.Header.Get("Tallyroll-Reason")]++
	}
	if len(reasons) != 2 || reasons["no_rule"] != 2 || reasons["bad_key"] != 2 {
		t.Errorf("the reasons are %v", reasons)
	}
	total("orders.web.de", 1)

	if code := s.ingest.Stop(); code != 0 {
		t.Errorf("ingest ended with %d", code)
	}
	write(mendedRules)
	s.ingest.Start()
	s.wantLine(s.publish(nil, "--from-rejects"), "found 4 rejects, 4 match; sent 2 again in 2 messages in ", "; left 2: 2 bad_key (would be refused again by the same rules")
	s.wantLine(s.publish(nil, "--from-rejects", "--reason", "bad_key"), "found 2 rejects, 2 match; sent 2 again in 2 messages in ", "; left 0")
	for key, want := range map[string]int64{
		"other.a.sent": 1, "other.b.sent": 1, "refunded": 1, "cents": 47, "orders.web": 2, "orders.web.de": 1, "tenant.acme": 8, "paid": 8,
	} {
		total(key, want)
	}
	s.wantLine(s.publish(nil, "--from-rejects"), "found 0 rejects, ")
}
