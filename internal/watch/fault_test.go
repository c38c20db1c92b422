package watch

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/watch/history"
	"tallyroll/tests/stack"
)

var (
	faultSeed  = flag.Uint64("watch.seed", 0, "seed of TestRandomFaultsLoseAndRepeatNoChange; 0 draws one")
	faultSteps = flag.Int("watch.steps", 0, "faults of TestRandomFaultsLoseAndRepeatNoChange; 0: 20, and 60 in make test-all")
)

// Three processes are killed, held up, and cut off from NATS and Redis at random, while counters cross
// thresholds and targets fail. In the end each target has received every stored change, once per id and in
// order per rule, and each stored state follows the previous one.
func TestRandomFaultsLoseAndRepeatNoChange(t *testing.T) {
	t.Parallel()
	seed := *faultSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-watch.seed=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	broker := stack.NATS(t)
	receivers := map[string]*receiver{"a": {}, "b": {}}
	var text strings.Builder
	const rules = 24
	for i := range rules {
		fmt.Fprintf(&text, "- {name: r%d, key: k%d, window: 1m, %s, for: %dms, to: [a, b]}\n", i, i, []string{"above: 9", "below: 10"}[i%2], []int{0, 100}[i/2%2])
	}
	set := parseRules(t, receivers, text.String())
	c := newCounters(make(map[string]int64))
	var members []*member
	names := 0
	start := func() *member {
		names++
		return startMember(t, broker.URL(), c, set, fmt.Sprintf("m%d", names))
	}
	for range 3 {
		members = append(members, start())
	}
	steps := *faultSteps
	if steps == 0 {
		steps = stack.Rounds(20, 60)
	}
	for range steps {
		c.change(func() {
			for range random.IntN(10) {
				c.totals[fmt.Sprintf("k%d", random.IntN(rules))] = int64(random.IntN(20))
			}
		})
		i := random.IntN(len(members))
		m := members[i]
		switch random.IntN(12) {
		case 0:
			m.kill()
			members[i] = start()
		case 1, 2:
			m.hold()
		case 3, 4, 5:
			for _, m := range members {
				m.release()
			}
		case 6:
			m.cut(false)
		case 7:
			m.connectRedis(false)
		case 8:
			m.connectRedis(true)
		case 9:
			c.change(func() { c.stale = random.IntN(3) == 0 })
		case 10:
			receivers["a"].fail([]string{"", "", "refuse", "lose"}[random.IntN(4)])
		case 11:
			if random.IntN(3) == 0 {
				broker.Stop()
				broker.Start()
			}
		}
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // the pause between faults is one of them
	}
	for _, m := range members {
		m.release()
		m.connectRedis(true)
	}
	receivers["a"].fail("")
	c.change(func() { c.stale = false })
	js := broker.JetStream()
	var stored []*entry
	stack.Eventually(t, "all states to be those of the counters", func() (bool, string) {
		stored = readRecords(t, js)
		last := make(map[string]history.State)
		for _, e := range stored {
			last[e.Rule] = e.State
		}
		for i, r := range set.Rules {
			n := c.totals[r.Key] // which no longer change
			holds := n > 9 == (i%2 == 0)
			if state := last[r.Name]; holds != (state == history.Firing) || !holds && state != history.OK && state != history.Resolved {
				return false, fmt.Sprintf("%s with %d hits is %s", r.Name, n, state)
			}
		}
		return true, ""
	})
	changes := 0
	for _, r := range set.Rules {
		var want []string
		var before Record
		for _, e := range stored {
			if e.Rule != r.Name {
				continue
			}
			require.Equal(t, before.State, e.Previous, "%v %v", r.Name, e.State)
			if e.State == history.Firing && before.State != history.Pending && !before.Open && r.For > 0 {
				t.Errorf("%s fires after %s", r.Name, before.State)
			}
			if !e.Quiet {
				want = append(want, fmt.Sprintf("%s %s %s", r.Name, e.State, e.change().ID()))
			}
			before = e.Record
		}
		changes += len(want)
		for name, receiver := range receivers {
			stack.Eventually(t, "what "+name+" receives of "+r.Name, func() (bool, string) {
				got := receiver.changesOf(r.Name)
				return slices.Equal(got, want), fmt.Sprintf("received %v\nwant %v", got, want)
			})
		}
	}
	a := receivers["a"]
	t.Logf("target a: %d changes, %d again, %d refused; %d processes", len(a.received), a.repeated, a.refused, names)
	require.NotZero(t, changes)
}

