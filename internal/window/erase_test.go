package window_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// counted is a counter's commits, by one writer per shard.
type counted struct {
	r       *rig
	writers []*window.Writer
	seq     uint64
}

func (c *counted) commit(counter string, now time.Time, n int64) window.Commit {
	c.r.t.Helper()
	b, shard := batchOf(counter, now.UnixMilli(), n)
	c.seq++
	out, err := c.writers[shard].Commit(c.r.t.Context(), b.Shard(shard), cursorAt(c.seq, now))
	require.NoError(c.r.t, err)
	return out
}

func (r *rig) erase(counters ...string) int {
	r.t.Helper()
	out, err := r.reader.Erase(r.t.Context(), counters)
	require.NoError(r.t, err)
	return out.Counters
}

// left returns which keys have anything of a counter.
func (r *rig) left(counter string) (out []string) {
	r.t.Helper()
	ctx := r.t.Context()
	out = stack.Scan(r.t, r.client, "test:*:h:*:"+counter)
	for _, key := range stack.Scan(r.t, r.client, "test:*:names:*") {
		if slices.Contains(r.client.ZRange(ctx, key, 0, -1).Val(), counter) {
			out = append(out, key)
		}
	}
	for _, key := range stack.Scan(r.t, r.client, "test:*:top:*") {
		if strings.Contains(r.client.Get(ctx, key).Val(), counter) {
			out = append(out, key)
		}
	}
	return out
}

// whole notes what a counter with hits lacks: every hash expires and says the same, and the name is listed.
func (r *rig) whole(counter string, now time.Time, want int64) {
	r.t.Helper()
	for _, w := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 720 * time.Hour} {
		if a := r.total(counter, w, now.Add(time.Second)); a.Lower != want || a.Upper != want {
			r.t.Errorf("%s in %v: %+v, want %d", counter, w, a, want)
		}
	}
	r.mustExpire(r.left(counter))
	r.at(now.Add(time.Second), func() {
		page, err := r.reader.Names(r.t.Context(), window.NamesQuestion{Prefix: counter, Limit: 10})
		if err != nil || slices.Contains(page.Counters, counter) != (want > 0) {
			r.t.Errorf("%s is among the names %q, %v; want %v", counter, page.Counters, err, want > 0)
		}
		top, err := r.reader.Top(r.t.Context(), window.Last(720*time.Hour), 1000)
		at := slices.IndexFunc(top.Counters, func(c window.TopCounter) bool { return c.Counter == counter })
		if err != nil || (at >= 0) != (want > 0) || top.Floor != 0 || at >= 0 && top.Counters[at].Total != want {
			r.t.Errorf("the top list has %s at %d, %v: %+v; want %d", counter, at, err, top, want)
		}
	})
}

func anErasureLeavesNothing(t *testing.T, r *rig) {
	now := time.Now()
	c := &counted{r: r, writers: r.writers()}
	for i := range 10 {
		for _, at := range []time.Time{now, now.Add(-3 * time.Hour), now.Add(-20 * 24 * time.Hour)} {
			c.commit(fmt.Sprintf("shop.%d", i), at, 3)
			c.commit(fmt.Sprintf("blog.%d", i), at, 3)
		}
	}
	require.Equal(t, 2, r.erase("shop.3", "nobody", "blog.4"))
	require.Equal(t, 0, r.erase("shop.3", "nobody", "blog.4"))
	for _, counter := range []string{"shop.3", "blog.4", "nobody"} {
		require.Empty(t, r.left(counter))
	}
	out, err := r.reader.EraseListed(t.Context(), "shop.", "")
	if err != nil || out.Counters != 9 || out.Next != "" {
		t.Errorf("by prefix: %+v, %v; want 9", out, err)
	}
	for i := range 10 {
		require.Empty(t, r.left(fmt.Sprintf("shop.%d", i)))
	}
	if left := r.left("blog.5"); len(left) < 4 {
		t.Errorf("of blog.5 there are only %q", left)
	}
	if a := r.total("blog.5", 720*time.Hour, now.Add(time.Second)); a.Upper != 9 || !a.Complete {
		t.Errorf("blog.5 has %+v, want 9", a)
	}
}

