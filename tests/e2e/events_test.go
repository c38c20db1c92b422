package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// The rules before they are mended: they say nothing of hits.other, and need a country and a tenant.
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
	return append([]string{"ce-specversion", "1.0", "ce-type", kind, "ce-source", "/shop", "ce-id", id}, more...)
}

// sendWith publishes a message with headers, name and value in turn.
func (s *system) sendWith(subject, body string, headers ...string) {
	s.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = []string{headers[i+1]} // as it is: the names of attributes are in lower case
	}
	_, err := s.js.PublishMsg(s.t.Context(), m)
	require.NoError(s.t, err)
}

// CloudEvents in each mode, over HTTP and over NATS, count by the rules. What the rules refuse counts after
// they were mended, once, whether its time, its names and its mode are in the body or in headers.
func TestEventsCountAndRefusedOnesCountAfterAll(t *testing.T) {
	t.Parallel()
	rules := file(t, "rules.yaml", firstRules)
	s := start(t, "INGEST_RULES="+rules)
	collect := stack.Collect(t, s.nats, "COLLECT_SUBJECT=hits.events.http")
	const one, batch, plain = "application/cloudevents+json", "application/cloudevents-batch+json", "application/json"
	accepted := func(body string, headers ...string) {
		t.Helper()
		status, text := post(collect, body, headers...)
		require.Equal(t, http.StatusAccepted, status, text)
	}
	accepted(eventOf("paid", "1"), "Content-Type", one)
	accepted(eventOf("paid", "1"), "Content-Type", one) // sent again
	accepted("["+eventOf("paid", "2")+","+eventOf("paid", "3")+"]", "Content-Type", batch)
	accepted(`{"cents":5}`, attributesOf("paid", "4", "Content-Type", plain, "ce-tenant", "acme")...)
	s.sendWith("hits.events.nats", eventOf("paid", "5"), "Content-Type", one)
	s.sendWith("hits.events.nats", "["+eventOf("paid", "6")+","+eventOf("paid", "7")+"]", "Content-Type", batch)
	s.sendWith("hits.events.nats", `{"cents":5}`, attributesOf("paid", "8", "ce-tenant", "acme", "ce-datacontenttype", plain)...)
	s.awaitTotals(map[string]int64{"paid": 8, "tenant.acme": 8, "cents": 40})

	s.sendWith("hits.other.a", eventOf("sent", "1"), "Content-Type", one)
	s.sendWith("hits.other.b", "", attributesOf("sent", "2", "ce-datacontenttype", plain)...)
	accepted(`{"cents":7}`, attributesOf("refunded", "9", "Content-Type", plain)...) // of no tenant
	// Of two orders the second says no country. A header is no way to other rules from a subject like this one.
	s.sendWith("hits.orders.web", `[{"country":"de"},{"id":7}]`, "Tallyroll-Subject", "hits.other.c")
	s.awaitRejects(4)
	s.awaitTotal("orders.web.de", 1)

	require.Zero(t, s.ingest.Stop())
	write(t, rules, mendedRules)
	s.ingest.Start()
	s.requireLine(s.redrive(), "found 4 rejects, 4 match; sent 2 again in 2 messages in ", "; left 2: 2 bad_key (would be refused again by the same rules")
	s.requireLine(s.redrive("--reason", "bad_key"), "found 2 rejects, 2 match; sent 2 again in 2 messages in ", "; left 0")
	s.awaitTotals(map[string]int64{
		"other.a.sent": 1, "other.b.sent": 1, "refunded": 1, "cents": 47, "orders.web": 2, "orders.web.de": 1, "tenant.acme": 8, "paid": 8,
	})
}