func TestProcessThatEvaluatesAndDeliversFillsEveryMetric(t *testing.T) {
	t.Parallel()
	set := parseRules(t, map[string]*receiver{"a": {}}, "- {name: r, key: k, window: 1m, above: 0, to: [a]}\n")
	m := startMember(t, stack.SharedNATS(t).URL(), newCounters(map[string]int64{"k": 1}), set, "m")
	described := make(chan *prometheus.Desc, 1000)
	m.metrics.Registry.Describe(described)
	close(described)
	want := make(map[string]bool)
	for d := range described {
		if name := regexp.MustCompile(`fqName: "(tallyroll_watch_\w+)"`).FindStringSubmatch(d.String()); name != nil {
			want[name[1]] = true
		}
	}
	stack.Eventually(t, "all metrics to have a value", func() (bool, string) {
		missing := maps.Clone(want)
		families, err := m.metrics.Registry.Gather()
		for _, f := range families {
			delete(missing, f.GetName())
		}
		return err == nil && len(want) > 10 && len(missing) == 0, fmt.Sprint(missing, " of ", want, err)
	})
}

// A refused change reveals a rolled-back stream that has as many messages as before, whether or not it has an
// earlier record of the key.
func TestRefusedChangeShowsThatTheStreamWasRolledBack(t *testing.T) {
	t.Parallel()
	for _, records := range []int{2, 0} {
		t.Run(fmt.Sprint(records, " records"), func(t *testing.T) {
			t.Parallel()
			js := stack.SharedNATS(t).JetStream()
			stream, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
			require.NoError(t, err)
			states := newStateStream(js, "tallyroll")
			subject := stateSubject("tallyroll", "r", "k")
			for i := range 3 {
				target, text := subject, `{"rule":"r","key":"k","state":"ok"}`
				if i >= records {
					target, text = history.Subject("tallyroll", fmt.Sprint("delivery.", i)), "{}"
				}
				_, err := js.Publish(t.Context(), target, []byte(text))
				require.NoError(t, err)
			}
			states.apply(subject, []byte(`{"rule":"r","key":"k","state":"firing"}`), 3, time.Now())
			_, conflicts, err := states.publishRecords(t.Context(), []draft{{subject, 3, Record{}}})
			require.NoError(t, err)
			require.Equal(t, 1, conflicts, "refused changes")
			ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
			defer cancel()
			states.created = stream.Created
			require.ErrorIs(t, states.monitor(ctx), errRolledBack)
			require.Contains(t, states.copyStates(), subject, "states to store again")
		})
	}
}

// A refused change is reread from the leader, because a lagging follower's answer would look like a
// roll-back.
func TestRefusedChangeIsRereadFromTheLeader(t *testing.T) {
	t.Parallel()
	js := stack.SharedNATS(t).JetStream()
	_, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
	require.NoError(t, err)
	stream, subject := newStateStream(js, "tallyroll"), stateSubject("tallyroll", "r", "k")
	_, err = js.Publish(t.Context(), subject, []byte(`{"rule":"r","key":"k","state":"ok"}`))
	require.NoError(t, err)
	reads, err := js.Conn().SubscribeSync("$JS.API.STREAM.MSG.GET.WATCH_tallyroll")
	require.NoError(t, err)
	direct, err := js.Conn().SubscribeSync("$JS.API.DIRECT.GET.>")
	require.NoError(t, err)
	_, conflicts, err := stream.publishRecords(t.Context(), []draft{{subject, 7, Record{}}})
	require.NoError(t, err)
	require.Equal(t, 1, conflicts)
	require.Equal(t, history.OK, stream.copyStates()[subject].State)
	require.NoError(t, js.Conn().Flush())
	pending, _, err := direct.Pending()
	require.NoError(t, err)
	require.Zero(t, pending, "reads that any replica may answer")
	_, err = reads.NextMsg(stack.Hung)
	require.NoError(t, err)
}

