package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/watch/history"
	"tallyroll/internal/window"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// No error quotes the URL.
func TestAnswerOfAWebhookDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	elsewhere := newWebhooks(t, func(w http.ResponseWriter, _ *http.Request, _ int) {})
	for _, c := range []struct {
		name  string
		code  int
		set   map[string]string
		body  string
		want  string
		after time.Duration
	}{
		{"200", 200, nil, "", "", 0},
		{"204", 204, nil, "", "", 0},
		{"410", 410, map[string]string{"Retry-After": "7"}, "", "410 Gone: the target wants no more of them", 7 * time.Second},
		{"a redirect", 302, map[string]string{"Location": elsewhere.URL}, "", "302 Found: redirects are not followed", 0},
		{"a redirect that keeps the method", 307, map[string]string{"Location": elsewhere.URL}, "", "307 Temporary Redirect: redirects are not followed", 0},
		{"a redirect to no URL", 302, map[string]string{"Location": "http://%zz/T0/hunter2"}, "", "the answer is not HTTP", 0},
		{"seconds", 503, map[string]string{"Retry-After": "7"}, "busy", "503 Service Unavailable", 7 * time.Second},
		{"a date", 429, map[string]string{"Retry-After": now.Add(90 * time.Second).UTC().Format(http.TimeFormat)}, "", "429 Too Many Requests", 90 * time.Second},
		{"a date in the past", 429, map[string]string{"Retry-After": now.Add(-time.Hour).UTC().Format(http.TimeFormat)}, "", "429 Too Many Requests", 0},
		{"neither", 500, map[string]string{"Retry-After": "soon"}, "", "500 Internal Server Error", 0},
		{"the path in the answer", 404, nil, "nothing at /T0/hunter2", "404 Not Found", 0},
		{"the path in the answer, cut", 404, nil, strings.Repeat("x", 190) + "/T0/hunter2", "404 Not Found", 0},
		{"the query in the answer, in HTML", 404, nil, "no token=hunter3&amp;b=1", "404 Not Found", 0},
	} {
		a := newWebhooks(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			for key, value := range c.set {
				w.Header().Set(key, value)
			}
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.body)
		})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.URL+"/T0/hunter2?token=hunter3&b=1", strings.NewReader("{}"))
		require.NoError(t, err)
		err = sendRequest(newClient(), r, now)
		got := ""
		if err != nil {
			got = err.Error()
		}
		var status *statusError
		if answered := errors.As(err, &status); got != c.want || answered && status.retryAfter != c.after {
			t.Errorf("%s: %q, %+v; want %q, %v", c.name, got, status, c.want, c.after)
		}
	}
	elsewhere.await(t)
	closed := httptest.NewServer(nil)
	closed.Close()
	invalid := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			fmt.Fprintf(conn, "%s is no status line\r\n\r\n", r.URL)
			_ = conn.Close()
		}
	}))
	t.Cleanup(invalid.Close)
	for _, address := range []string{closed.URL, invalid.URL} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/T0/hunter2", nil)
		require.NoError(t, err)
		if err := sendRequest(newClient(), r, now); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("no answer: %v", err)
		}
	}
}

func TestTargetThatAnswers410ReceivesOnlyTheNextChange(t *testing.T) {
	t.Parallel()
	gone := newWebhooks(t, func(w http.ResponseWriter, _ *http.Request, attempt int) {
		if attempt == 1 {
			w.WriteHeader(http.StatusGone)
		}
	})
	set := mustParse(t, fmt.Sprintf("targets: {gone: {webhook: %s}}\nrules: [{name: r, key: k, window: 1m, above: 9, to: [gone]}]\n", gone.URL))
	c := newCounters(map[string]int64{"k": 10})
	m := startMember(t, stack.SharedNATS(t).URL(), c, set, "m")
	gone.await(t, "/ firing")
	c.set("k", 0)
	gone.await(t, "/ firing", "/ resolved")
	m.awaitDeliveries(t, "gone", "delivered", 1)
	require.EqualValues(t, 1, m.deliveries("gone", "given_up"))
	require.Zero(t, m.deliveries("gone", "failed"))
}

