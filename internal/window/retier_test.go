package window_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

func quiet(string, int) {}

// retiered are tiers that a namespace is changed from and to.
var retiered = []string{
	window.DefaultTiers, "1s/1h,1m/1d,1h/92d", "1m/1h,1h/1d", "15m/1d", "7s/70s,1m/1h,1d/30d", "90s/1h,30m/2d",
	"1m/2h,1h/32d", "1m/1h,1h/32d,1d/5y", "1d/5y", "10s/10m,5m/1d,7h/35d", "1s/1m,1m/1h,15m/1d,6h/32d",
}

var (
	genTiers = rapid.Custom(func(t *rapid.T) window.Tiers { return parsed(t, rapid.SampledFrom(retiered).Draw(t, "tiers")) })
	genCells = rapid.SampledFrom([]int64{window.EpochCells, 24, 5})
)

func parsed(t rapid.TB, text string) window.Tiers {
	tiers, err := window.ParseTiers(text)
	require.NoError(t, err)
	return tiers
}

// truth is a namespace, and every hit that its stream has stored and that was applied.
type truth struct {
	store  *window.Store
	reader *window.Reader
	now    time.Time
	seq    uint64
	hits   []exportHit
	since  int64 // when counting began
	ranges int   // that a check asks for
}

// count applies hits, of which each tier that holds them gets its own.
func (w *truth) count(ctx context.Context, random *rand.Rand, n int) error {
	layout, err := w.store.Layout(ctx)
	if err != nil {
		return err
	}
	batch := window.NewBatch(layout)
	for range n {
		h := exportHit{counter: exportNames[random.IntN(len(exportNames))], n: 1 + random.Int64N(1<<20)}
		h.at = w.now.UnixMilli() - 1 - random.Int64N(layout.Tiers[random.IntN(len(layout.Tiers))].Window.Milliseconds()*5/4)
		h.stored = h.at + random.Int64N(w.now.UnixMilli()-h.at)
		if random.IntN(2) == 0 {
			h.stored = h.at
		}
		if layout.Holds(window.HashCounter([]byte(h.counter)), h.at, h.stored) {
			batch.Add([]byte(h.counter), window.HashCounter([]byte(h.counter)), h.at, h.stored, h.n)
			w.hits = append(w.hits, h)
		}
	}
	w.seq++
	cursor := window.Cursor{Created: w.since * 1e6, Seq: w.seq, Stored: w.now.UnixNano(), AsOf: w.now.UnixMilli()}
	for shard := range layout.Shards {
		writer, err := w.store.OpenWriter(ctx, layout, "HITS", shard)
		if err == nil {
			_, err = writer.Commit(ctx, batch.Shard(shard), cursor)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check compares answers with the truth: none that is called complete may lack a hit, and any lower bound is one. It
// returns how many were complete.
func (w *truth) check(ctx context.Context, random *rand.Rand) (complete int, err error) {
	layout, err := w.reader.Look(ctx)
	if err != nil {
		return 0, err
	}
	now := w.now.UnixMilli()
	for range w.ranges {
		longest := layout.Tiers[random.IntN(len(layout.Tiers))].Window.Milliseconds()
		from := now - 1 - random.Int64N(longest)
		if random.IntN(4) == 0 {
			from = now - longest
		}
		to := window.Now
		if random.IntN(2) == 0 && from < now-1 {
			to = from + 1 + random.Int64N(now-from)
		}
		end := min(to, now)
		sums := make(map[string]int64)
		for _, h := range w.hits {
			if h.at >= from && h.at < end {
				sums[h.counter] += h.n
			}
		}
		var questions []window.Question
		for _, name := range exportNames {
			questions = append(questions, window.Question{Counter: name, Span: window.Between(from, to)})
		}
		got, err := w.reader.Answer(ctx, questions)
		if err != nil {
			return complete, err
		}
		for i, a := range got.Answers {
			want := sums[exportNames[i]]
			if a.Lower > want || a.Complete && (a.Upper < want || a.Total > a.Upper || a.Total < a.Lower) {
				return complete, fmt.Errorf("%s from %d ago to %d ago: %+v, want %d (tiers %s)", exportNames[i], now-from, now-end, a, want, layout.Tiers)
			}
			if a.Complete {
				complete++
			}
		}
		top, err := w.reader.Top(ctx, window.Between(from, to), 3)
		if err != nil {
			return complete, err
		}
		for _, c := range top.Counters {
			delete(sums, c.Counter)
		}
		for name, n := range sums {
			if top.Complete && n > top.Floor {
				return complete, fmt.Errorf("the top %+v lacks %s with %d (tiers %s)", top, name, n, layout.Tiers)
			}
		}
		series, err := w.reader.Series(ctx, []window.SeriesQuestion{{Counter: exportNames[0], Span: window.Between(from, to), Reach: window.WhileHeldIfFitting}})
		if err != nil {
			return complete, err
		}
		s := series[0]
		counts := make([]int64, len(s.Counts))
		for _, h := range w.hits {
			if at := (h.at - s.Range.From) / s.Step.Milliseconds(); h.counter == exportNames[0] && h.at >= s.Range.From && at < int64(len(counts)) {
				counts[at] += h.n
			}
		}
		for i, n := range s.Counts {
			if n > counts[i] || n < counts[i] && i >= s.CompleteFrom() {
				return complete, fmt.Errorf("step %d of %+v: want %d (tiers %s)", i, s, counts[i], layout.Tiers)
			}
		}
	}
	return complete, nil
}

// dump is all of Redis but who has written the cursors: what a change that is abandoned must leave as it was.
func dump(ctx context.Context, client redis.UniversalClient) (map[string]string, error) {
	out := make(map[string]string)
	read := func(ctx context.Context, node *redis.Client) error {
		keys, err := node.Keys(ctx, "*").Result()
		if err != nil {
			return err
		}
		pipe := node.Pipeline()
		show := make(map[string]func() string)
		for _, key := range keys {
			hash, text, members, ttl := pipe.HGetAll(ctx, key), pipe.Get(ctx, key), pipe.ZRange(ctx, key, 0, -1), pipe.ExpireTime(ctx, key)
			show[key] = func() string {
				fields := hash.Val()
				delete(fields, "by")
				return fmt.Sprint(fields, text.Val(), members.Val(), ttl.Val()) // fmt sorts the fields
			}
		}
		_, _ = pipe.Exec(ctx) // each key is of one type only: the commands for the others fail
		for key, text := range show {
			out[key] = text()
		}
		return nil
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		var failed error
		masters := make(chan *redis.Client, 16)
		failed = cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error { masters <- node; return nil })
		close(masters)
		for node := range masters {
			failed = errors.Join(failed, read(ctx, node))
		}
		return out, failed
	}
	return out, read(ctx, client.(*redis.Client))
}

// errInjected is how a run is ended, as a kill would.
var errInjected = errors.New("killed")

// killer ends the process that sends commands after so many of them.
type killer struct {
	left  atomic.Int64
	after atomic.Bool // the command that is its last is run, and its reply lost
}

func (k *killer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k *killer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return k.let(func() error { return next(ctx, cmd) }, cmd)
	}
}

func (k *killer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return k.let(func() error { return next(ctx, cmds) }, cmds...)
	}
}