// If the stream is rolled back again before the lost states are stored, the latest state of each key is
// stored.
func TestSecondRollBackLosesNothingOfTheFirst(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000)
	record := func(key string, state history.State, later time.Duration) *entry {
		return &entry{Record: Record{KeyState: history.KeyState{Rule: "r", Key: key, State: state, At: at.Add(later)}}}
	}
	states := newStateStream(nil, "tallyroll")
	for i, e := range []*entry{record("older here", history.OK, 0), record("newer here", history.Firing, 2), record("only here", history.Firing, 0)} {
		data, err := json.Marshal(e.Record)
		require.NoError(t, err)
		states.apply(stateSubject("tallyroll", "r", e.Key), data, uint64(i+1), at)
	}
	got := map[string]history.State{}
	for _, e := range states.collectLost([]*entry{record("older here", history.Firing, 1), record("newer here", history.OK, 1), record("only before", history.Firing, 0)}) {
		got[e.Key] = e.State
	}
	require.Equal(t, map[string]history.State{"older here": history.Firing, "newer here": history.Firing, "only here": history.Firing, "only before": history.Firing}, got)
}

// The leader may never have read what a rolled-back stream lacks. A process that has read it stores it,
// though it does not lead, and reads first what another process has stored meanwhile.
func TestProcessThatDoesNotLeadStoresWhatOnlyItHasRead(t *testing.T) {
	t.Parallel()
	js := stack.SharedNATS(t).JetStream()
	_, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
	require.NoError(t, err)
	at := time.UnixMilli(1_700_000_000_000)
	record := func(state history.State, later time.Duration, notified ...string) Record {
		return Record{KeyState: history.KeyState{Rule: "r", Key: "k", State: state, At: at.Add(later)}, To: notified, Notified: notified}
	}
	subject := stateSubject("tallyroll", "r", "k")
	stored, err := json.Marshal(record(history.OK, 0))
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), subject, stored)
	require.NoError(t, err)
	stream := newStateStream(js, "tallyroll")
	e := &evaluator{
		stream: stream, ruleSet: &RuleSet{}, process: "p", timeouts: timeouts{lease: time.Hour}, metrics: newMetrics(), log: zerolog.Nop(),
		startedAt: time.Now(), lostStates: []*entry{{Record: record(history.Firing, time.Second, "a")}},
	}
	leads, err := json.Marshal(heartbeat{By: "other"})
	require.NoError(t, err)
	stream.apply(history.Subject("tallyroll", history.HeartbeatKind), leads, 1, time.Now())
	e.tick(t.Context())
	require.NotEmpty(t, e.lostStates, "it had not read the stream's record")
	require.Equal(t, history.OK, stream.copyStates()[subject].State)
	e.tick(t.Context())
	require.Empty(t, e.lostStates)
	require.Equal(t, []history.State{history.OK, history.Firing}, statesOf(readRecords(t, js)))
}

func statesOf(entries []*entry) (out []history.State) {
	for _, e := range entries {
		out = append(out, e.State)
	}
	return out
}

// A target that received a lost change learns how it ended, though the stream has a later record by then.
func TestLostStateIsStoredUnlessItsTargetsKnowMore(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000).UTC()
	record := func(state history.State, seconds int, to ...string) Record {
		r := Record{KeyState: history.KeyState{Rule: "r", State: state, At: at.Add(time.Duration(seconds) * time.Second)}, To: to}
		if !state.IsIdle() {
			r.Notified, r.Open, r.Began = to, state == history.Firing, r.At
		}
		return r
	}
	lost := record(history.Firing, 5, "a", "b")
	for name, test := range map[string]struct {
		known  Record
		needed bool
	}{
		"the stream has none":                  {Record{}, true},
		"an earlier one":                       {record(history.Pending, 4, "a", "b"), true},
		"the same":                             {lost, false},
		"a later one that they have":           {record(history.Firing, 6, "a", "b"), false},
		"they learn of its end":                {record(history.Resolved, 6, "a", "b"), false},
		"it ended, and none of them learnt it": {record(history.OK, 6), true},
		"only one learns of its end":           {record(history.Resolved, 6, "a"), true},
	} {
		restored, needed := lost.restore(&test.known)
		require.Equal(t, test.needed, needed, name)
		if needed && test.known.At.After(lost.At) {
			rule := &Rule{Name: "r", For: time.Minute, To: []string{"a", "b"}}
			ended, changed := restored.advance(Result{Rule: rule, Verdict: DoesNotHold, At: at.UnixMilli() + 7000})
			require.True(t, changed, name)
			require.Equal(t, history.Resolved, ended.State, name)
			require.Equal(t, lost.Notified, ended.To, name)
		}
	}
	pending, needed := record(history.Pending, 5, "a").restore(&Record{KeyState: history.KeyState{State: history.OK, At: at.Add(time.Hour)}})
	require.True(t, needed)
	require.Equal(t, at.Add(time.Hour), pending.Began, "the condition did not hold in between, so that the rule's for restarts")
}

