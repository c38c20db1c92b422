package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

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
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
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
		stack.EventuallyTotal(t, s.query.URL(), key, "1h", want)
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
	s.wantLine(s.redrive(), "found 4 rejects, 4 match; sent 2 again in 2 messages in ", "; left 2: 2 bad_key (would be refused again by the same rules")
	s.wantLine(s.redrive("--reason", "bad_key"), "found 2 rejects, 2 match; sent 2 again in 2 messages in ", "; left 0")
	for key, want := range map[string]int64{
		"other.a.sent": 1, "other.b.sent": 1, "refunded": 1, "cents": 47, "orders.web": 2, "orders.web.de": 1, "tenant.acme": 8, "paid": 8,
	} {
		total(key, want)
	}
	s.wantLine(s.redrive(), "found 0 rejects, ")
}

// A rules file is all that it takes to count a stream that a rule names. A rule that counts nothing is told of, in the
// log and by /readyz. A stream that no rule names any more waits, and none of its events is taken for a hit.
func TestRulesSayWhichStreamsAreRead(t *testing.T) {
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.js = s.nats.JetStream()
	for name, subject := range map[string]string{"ORDERS": "orders.>", "RETURNS_EU": "returns.>"} {
		if _, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	const (
		orders  = "- {stream: ORDERS, subject: orders.*, count: [{key: orders}]}\n"
		globbed = "- {stream: RETURNS_*, subject: returns.*, count: [{key: returns}]}\n"
		named   = "- {stream: RETURNS_EU, subject: returns.*, count: [{key: returns}]}\n"
		absent  = "- {stream: LATER, subject: later.*, count: [{key: later}]}\n"
	)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	reload := func(text string) {
		t.Helper()
		write(text)
		s.ingest.Signal(syscall.SIGHUP)
	}
	ready := func(lines ...string) {
		t.Helper()
		want := "ready\n"
		for _, line := range lines {
			want += file + line + "\n"
		}
		stack.Eventually(t, "what /readyz says", func() (bool, string) {
			status, body, err := stack.Do(http.MethodGet, s.ingest.URL()+"/readyz", nil)
			return err == nil && status == http.StatusOK && string(body) == want, fmt.Sprintf("%d %s %v", status, body, err)
		})
	}
	write(orders + globbed + absent)
	s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_RULES="+file)
	s.query = stack.Query(t, s.redis)
	total := func(key string, want int64) {
		t.Helper()
		stack.EventuallyTotal(t, s.query.URL(), key, "24h", want)
	}
	left := ":2: this rule counts nothing: it matches the stream RETURNS_EU, which INGEST_STREAMS=HITS* leaves out: add it there, or name the stream in the rule, without a wildcard"
	later := ":3: this rule counts nothing: there is no stream LATER yet"
	ready(left, later)
	for _, line := range []string{left, later} {
		if n := strings.Count(s.ingest.Logs(), line); n != 1 {
			t.Errorf("the log has %d times %s", n, line)
		}
	}
	s.send("orders.new", `{"country":"de"}`)
	s.send("returns.new", `{"country":"de"}`)
	total("orders", 1)
	if _, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATER", Subjects: []string{"later.>"}}); err != nil {
		t.Fatal(err)
	}
	s.send("later.new", `{"country":"de"}`)
	total("later", 1)
	ready(left)

	reload(named + absent)
	total("returns", 1)
	ready()
	stack.Eventually(t, "ORDERS to be let go", func() (bool, string) {
		answer, body, err := stack.Do(http.MethodGet, s.ingest.URL()+"/metrics", nil)
		return err == nil && strings.Contains(string(body), "tallyroll_ingest_streams_held 3\n"), fmt.Sprint(answer, err)
	})
	s.send("orders.new", `{"country":"de"}`)
	s.send("returns.new", `{"country":"de"}`)
	total("returns", 2)
	reload(named + absent + orders)
	total("orders", 2)
	total("new", 0) // what the subject would name
}

