package watch

import (
	"context"
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

// The next publish reveals a roll-back though the stream has as many messages as before: it is refused, or
// gets the sequence of a message that was read.
func TestPublishShowsThatTheStreamWasRolledBack(t *testing.T) {
	t.Parallel()
	state, heartbeats := stateSubject("tallyroll", "r", "k"), history.Subject("tallyroll", history.HeartbeatKind)
	const firing = `{"rule":"r","key":"k","state":"firing"}`
	for name, c := range map[string]struct {
		subject string
		seq     uint64 // that was read
		publish func(context.Context, *stateStream) error
	}{
		"a refused change": {state, 3, func(ctx context.Context, s *stateStream) error {
			_, conflicts, err := s.publishRecords(ctx, []draft{{state, 3, Record{}}})
			require.Equal(t, 1, conflicts)
			return err
		}},
		"a change": {heartbeats, 4, func(ctx context.Context, s *stateStream) error {
			_, _, err := s.publishRecords(ctx, []draft{{state, 2, Record{}}})
			return err
		}},
		"a refused heartbeat": {heartbeats, 5, func(ctx context.Context, s *stateStream) error {
			require.ErrorIs(t, s.replaceMessage(ctx, history.HeartbeatKind, heartbeat{}, 5), errConflict)
			return nil
		}},
		"a heartbeat": {state, 4, func(ctx context.Context, s *stateStream) error {
			return s.replaceMessage(ctx, history.HeartbeatKind, heartbeat{}, 3)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := stack.SharedNATS(t).JetStream()
			info, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
			require.NoError(t, err)
			for _, subject := range []string{state, state, heartbeats} {
				_, err := js.Publish(t.Context(), subject, []byte(`{"rule":"r","key":"k","state":"ok"}`))
				require.NoError(t, err)
			}
			stream := newStateStream(js, "tallyroll")
			stream.created = info.Created
			stream.apply(c.subject, []byte(firing), c.seq, time.Now())
			require.NoError(t, c.publish(t.Context(), stream))
			for range 3 { // others store more than was lost
				_, err := js.Publish(t.Context(), history.Subject("tallyroll", "delivery.x"), []byte("{}"))
				require.NoError(t, err)
			}
			require.ErrorIs(t, stream.replaceMessage(t.Context(), history.HeartbeatKind, heartbeat{}, 0), errRolledBack)
			ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
			defer cancel()
			require.ErrorIs(t, stream.monitor(ctx), errRolledBack)
		})
	}
}

// An older copy may have a session's lease, and not the changes that the session has read since. Its progress
// covers nothing that is stored in their place.
func TestProgressCoversNothingThatAnOlderCopyLacks(t *testing.T) {
	t.Parallel()
	js := stack.SharedNATS(t).JetStream()
	_, err := openStream(t.Context(), js, "tallyroll", Retention{time.Hour, 10, 1})
	require.NoError(t, err)
	stream, other := newStateStream(js, "tallyroll"), newStateStream(js, "tallyroll")
	session := &deliverySession{delivery: &delivery{stream: stream, process: "p", target: &Target{Name: "a"}}, queues: make(map[string][]*entry)}
	require.NoError(t, session.storeProgress(t.Context(), "p"))
	stream.apply(stateSubject("tallyroll", "r", "k"), []byte("{}"), 9, time.Now())
	session.cursor, session.queues["k"] = 9, []*entry{{seq: 1}, {seq: 8}}
	_, err = js.Publish(t.Context(), stateSubject("tallyroll", "r", "k"), []byte("{}")) // by another process, first
	require.NoError(t, err)
	require.NoError(t, session.storeProgress(t.Context(), "p"))
	require.NoError(t, other.reread(t.Context(), history.Subject("tallyroll", "delivery.a")))
	require.Equal(t, progress{By: "p", Cursor: 1, Waiting: []uint64{1}, Replaces: 1}, other.readLease("a").progress)
	require.ErrorIs(t, session.storeProgress(t.Context(), "p"), errRolledBack)
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

// awaitCovered waits until the stream has that these targets were notified of a subject's last change.
func awaitCovered(t *testing.T, js jetstream.JetStream, subject string, targets ...string) {
	t.Helper()
	stream := newStateStream(js, "tallyroll")
	stack.Eventually(t, "the progress to cover "+subject, func() (bool, string) {
		require.NoError(t, stream.reread(t.Context(), subject))
		for _, target := range targets {
			require.NoError(t, stream.reread(t.Context(), history.Subject("tallyroll", "delivery."+target)))
			if l := stream.readLease(target); !l.includes(stream.states[subject].seq) {
				return false, fmt.Sprintf("%s: %+v", target, l.progress)
			}
		}
		return true, ""
	})
}

// NATS returns with an older copy. What fires is delivered again, with another id, to a target that has it
// and to one that was away, and then its end. What the copy has is not delivered again.
func TestAfterARollBackOfNATSWhatFiresIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	store, older := t.TempDir(), t.TempDir()
	broker := stack.NATS(t, func(o *server.Options) { o.StoreDir = store })
	a, b := &receiver{}, &receiver{}
	const rules = "- {name: r, key: k, window: 1m, above: 9, to: [a, b]}\n- {name: still, key: none, window: 1m, below: 1, to: [a, b]}\n"
	set := parseRules(t, map[string]*receiver{"a": a, "b": b}, rules)
	c := newCounters(make(map[string]int64))
	for _, name := range []string{"m1", "m2"} {
		startMember(t, broker.URL(), c, set, name)
	}
	a.await(t, "still", "firing")
	b.await(t, "still", "firing")
	awaitCovered(t, broker.JetStream(), stateSubject("tallyroll", "still", "none"), "a", "b")
	broker.Stop()
	require.NoError(t, os.CopyFS(older, os.DirFS(store)))
	broker.Start()
	b.fail("refuse")
	c.set("k", 10)
	a.await(t, "r", "firing")
	broker.Stop()
	require.NoError(t, errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(older))))
	broker.Start()
	a.await(t, "r", "firing firing")
	b.fail("")
	b.await(t, "r", "firing", "firing firing") // an attempt under way may succeed
	c.set("k", 0)
	a.await(t, "r", "firing firing resolved")
	b.await(t, "r", "firing resolved", "firing firing resolved")
	a.await(t, "still", "firing")
	b.await(t, "still", "firing")
}
