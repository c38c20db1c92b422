package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// A change that a target refuses holds up only later ones of its own rule and key, whatever the answer is. One that is
// refused itself is given up after minutes; the log, a metric and the history say so, and the next ones of its key come.
func TestRefusedChangeHoldsUpNoOtherAndIsGivenUp(t *testing.T) {
	t.Parallel()
	const bad = "shop.<script>"
	for code, gives := range map[int]bool{http.StatusForbidden: true, http.StatusInternalServerError: false} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var heard []string
			refused := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var n Said
				_ = json.NewDecoder(r.Body).Decode(&n)
				mu.Lock()
				defer mu.Unlock()
				if n.Key == bad {
					refused++
					w.WriteHeader(code)
					return
				}
				// A busy machine may let an answer come too late, and then it comes again.
				if text := n.Key + " " + string(n.State); !slices.Contains(heard, text) {
					heard = append(heard, text)
				}
			}))
			t.Cleanup(server.Close)
			c := newCounters(map[string]int64{bad + ".a": 10})
			broker := stack.SharedNATS(t)
			book := mustParse(t, fmt.Sprintf("targets: {a: {webhook: %s}}\nrules: [{name: r, prefix: shop., group: 2, window: 1m, above: 9, to: [a]}]\n", server.URL))
			var out asking.Log
			m := startMember(t, broker.URL(), c, book, "m", func(s *service) {
				s.log, s.patience.refused = zerolog.New(&out), 500*time.Millisecond
			})
			hears := func(want ...string) {
				t.Helper()
				stack.Eventually(t, fmt.Sprint("what is heard: ", want), func() (bool, string) {
					mu.Lock()
					defer mu.Unlock()
					return slices.Equal(heard, want) && refused > 0, fmt.Sprint(heard)
				})
			}
			hears()
			var want []string
			for i := range 12 { // with 8 lanes, one of these would wait behind it
				key := fmt.Sprintf("shop.%d", i)
				c.set(key+".a", 10)
				want = append(want, key+" firing")
				hears(want...)
			}
			if m.deliveries("a", "given_up") > 0 && !gives {
				t.Error("given up")
			}
			if !gives {
				return
			}
			stack.Eventually(t, "the change to be given up", func() (bool, string) {
				text := out.String()
				return m.deliveries("a", "given_up") == 1 && strings.Contains(text, `"error":"403 Forbidden","target":"a"`) &&
					strings.Contains(text, "given up"), text
			})
			var history History
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); history.Follow(ctx, broker.JetStream(), "tallyroll") }()
			defer func() { cancel(); <-done }()
			stack.Eventually(t, "the history to say so", func() (bool, string) {
				found := history.Report()
				for _, c := range found.Changes {
					g := found.GivenUp[c.Position]
					if c.Key == bad && len(g) == 1 && g[0].Target == "a" && g[0].Reason == "403 Forbidden" && !g[0].At.IsZero() {
						return len(found.GivenUp) == 1, ""
					}
				}
				return false, fmt.Sprintf("%+v", found)
			})
		})
	}
}