// No log has the URL.
func TestURLOfAWebhookIsReadFromItsFileForEachAttempt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	a := newWebhooks(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if r.URL.Path == "/hunter2" {
			http.Error(w, "moved from "+r.URL.Path, http.StatusNotFound)
		}
	})
	w := &webhook{urlFile: file, client: newClient()}
	for _, c := range []struct{ text, want string }{
		{"hunter2", "webhook_file " + file + " has no URL: must hold " + urlHint + ", and nothing else"},
		{a.URL + "/hunter2\n" + a.URL + "/b\n", "webhook_file " + file + " has no URL: must hold " + urlHint + ", and nothing else"},
		{a.URL + "/hunter2\n", "404 Not Found"},
		{a.URL + "/b", "<nil>"},
	} {
		write(c.text)
		require.Equal(t, c.want, fmt.Sprint(w.notify(t.Context(), notification{KeyState: history.KeyState{State: history.Firing}})), c.text)
	}
	a.await(t, "/hunter2 firing", "/b firing")
	require.NoError(t, os.Remove(file))
	require.ErrorContains(t, w.notify(t.Context(), notification{}), "webhook_file cannot be read")

	var out apitest.Log
	write(a.URL + "/hunter2")
	set := mustParse(t, fmt.Sprintf("targets: {a: {webhook_file: %s}}\nrules: [{name: r, key: k, window: 1m, above: 9, to: [a]}]\n", file))
	c := newCounters(map[string]int64{"k": 10})
	m := startMember(t, stack.SharedNATS(t).URL(), c, set, "m", func(s *service) { s.log = zerolog.New(&out) })
	stack.Eventually(t, "a line about the failed attempt", func() (bool, string) {
		text := out.String()
		return strings.Contains(text, "404 Not Found"), text
	})
	write(a.URL + "/b")
	m.awaitDeliveries(t, "a", "delivered", 1)
	require.NotContains(t, out.String(), "hunter2")
}

