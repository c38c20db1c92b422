package limit

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// gate is a hook that holds scripts up, and counts those that were sent alone, and shared trips.
type gate struct {
	alone, trips, shared atomic.Int64

	mu   sync.Mutex
	hold func(cmds []redis.Cmder) <-chan struct{} // nil, or a channel that lets them pass
}

func (g *gate) wait(ctx context.Context, cmds []redis.Cmder) error {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold == nil {
		return nil
	}
	select {
	case <-hold(cmds):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) set(hold func(cmds []redis.Cmder) <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = hold
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			g.alone.Add(1)
			if err := g.wait(ctx, []redis.Cmder{cmd}); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			g.trips.Add(1)
			g.shared.Add(int64(len(cmds)))
			if err := g.wait(ctx, cmds); err != nil {
				for _, cmd := range cmds {
					cmd.SetErr(err)
				}
				return err
			}
		}
		return next(ctx, cmds)
	}
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

// gated is a limiter behind a gate.
func gated(t *testing.T, namespace string) (*Limiter, *gate, *redis.Client) {
	t.Helper()
	client := redis.NewClient(stack.Redis(t).Client().Options())
	g := new(gate)
	client.AddHook(g)
	t.Cleanup(func() { _ = client.Close() })
	limiter := New(client, namespace, stack.Hung)
	t.Cleanup(limiter.Wait)
	return limiter, g, client
}

// fill has maxTrips takes under way that Redis does not answer before open is called, so that others gather.
func fill(t *testing.T, limiter *Limiter, g *gate, l *Limit) (open func()) {
	t.Helper()
	closed := make(chan struct{})
	g.set(func([]redis.Cmder) <-chan struct{} { return closed })
	before := g.alone.Load()
	var callers sync.WaitGroup
	for i := range maxTrips {
		callers.Go(func() {
			if _, err := limiter.Take(t.Context(), []Take{takeOf(l, fmt.Sprint("first-", i), 1)}); err != nil {
				t.Error(err)
			}
		})
	}
	stack.Eventually(t, "trips to be under way", func() (bool, string) {
		n := g.alone.Load() - before
		return n == maxTrips, fmt.Sprint(n)
	})
	return func() { close(closed); callers.Wait() }
}

// tripsOf returns the trips of the limiter's only node.
func tripsOf(limiter *Limiter) (out *trips) {
	limiter.store.trips.Range(func(_, v any) bool { out = v.(*trips); return false })
	return out
}