// An operator who deletes every consumer of the stream takes nothing from a target that is away.
func TestDeletedConsumersTakeNothingFromATargetThatIsAway(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	a := &receiver{failure: "refuse"}
	c := newCounters(map[string]int64{"k": 10})
	book := parseFor(t, map[string]*receiver{"a": a}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n")
	m := startMember(t, broker.URL(), c, book, "m")
	m.awaitDeliveries(t, "a", "failed", 2)
	stream, err := broker.JetStream().Stream(t.Context(), StreamName("tallyroll"))
	require.NoError(t, err)
	for name := range stream.ConsumerNames(t.Context()).Name() {
		if err := stream.DeleteConsumer(t.Context(), name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
	}
	m.kill()
	startMember(t, broker.URL(), c, book, "next").awaitDeliveries(t, "a", "failed", 2)
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
	book := mustParse(t, fmt.Sprintf("targets: {a: {webhook: %s}}\nrules:\n%s", closed.URL, rules))
	startMember(t, broker.URL(), c, book, "cut off").awaitDeliveries(t, "a", "failed", 1)
	startMember(t, broker.URL(), c, parseFor(t, map[string]*receiver{"a": a}, rules), "other")
	a.await(t, "r", "firing")
}

// scriptedTarget answers attempts in turn, and then takes everything.
type scriptedTarget struct {
	answers []error
	at      []time.Time // of the attempts
}

func (s *scriptedTarget) tell(context.Context, notice) error {
	s.at = append(s.at, time.Now())
	if n := len(s.at); n <= len(s.answers) {
		return s.answers[n-1]
	}
	return nil
}

// A target that fails is tried again after a pause, and one that says when, not before. A machine whose clock is a day
// ahead of that of NATS gives nothing up: how old a change is, NATS says.
func TestFailedChangeIsTriedAgainAfterAPauseOrWhenTheTargetSays(t *testing.T) {
	t.Parallel()
	js := stack.SharedNATS(t).JetStream() // for the state of its connection alone
	synctest.Test(t, func(t *testing.T) {
		l := newLog(js, "tallyroll")
		l.clock, l.clockAt = time.Now().Add(-24*time.Hour), time.Now()
		s := &scriptedTarget{answers: []error{errAway, &statusError{code: http.StatusServiceUnavailable, after: 2 * time.Minute}}}
		d := &delivery{
			log: l, target: &Target{Name: "a"}, teller: s, timeout: time.Second, giveUp: time.Hour, metrics: newMetrics(), out: zerolog.Nop(),
			patience: patience{seat: time.Hour, retryFirst: time.Second, retryMost: time.Second},
		}
		ten := &tenure{
			delivery: d, first: make(chan struct{}, 1), further: make(chan struct{}, 1), queues: map[string][]*entry{"s": {{stored: l.clock}}}, waiting: 1, held: time.Now(),
		}
		require.NoError(t, ten.serve(t.Context(), "s"))
		require.Zero(t, ten.waiting)
		require.Len(t, s.at, 3)
		require.InDelta(t, 0.9, s.at[1].Sub(s.at[0]).Seconds(), 0.1)
		require.Equal(t, 2*time.Minute, s.at[2].Sub(s.at[1]))
	})
}

// Keys that have come and gone are forgotten an hour later by whoever follows the stream, and no others.
func TestIdleKeysAreForgottenAfterAnHour(t *testing.T) {
	t.Parallel()
	l := newLog(nil, "tallyroll")
	at := time.Now().Add(-24 * time.Hour)
	put := func(key string, r Record) {
		data, err := json.Marshal(r)
		require.NoError(t, err)
		l.take(subjectOf("tallyroll", "r", key), data, l.newest+1, at)
	}
	many := &Rule{Name: "r", Prefix: new(string), Group: 1, To: []string{"a"}}
	fires, _ := Record{}.next(Sighting{Rule: many, Key: "k", At: 1000, Verdict: Holds})
	ends, _ := fires.next(Sighting{Rule: many, Key: "k", At: 2000, Verdict: HoldsNot})
	single, _ := Record{}.next(Sighting{Rule: &Rule{Name: "r", Key: "s", To: []string{"a"}}, Key: "s", At: 1000, Verdict: HoldsNot})
	gone := single.end(3000, "gone")
	put("fires", fires)
	put("idle", ends)
	put("single", single)
	put("gone", gone)
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{59 * time.Minute, 4}, {62 * time.Minute, 2}} {
		l.take(subjectFor("tallyroll", "seat"), []byte("{}"), l.newest+1, at.Add(c.later))
		require.Len(t, l.snapshot(), c.want, c.later)
	}
}

// alertmanager takes alerts, and keeps when each ends.
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

// Alertmanager hears of what fires while the process that evaluates does not reach it, and while NATS is away.
func TestAlertmanagerHearsOfAlertsFromEveryProcess(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	am := newAlertmanager(t, func([]alert) bool { return false })
	closed := httptest.NewServer(nil)
	closed.Close()
	book := func(url string) *Book {
		return mustParse(t, fmt.Sprintf(`
targets: {am: {alertmanager: '%s'}}
rules: [{name: r, key: k, window: 1m, above: 9, to: [am]}, {name: s, key: l, window: 1m, above: 9, to: [am]}]
`, url))
	}
	c := newCounters(map[string]int64{"k": 10})
	startMember(t, broker.URL(), c, book(closed.URL), "cut off").awaitDeliveries(t, "am", "failed", 1)
	startMember(t, broker.URL(), c, book(am.URL), "other")
	am.awaitFiring(t, "r", true)
	broker.Stop()
	c.change(func() { c.totals["k"], c.totals["l"] = 0, 10 })
	am.awaitFiring(t, "s", true)
	am.awaitFiring(t, "r", false)
	broker.Start()
	am.awaitFiring(t, "s", true)
}

// A request with alerts that Alertmanager refuses stops no other.
func TestRefusedAlertsStopNoOthers(t *testing.T) {
	t.Parallel()
	am := newAlertmanager(t, func(alerts []alert) bool { return alerts[0].Labels["rule"] == "r0" })
	a := &alertSync{target: &Target{Name: "am", Alertmanager: am.URL}, client: newClient(), timeout: time.Minute}
	var alerts []alert
	for i := range 2*postMost + 1 {
		alerts = append(alerts, alert{Labels: map[string]string{"rule": fmt.Sprint("r", i), "state": "firing"}})
	}
	if err := a.post(t.Context(), alerts); err == nil || err.Error() != "400 Bad Request" {
		t.Error(err)
	}
	am.mu.Lock()
	defer am.mu.Unlock()
	require.EqualValues(t, postMost+1, len(am.ends), len(alerts))
}

// What could not be read is null for those who are told, and for query.
func TestNumbersThatCouldNotBeReadAreNull(t *testing.T) {
	t.Parallel()
	rule := &Rule{Name: "r", Key: "k", Window: time.Minute, To: []string{"a"}}
	r, _ := Record{}.next(allUnknown([]*Rule{rule}, nil, 1_700_000_000_000, reasonBlind)[0])
	const want = `{"id":"i","rule":"r","key":"k","state":"unknown","total":null,"lower":null,"upper":null,"window":"1m","as_of":null,"at":"2023-11-14T22:13:20Z","reason":"Redis does not answer"}`
	require.Equal(t, want, string(notice{"i", r.Said}.body()))
	data, err := json.Marshal(r)
	var again Record
	if err = errors.Join(err, json.Unmarshal(data, &again)); err != nil || again.Total != unread || again.AsOf != nil {
		t.Errorf("%s is read as %+v, %v", data, again, err)
	}
}
