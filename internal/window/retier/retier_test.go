package retier_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

var layout = windowtest.Layout

func init() { retier.ReplicationTime = 20 * time.Millisecond }

func quiet(string, int) {}

// errInjected is how a run is ended, as a kill would.
var errInjected = errors.New("killed")

// killer ends the process that sends commands after a number of them.
type killer struct {
	left  atomic.Int64
	after atomic.Bool // the command that is its last is run, and its reply lost
}

func (k *killer) send(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
	left := k.left.Add(-1)
	if left > 0 {
		return send(cmds)
	}
	if left == 0 && k.after.Load() {
		_ = send(cmds)
	}
	return windowtest.FailAll(cmds, errInjected)
}

const forever = 1 << 60

// regexpNew is what keys are called once the first change of a namespace's tiers is confirmed.
var regexpNew = regexp.MustCompile(`^test:\{\d+\}:(cursor:|erased$|g1:(h|s|names|top):)`)

// A change of tiers keeps every answer true, at every point at which it may be killed, and after it was
// abandoned or confirmed: what an answer calls complete lacks no hit. If the layout record is lost at any of
// these points, its copy does as well.
func TestRetierIsExact(t *testing.T) {
	t.Parallel()
	retierIsExact(t, windowtest.Server(t), stack.Rounds(25, 100))
}

// TestRetierIsExact on a cluster, whose shards are on several servers.
func TestRetierOnACluster(t *testing.T) {
	t.Parallel()
	retierIsExact(t, windowtest.Cluster(t), stack.Rounds(2, 10))
}

// retierIsExact checks so many schedules in 100 of rapid's.
func retierIsExact(t *testing.T, b *windowtest.Backend, in100 int) {
	kill := new(killer)
	kill.left.Store(forever)
	b.AddHook(t, kill.send)
	complete, killed, abandoned, runs := 0, 0, 0, 0
	failed := false
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		if runs++; runs*in100%100 >= in100 && !failed { // rapid repeats what has failed, and makes it smaller
			return
		}
		defer func() { failed = failed || rt.Failed() }()
		from, to := windowtest.GenLayout.Draw(rt, "from"), windowtest.GenTiers.Draw(rt, "to")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		// now is ahead of Redis, which so lets nothing expire.
		w := windowtest.NewTruth(rt, b, from, time.Now().Add(time.Hour).Truncate(time.Second))
		require.NoError(rt, w.Count(ctx, random, random.IntN(300)))
		judge := func() {
			if rapid.Bool().Draw(rt, "record lost") {
				require.NoError(rt, b.Client.Del(ctx, "test:layout").Err())
				require.NoError(rt, w.Store.RestoreLayout(ctx))
			}
			n, err := w.Check(ctx, random, stack.Rounds(10, 30))
			complete += n
			require.NoError(rt, err)
		}
		judge()
		was, err := dump(ctx, b)
		require.NoError(rt, err)

		// do runs a step until it ends by itself, and checks answers after each kill.
		do := func(step func() error) {
			for kills := rapid.IntRange(0, 2).Draw(rt, "kills"); ; kills-- {
				if kills > 0 {
					kill.after.Store(rapid.Bool().Draw(rt, "reply lost"))
					kill.left.Store(int64(rapid.IntRange(1, 120).Draw(rt, "commands")))
				}
				err := step()
				kill.left.Store(forever)
				if err == nil {
					return
				}
				if !errors.Is(err, errInjected) {
					rt.Fatal(err)
				}
				killed++
				judge()
			}
		}
		sameTiers := from.Tiers.String() == to.String()
		same := sameTiers // otherwise rare counters get logs
		if !sameTiers && rapid.Bool().Draw(rt, "abandoned") {
			half, stop := context.WithCancel(ctx)
			left := rapid.IntRange(1, 6).Draw(rt, "steps before")
			_, _, err := retier.Run(half, w.Store, to, func(string, int) {
				if left--; left == 0 {
					stop()
				}
			})
			stop()
			if err != nil { // else it was done by then
				abandoned++
				judge()
				again := false
				do(func() error {
					if again {
						if is, err := dump(ctx, b); err != nil || maps.Equal(was, is) {
							return err // the reply to the last write was lost: once more would begin a change to logs
						}
					}
					again = true
					_, _, err := retier.Run(ctx, w.Store, from.Tiers, quiet)
					return err
				})
				judge()
				is, err := dump(ctx, b)
				require.NoError(rt, err)
				require.Equal(rt, was, is)
				require.NoError(rt, w.Count(ctx, random, random.IntN(100)))
				judge()
			}
		}
		do(func() error { _, _, err := retier.Run(ctx, w.Store, to, quiet); return err })
		judge()
		layout, err := w.Reader.Look(ctx)
		require.NoError(rt, err)
		require.Equal(rt, to.String(), layout.Tiers.String())
		if rapid.Bool().Draw(rt, "counts on") {
			require.NoError(rt, w.Count(ctx, random, random.IntN(100)))
			judge()
		}
		if !same { // else there is nothing to change
			done := false
			do(func() error {
				_, err := retier.Confirm(ctx, w.Store, quiet)
				var nothing *retier.Error
				if errors.As(err, &nothing) && done {
					return nil // the reply to the last write was lost
				}
				done = true
				return err
			})
			judge()
			for _, key := range stack.Scan(t, b.Client, "test:{*}:*") {
				if !regexpNew.MatchString(key) {
					rt.Fatalf("%s is left", key)
				}
			}
		}
		require.NoError(rt, w.Count(ctx, random, random.IntN(100)))
		judge()
	})
	t.Logf("%d complete answers, %d kills, %d changes abandoned", complete, killed, abandoned)
	if complete == 0 || (killed == 0 || abandoned == 0) && in100 >= 25 {
		t.Error("nothing was tested")
	}
}