// Takes that arrive while two trips are under way go together, with ids and of all policies; a lone one does
// not.
func TestTakesShareTrips(t *testing.T) {
	t.Parallel()
	limiter, g, client := gated(t, "share")
	l := adhoc(t, time.Hour, 1000, Cells)
	mustTake(t, limiter, takeOf(l, "first", 1))
	require.Zero(t, g.trips.Load())
	const clients, rounds = 64, 20
	for _, policy := range Policies() {
		require.NoError(t, client.ScriptFlush(t.Context()).Err()) // some trips find no script
		l := adhoc(t, time.Hour, clients*rounds/2, policy)
		l.Fail = FailClosed
		alone, shared, trips := g.alone.Load(), g.shared.Load(), g.trips.Load()
		var allowed atomic.Int64
		var callers sync.WaitGroup
		for i := range clients {
			callers.Go(func() {
				for round := range rounds {
					take := takeOf(l, "alice", 1)
					if round%2 == 0 {
						take.ID = fmt.Sprint(i, "-", round)
					}
					a, err := limiter.Take(t.Context(), []Take{take})
					if err != nil {
						t.Error(err)
					} else if a.Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		callers.Wait()
		alone, shared, trips = g.alone.Load()-alone, g.shared.Load()-shared, g.trips.Load()-trips
		t.Logf("%s: %d scripts alone, %d in %d trips", policy, alone, shared, trips)
		require.EqualValues(t, clients*rounds/2, allowed.Load(), policy)
		require.Greater(t, shared, 2*trips, policy)
	}
}

// A caller that goes away while its trip is under way takes no other's answer along.
func TestCallersLeaveTheirTrip(t *testing.T) {
	t.Parallel()
	limiter, g, _ := gated(t, "leave")
	l := adhoc(t, time.Hour, 100, Cells)
	mustTake(t, limiter, takeOf(l, "first", 1))
	open := fill(t, limiter, g, l)
	own := tripsOf(limiter)
	errs := make(chan error, 1)
	ask := func(ctx context.Context, key string) {
		_, err := limiter.Take(ctx, []Take{takeOf(l, key, 1)})
		errs <- err
	}
	late, cancelLate := context.WithCancel(t.Context())
	stayed := make(chan error, 1)
	go ask(late, "late")
	go func() {
		_, err := limiter.Take(t.Context(), []Take{takeOf(l, "stays", 1)})
		stayed <- err
	}()
	trips := g.trips.Load()
	stack.Eventually(t, "the trip to depart", func() (bool, string) {
		own.mu.Lock()
		defer own.mu.Unlock()
		return g.trips.Load() > trips && own.next == nil, "it gathers"
	})
	cancelLate()
	require.ErrorIs(t, <-errs, context.Canceled)
	open()
	require.NoError(t, <-stayed)
	require.EqualValues(t, 1, mustTake(t, limiter, takeOf(l, "stays", 0)).Decisions[0].Upper)
}

// A script whose caller is gone before the trip departs is not sent.
func TestTripsLeaveOutWhatNoCallerWaitsFor(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t).Client()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	script := redis.NewScript("return {redis.call('INCR', KEYS[1])}")
	require.NoError(t, script.Load(t.Context(), client).Err())
	scripts := []*sentScript{{ctx: gone, script: script, keys: []string{"n"}}, {ctx: t.Context(), script: script, keys: []string{"n"}}}
	sent := trip{scripts: scripts, deadline: time.Now().Add(stack.Hung), done: make(chan struct{})}
	sent.send(client)
	<-sent.done
	require.Nil(t, scripts[0].reply)
	require.Equal(t, []any{int64(1)}, scripts[1].reply.Val())
}

// A shared trip that is late is one failure, and no evidence about a key. Its keys go alone then, so a slow
// one leaves the others to Redis.
func TestLateTripIsNoEvidence(t *testing.T) {
	t.Parallel()
	limiter, g, _ := gated(t, "late")
	l := adhoc(t, time.Hour, 100, Cells)
	keys := []string{"slow", "a", "b", "c", "d", "e"}
	mustTake(t, limiter, takeOf(l, "first", 1))
	open := fill(t, limiter, g, l)
	hangs := make(chan struct{})
	defer close(hangs)
	passes := make(chan struct{})
	close(passes)
	isSlow := func(cmds []redis.Cmder) bool { return strings.Contains(fmt.Sprint(cmds), ":slow") }
	g.set(func(cmds []redis.Cmder) <-chan struct{} {
		if isSlow(cmds) {
			return hangs
		}
		return passes
	})
	limiter.timeout = after(200 * time.Millisecond)
	take := func(key string) Source {
		a, err := limiter.Take(t.Context(), []Take{takeOf(l, key, 1)})
		if err != nil {
			t.Error(err)
			return ""
		}
		return a.Decisions[0].Source
	}
	own := tripsOf(limiter)
	own.mu.Lock() // so that all gather
	var callers sync.WaitGroup
	for _, key := range keys {
		callers.Go(func() { take(key) })
	}
	own.mu.Unlock()
	callers.Wait()
	require.NotZero(t, g.trips.Load())
	require.LessOrEqual(t, limiter.fallback.breaker.failures.Load(), int64(1), "the takes of one trip")
	open()
	for range 2 * failuresInARow {
		limiter.timeout = after(200 * time.Millisecond)
		require.Equal(t, SourceLocal, take("slow"))
		limiter.timeout = after(stack.Hung)
		for _, key := range keys[1:] {
			require.Equal(t, SourceRedis, take(key))
		}
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	require.Len(t, own.suspects, 1, "the slow key goes alone")
}

// What is much work for Redis goes alone.
func TestWhatIsMuchWorkGoesAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy Policy
		m      mode
		n      int64
		want   bool
	}{
		{Cells, count, 1, true}, {Cells, count, 1_000_000, true}, {Cells, look, 1, true}, {Cells, settle, 1, true}, {Cells, acquire, 100, true},
		{Stream, count, 1000, true}, {Log, count, 10, true}, {Concurrent, count, 1, true},
		{Log, count, 11, false}, {Log, acquire, 100, false}, {Log, settle, 1, false},
		{Cells, count, -1, false}, {Cells, force, 1, false}, {Cells, undo, 1, false},
	} {
		r := request{takes: []Take{{Limit: &Limit{Policy: c.policy}, N: c.n}}}
		require.Equal(t, c.want, isShareable(c.m, &r), "%+v", c)
	}
}

// goneNode is a node that answers no script. (A client would have goroutines.)
type goneNode struct{ redis.UniversalClient }

func (*goneNode) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.ErrClosed)
	return cmd
}

