package limit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// shadowOf is a limit in shadow mode with these numbers.
func shadowOf(name string, length time.Duration, most int64, policy Policy) *Limit {
	return &Limit{Name: name, Window: length, Max: most, Policy: policy, Fail: FailLocal, Mode: Shadow}
}

// A limiter decides as the model of the limit does, also if hits are given back in several scripts, and a
// shadow and an enforcing limit of the same numbers agree about every take: in one request, and in two. What
// is drawn is as in TestPoliciesAgainstModels: bursts, edges, weights, and clocks that step back.
func TestShadowAgrees(t *testing.T) {
	t.Parallel()
	for _, b := range []backend{backends[0], backends[2]} {
		client := b.start(t)
		worlds, refused, allowed, given := 0, 0, 0, int64(0)
		playSchedules(t, 60, func() bool { return allowed > 0 && refused > 0 && given > 0 }, func(rt *rapid.T) {
			worlds++
			w := newWorld(t, client, fmt.Sprint("shadow-", worlds))
			policy := rapid.SampledFrom(append(rolling(), Concurrent)).Draw(rt, "policy")
			most := rapid.OneOf(rapid.Int64Range(1, 6), rapid.Just(int64(60))).Draw(rt, "max")
			enforcing, shadow, alone := shadowOf("enforcing", time.Minute, most, policy),
				shadowOf("shadow", time.Minute, most, policy), shadowOf("alone", time.Minute, most, policy)
			enforcing.Mode = Enforce
			m, ms, latest := newModel(enforcing, false), int64(0), int64(0)
			if policy == Log {
				m.step = 3 // as heldScripts do
			}
			for i := range rapid.IntRange(1, 40).Draw(rt, "calls") {
				ms += rapid.SampledFrom([]int64{0, 0, 0, 1, 500, 7000, 30_000, 59_999, 60_000, 61_000,
					-2000}).Draw(rt, "ms")
				w.at(ms)
				latest = max(latest, ms)
				n, lease := int64(1), fmt.Sprint("lease-", i)
				if policy != Concurrent {
					n, lease = rapid.OneOf(rapid.Int64Range(0, max(1, most/5)),
						rapid.Int64Range(-most, most)).Draw(rt, "n"), ""
				}
				take := func(l *Limit) Take { return Take{Limit: l, Caller: "alice", Key: "alice", N: n, Lease: lease} }
				together := w.take(take(enforcing), take(shadow))
				single := w.take(take(alone)).Decisions[0]
				one, other := together.Decisions[0], together.Decisions[1]
				if together.Allowed != one.Allowed || !single.Allowed || !other.Allowed || !single.Shadow || one.Shadow {
					rt.Fatalf("call %d: a limit in shadow mode has refused: %+v %+v", i, together, single)
				}
				for _, d := range []Decision{other, single} {
					if policy == Log && n < -m.step && ms < latest {
						// The newest hits set the time of the key while Redis's clock is behind them. Once they are
						// given back, older ones are in the window again, and whether a reply shows that depends on
						// the step that was the last.
						continue
					}
					if d.WouldAllow != one.Allowed || d.Certain != one.Certain || d.Remaining != one.Remaining || d.RetryAfter != one.RetryAfter || d.Lower != one.Lower || d.Upper != one.Upper {
						rt.Fatalf("call %d, n %d, %s: they differ:\n%+v\n%+v", i, n, policy, one, d)
					}
				}
				if policy != Concurrent {
					want := decideByModels([]*model{m}, w.clock, []int64{n}, true, 0)[0]
					given -= min(0, want.counted)
					own := max(0, want.counted)
					want.lower, want.upper = want.lower+own, want.upper+own
					if one.Allowed != want.fits || one.RetryAfter != want.wait || one.Lower != want.lower ||
						one.Upper != want.upper {
						rt.Fatalf("call %d, n %d, %s: %+v, and the model says %+v", i, n, policy, one, want)
					}
				}
				if one.Allowed {
					allowed++
				} else {
					refused++
				}
			}
		})
		t.Logf("%s: %d allowed, %d refused, %d hits given back", b.name, allowed, refused, given)
	}
}