// A writer remembers which expiries it has set and which names it has listed. After an erasure it must not.
func whatWasErasedIsListedAgain(t *testing.T, r *rig) {
	now := time.Now()
	c := &counted{r: r, writers: r.writers()}
	c.commit("a", now, 3)
	c.commit("a", now, 4)
	require.Equal(t, 1, r.erase("a"))
	r.whole("a", now, 0)
	c.commit("a", now, 5)
	r.whole("a", now, 5)
	c.commit("a", now, 6)
	r.whole("a", now, 11)
}

// A commit finds out from the cells what a lost reply would have told. Cells that were erased since tell nothing: no hit
// is lost.
func anErasureAfterALostReplyIsNoLoss(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(losesAReply)
	r.addHook(hook)
	for i, another := range []bool{false, true} { // worker commits before this one looks again
		counter := fmt.Sprintf("a%d", i)
		b, shard := batchOf(counter, now.UnixMilli(), 1)
		w, from := r.writers()[shard], uint64(10*(i+1))
		require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(from, now))))
		w.OnRetry = func(error) {
			r.erase(counter)
			if another {
				other := r.writers()[shard]
				require.NoError(t, errOf(other.Commit(t.Context(), window.NewBatch(layout).Shard(shard), cursorAt(from+2, now))))
			}
		}
		hook.armed.Store(true)
		got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(from+1, now))
		if (err != nil) != another || got.Failed != nil {
			t.Errorf("fenced %v: %v, failed %v", another, err, got.Failed)
		}
		require.Empty(t, r.left(counter))
	}
}

// erasesBetween erases between the reads of a commit and its transaction.
type erasesBetween struct{ do func() }

func (*erasesBetween) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*erasesBetween) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (e *erasesBetween) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if do := e.do; do != nil && cmds[0].Name() == "multi" {
			e.do = nil
			do()
		}
		return next(ctx, cmds)
	}
}

// A stream of which nobody knows is not in the way of an erasure, and learns of it all the same.
func anErasureBetweenTwoCommands(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(erasesBetween)
	r.addHook(hook)
	b, shard := batchOf("a", now.UnixMilli(), 3)
	for _, stream := range []string{"HITS", "UNLISTED"} {
		w, err := r.store.OpenWriter(t.Context(), layout, stream, shard)
		require.NoError(t, err)
		for seq := range uint64(3) {
			if seq > 0 {
				hook.do = func() { r.erase("a") }
			}
			got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq+1, now))
			if err != nil || got.Conflicts != int(min(seq, 1)) {
				t.Errorf("%s: %d conflicts, %v", stream, got.Conflicts, err)
			}
		}
		r.mustExpire(stack.Scan(t, r.client, "test:*:h:*:a"))
		if a := r.total("a", time.Hour, now.Add(time.Second)); a.Upper != 3 {
			t.Errorf("%s: %+v, want 3", stream, a)
		}
	}
}

// A stream that is listed, and gets its first hits, after an eraser has asked who is there.
func anErasureKnowsNewStreams(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(erasesBetween)
	r.addHook(hook)
	c := &counted{r: r, writers: r.writers()}
	c.commit("a", now, 3)
	hook.do = func() {
		require.NoError(t, r.store.AddStream(t.Context(), "NEW"))
		b, shard := batchOf("a", now.UnixMilli(), 4)
		w, err := r.store.OpenWriter(t.Context(), layout, "NEW", shard)
		if err == nil {
			_, err = w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))
		}
		if err != nil {
			t.Error(err)
		}
	}
	r.erase("a")
	require.Empty(t, r.left("a"))
}

// What a commit adds to a summary while an eraser changes it stays.
func anErasureOverwritesNoSummary(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(erasesBetween)
	r.addHook(hook)
	c := &counted{r: r, writers: r.writers()}
	beside := besideOf("a")
	c.commit("a", now, 3)
	hook.do = func() { c.commit(beside, now, 4) }
	r.erase("a")
	r.whole("a", now, 0)
	r.whole(beside, now, 4)
}

// besideOf returns another counter of the same shard.
func besideOf(counter string) string {
	shard := func(name string) int { return layout.ShardOf(window.HashCounter([]byte(name))) }
	beside := "b"
	for shard(beside) != shard(counter) {
		beside += "b"
	}
	return beside
}