// A worker that was paused before a change can commit nothing afterwards, also if the change was abandoned.
// While a change is under way, no worker opens the namespace.
func TestRetierFencesWriters(t *testing.T) {
	t.Parallel()
	r := windowtest.NewRig(t, windowtest.Server(t))
	ctx, now, s := t.Context(), time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	target := windowtest.Must(window.ParseTiers("1m/1h,1d/5y"))
	begin := func() {
		t.Helper()
		half, stop := context.WithCancel(ctx)
		defer stop()
		_, _, err := retier.Run(half, r.Store, target, func(string, int) { stop() })
		require.Error(t, err, "it was to be ended")
		var retiering *schema.RetieringError
		require.ErrorAs(t, r.Store.EnsureLayout(ctx, layout), &retiering, "a worker meanwhile")
		var refused *retier.Error
		_, _, err = retier.Run(ctx, r.Store, windowtest.Must(window.ParseTiers("1d/5y")), quiet)
		require.ErrorAs(t, err, &refused, "a change to still other tiers")
		require.ErrorAs(t, windowtest.ErrOf(retier.Confirm(ctx, r.Store, quiet)), &refused, "confirmed before it is built")
	}
	begin()
	_, changed, err := retier.Run(ctx, r.Store, layout.Tiers, quiet)
	require.NoError(t, err)
	require.False(t, changed)
	require.ErrorIs(t, windowtest.ErrOf(s.Try("a", now, 1)), commit.ErrFenced, "a worker that was paused before an abandoned change")
	s = r.Open("HITS")
	s.Commit("a", now, 1)
	begin()
	_, _, err = retier.Run(ctx, r.Store, target, quiet)
	require.NoError(t, err)
	require.ErrorIs(t, windowtest.ErrOf(s.Try("a", now, 1)), commit.ErrFenced, "a worker that was paused")
	next, err := r.Store.Layout(ctx)
	require.NoError(t, err)
	b := window.NewBatch(next)
	windowtest.AddHits(b, "a", now.UnixMilli(), now.UnixMilli(), 1)
	require.NoError(t, windowtest.CommitAll(ctx, r.Store, next, "HITS", b, windowtest.CursorAt(3, now)))
	require.EqualValues(t, 3, r.Total("a", time.Hour, now.Add(time.Second)).Upper)
}