// However many nodes come and go, trips to those are kept that have been used lately, and no others.
func TestTripsToNodesThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.IntRange(1, 50).Draw(rt, "steps")
		waits := rapid.SliceOfN(rapid.IntRange(0, 40), steps, steps).Draw(rt, "waits")
		choices := rapid.SliceOfN(rapid.IntRange(0, 3), steps, steps).Draw(rt, "choices") // 0: a new node; else the last ones
		synctest.Test(t, func(t *testing.T) {
			store, nodes, usedAt := &redisStore{process: &process{}}, []*goneNode{}, map[*goneNode]time.Time{}
			for i, choice := range choices {
				time.Sleep(time.Duration(waits[i]) * time.Second)
				if choice == 0 || choice > len(nodes) {
					choice, nodes = 1, append(nodes, new(goneNode))
				}
				node := nodes[len(nodes)-choice]
				before, known := store.trips.Load(node)
				own := store.tripsTo(node)
				if last := usedAt[node]; known && own != before || !known && !last.IsZero() && time.Since(last) <= idleTrips {
					t.Fatalf("waits %v, choices %v: trips in use were replaced", waits, choices)
				}
				_, err := own.run(&sentScript{ctx: t.Context(), script: redis.NewScript("")}, "a", 1)
				require.ErrorIs(t, err, redis.ErrClosed)
				usedAt[node] = time.Now()
				store.trips.Range(func(kept, _ any) bool {
					if age := time.Since(usedAt[kept.(*goneNode)]); !known && age > idleTrips {
						t.Fatalf("waits %v, choices %v: trips are kept that nothing has used for %v", waits, choices, age)
					}
					return true
				})
			}
		})
	})
}

var tripsPlanted = flag.Bool("trips.planted", false, "plant bugs in trips.go, one at a time: each makes a test of trips fail")

// TestPlantedBugsOfTripsAreFound builds and runs the tests above for each bug (`make planted`).
func TestPlantedBugsOfTripsAreFound(t *testing.T) {
	if !*tripsPlanted {
		t.Skip("make planted plants bugs")
	}
	path, err := filepath.Abs("trips.go")
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, edit := range map[string][2]string{
		"a late trip is evidence about its keys":     {"return &tripError{err, joined}", "return err"},
		"the keys of a late trip share the next one": {"if _, suspect := t.suspects[key]; suspect {", "if false {"},
		"a caller waits for the latest deadline":     {"case <-s.ctx.Done():", "case <-context.Background().Done():"},
		"a trip ends with its first caller":          {"context.WithDeadline(context.Background(), t.deadline)", "context.WithDeadline(t.scripts[0].ctx, t.deadline)"},
		"what no caller waits for is sent":           {"if s.ctx.Err() == nil {", "if true {"},
		"a script that Redis has forgotten fails":    {`case redis.HasErrorPrefix(err, "NOSCRIPT"):`, "case false:"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, 1, strings.Count(string(text), edit[0]), edit[0])
			dir := t.TempDir()
			planted, overlay, binary := filepath.Join(dir, "trips.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "limit.test")
			require.NoError(t, os.WriteFile(planted, []byte(strings.Replace(string(text), edit[0], edit[1], 1)), 0o600))
			list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: planted}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, list, 0o600))
			out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".").CombinedOutput()
			require.NoError(t, err, string(out))
			out, err = exec.Command(binary, "-test.run", "Trip", "-test.timeout", "1m").CombinedOutput()
			require.Error(t, err, "no test has found it:\n%s", out)
		})
	}
}