// A rules file is all that it takes to count a stream that a rule names. A rule that counts nothing is named
// in the log and by /readyz. A stream that no rule names any more waits, and none of its events is taken for
// a hit.
func TestRulesSayWhichStreamsAreRead(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	s.createStream("ORDERS", "orders.>")
	s.createStream("RETURNS_EU", "returns.>")
	const (
		orders  = "- {stream: ORDERS, subject: orders.*, count: [{key: orders}]}\n"
		globbed = "- {stream: RETURNS_*, subject: returns.*, count: [{key: returns}]}\n"
		named   = "- {stream: RETURNS_EU, subject: returns.*, count: [{key: returns}]}\n"
		absent  = "- {stream: LATER, subject: later.*, count: [{key: later}]}\n"
	)
	rules := file(t, "rules.yaml", orders+globbed+absent)
	s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_RULES="+rules)
	s.query = stack.Query(t, s.redis)
	reload := func(text string) {
		t.Helper()
		write(t, rules, text)
		s.ingest.Signal(syscall.SIGHUP)
	}
	ready := func(lines ...string) {
		t.Helper()
		want := "ready\n"
		for _, line := range lines {
			want += rules + line + "\n"
		}
		stack.Eventually(t, "what /readyz says", func() (bool, string) {
			status, text := request(http.DefaultClient, http.MethodGet, s.ingest.URL()+"/readyz", "")
			return status == http.StatusOK && text == want, text
		})
	}
	left := ":2: this rule counts nothing: it matches the stream RETURNS_EU, which INGEST_STREAMS=HITS* leaves out: " +
		"add it there, or name the stream in the rule, without a wildcard"
	later := ":3: this rule counts nothing: there is no stream LATER yet"
	ready(left, later)
	for _, line := range []string{left, later} {
		require.Equal(t, 1, strings.Count(s.ingest.Logs(), line), line)
	}
	s.send("orders.new", "{}")
	s.send("returns.new", "{}")
	s.awaitTotal("orders", 1)
	s.createStream("LATER", "later.>")
	s.send("later.new", "{}")
	s.awaitTotal("later", 1)
	ready(left)

	reload(named + absent)
	s.awaitTotal("returns", 1)
	ready()
	eventuallySays(t, s.ingest.URL()+"/metrics", http.StatusOK, "tallyroll_ingest_streams_held 3\n") // no longer ORDERS
	s.send("orders.new", "{}")
	s.send("returns.new", "{}")
	s.awaitTotal("returns", 2)
	reload(named + absent + orders)
	s.awaitTotal("orders", 2)
	s.awaitTotal("new", 0) // what the subject would name
}