type notifyFunc func()

func (f notifyFunc) notify(context.Context, notification) error {
	f()
	return nil
}

// A process that delivers a change knows it from then on, though it may not have followed the stream so far:
// NATS may lose the change, and its target has it.
func TestAProcessRemembersTheChangeThatItDelivers(t *testing.T) {
	t.Parallel()
	js := stack.SharedNATS(t).JetStream()
	_, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
	defer cancel()
	stream, subject := newStateStream(js, "tallyroll"), stateSubject("tallyroll", "r", "k")
	isKnown := false
	d := &delivery{
		stream: stream, process: "p", target: &Target{Name: "a"}, timeout: stack.Hung, giveUp: time.Hour, metrics: newMetrics(), log: zerolog.Nop(),
		timeouts: timeouts{lease: time.Hour, refusal: time.Hour, silence: time.Hour},
		notifier: notifyFunc(func() {
			_, isKnown = stream.copyStates()[subject]
			cancel()
		}),
	}
	require.NoError(t, d.openProgress(ctx, 0))
	_, err = js.Publish(ctx, subject, []byte(`{"rule":"r","key":"k","state":"firing","to":["a"]}`))
	require.NoError(t, err)
	_ = d.deliver(ctx, stream.readLease("a"))
	require.True(t, isKnown)
}

// awaitStream waits until the client has connected again, and the server has the stream.
func awaitStream(t *testing.T, broker *stack.NATSEmbedded) {
	t.Helper()
	js := broker.JetStream()
	stack.Eventually(t, "the stream", func() (bool, string) {
		_, err := js.Stream(t.Context(), history.StreamName("tallyroll"))
		return err == nil, fmt.Sprint(err)
	})
}

// startWithCopy starts NATS with a stream. save keeps a copy of it, and rollBack returns to that.
func startWithCopy(t *testing.T) (js jetstream.JetStream, save, rollBack func()) {
	t.Helper()
	store, older := t.TempDir(), t.TempDir()
	broker := stack.NATS(t, func(o *server.Options) { o.StoreDir = store })
	js = broker.JetStream()
	_, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
	require.NoError(t, err)
	whileStopped := func(change func() error) {
		broker.Stop()
		require.NoError(t, change())
		broker.Start()
		awaitStream(t, broker)
	}
	save = func() { whileStopped(func() error { return os.CopyFS(older, os.DirFS(store)) }) }
	rollBack = func() {
		whileStopped(func() error { return errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(older))) })
	}
	return js, save, rollBack
}

// In a rolled-back stream, another process may have stored its lease with the sequence that this process
// expects. Its progress must stay: a later one would hide the changes that are delivered again.
func TestALeaseOfTheSameSequenceInAnOlderCopyIsNotReplaced(t *testing.T) {
	t.Parallel()
	js, save, rollBack := startWithCopy(t)
	save()
	before, after := newStateStream(js, "tallyroll"), newStateStream(js, "tallyroll")
	require.NoError(t, before.replaceMessage(t.Context(), "delivery.a", progress{By: "before", Cursor: 9}, 0))
	rollBack()
	require.NoError(t, after.replaceMessage(t.Context(), "delivery.a", progress{By: "after", Cursor: 1}, 0))
	require.Equal(t, before.readLease("a").seq, after.readLease("a").seq)
	require.ErrorIs(t, before.replaceMessage(t.Context(), "delivery.a", progress{By: "before", Cursor: 9}, 1), errConflict)
	_, rolledBack := before.check()
	require.True(t, rolledBack)
	require.NoError(t, after.replaceMessage(t.Context(), "delivery.a", progress{By: "after", Cursor: 2}, 1))
}

// An older copy may have a session's lease, and not the changes that the session has read since. Its progress
// must not cover what is stored in their place.
func TestProgressCoversNothingThatAnOlderCopyLacks(t *testing.T) {
	t.Parallel()
	js, save, rollBack := startWithCopy(t)
	change := func() uint64 {
		ack, err := js.Publish(t.Context(), stateSubject("tallyroll", "r", "k"), []byte("{}"))
		require.NoError(t, err)
		return ack.Sequence
	}
	stream := newStateStream(js, "tallyroll")
	session := &deliverySession{delivery: &delivery{stream: stream, process: "p", target: &Target{Name: "a"}}, queues: make(map[string][]*entry)}
	require.NoError(t, session.storeProgress(t.Context(), "p"))
	save()
	leader, err := stream.openLeader(t.Context())
	require.NoError(t, err)
	m, err := leader.GetMsg(t.Context(), change())
	require.NoError(t, err)
	session.enqueue(m.Subject, &entry{seq: m.Sequence, stored: m.Time})
	rollBack()
	for range 3 { // others store more messages than were lost
		change()
	}
	require.True(t, session.hasReconnected())
	require.ErrorIs(t, session.storeProgress(t.Context(), "p"), errConflict)
}