// A rule that is removed while it fires ends, and the targets that were notified receive the end. A target
// that is removed while it is down is dropped with its waiting changes, and delays no other.
func TestRemovedRuleAndTargetEnd(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	a, down := &receiver{}, &receiver{failure: "refuse"}
	c := newCounters(map[string]int64{"k": 10, "l": 10})
	const rules = "- {name: r, key: k, window: 1m, above: 9, to: [a, down]}\n- {name: old, key: l, window: 1m, above: 9, to: [a, down]}\n"
	m := startMember(t, broker.URL(), c, parseRules(t, map[string]*receiver{"a": a, "down": down}, rules), "m")
	a.await(t, "r", "firing")
	a.await(t, "old", "firing")
	m.awaitDeliveries(t, "down", "failed", 2)
	m.useRuleSet(parseRules(t, map[string]*receiver{"a": a}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n"))
	a.await(t, "old", "firing resolved")
	js := broker.JetStream()
	stack.Eventually(t, "the progress of the removed target to end", func() (bool, string) {
		l := newStateStream(js, "tallyroll")
		err := l.reread(t.Context(), history.Subject("tallyroll", "delivery.down"))
		return err == nil && l.readLease("down").Gone, fmt.Sprint(l.readLease("down"), err)
	})
	c.set("k", 0)
	a.await(t, "r", "firing resolved")
	for _, e := range readRecords(t, js) {
		if e.Rule == "old" && e.State == history.Resolved && (!e.Gone || e.Reason == "") {
			t.Errorf("%+v", e.Record)
		}
	}
}

// If an operator deletes the stream, it is recreated: firing rules are notified again, with another id, and
// their end is notified, too.
func TestDeletedStreamIsRecreatedAndFiringRulesAreNotifiedAgain(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	a := &receiver{}
	c := newCounters(map[string]int64{"k": 10})
	set := parseRules(t, map[string]*receiver{"a": a}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n")
	for _, name := range []string{"m1", "m2"} {
		startMember(t, broker.URL(), c, set, name)
	}
	a.await(t, "r", "firing")
	require.NoError(t, broker.JetStream().DeleteStream(t.Context(), history.StreamName("tallyroll")))
	a.await(t, "r", "firing firing")
	c.set("k", 0)
	a.await(t, "r", "firing firing resolved")
}

// The metric of states has the reason of now, though a record keeps the one with which its state began. The
// state itself is unknown throughout.
func TestMetricTellsYoungStatesFromOtherUnknownOnes(t *testing.T) {
	t.Parallel()
	c := newCounters(map[string]int64{"k": 5})
	c.stale, c.young = true, true
	broker := stack.SharedNATS(t)
	set := parseRules(t, map[string]*receiver{"a": {}}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n- {name: s, key: k, window: 1m, below: 9, to: [a]}\n")
	m := startMember(t, broker.URL(), c, set, "m")
	m.awaitStateMetric(t, "unknown 2")
	c.change(func() { c.stale = false })
	m.awaitStateMetric(t, "young 2")
	for _, e := range readRecords(t, broker.JetStream()) {
		require.True(t, e.State == history.Unknown && e.Reason == reasonStale, "%+v", e.Record)
	}
	c.change(func() { c.stale = true })
	m.awaitStateMetric(t, "unknown 2")
	c.change(func() { c.stale, c.young = false, false })
	m.awaitStateMetric(t, "firing 1, ok 1")
}

// If more keys of a rule are not idle than its share allows, those with most hits have a state, and the rule
// is unknown until there is room. Other rules have their own shares.
func TestRuleWithMoreStatesThanItsShareIsUnknown(t *testing.T) {
	t.Parallel()
	c := newCounters(map[string]int64{"mine.a": 10})
	for i := range 9 {
		c.totals[fmt.Sprintf("shop.%d.cart", i)] = int64(10 + i)
	}
	set := parseRules(t, map[string]*receiver{"a": {}}, `
- {name: shops, prefix: shop., group: 2, window: 1m, above: 9, to: [a]}
- {name: mine, prefix: mine., group: 2, window: 1m, above: 9, to: [a]}
`)
	broker := stack.SharedNATS(t)
	startMember(t, broker.URL(), c, set, "m", func(s *service) { s.settings.MaxStates = 10 })
	js := broker.JetStream()
	awaitStates := func(want string) {
		t.Helper()
		stack.Eventually(t, want, func() (bool, string) {
			last := make(map[string]string)
			for _, e := range readRecords(t, js) {
				last[e.Rule+e.Key] = strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.State, e.Reason))
			}
			got := strings.Join(slices.Sorted(maps.Values(last)), ", ")
			return got == want, got
		})
	}
	awaitStates("mine.a firing, ok, shop.4 firing, shop.5 firing, shop.6 firing, shop.7 firing, shop.8 firing, unknown " + reasonStates)
	c.change(func() {
		for i := 4; i < 9; i++ {
			c.totals[fmt.Sprintf("shop.%d.cart", i)] = 0
		}
		for i := range 9 {
			c.totals[fmt.Sprintf("mine.%d", i)] = 10
		}
	})
	awaitStates("mine.0 firing, mine.1 firing, mine.2 firing, mine.3 firing, mine.a firing, ok, shop.0 firing, shop.1 firing, shop.2 firing, shop.3 firing, " +
		"shop.4 resolved, shop.5 resolved, shop.6 resolved, shop.7 resolved, shop.8 resolved, unknown " + reasonStates)
}

// A change that a target refuses delays only later ones of its rule and key, whatever the status. If the
// status refuses the change itself, it is given up after minutes; the log, a metric and the history report
// that, and the next changes of its key are delivered.
func TestRefusedChangeHoldsUpNoOtherAndIsGivenUp(t *testing.T) {
	t.Parallel()
	const bad = "shop.<script>"
	for code, givesUp := range map[int]bool{http.StatusForbidden: true, http.StatusInternalServerError: false} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var received []string
			refused := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var n history.KeyState
				_ = json.NewDecoder(r.Body).Decode(&n)
				mu.Lock()
				defer mu.Unlock()
				if n.Key == bad {
					refused++
					w.WriteHeader(code)
					return
				}
				// On a busy machine an answer may be too late, and the change is repeated.
				if text := n.Key + " " + string(n.State); !slices.Contains(received, text) {
					received = append(received, text)
				}
			}))
			t.Cleanup(server.Close)
			c := newCounters(map[string]int64{bad + ".a": 10})
			broker := stack.SharedNATS(t)
			set := mustParse(t, fmt.Sprintf("targets: {a: {webhook: %s}}\nrules: [{name: r, prefix: shop., group: 2, window: 1m, above: 9, to: [a]}]\n", server.URL))
			var out apitest.Log
			m := startMember(t, broker.URL(), c, set, "m", func(s *service) {
				s.log, s.timeouts.refusal = zerolog.New(&out), 500*time.Millisecond
			})
			awaitReceived := func(want ...string) {
				t.Helper()
				stack.Eventually(t, fmt.Sprint("changes received: ", want), func() (bool, string) {
					mu.Lock()
					defer mu.Unlock()
					return slices.Equal(received, want) && refused > 0, fmt.Sprint(received)
				})
			}
			awaitReceived()
			var want []string
			for i := range 12 { // with 8 fixed queues, one of these would wait behind it
				key := fmt.Sprintf("shop.%d", i)
				c.set(key+".a", 10)
				want = append(want, key+" firing")
				awaitReceived(want...)
			}
			if m.deliveries("a", "given_up") > 0 && !givesUp {
				t.Error("given up")
			}
			if !givesUp {
				return
			}
			stack.Eventually(t, "the change to be given up", func() (bool, string) {
				text := out.String()
				return m.deliveries("a", "given_up") == 1 && strings.Contains(text, `"error":"403 Forbidden","target":"a"`) &&
					strings.Contains(text, "given up"), text
			})
			var known history.History
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); known.Follow(ctx, broker.JetStream(), "tallyroll") }()
			defer func() { cancel(); <-done }()
			stack.Eventually(t, "the history to have it", func() (bool, string) {
				report := known.Report()
				for _, c := range report.Changes {
					g := report.GivenUp[c.Position]
					if c.Key == bad && len(g) == 1 && g[0].Target == "a" && g[0].Reason == "403 Forbidden" && !g[0].At.IsZero() {
						return len(report.GivenUp) == 1, ""
					}
				}
				return false, fmt.Sprintf("%+v", report)
			})
		})
	}
}