// A sender of CloudEvents that asks whether it may deliver is told so if a delivery with the same token would be taken.
func TestWebhookHandshake(t *testing.T) {
	t.Parallel()
	nats := stack.NATS(t)
	file := filepath.Join(t.TempDir(), "tokens.yml")
	write(t, file, fmt.Sprintf("tokens:\n- {name: all, sha256: %x, may: [count]}\n- {name: shop, sha256: %x, may: [count], prefixes: [shop.]}\n",
		sha256.Sum256([]byte("hunter1")), sha256.Sum256([]byte("hunter2"))))
	pages := []string{"COLLECT_ORIGINS=https://shop.example.com", "COLLECT_BEACON_PREFIX=web."}
	open := stack.Collect(t, nats, append(pages, stack.NoWait)...)
	closed := stack.Collect(t, nats, "COLLECT_TOKENS_FILE="+file, stack.NoWait)
	for _, collect := range []*stack.Service{open, closed} {
		collect.WaitForLog(`"message":"started"`)
	}
	const sender = "eventemitter.example.com"
	for _, c := range []struct {
		name    string
		collect *stack.Service
		path    string
		headers []string
		status  int
		consent bool
	}{
		{"no token needed", open, "/v1/hits", []string{"WebHook-Request-Origin", sender, "WebHook-Request-Rate", "120"}, 204, true},
		{"a callback is not called", open, "/v1/hits", []string{"WebHook-Request-Origin", sender, "WebHook-Request-Callback", nats.URL()}, 204, true},
		{"nobody in particular", open, "/v1/hits", nil, 204, false},
		{"no name", open, "/v1/hits", []string{"WebHook-Request-Origin", "a b"}, 400, false},
		{"two names", open, "/v1/hits", []string{"WebHook-Request-Origin", sender, "WebHook-Request-Origin", "b"}, 400, false},
		{"a browser's preflight", open, "/v1/hits", []string{"Origin", "https://shop.example.com", "Access-Control-Request-Method", "POST"}, 204, false},
		{"a path for pages", open, "/v1/beacon", []string{"Origin", "https://shop.example.com", "WebHook-Request-Origin", sender}, 204, false},
		{"a token", closed, "/v1/hits", []string{"WebHook-Request-Origin", sender, "Authorization", "Bearer hunter1"}, 204, true},
		{"no token", closed, "/v1/hits", []string{"WebHook-Request-Origin", sender}, 401, false},
		{"another token", closed, "/v1/hits", []string{"WebHook-Request-Origin", sender, "Authorization", "Bearer hunter3"}, 401, false},
		{"a token for some keys", closed, "/v1/hits", []string{"WebHook-Request-Origin", sender, "Authorization", "Bearer hunter2"}, 403, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, c.collect.URL()+c.path, nil)
			require.NoError(t, err)
			for i := 0; i < len(c.headers); i += 2 {
				req.Header.Add(c.headers[i], c.headers[i+1])
			}
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			resp.Body.Close()
			origin, rate := "", ""
			if c.consent {
				origin, rate = sender, "*"
			}
			h := resp.Header
			if resp.StatusCode != c.status || h.Get("WebHook-Allowed-Origin") != origin || h.Get("WebHook-Allowed-Rate") != rate {
				t.Errorf("status %d, want %d; %v", resp.StatusCode, c.status, h)
			}
			if c.path == "/v1/hits" && (h.Get("Allow") != "OPTIONS, POST" || h.Get("Access-Control-Allow-Origin") != "") {
				t.Errorf("%v", h)
			}
		})
	}
}

// Hits of different callers share messages. What a stranger sends decides nothing about the others' hits, which were
// acknowledged: not with a word that events have, and not with so many hits that the message would make too many.
func TestAStrangerSpoilsNoHitOfOthers(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"a rule for events":        "{stream: HITS, subject: hits.shared, format: cloudevents, count: [{key: '{type}'}]}",
		"a rule with two counters": "{stream: HITS, subject: hits.shared, count: [{key: '{key}'}, {key: all}]}",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "rules.yaml")
			require.NoError(t, os.WriteFile(file, []byte("- "+rule+"\n"), 0o600))
			s := start(t, "INGEST_RULES="+file)
			const origin = "https://shop.example.com"
			collect := stack.Collect(t, s.nats, "COLLECT_SUBJECT=hits.shared", "COLLECT_ORIGINS="+origin, "COLLECT_BEACON_PREFIX=web.")
			const callers, each = 8, 50
			stop := make(chan struct{})
			var stranger, others sync.WaitGroup
			stranger.Go(func() {
				many := []byte("[" + strings.Repeat(`{"key":"many"},`, 5999) + `{"key":"many"}]`)
				for {
					select {
					case <-stop:
						return
					default:
					}
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, collect.URL()+"/v1/beacon", strings.NewReader(`[{"key":"specversion"},{"key":"{\"specversion\":\"1.0\"}"}]`))
					req.Header.Set("Origin", origin)
					if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusNoContent {
						t.Errorf("a beacon: %v %v", resp, err)
						return
					}
					if status, detail := posted(t, collect, many); status != http.StatusAccepted {
						t.Errorf("many hits: %d %s", status, detail)
						return
					}
				}
			})
			for caller := range callers {
				others.Go(func() {
					body := fmt.Appendf(nil, `{"key":"caller-%d"}`, caller)
					for range each {
						if status, detail := posted(t, collect, body); status != http.StatusAccepted {
							t.Errorf("a hit: %d %s", status, detail)
						}
					}
				})
			}
			others.Wait()
			close(stop)
			stranger.Wait()
			for caller := range callers {
				stack.EventuallyTotal(t, s.query.URL(), fmt.Sprintf("caller-%d", caller), "1h", each)
			}
			rejected, err := s.js.Stream(t.Context(), "HITS_REJECTED")
			require.NoError(t, err)
			if n := rejected.CachedInfo().State.Msgs; n > 0 {
				t.Errorf("%d hits were rejected", n)
			}
		})
	}
}