// Whatever command of an erasure a change of tiers comes before: what is erased stays erased in the new
// tiers, or the erasure is refused and nothing is erased.
func TestErasuresDuringAChangeOfTiers(t *testing.T) {
	t.Parallel()
	b := windowtest.Server(t)
	ctx, hook, to := t.Context(), b.AddInterrupts(t), windowtest.Must(window.ParseTiers("2m/2h,30m/1d,1h/32d"))
	outcomes := make(map[bool]int) // by whether it is erased
	for before, met := 0, true; met; before++ {
		r, now := windowtest.NewRig(t, b), time.Now()
		batch := window.NewBatch(layout)
		windowtest.AddHits(batch, "a", now.UnixMilli(), now.UnixMilli(), 7)
		r.Open("HITS").CommitBatch(batch, windowtest.CursorAt(1, now))
		met = false
		hook.Arm(before, func() {
			met = true
			_, _, err := retier.Run(ctx, r.Store, to, quiet)
			require.NoError(t, err)
		})
		err := windowtest.ErrOf(erase.Eraser{Reader: r.Reader}.Erase(ctx, []string{"a"}))
		hook.Disarm()
		outcomes[err == nil]++
		want := int64(0)
		if err != nil {
			require.ErrorIs(t, err, erase.ErrRetiering, "before command %d", before)
			want = 7
		}
		for _, length := range []time.Duration{time.Hour, 24 * time.Hour, 32 * 24 * time.Hour} {
			got := r.Total("a", length, now.Add(time.Second))
			require.Equal(t, want, got.Upper, "before command %d: %+v in %v", before, got, length)
		}
		if met {
			require.ErrorIs(t, windowtest.ErrOf(erase.Eraser{Reader: r.Reader}.Erase(ctx, []string{"a"})), erase.ErrRetiering, "it is not confirmed")
			require.NoError(t, windowtest.ErrOf(retier.Confirm(ctx, r.Store, quiet)))
			r.Erase("a")
		}
	}
	if outcomes[false] < 3 || outcomes[true] < 1 {
		t.Errorf("%d erasures were refused, %d not", outcomes[false], outcomes[true])
	}
}

// Unique cells are not of the tiers: a change and confirming it leave each as it is, and writers of either
// tiers update registers in the same ones.
func TestRetierKeepsUniqueCells(t *testing.T) {
	t.Parallel()
	r := windowtest.NewRig(t, windowtest.Server(t))
	ctx, now, visitors := t.Context(), time.Now(), 0
	count := func(seq uint64, n int) {
		t.Helper()
		l, err := r.Store.Layout(ctx)
		require.NoError(t, err)
		require.Equal(t, layout.UniqueTiers, l.UniqueTiers)
		b := window.NewBatch(l)
		for range n {
			windowtest.AddVisits(b, "a", now.Add(-time.Duration(visitors%50)*time.Minute), visitors, visitors+1)
			visitors++
		}
		require.NoError(t, windowtest.CommitAll(ctx, r.Store, l, "HITS", b, windowtest.CursorAt(seq, now)))
	}
	keep := func(step func() error) {
		t.Helper()
		cells := func() map[string]string {
			out, err := dump(ctx, r.Backend)
			require.NoError(t, err)
			maps.DeleteFunc(out, func(key, _ string) bool { return !strings.Contains(key, ":u:") })
			require.GreaterOrEqual(t, len(out), len(layout.UniqueTiers))
			return out
		}
		before := cells()
		require.NoError(t, step())
		require.Equal(t, before, cells())
	}
	count(1, 300)
	keep(func() error {
		_, _, err := retier.Run(ctx, r.Store, windowtest.Must(window.ParseTiers("1m/1h,1d/5y")), quiet)
		return err
	})
	count(2, 200)
	keep(func() error { return windowtest.ErrOf(retier.Confirm(ctx, r.Store, quiet)) })
	count(3, 50)
	want, have := new(unique.Sketch), new(unique.Sketch)
	for i := range visitors {
		want.Add(windowtest.RegisterOf(i))
	}
	for _, key := range stack.Scan(t, r.Client, "test:{*}:u:1d:*:a") {
		sketch, err := unique.Decode(r.Client.Get(ctx, key).Val())
		require.NoError(t, err)
		have.Merge(sketch)
	}
	require.True(t, have.Equal(want), "%d registers are set, want %d", have.Len(), want.Len())
}

// dump is all of Redis but who has written the cursors: what a change that is abandoned must leave as it was.
func dump(ctx context.Context, b *windowtest.Backend) (map[string]string, error) {
	out := make(map[string]string)
	var mu sync.Mutex
	err := b.EachServer(ctx, func(ctx context.Context, node *redis.Client) error {
		keys, err := node.Keys(ctx, "*").Result()
		if err != nil {
			return err
		}
		pipe := node.Pipeline()
		texts := make(map[string]func() string)
		for _, key := range keys {
			hash, text := pipe.HGetAll(ctx, key), pipe.Get(ctx, key)
			members, expires := pipe.ZRange(ctx, key, 0, -1), pipe.ExpireTime(ctx, key)
			texts[key] = func() string {
				fields := hash.Val()
				delete(fields, "by")
				return fmt.Sprint(fields, text.Val(), members.Val(), expires.Val()) // fmt sorts the fields
			}
		}
		_, _ = pipe.Exec(ctx) // each key is of one type only: the commands for the others fail
		mu.Lock()
		defer mu.Unlock()
		for key, text := range texts {
			out[key] = text()
		}
		return nil
	})
	return out, err
}