func (k *killer) let(run func() error, cmds ...redis.Cmder) error {
	left := k.left.Add(-1)
	if left > 0 {
		return run()
	}
	if left == 0 && k.after.Load() {
		_ = run()
	}
	for _, cmd := range cmds {
		cmd.SetErr(errInjected)
	}
	return errInjected
}

const forever = 1 << 60

// regexpNew is what keys are called once the first change of a namespace's tiers is confirmed.
var regexpNew = regexp.MustCompile(`^test:\{\d+\}:(cursor:|erased$|g1:(h|names|top):)`)

// A change of tiers keeps every answer true, at every point at which it may be killed, and after it was abandoned or
// confirmed: what an answer calls complete lacks no hit.
func TestRetierIsExact(t *testing.T) {
	t.Parallel()
	retierIsExact(t, startServer(t), stack.Rounds(25, 100))
}

// TestRetierIsExact on a cluster, whose shards are on several servers.
func TestRetierOnACluster(t *testing.T) {
	t.Parallel()
	retierIsExact(t, startCluster(t), stack.Rounds(2, 10))
}

// retierIsExact checks so many schedules in 100 of rapid's.
func retierIsExact(t *testing.T, b *backend, in100 int) {
	client := b.client
	clock := stack.WatchClock(client)
	kill := new(killer)
	kill.left.Store(forever)
	require.NoError(t, b.eachServer(t.Context(), func(_ context.Context, server *redis.Client) error { server.AddHook(kill); return nil }))
	complete, killed, abandoned, runs := 0, 0, 0, 0
	failed := false
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		if runs++; runs*in100%100 >= in100 && !failed { // rapid repeats what has failed, and makes it smaller
			return
		}
		defer func() { failed = failed || rt.Failed() }()
		require.NoError(rt, b.flushAll(ctx))
		from, to := genTiers.Draw(rt, "from").Cut(genCells.Draw(rt, "cells of a hash")), genTiers.Draw(rt, "to")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		w := &truth{store: window.NewStore(client, "test"), now: time.Now().Add(time.Hour).Truncate(time.Second), ranges: stack.Rounds(10, 30)}
		// now is ahead of Redis, which so lets nothing expire.
		w.since = w.now.AddDate(-20, 0, 0).UnixMilli()
		clock.Hold(&w.now)
		w.reader = window.NewReader(w.store)
		w.reader.Local = func() time.Time { return w.now }
		require.NoError(rt, w.store.EnsureLayout(ctx, window.Layout{Tiers: from, Shards: rapid.IntRange(1, 4).Draw(rt, "shards")}))
		require.NoError(rt, w.store.AddStream(ctx, "HITS"))
		require.NoError(rt, w.count(ctx, random, random.IntN(300)))
		judge := func() {
			n, err := w.check(ctx, random)
			complete += n
			require.NoError(rt, err)
		}
		judge()
		was, err := dump(ctx, client)
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
		same := from.String() == to.String()
		if !same && rapid.Bool().Draw(rt, "abandoned") {
			half, stop := context.WithCancel(ctx)
			left := rapid.IntRange(1, 6).Draw(rt, "steps before")
			_, _, err := w.store.Retier(half, to, func(string, int) {
				if left--; left == 0 {
					stop()
				}
			})
			stop()
			if err != nil { // else it was done by then
				abandoned++
				judge()
				do(func() error { _, _, err := w.store.Retier(ctx, from, quiet); return err })
				judge()
				is, err := dump(ctx, client)
				require.NoError(rt, err)
				if !maps.Equal(was, is) {
					rt.Fatalf("%v\nwas\n%v", is, was)
				}
				require.NoError(rt, w.count(ctx, random, random.IntN(100)))
				judge()
			}
		}
		do(func() error { _, _, err := w.store.Retier(ctx, to, quiet); return err })
		judge()
		if layout, err := w.reader.Look(ctx); err != nil || layout.Tiers.String() != to.String() {
			rt.Fatalf("%v, %v", layout, err)
		}
		if rapid.Bool().Draw(rt, "counts on") {
			require.NoError(rt, w.count(ctx, random, random.IntN(100)))
			judge()
		}
		if !same {
			done := false
			do(func() error {
				_, err := w.store.RetierConfirm(ctx, quiet)
				var nothing *window.RetierError
				if errors.As(err, &nothing) && done {
					return nil // the reply to the last write was lost
				}
				done = true
				return err
			})
			judge()
			for _, key := range stack.Scan(t, client, "test:{*}:*") {
				if !regexpNew.MatchString(key) {
					rt.Fatalf("%s is left", key)
				}
			}
		}
		require.NoError(rt, w.count(ctx, random, random.IntN(100)))
		judge()
	})
	t.Logf("%d complete answers, %d kills, %d changes abandoned", complete, killed, abandoned)
	if complete == 0 || (killed == 0 || abandoned == 0) && in100 >= 25 {
		t.Error("nothing was tested")
	}
}