// What limits in shadow mode would have refused is counted even if another limit refuses: from this process's
// memory, too, and one that always does.
func TestWouldRefuseMissesNothing(t *testing.T) {
	t.Parallel()
	client := backends[0].start(t)
	worlds, fromMemory, never := 0, 0, 0
	playSchedules(t, 60, func() bool { return fromMemory > 0 && never > 0 }, func(rt *rapid.T) {
		worlds++
		w := newWorld(t, client, fmt.Sprint("would-refuse-", worlds))
		want, got := make(map[string]int64), make(map[string]int64)
		w.limiter.Counted = func(counters CounterNames, limit, _ string, n int64) {
			if counters[0] == "would_refuse" {
				got[limit] += n
			}
		}
		var limits []*Limit
		for i := range rapid.IntRange(2, 4).Draw(rt, "limits") {
			policy := rapid.SampledFrom(Policies()).Draw(rt, "policy")
			l := shadowOf(fmt.Sprint(i), time.Hour, rapid.SampledFrom([]int64{0, 3, 6, 10}).Draw(rt, "max"), policy)
			l.Count.WouldRefuse[0] = "would_refuse"
			l.Mode = rapid.SampledFrom(Modes).Draw(rt, "mode")
			limits = append(limits, l)
		}
		used, ms := make(map[string]int64), int64(0)
		for range rapid.IntRange(20, 60).Draw(rt, "requests") {
			ms += rapid.SampledFrom([]int64{0, 0, 0, 1, 300, 2000}).Draw(rt, "ms")
			w.at(ms)
			var takes []Take
			n, allowed := rapid.Int64Range(0, 4).Draw(rt, "n"), true
			for _, l := range limits {
				if l.Mode == Enforce && l.Max > 0 && n > l.Max { // is an error
					continue
				}
				if rapid.IntRange(0, 2).Draw(rt, "asked") == 0 {
					continue
				}
				takes = append(takes, takeOf(l, "alice", n))
				fits := n == 0 || used[l.Name]+n <= l.Max
				if !fits && l.Mode == Shadow {
					want[l.Name] += n
				}
				allowed = allowed && (fits || l.Mode == Shadow)
			}
			if takes == nil {
				continue
			}
			a, err := w.limiter.Take(t.Context(), takes)
			require.NoError(rt, err)
			require.Equal(rt, allowed, a.Allowed)
			require.Equal(rt, want, got, "%d hits under %v", n, takes)
			for i := range takes {
				if l := takes[i].Limit; allowed && used[l.Name]+n <= l.Max {
					used[l.Name] += n
				}
			}
			if shadow, _ := a.Shadowed(); shadow && !allowed {
				for i := range a.Decisions {
					switch d := &a.Decisions[i]; {
					case d.Take.Limit.Max == 0 && !d.Allowed:
						never++
					case d.Source == SourceMemory && d.Take.Limit.Max > 0:
						fromMemory++
					}
				}
			}
		}
	})
}

// A limit in shadow mode stands in nobody's way: not in an array, and not on a cluster.
func testShadowRefusesNothing(t *testing.T, fresh func(*testing.T) *world) {
	w := fresh(t)
	few, many := shadowOf("few", time.Minute, 1, Log), adhoc(t, time.Hour, 4, Cells)
	for _, other := range []string{"alice", "bob"} { // on a cluster, on another node
		takes := []Take{takeOf(few, "alice", 1), takeOf(many, other, 1)}
		for i := range 4 {
			a := w.take(takes...)
			if shadow, would := a.Shadowed(); !a.Allowed || !shadow || would != (i == 0 && other == "alice") || a.Decisive().Take != takes[1] {
				t.Fatalf("%s, take %d: %+v", other, i, a)
			}
			if a.Decisions[0].WouldAllow != (i == 0 && other == "alice") || a.Decisions[1].Remaining != int64(3-i) {
				t.Fatalf("%s, take %d: %+v", other, i, a)
			}
		}
		a := w.take(takes...)
		if a.Allowed || !a.Decisions[0].Allowed || a.Decisions[1].Allowed || a.Decisive().Take != takes[1] {
			t.Fatalf("%s: %+v", other, a)
		}
	}
	w.wantRemaining(few, "alice", 0)
	// If one that enforces refuses, nothing is counted under the shadow either.
	w.take(takeOf(few, "carol", 1), takeOf(many, "bob", 1))
	w.wantRemaining(few, "carol", 1)
}