// A summary that something else has written stays as it is, and the rest goes.
func anErasureLeavesForeignSummaries(t *testing.T, r *rig) {
	now := time.Now()
	c := &counted{r: r, writers: r.writers()}
	c.commit("a", now, 3)
	for i, key := range stack.Scan(t, r.client, "test:*:top:*") {
		if i%2 == 0 {
			r.client.Set(t.Context(), key, "not ours", time.Hour)
		} else {
			r.client.Del(t.Context(), key)
			r.client.HSet(t.Context(), key, "not", "ours")
		}
	}
	if n := r.erase("a"); n != 1 || len(stack.Scan(t, r.client, "test:*:h:*:a")) > 0 {
		t.Errorf("%d are erased", n)
	}
}

// Unique values outlive the hits and names of the counter, and some come when its hashes have expired already.
func anErasureByPrefixLeavesNoUniqueValues(t *testing.T, r *rig) {
	ctx, now := t.Context(), time.Now()
	uniqueTiers, err := window.ParseUniqueTiers("5m/1h,1d/32d")
	require.NoError(t, err)
	far := window.Layout{Tiers: parsed(t, "1s/1m,1m/1h"), UniqueTiers: uniqueTiers, Shards: 4}
	store := window.NewStore(r.client, "far")
	reader := window.NewReader(store)
	require.NoError(t, store.EnsureLayout(ctx, far))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	keys := func(pattern string) []string { return stack.Scan(t, r.client, "far:{*}:"+pattern) }
	count := func(layout window.Layout, seq uint64) {
		t.Helper()
		b := window.NewBatch(layout)
		for _, counter := range []string{"shop.1", "shop.2", "blog.1"} {
			at := now
			if counter == "shop.2" {
				at = now.Add(-10 * time.Hour) // only the unique cell of the day is still there
			}
			hash := window.HashCounter([]byte(counter))
			b.AddUnique([]byte(counter), hash, at.UnixMilli(), at.UnixMilli(), 1, unique.Of(fmt.Append(nil, seq)))
		}
		for shard := range layout.Shards {
			w, err := store.OpenWriter(ctx, layout, "HITS", shard)
			require.NoError(t, err)
			require.NoError(t, errOf(w.Commit(ctx, b.Shard(shard), cursorAt(seq, now))))
		}
	}
	expire := func(patterns ...string) {
		for _, pattern := range patterns {
			for _, key := range keys(pattern) {
				require.NoError(t, r.client.Del(ctx, key).Err())
			}
		}
	}
	erased := func() {
		t.Helper()
		out, err := reader.EraseListed(ctx, "shop.", "")
		if err != nil || out.Counters != 2 {
			t.Errorf("by prefix: %+v, %v; want 2", out, err)
		}
		if left := append(keys("u:*:shop.*"), keys("*h:*:shop.*")...); len(left) > 0 || len(keys("u:*:blog.1")) != 2 {
			t.Errorf("there are %q of it, and %q of blog.1", left, keys("u:*:blog.1"))
		}
	}

	count(far, 1)
	for _, key := range keys("u:*") {
		lives, counter := r.client.TTL(ctx, key).Val(), key[strings.LastIndex(key, ":")+1:]
		shard, _, _ := strings.Cut(key, "}")
		if !slices.ContainsFunc(stack.Scan(t, r.client, shard+"}:*names:*"), func(set string) bool {
			return r.client.ZScore(ctx, set, counter).Err() == nil && r.client.TTL(ctx, set).Val() >= lives
		}) {
			t.Errorf("%s lives %v, and is listed nowhere for as long", key, lives)
		}
	}
	expire("h:*", "names:*")
	erased()

	count(far, 2)
	expire("names:*", "h:*")
	_, _, err = store.Retier(ctx, parsed(t, "1s/1m,1m/2h"), quiet)
	require.NoError(t, err)
	require.NoError(t, errOf(store.RetierConfirm(ctx, quiet)))
	erased()
}

// countsCommands counts the commands that are sent.
type countsCommands struct{ n atomic.Int64 }