// A worker that was paused before a change can commit nothing afterwards, also if the change was abandoned. While a change
// is under way, nobody opens the namespace.
func TestRetierFencesWriters(t *testing.T) {
	t.Parallel()
	r := newRig(t, startServer(t))
	ctx, now := t.Context(), time.Now()
	count := func(l window.Layout, w *window.Writer, shard int, seq uint64) error {
		b := window.NewBatch(l)
		b.Add([]byte("a"), window.HashCounter([]byte("a")), now.UnixMilli(), now.UnixMilli(), 1)
		_, err := w.Commit(ctx, b.Shard(shard), cursorAt(seq, now))
		return err
	}
	shard := layout.ShardOf(window.HashCounter([]byte("a")))
	paused := r.writers()[shard]
	require.NoError(t, count(layout, paused, shard, 1))

	target := parsed(t, "1m/1h,1d/5y")
	begin := func() {
		t.Helper()
		half, stop := context.WithCancel(ctx)
		defer stop()
		if _, _, err := r.store.Retier(half, target, func(string, int) { stop() }); err == nil {
			t.Fatal("it was not ended")
		}
		var retiering *window.RetieringError
		if err := r.store.EnsureLayout(ctx, layout); !errors.As(err, &retiering) {
			t.Errorf("a worker meanwhile: %v", err)
		}
		var refused *window.RetierError
		if _, _, err := r.store.Retier(ctx, parsed(t, "1d/5y"), quiet); !errors.As(err, &refused) {
			t.Errorf("a change to still other tiers: %v", err)
		}
		if _, err := r.store.RetierConfirm(ctx, quiet); !errors.As(err, &refused) {
			t.Errorf("confirmed before it is built: %v", err)
		}
	}
	begin()
	if _, changed, err := r.store.Retier(ctx, layout.Tiers, quiet); err != nil || changed {
		t.Fatal(changed, err)
	}
	require.ErrorIs(t, count(layout, paused, shard, 2), window.ErrFenced, "a worker that was paused before an abandoned change")
	paused = r.writers()[shard]
	require.NoError(t, count(layout, paused, shard, 2))
	begin()
	if _, _, err := r.store.Retier(ctx, target, quiet); err != nil {
		t.Fatal(err)
	}
	require.ErrorIs(t, count(layout, paused, shard, 3), window.ErrFenced, "a worker that was paused")
	changed, err := r.store.Layout(ctx)
	require.NoError(t, err)
	next, err := r.store.OpenWriter(ctx, changed, "HITS", shard)
	require.NoError(t, err)
	require.NoError(t, count(changed, next, shard, 3))
	require.EqualValues(t, 3, r.total("a", time.Hour, now.Add(time.Second)).Upper)
}