// If an operator deletes all consumers of the stream, a target that is away misses nothing.
func TestDeletedConsumersTakeNothingFromATargetThatIsAway(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	a := &receiver{failure: "refuse"}
	c := newCounters(map[string]int64{"k": 10})
	set := parseRules(t, map[string]*receiver{"a": a}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n")
	m := startMember(t, broker.URL(), c, set, "m")
	m.awaitDeliveries(t, "a", "failed", 2)
	stream, err := broker.JetStream().Stream(t.Context(), history.StreamName("tallyroll"))
	require.NoError(t, err)
	for name := range stream.ConsumerNames(t.Context()).Name() {
		if err := stream.DeleteConsumer(t.Context(), name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
	}
	m.kill()
	startMember(t, broker.URL(), c, set, "next").awaitDeliveries(t, "a", "failed", 2)
	a.fail("")
	c.set("k", 0)
	a.await(t, "r", "firing resolved")
}

func TestProcessThatIsCutOffFromATargetLeavesItToAnother(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	closed := httptest.NewServer(nil)
	closed.Close()
	a := &receiver{}
	const rules = "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n"
	c := newCounters(map[string]int64{"k": 10})
	set := mustParse(t, fmt.Sprintf("targets: {a: {webhook: %s}}\nrules:\n%s", closed.URL, rules))
	startMember(t, broker.URL(), c, set, "cut off").awaitDeliveries(t, "a", "failed", 1)
	startMember(t, broker.URL(), c, parseRules(t, map[string]*receiver{"a": a}, rules), "other")
	a.await(t, "r", "firing")
}

// scriptedTarget gives these answers in turn, and then accepts everything.
type scriptedTarget struct {
	answers []error
	at      []time.Time // of the attempts
}

func (s *scriptedTarget) notify(context.Context, notification) error {
	s.at = append(s.at, time.Now())
	if n := len(s.at); n <= len(s.answers) {
		return s.answers[n-1]
	}
	return nil
}

// A failed change is retried after a pause, and not before the target's Retry-After. A machine whose clock is
// a day ahead of that of NATS gives up nothing, because the age of a change is by NATS's clock.
func TestFailedChangeIsRetriedAfterAPauseOrRetryAfter(t *testing.T) {
	t.Parallel()
	js := stack.SharedNATS(t).JetStream() // only for the state of its connection
	synctest.Test(t, func(t *testing.T) {
		stream := newStateStream(js, "tallyroll")
		stream.serverTime, stream.serverTimeReadAt = time.Now().Add(-24*time.Hour), time.Now()
		s := &scriptedTarget{answers: []error{errNoAnswer, &statusError{code: http.StatusServiceUnavailable, retryAfter: 2 * time.Minute}}}
		d := &delivery{
			stream: stream, target: &Target{Name: "a"}, notifier: s, timeout: time.Second, giveUp: time.Hour, metrics: newMetrics(), log: zerolog.Nop(),
			timeouts: timeouts{lease: time.Hour, retryMin: time.Second, retryMax: time.Second},
		}
		session := &deliverySession{
			delivery: d, firstSlots: make(chan struct{}, 1), retrySlots: make(chan struct{}, 1), queues: map[string][]*entry{"s": {{stored: stream.serverTime}}}, waiting: 1, leaseStoredAt: time.Now(),
		}
		require.NoError(t, session.deliverQueue(t.Context(), "s"))
		require.Zero(t, session.waiting)
		require.Len(t, s.at, 3)
		require.InDelta(t, 0.9, s.at[1].Sub(s.at[0]).Seconds(), 0.1)
		require.Equal(t, 2*time.Minute, s.at[2].Sub(s.at[1]))
	})
}

// Keys that have come and gone are removed after an hour by every process that follows the stream, and no
// others.
func TestIdleKeysAreRemovedAfterAnHour(t *testing.T) {
	t.Parallel()
	stream := newStateStream(nil, "tallyroll")
	at := time.Now().Add(-24 * time.Hour)
	applyRecord := func(key string, r Record) {
		data, err := json.Marshal(r)
		require.NoError(t, err)
		stream.apply(stateSubject("tallyroll", "r", key), data, stream.newestSeq+1, at)
	}
	many := &Rule{Name: "r", Prefix: new(string), Group: 1, To: []string{"a"}}
	fires, _ := Record{}.advance(Result{Rule: many, Key: "k", At: 1000, Verdict: Holds})
	ends, _ := fires.advance(Result{Rule: many, Key: "k", At: 2000, Verdict: DoesNotHold})
	single, _ := Record{}.advance(Result{Rule: &Rule{Name: "r", Key: "s", To: []string{"a"}}, Key: "s", At: 1000, Verdict: DoesNotHold})
	gone := single.finish(3000, "gone")
	applyRecord("fires", fires)
	applyRecord("idle", ends)
	applyRecord("single", single)
	applyRecord("gone", gone)
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{59 * time.Minute, 4}, {62 * time.Minute, 2}} {
		stream.apply(history.Subject("tallyroll", "seat"), []byte("{}"), stream.newestSeq+1, at.Add(c.later))
		require.Len(t, stream.copyStates(), c.want, c.later)
	}
}

// A heartbeat may remove an idle state at any moment, also while that is read again.
func TestIdleStateIsRemovedWhileItIsReread(t *testing.T) {
	t.Parallel()
	stream, now := newStateStream(nil, "tallyroll"), time.Now()
	const rounds = 20_000
	var group sync.WaitGroup
	group.Go(func() {
		for i := range rounds {
			stream.apply(history.Subject("tallyroll", history.HeartbeatKind), []byte("{}"), uint64(i), now.Add(time.Duration(i)*history.SweepInterval))
		}
	})
	for i := range rounds {
		stream.applyReread(stateSubject("tallyroll", "r", "k"), []byte(`{"rule":"r","key":"k","state":"ok","gone":true}`), uint64(i), now.Add(-2*history.IdleRetention))
	}
	group.Wait()
	_, rolledBack := stream.check()
	require.False(t, rolledBack)
}

// alertmanager receives alerts, and keeps when each ends.
type alertmanager struct {
	*httptest.Server
	mu   sync.Mutex
	ends map[string]time.Time // by rule
}

func newAlertmanager(t *testing.T, refuse func([]alert) bool) *alertmanager {
	t.Helper()
	a := &alertmanager{ends: make(map[string]time.Time)}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var alerts []alert
		if json.NewDecoder(r.Body).Decode(&alerts) != nil || refuse(alerts) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, one := range alerts {
			if one.Labels["state"] == "firing" {
				a.ends[one.Labels["rule"]] = one.EndsAt
			}
		}
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *alertmanager) awaitFiring(t *testing.T, rule string, want bool) {
	t.Helper()
	stack.Eventually(t, fmt.Sprint(rule, " to fire: ", want), func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		ends, ok := a.ends[rule]
		return ok && ends.After(time.Now()) == want, fmt.Sprint(a.ends)
	})
}