func (*countsCommands) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *countsCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { c.n.Add(1); return next(ctx, cmd) }
}
func (c *countsCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// An erasure of a counter that does not exist reads some hundred summaries per stream, with few commands.
func anErasureAsksLittle(t *testing.T, r *rig) {
	const most, streams = 60, 10
	hook := new(countsCommands)
	r.addHook(hook)
	sent := func() int64 {
		r.erase("nobody") // once before: the reader knows the streams, and the clock
		before := hook.n.Load()
		r.erase("nobody")
		return hook.n.Load() - before
	}
	one := sent()
	for i := range streams {
		require.NoError(t, r.store.AddStream(t.Context(), fmt.Sprint("MORE", i)))
	}
	all := sent()
	t.Logf("%d commands, %d with %d more streams", one, all, streams)
	if one > most || all-one > most*streams {
		t.Errorf("it takes %d commands, and %d with %d more streams; want at most %d per stream", one, all, streams, most)
	}
}

// Two streams count the same few counters, and all of them are erased again and again meanwhile. What came before an
// erasure is gone, and what came after it is there.
func erasuresAndCommitsAtOnce(t *testing.T, r *rig) {
	const counters = 6
	commits, erasures := stack.Rounds(60, 150), stack.Rounds(10, 25)
	type span struct{ from, to time.Time }
	var mu sync.Mutex
	var added [counters][]span // of commits of one hit each
	var gone [counters]span    // the last erasure
	name := func(i int) string { return fmt.Sprintf("c%d", i) }
	began := time.Now()
	require.NoError(t, r.store.AddStream(t.Context(), "MORE"))
	var running sync.WaitGroup
	for _, stream := range []string{"HITS", "MORE"} {
		for shard := range layout.Shards {
			running.Go(func() {
				w, err := r.store.OpenWriter(t.Context(), layout, stream, shard)
				if err != nil {
					t.Error(err)
					return
				}
				for seq := range uint64(commits) {
					b := window.NewBatch(layout)
					var mine []int
					for i := range counters {
						if hash := window.HashCounter([]byte(name(i))); layout.ShardOf(hash) == shard {
							b.Add([]byte(name(i)), hash, began.UnixMilli(), began.UnixMilli(), 1)
							mine = append(mine, i)
						}
					}
					from := time.Now()
					got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq+1, began))
					if err != nil || got.Failed != nil {
						t.Errorf("commit: %v, failed %v", err, got.Failed)
						return
					}
					mu.Lock()
					for _, i := range mine {
						added[i] = append(added[i], span{from, time.Now()})
					}
					mu.Unlock()
				}
			})
		}
	}
	running.Go(func() {
		for round := range erasures {
			from := time.Now()
			var some []string
			for i := range counters {
				if i != round%counters {
					some = append(some, name(i))
				}
			}
			if _, err := r.reader.Erase(t.Context(), some); err != nil {
				t.Errorf("erase: %v", err)
				return
			}
			mu.Lock()
			for i := range counters {
				if i != round%counters {
					gone[i] = span{from, time.Now()}
				}
			}
			mu.Unlock()
		}
	})
	running.Wait()
	for i := range counters {
		least, most := int64(0), int64(0)
		for _, s := range added[i] {
			if s.from.After(gone[i].to) {
				least++
			}
			if s.to.After(gone[i].from) {
				most++
			}
		}
		a := r.total(name(i), time.Hour, began.Add(time.Second))
		if a.Upper != a.Lower || a.Upper < least || a.Upper > most {
			t.Errorf("%s has %+v, want %d to %d", name(i), a, least, most)
		}
		r.whole(name(i), began, a.Upper)
	}
}

// Hashes may have expired under a clock that was ahead. A writer must not rely on what it has set before.
func expiriesAreNotTrustedAfterAFallOfTheClock(t *testing.T, r *rig) {
	now := time.Now()
	c := &counted{r: r, writers: r.writers()}
	beside := besideOf("a")
	c.commit("a", now, 3)
	r.at(now.Add(100*24*time.Hour), func() {
		c.commit(beside, now.Add(100*24*time.Hour), 1)
		for _, key := range r.left("a") {
			if err := r.client.Del(t.Context(), key).Err(); err != nil { // it expires
				t.Fatal(err)
			}
		}
	})
	c.commit("a", now, 4)
	if left := r.left("a"); len(left) < len(layout.Tiers)+1 {
		t.Errorf("of the counter there are only %q", left)
	}
	for _, key := range r.left("a") {
		if ttl := r.client.TTL(t.Context(), key).Val(); ttl <= 0 {
			t.Errorf("%s expires in %v", key, ttl)
		}
	}
}