// Whatever command of an erasure a change of tiers comes before: what is erased stays erased in the new tiers, or the
// erasure is refused and nothing is erased.
func TestErasuresBesideAChangeOfTiers(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	client, meets := stack.ProgramClient(t, server.URL()), new(interrupts)
	meets.left.Store(-1)
	client.AddHook(meets)
	ctx, to := t.Context(), parsed(t, "2m/2h,30m/1d,1h/32d")
	outcomes := make(map[bool]int) // by whether it is erased
	for before, met := 0, true; met; before++ {
		require.NoError(t, server.Client().FlushAll(ctx).Err())
		store, erasing := window.NewStore(stack.ProgramClient(t, server.URL()), "test"), window.NewStore(client, "test")
		require.NoError(t, store.EnsureLayout(ctx, layout))
		require.NoError(t, store.AddStream(ctx, "HITS"))
		now := time.Now()
		batch, shard := batchOf("a", now.UnixMilli(), 7)
		for i := range layout.Shards {
			writer, err := store.OpenWriter(ctx, layout, "HITS", i)
			require.NoError(t, err)
			require.NoError(t, errOf(writer.Commit(ctx, batch.Shard(i), cursorAt(1, now))))
		}
		met = false
		meets.arm(before, func() {
			met = true
			_, _, err := store.Retier(ctx, to, quiet)
			require.NoError(t, err)
		})
		_, err := window.NewReader(erasing).Erase(ctx, []string{"a"})
		meets.left.Store(-1)
		if err != nil && !errors.Is(err, window.ErrEraseRetier) {
			t.Fatalf("before command %d: %v", before, err)
		}
		want := int64(0)
		if err != nil {
			want = 7
		}
		outcomes[err == nil]++
		reader := window.NewReader(store)
		for _, length := range []time.Duration{time.Hour, 24 * time.Hour, 32 * 24 * time.Hour} {
			got, err := reader.Answer(ctx, []window.Question{{Counter: "a", Span: window.Last(length)}})
			if err != nil || got.Answers[0].Upper != want {
				t.Fatalf("before command %d of shard %d: %+v, %v; want %d in %v", before, shard, got, err, want, length)
			}
		}
		if !met {
			break // the erasure has no more commands
		}
		require.ErrorIs(t, errOf(reader.Erase(ctx, []string{"a"})), window.ErrEraseRetier, "before the change is confirmed")
		require.NoError(t, errOf(store.RetierConfirm(ctx, quiet)))
		require.NoError(t, errOf(window.NewReader(store).Erase(ctx, []string{"a"})))
	}
	if outcomes[false] < 3 || outcomes[true] < 1 {
		t.Errorf("%d erasures were refused, %d not", outcomes[false], outcomes[true])
	}
}