// Alertmanager receives alerts while the leader does not reach it, and while NATS is away.
func TestEveryProcessPostsToAlertmanager(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	am := newAlertmanager(t, func([]alert) bool { return false })
	closed := httptest.NewServer(nil)
	closed.Close()
	parseFor := func(url string) *RuleSet {
		return mustParse(t, fmt.Sprintf(`
targets: {am: {alertmanager: '%s'}}
rules: [{name: r, key: k, window: 1m, above: 9, to: [am]}, {name: s, key: l, window: 1m, above: 9, to: [am]}]
`, url))
	}
	c := newCounters(map[string]int64{"k": 10})
	startMember(t, broker.URL(), c, parseFor(closed.URL), "cut off").awaitDeliveries(t, "am", "failed", 1)
	startMember(t, broker.URL(), c, parseFor(am.URL), "other")
	am.awaitFiring(t, "r", true)
	broker.Stop()
	c.change(func() { c.totals["k"], c.totals["l"] = 0, 10 })
	am.awaitFiring(t, "s", true)
	am.awaitFiring(t, "r", false)
	broker.Start()
	am.awaitFiring(t, "s", true)
}

// A request that Alertmanager refuses stops no other.
func TestRefusedAlertsStopNoOthers(t *testing.T) {
	t.Parallel()
	am := newAlertmanager(t, func(alerts []alert) bool { return alerts[0].Labels["rule"] == "r0" })
	a := &alertSync{target: &Target{Name: "am", Address: am.URL}, client: newClient(), timeout: time.Minute}
	var alerts []alert
	for i := range 2*maxAlertsPerPost + 1 {
		alerts = append(alerts, alert{Labels: map[string]string{"rule": fmt.Sprint("r", i), "state": "firing"}})
	}
	if err := a.postAlerts(t.Context(), alerts); err == nil || err.Error() != "400 Bad Request" {
		t.Error(err)
	}
	am.mu.Lock()
	defer am.mu.Unlock()
	require.EqualValues(t, maxAlertsPerPost+1, len(am.ends), len(alerts))
}