// A progress that names messages after its own is of a stream that had others there.
func TestProgressIsClampedToItsOwnPosition(t *testing.T) {
	t.Parallel()
	stream := newStateStream(nil, "tallyroll")
	for seq, want := range map[uint64]progress{11: {By: "p", Cursor: 10, Waiting: []uint64{9}}, 15: {By: "p", Cursor: 14, Waiting: []uint64{9, 12}}} {
		data, err := json.Marshal(progress{By: "p", Cursor: 14, Waiting: []uint64{9, 12}})
		require.NoError(t, err)
		stream.apply(history.Subject("tallyroll", "delivery.a"), data, seq, time.Now())
		require.Equal(t, want, stream.readLease("a").progress)
		delete(stream.leases, "a")
	}
}

// The leader's next heartbeat reveals a roll-back even if no change is refused: the older copy lacks the last
// heartbeat, or gives the next one the sequence of a change.
func TestAHeartbeatShowsARollBack(t *testing.T) {
	t.Parallel()
	for lost, sequences := range map[string]struct{ seat, change uint64 }{"a heartbeat and a change": {5, 6}, "only a change": {1, 2}, "all heartbeats": {5, 0}} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			js := stack.NATS(t).JetStream()
			stream, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
			require.NoError(t, err)
			states, first := newStateStream(js, "tallyroll"), "seat"
			if sequences.change == 0 {
				first = "delivery.x"
			}
			_, err = js.Publish(t.Context(), history.Subject("tallyroll", first), []byte("{}"))
			require.NoError(t, err)
			states.apply(history.Subject("tallyroll", "seat"), []byte("{}"), sequences.seat, time.Now())
			if sequences.change > 0 {
				states.apply(stateSubject("tallyroll", "r", "k"), []byte(`{"rule":"r","key":"k","state":"firing"}`), sequences.change, time.Now())
			}
			_ = states.replaceMessage(t.Context(), "seat", heartbeat{}, sequences.seat)
			for range 6 { // the copy has as many messages as the stream had
				_, err = js.Publish(t.Context(), history.Subject("tallyroll", "delivery.y"), []byte("{}"))
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
			defer cancel()
			states.created = stream.Created
			require.ErrorIs(t, states.monitor(ctx), errRolledBack)
		})
	}
}

// NATS returns with an older copy. A target that received a change which the copy lacks receives it again,
// with another id. One that had not received it does, too. Both receive its end.
func TestChangesLostInARollBackOfNATSAreDeliveredAgain(t *testing.T) {
	t.Parallel()
	for name, isNewSession := range map[string]bool{"in a session": false, "between two": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, older := t.TempDir(), t.TempDir()
			broker := stack.NATS(t, func(o *server.Options) { o.StoreDir = store })
			a, b := &receiver{}, &receiver{}
			const rules = "- {name: r, key: k, window: 1m, above: 9, to: [a, b]}\n- {name: still, key: none, window: 1m, below: 1, to: [a, b]}\n"
			set := parseRules(t, map[string]*receiver{"a": a, "b": b}, rules)
			c := newCounters(make(map[string]int64))
			members := []*member{startMember(t, broker.URL(), c, set, "m1"), startMember(t, broker.URL(), c, set, "m2")}
			a.await(t, "still", "firing")
			b.await(t, "still", "firing")
			broker.Stop()
			require.NoError(t, os.CopyFS(older, os.DirFS(store)))
			broker.Start()
			b.fail("refuse")
			c.set("k", 10)
			a.await(t, "r", "firing")
			broker.Stop()
			require.NoError(t, errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(older))))
			c.set("k", 0) // so only the processes remember that it fired
			for _, m := range members {
				if isNewSession {
					m.useRuleSet(set)
				}
			}
			broker.Start()
			b.fail("")
			a.await(t, "r", "firing firing resolved")
			b.await(t, "r", "firing resolved", "firing firing resolved") // an attempt under way may succeed
			a.await(t, "still", "firing")
			b.await(t, "still", "firing")
		})
	}
}