// Unique cells are not of the tiers: a change and confirming it leave each as it is, and writers of either tiers
// raise registers in the same ones.
func TestRetierKeepsUniqueCells(t *testing.T) {
	t.Parallel()
	r := newRig(t, startServer(t))
	ctx, now := t.Context(), time.Now()
	hash := window.HashCounter([]byte("a"))
	shard := layout.ShardOf(hash)
	visitors := 0
	count := func(seq uint64, n int) {
		t.Helper()
		l, err := r.store.Layout(ctx)
		require.NoError(t, err)
		if !slices.Equal(l.UniqueTiers, layout.UniqueTiers) {
			t.Fatalf("the unique tiers are %s, want %s", l.UniqueTiers, layout.UniqueTiers)
		}
		w, err := r.store.OpenWriter(ctx, l, "HITS", shard)
		require.NoError(t, err)
		b := window.NewBatch(l)
		for range n {
			at := now.Add(-time.Duration(visitors%50) * time.Minute).UnixMilli()
			b.AddUnique([]byte("a"), hash, at, at, 1, unique.Of(fmt.Appendf(nil, "visitor %d", visitors)))
			visitors++
		}
		require.NoError(t, errOf(w.Commit(ctx, b.Shard(shard), cursorAt(seq, now))))
	}
	cells := func() map[string]string {
		t.Helper()
		out := map[string]string{}
		for _, key := range stack.Scan(t, r.client, "test:{*}:u:*") {
			out[key] = fmt.Sprint(r.client.Get(ctx, key).Val(), r.client.ExpireTime(ctx, key).Val())
		}
		if len(out) < len(layout.UniqueTiers) {
			t.Fatalf("unique cells are %q", slices.Collect(maps.Keys(out)))
		}
		return out
	}
	keeps := func(what string, step func() error) {
		t.Helper()
		before := cells()
		require.NoErrorf(t, step(), "%s", what)
		if after := cells(); !maps.Equal(before, after) {
			t.Errorf("%s has changed unique cells: %q, and before %q", what, after, before)
		}
	}
	change := func() error {
		_, _, err := r.store.Retier(ctx, parsed(t, "1m/1h,1d/5y"), quiet)
		return err
	}
	count(1, 300)
	keeps("a change", change)
	count(2, 200)
	keeps("confirming", func() error { _, err := r.store.RetierConfirm(ctx, quiet); return err })
	count(3, 50)
	want := new(unique.Sketch)
	for i := range visitors {
		want.Add(unique.Of(fmt.Appendf(nil, "visitor %d", i)))
	}
	have := new(unique.Sketch)
	for _, key := range stack.Scan(t, r.client, "test:{*}:u:1d:*:a") {
		sketch, err := unique.Decode(r.client.Get(ctx, key).Val())
		require.NoError(t, err)
		have.Merge(sketch)
	}
	if !have.Equal(want) {
		t.Errorf("%d registers are set, want %d", have.Len(), want.Len())
	}
}