// A sender of CloudEvents that asks whether it may deliver gets consent if a delivery with the same token
// would be taken.
func TestWebhookHandshakeConsentsToWhatWouldBeTaken(t *testing.T) {
	t.Parallel()
	nats := stack.NATS(t)
	const text = "tokens:\n- {name: all, sha256: %x, may: [count]}\n- {name: shop, sha256: %x, may: [count], prefixes: [shop.]}\n"
	tokens := file(t, "tokens.yml", fmt.Sprintf(text,
		sha256.Sum256([]byte("hunter1")), sha256.Sum256([]byte("hunter2"))))
	const page, sender, origin = "https://shop.example.com", "eventemitter.example.com", "WebHook-Request-Origin"
	open := stack.Collect(t, nats, "COLLECT_ORIGINS="+page, "COLLECT_BEACON_PREFIX=web.", stack.NoWait)
	closed := stack.Collect(t, nats, "COLLECT_TOKENS_FILE="+tokens, stack.NoWait)
	for _, collect := range []*stack.Service{open, closed} {
		collect.WaitForLog(`"message":"started"`)
	}
	for _, c := range []struct {
		name    string
		collect *stack.Service
		path    string
		headers []string
		status  int
		consent string
	}{
		{"no token needed", open, "/v1/hits", []string{origin, sender, "WebHook-Request-Rate", "120"}, 204, sender},
		{"a callback is not called", open, "/v1/hits", []string{origin, sender, "WebHook-Request-Callback", nats.URL()}, 204, sender},
		{"nobody in particular", open, "/v1/hits", nil, 204, ""},
		{"no name", open, "/v1/hits", []string{origin, "a b"}, 400, ""},
		{"two names", open, "/v1/hits", []string{origin, sender, origin, "b"}, 400, ""},
		{"a browser's preflight", open, "/v1/hits", []string{"Origin", page, "Access-Control-Request-Method", "POST"}, 204, ""},
		{"a path for pages", open, "/v1/beacon", []string{"Origin", page, origin, sender}, 204, ""},
		{"a token", closed, "/v1/hits", []string{origin, sender, "Authorization", "Bearer hunter1"}, 204, sender},
		{"no token", closed, "/v1/hits", []string{origin, sender}, 401, ""},
		{"another token", closed, "/v1/hits", []string{origin, sender, "Authorization", "Bearer hunter3"}, 401, ""},
		{"a token for some keys", closed, "/v1/hits", []string{origin, sender, "Authorization", "Bearer hunter2"}, 403, ""},
	} {
		status, text, h := requestHeader(http.DefaultClient, http.MethodOptions, c.collect.URL()+c.path, "", c.headers...)
		if status != c.status || h.Get("WebHook-Allowed-Origin") != c.consent || (h.Get("WebHook-Allowed-Rate") == "*") != (c.consent != "") {
			t.Errorf("%s: status %d, want %d; %v %s", c.name, status, c.status, h, text)
		}
		if c.path == "/v1/hits" && (h.Get("Allow") != "OPTIONS, POST" || h.Get("Access-Control-Allow-Origin") != "") {
			t.Errorf("%s: %v", c.name, h)
		}
	}
}

// Hits of different callers share messages. What a stranger sends decides nothing about the others' hits,
// which were acknowledged: not with a word that events have, and not with so many hits that the message would
// make too many.
func TestAStrangerSpoilsNoHitOfOthers(t *testing.T) {
	t.Parallel()
	const origin, callers, each = "https://shop.example.com", 8, 20
	many := "[" + strings.Repeat(`{"key":"many"},`, 5999) + `{"key":"many"}]`
	for name, rule := range map[string]string{
		"a rule for events":        "- {stream: HITS, subject: hits.shared, format: cloudevents, count: [{key: '{type}'}]}\n",
		"a rule with two counters": "- {stream: HITS, subject: hits.shared, count: [{key: '{key}'}, {key: all}]}\n",
	} {
		s := start(t, "INGEST_RULES="+file(t, "rules.yaml", rule))
		collect := stack.Collect(t, s.nats, "COLLECT_SUBJECT=hits.shared", "COLLECT_ORIGINS="+origin, "COLLECT_BEACON_PREFIX=web.")
		var stop atomic.Bool
		var stranger, others sync.WaitGroup
		stranger.Go(func() {
			for !stop.Load() {
				const hits = `[{"key":"specversion"},{"key":"{\"specversion\":\"1.0\"}"}]`
				status, text := request(http.DefaultClient, http.MethodPost, collect.URL()+"/v1/beacon", hits, "Origin", origin)
				if more, moreText := post(collect, many); status != http.StatusNoContent || more != http.StatusAccepted {
					t.Errorf("%s: a beacon: %d %s; many hits: %d %s", name, status, text, more, moreText)
					return
				}
			}
		})
		for caller := range callers {
			others.Go(func() {
				for range each {
					if status, text := post(collect, fmt.Sprintf(`{"key":"caller-%d"}`, caller)); status != http.StatusAccepted {
						t.Errorf("%s: a hit: %d %s", name, status, text)
					}
				}
			})
		}
		others.Wait()
		stop.Store(true)
		stranger.Wait()
		for caller := range callers {
			s.awaitTotal(fmt.Sprintf("caller-%d", caller), each)
		}
		require.Zero(t, s.countRejects(), name)
	}
}