// Nor does it from memory, without Redis, with takes that could never fit, or together with a key that is
// another program's.
func TestShadowRefusesNothingWhateverFails(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, backends[2].start(t), "memory")
		few, many := shadowOf("few", time.Minute, 1, Log), adhoc(t, time.Hour, 4, Cells)
		w.take(takeOf(few, "alice", 1))
		for i, want := range []Source{SourceRedis, SourceMemory, SourceMemory} {
			a, err := w.limiter.Take(t.Context(), []Take{takeOf(few, "alice", 1)})
			if d := a.Decisions[0]; err != nil || !a.Allowed || d.WouldAllow || d.Source != want || d.RetryAfter <= 0 {
				t.Errorf("%d: %+v %v", i, a, err)
			}
		}
		a, err := w.limiter.Take(t.Context(), []Take{takeOf(few, "alice", 1), takeOf(many, "alice", 1)})
		if err != nil || !a.Allowed || len(a.Decisions) != 2 || a.Decisions[1].Remaining != 3 {
			t.Errorf("%+v %v", a, err)
		}
	})
	t.Run("without Redis", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil, "away")
		for _, fail := range Fails {
			l := shadowOf(string(fail), time.Minute, 1, Log)
			l.Fail = fail
			enforcing := adhoc(t, time.Minute, 100, Cells)
			for i := range 3 {
				a := w.take(takeOf(l, "alice", 1), takeOf(enforcing, string(fail), 1))
				would := fail == FailOpen || fail == FailLocal && i == 0
				if d := a.Decisions[0]; !a.Allowed || d.WouldAllow != would || d.Certain || a.Decisions[1].Remaining != int64(99-i) {
					t.Errorf("%s, take %d: %+v", fail, i, a)
				}
			}
		}
	})
	t.Run("never", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, backends[2].start(t), "never")
		few, logged, many := shadowOf("few", time.Minute, 5, Cells), shadowOf("logged", time.Minute, 2000, Log), adhoc(t, time.Hour, 5000, Cells)
		a := w.take(takeOf(few, "alice", 1500), takeOf(many, "alice", 1500), takeOf(logged, "alice", 1500))
		if !a.Allowed || len(a.Decisions) != 3 || a.Decisions[0].WouldAllow || a.Decisions[2].WouldAllow || a.Decisions[1].Remaining != 3500 {
			t.Errorf("%+v", a)
		}
		if a := w.take(takeOf(few, "alice", 6)); !a.Allowed || a.Decisions[0].WouldAllow {
			t.Errorf("%+v", a)
		}
	})
	t.Run("a foreign key", func(t *testing.T) {
		t.Parallel()
		client := backends[0].start(t)
		w := newWorld(t, client, "foreign")
		few, many := shadowOf("few", time.Minute, 5, Cells), adhoc(t, time.Hour, 10, Cells)
		take := takeOf(few, "alice", 1)
		require.NoError(t, client.Set(t.Context(), w.limiter.key(&take), "x", 0).Err())
		a, err := w.limiter.Take(t.Context(), []Take{take, takeOf(many, "alice", 1)})
		if err != nil || !a.Allowed || a.Decisions[0].Certain || a.Decisions[1].Remaining != 9 {
			t.Errorf("%+v %v", a, err)
		}
		a, err = w.limiter.Take(t.Context(), []Take{take})
		if err != nil || !a.Allowed || a.Decisions[0].Source != SourceLocal {
			t.Errorf("%+v %v", a, err)
		}
		enforcing := *few
		enforcing.Mode = Enforce
		var foreign *ForeignError
		if _, err := w.limiter.Take(t.Context(), []Take{takeOf(&enforcing, "alice", 1)}); !errors.As(err, &foreign) {
			t.Error(err)
		}
	})
}