// Numbers that could not be read are null for targets and for query.
func TestNumbersThatCouldNotBeReadAreNull(t *testing.T) {
	t.Parallel()
	rule := &Rule{Name: "r", Key: "k", Window: window.Last(time.Minute), Condition: Condition{Kind: Above, Threshold: 5}, To: []string{"a"}}
	r, _ := Record{}.advance(unknownResults([]*Rule{rule}, nil, 1_700_000_000_000, reasonNoRedis)[0])
	const want = `{"id":"i","rule":"r","key":"k","state":"unknown","total":null,"lower":null,"upper":null,"window":"1m","condition":"above 5","as_of":null,"at":"2023-11-14T22:13:20Z","reason":"Redis does not answer"}`
	require.Equal(t, want, string(notification{"i", r.KeyState}.body()))
	data, err := json.Marshal(r)
	var again Record
	if err = errors.Join(err, json.Unmarshal(data, &again)); err != nil || again.Total != unknownBound || again.AsOf != nil {
		t.Errorf("%s is read as %+v, %v", data, again, err)
	}
}

// A file of a target that cannot be used is found when the rules are loaded, not when an alert fires.
func TestFilesOfTargetsAreCheckedWithTheRules(t *testing.T) {
	t.Parallel()
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	url := write("https://example.org/hook\n")
	for _, c := range []struct{ target, want string }{
		{"webhook_file: " + url + ", secret_file: " + write(secret+"\n"), ""},
		{"webhook_file: " + url + ", secret_file: " + write(secret+"\n"+"hunter2"), "the secret on line 2 is not whsec_ followed by base64"},
		{"webhook_file: " + url + ", secret_file: " + write(""), "has 0 secrets"},
		{"webhook: https://example.org, secret_file: " + filepath.Join(t.TempDir(), "missing"), "secret_file cannot be read"},
		{"webhook_file: " + filepath.Join(t.TempDir(), "missing"), "webhook_file cannot be read"},
		{"webhook_file: " + write("hunter2"), "has no URL"},
	} {
		text := fmt.Sprintf("targets:\n  ops: {nats: x}\n  a: {%s}\nrules: [{name: r, key: k, window: 1m, above: 9, to: [a]}]\n", c.target)
		_, err := parseWithFiles([]byte(text), nil)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "line 3: a: ")
		require.NotContains(t, err.Error(), "hunter2")
		settings := Settings{File: write(text)}
		require.ErrorContains(t, Run(t.Context(), settings, zerolog.Nop(), nil), c.want)
		require.ErrorContains(t, Try(t.Context(), settings, io.Discard), c.want)
	}
}