// A share saves round trips, gives back what it has not spent, and ends with a reload, a reset and the
// process.
func TestSharesSaveRoundTrips(t *testing.T) {
	t.Parallel()
	limiter, server := realServer(t)
	l := &Limit{Name: "shared", Window: time.Hour, Max: 10_000, Policy: Cells, Fail: FailLocal, Mode: Enforce, Share: Share{Hits: 100, For: time.Minute}}
	other := New(stack.ProgramClient(t, server.URL()), "real", 5*time.Second)
	plain := *l
	plain.Share = Share{}
	kept := func() int64 { return l.Max - mustTake(t, other, takeOf(&plain, "alice", 0)).Decisions[0].Remaining }

	sent := watchCommands(limiter.store.client)
	bySource := map[Source]int{}
	for range 3000 {
		d := mustTake(t, limiter, takeOf(l, "alice", 1)).Decisions[0]
		bySource[d.Source]++
		if !d.Allowed || !d.Certain {
			t.Fatalf("%+v", d)
		}
	}
	if n := len(sent.scripts()); n > 50 || bySource[SourceShare] < 2900 {
		t.Errorf("3000 takes sent %d scripts: %v", n, bySource)
	}
	held := limiter.Reserved()["shared"]
	if n := kept(); n != 3000+held || held <= 0 || held >= 100 {
		t.Errorf("Redis has %d hits, of which %d are not spent", n, held)
	}
	limiter.Wait() // as at the end of a process
	if n := kept(); n != 3000 || limiter.Reserved()["shared"] != 0 {
		t.Errorf("Redis has %d hits after what was not spent was given back", n)
	}

	mustTake(t, limiter, takeOf(l, "alice", 1)) // a share again
	smaller := *l
	smaller.Max = 3001
	if a := mustTake(t, limiter, takeOf(&smaller, "alice", 1)); a.Decisions[0].Source == SourceShare {
		t.Errorf("a reload has changed max, and a share decides: %+v", a)
	}
	limiter.Wait()
	for range 5 {
		mustTake(t, limiter, takeOf(l, "bob", 1))
	}
	require.NoError(t, limiter.Reset(t.Context(), takeOf(l, "bob", 1)))
	if d := mustTake(t, limiter, takeOf(l, "bob", 1)).Decisions[0]; d.Source != SourceRedis || d.Remaining != l.Max-1 {
		t.Errorf("after a reset: %+v", d)
	}

	short := *l
	short.Name, short.Share.For = "short", time.Second
	for range 4 {
		mustTake(t, limiter, takeOf(&short, "carol", 1))
	}
	stack.Eventually(t, "what is not spent to be given back", func() (bool, string) {
		d := mustTake(t, other, takeOf(&Limit{Name: "short", Window: time.Hour, Max: 10_000, Policy: Cells, Fail: FailLocal}, "carol", 0)).Decisions[0]
		return d.Remaining == 9996 && limiter.Reserved()["short"] == 0, fmt.Sprintf("%+v", d)
	})
}

// Near max there are no shares: Redis decides about each take, so nothing is refused while there is room.
func TestSharesEndNearMax(t *testing.T) {
	t.Parallel()
	limiter, _ := realServer(t)
	for _, policy := range Policies() {
		l := &Limit{Name: "near", Window: time.Hour, Max: 250, Policy: policy, Fail: FailClosed, Mode: Enforce, Share: Share{Hits: 100, For: time.Minute}}
		allowed := 0
		for range 400 {
			if mustTake(t, limiter, takeOf(l, "alice", 1)).Allowed {
				allowed++
			}
		}
		require.EqualValues(t, 250, allowed, policy)
	}
}

// A share ends when its hits are dated, by the time from before the question. What it has left then is not
// spent.
func TestShareEndsByTheTimeBeforeItsQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backends[2].start(t), "ends")
	l := &Limit{Name: "ends", Window: 20 * time.Second, Max: 100, Policy: Log, Fail: FailClosed, Mode: Enforce, Share: Share{Hits: 10, For: time.Second}}
	require.NoError(t, l.Check())
	w.take(takeOf(l, "alice", 1))
	slow := int64(0)
	w.client.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		w.clock += slow // the reply is on the way for so long
		return err
	}))
	slow = 600
	require.Equal(t, SourceRedis, w.take(takeOf(l, "alice", 1)).Decisions[0].Source, "a share of 2")
	slow = 0
	w.clock += 399
	require.Equal(t, SourceShare, w.take(takeOf(l, "alice", 1)).Decisions[0].Source)
	w.clock++
	require.Equal(t, SourceRedis, w.take(takeOf(l, "alice", 1)).Decisions[0].Source)
	w.limiter.Wait()
}

func TestShareIsAtMostATwentiethOfTheWindow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		window, length time.Duration
		problem        string
	}{
		{20 * time.Second, time.Second, ""},
		{time.Hour, time.Minute, ""},
		{time.Minute, 3001 * time.Millisecond, "for 3.001s: must be 1s to 3s, a twentieth of the window and at most 1m"},
		{time.Hour, 2 * time.Minute, "for 2m: must be 1s to 1m, a twentieth of the window and at most 1m"},
		{19 * time.Second, time.Second, "not with a window below 20s: a share lasts 1s or more, and at most a twentieth of the window"},
	} {
		err := (&Limit{Name: "a", Window: c.window, Max: 100, Share: Share{Hits: 10, For: c.length}}).Check()
		if c.problem == "" {
			require.NoError(t, err)
		} else {
			require.Equal(t, &FieldError{"share", c.problem}, err)
		}
	}
}
