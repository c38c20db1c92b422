package erase_test

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
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

func init() { retier.ReplicationTime = 20 * time.Millisecond }

var layout = windowtest.Layout

type rig struct{ *windowtest.Rig }

// TestStore runs every test of a rig, one suite for every kind of Redis.
func TestStore(t *testing.T) {
	windowtest.Suite[rig](t, nil)
}

// mustBeWhole checks that all hashes of a counter expire and have these hits. If there are any, its name is
// listed.
func (r *rig) mustBeWhole(counter string, now time.Time, want int64) {
	r.T.Helper()
	r.MustHold(counter, now, want)
	r.MustExpire(r.Left(counter))
	r.At(now.Add(time.Second), func() {
		page, err := r.Reader.Names(r.T.Context(), read.NamesQuestion{Prefix: counter, Limit: 10})
		if err != nil || slices.Contains(page.Counters, counter) != (want > 0) {
			r.T.Errorf("%s is among the names %q, %v; want %v", counter, page.Counters, err, want > 0)
		}
		top, err := r.Reader.Top(r.T.Context(), window.Last(720*time.Hour), 1000)
		at := slices.IndexFunc(top.Counters, func(c read.TopCounter) bool { return c.Counter == counter })
		if err != nil || (at >= 0) != (want > 0) || top.Floor != 0 || at >= 0 && top.Counters[at].Total != want {
			r.T.Errorf("the top list has %s at %d, %v: %+v; want %d", counter, at, err, top, want)
		}
	})
}

func (r *rig) TestErasureLeavesNothing(t *testing.T) {
	r.WithLogs(1)
	now, s := time.Now(), r.Open("HITS")
	for i := range 10 {
		for _, at := range []time.Time{now, now.Add(-3 * time.Hour), now.Add(-20 * 24 * time.Hour)} {
			s.Commit(fmt.Sprintf("shop.%d", i), at, 3)
			s.Commit(fmt.Sprintf("blog.%d", i), at, 3)
		}
	}
	require.Equal(t, 2, r.Erase("shop.3", "nobody", "blog.4"))
	require.Equal(t, 0, r.Erase("shop.3", "nobody", "blog.4"))
	for _, counter := range []string{"shop.3", "blog.4", "nobody"} {
		require.Empty(t, r.Left(counter))
	}
	out, err := erase.Eraser{Reader: r.Reader}.EraseListed(t.Context(), "shop.", "")
	if err != nil || out.Counters != 9 || out.Next != "" {
		t.Errorf("by prefix: %+v, %v; want 9", out, err)
	}
	for i := range 10 {
		require.Empty(t, r.Left(fmt.Sprintf("shop.%d", i)))
	}
	require.GreaterOrEqual(t, len(r.Left("blog.5")), 4)
	if a := r.Total("blog.5", 720*time.Hour, now.Add(time.Second)); a.Upper != 9 || !a.Complete {
		t.Errorf("blog.5 has %+v, want 9", a)
	}
}

// A writer remembers which expiries it has set and which names it has listed. After an erasure it must not.
func (r *rig) TestErasedCounterIsListedAgain(t *testing.T) {
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 3)
	s.Commit("a", now, 4)
	require.Equal(t, 1, r.Erase("a"))
	r.mustBeWhole("a", now, 0)
	s.Commit("a", now, 5)
	r.mustBeWhole("a", now, 5)
	s.Commit("a", now, 6)
	r.mustBeWhole("a", now, 11)
}

// A stream that is on no list is not in the way of an erasure, and learns of it all the same.
func (r *rig) TestErasureBeforeATransaction(t *testing.T) {
	r.WithLogs(1)
	now, next := time.Now(), r.AddTrouble(t)
	for _, stream := range []string{"HITS", "UNLISTED"} {
		s := r.Open(stream)
		s.Commit("a", now, 3)
		for range 2 {
			next.Store(&windowtest.Trouble{Before: func() { r.Erase("a") }})
			require.Equal(t, 1, s.Commit("a", now, 3).Conflicts, stream)
		}
		r.MustExpire(stack.Scan(t, r.Client, "test:*:h:*:a"))
		require.EqualValues(t, 3, r.Total("a", time.Hour, now.Add(time.Second)).Upper, stream)
	}
}

// What happens after an eraser has read the streams and their summaries: a new stream gets its first hits, or
// a commit adds another counter to a summary.
func (r *rig) TestErasureDuringACommit(t *testing.T) {
	now, s, next := time.Now(), r.Open("HITS"), r.AddTrouble(t)
	beside := windowtest.SameShardAs("a")
	s.Commit("a", now, 3)
	next.Store(&windowtest.Trouble{Before: func() { s.Commit(beside, now, 4) }})
	r.Erase("a")
	r.mustBeWhole("a", now, 0)
	r.mustBeWhole(beside, now, 4)
	s.Commit("a", now, 3)
	next.Store(&windowtest.Trouble{Before: func() {
		require.NoError(t, r.Store.AddStream(t.Context(), "NEW"))
		r.Open("NEW").Commit("a", now, 4)
	}})
	r.Erase("a")
	require.Empty(t, r.Left("a"))
}

// Unique values outlive the hits and names of the counter, and some come when its hashes have expired
// already.
func (r *rig) TestErasureByPrefixLeavesNoUniqueValues(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	far := window.Layout{
		Tiers: windowtest.Must(window.ParseTiers("1s/1m,1m/1h")), UniqueTiers: windowtest.Must(window.ParseUniqueTiers("5m/1h,1d/32d")), Shards: 4,
	}
	store := schema.NewStore(r.Client, "far")
	reader := read.NewReader(store)
	require.NoError(t, store.EnsureLayout(ctx, far))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	keys := func(pattern string) []string { return stack.Scan(t, r.Client, "far:{*}:"+pattern) }
	count := func(seq uint64) {
		t.Helper()
		b := window.NewBatch(far)
		for _, counter := range []string{"shop.1", "shop.2", "blog.1"} {
			at := now
			if counter == "shop.2" {
				at = now.Add(-10 * time.Hour) // only the unique cell of the day is still there
			}
			hash := window.HashCounter([]byte(counter))
			windowtest.AddHits(b, counter, at.UnixMilli(), at.UnixMilli(), 1)
			b.AddUnique([]byte(counter), hash, at.UnixMilli(), at.UnixMilli(), unique.Of(fmt.Append(nil, seq)))
		}
		require.NoError(t, windowtest.CommitAll(ctx, store, far, "HITS", b, windowtest.CursorAt(seq, now)))
	}
	expire := func(patterns ...string) {
		for _, pattern := range patterns {
			for _, key := range keys(pattern) {
				require.NoError(t, r.Client.Del(ctx, key).Err())
			}
		}
	}
	eraseShop := func() {
		t.Helper()
		out, err := erase.Eraser{Reader: reader}.EraseListed(ctx, "shop.", "")
		if err != nil || out.Counters != 2 {
			t.Errorf("by prefix: %+v, %v; want 2", out, err)
		}
		if left := append(keys("u:*:shop.*"), keys("*h:*:shop.*")...); len(left) > 0 || len(keys("u:*:blog.1")) != 2 {
			t.Errorf("there are %q of it, and %q of blog.1", left, keys("u:*:blog.1"))
		}
	}

	count(1)
	for _, key := range keys("u:*") {
		lives, counter := r.Client.TTL(ctx, key).Val(), key[strings.LastIndex(key, ":")+1:]
		shard, _, _ := strings.Cut(key, "}")
		if !slices.ContainsFunc(stack.Scan(t, r.Client, shard+"}:*names:*"), func(set string) bool {
			return r.Client.ZScore(ctx, set, counter).Err() == nil && r.Client.TTL(ctx, set).Val() >= lives
		}) {
			t.Errorf("%s lives %v, and is listed nowhere for as long", key, lives)
		}
	}
	expire("h:*", "names:*")
	eraseShop()

	count(2)
	expire("names:*", "h:*")
	quiet := func(string, int) {}
	_, _, err := retier.Run(ctx, store, windowtest.Must(window.ParseTiers("1s/1m,1m/2h")), quiet)
	require.NoError(t, err)
	require.NoError(t, windowtest.ErrOf(retier.Confirm(ctx, store, quiet)))
	eraseShop()
}

// An erasure of a counter that does not exist reads some hundred summaries per stream, with few commands.
func (r *rig) TestErasureSendsFewCommands(t *testing.T) {
	r.WithLogs(1)
	const most, streams = 60, 10
	var commands atomic.Int64
	r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		commands.Add(int64(len(cmds)))
		return send(cmds)
	})
	countSent := func() int64 {
		r.Erase("nobody") // once Before: the reader knows the streams, and the clock
		before := commands.Load()
		r.Erase("nobody")
		return commands.Load() - before
	}
	one := countSent()
	for i := range streams {
		require.NoError(t, r.Store.AddStream(t.Context(), fmt.Sprint("MORE", i)))
	}
	if all := countSent(); one > most || all-one > most*streams {
		t.Errorf("it takes %d commands, and %d with %d more streams; want at most %d per stream", one, all, streams, most)
	}
}

// Two streams count the same few counters, and all but one of them are erased again and again meanwhile. What
// came before an erasure is gone, and what came after it is there.
func (r *rig) TestErasuresAndCommitsAtOnce(t *testing.T) {
	commits, erasures := stack.Rounds(60, 150), stack.Rounds(10, 25)
	type hits struct{ begun, done, least, most atomic.Int64 } // least and most of them came before the last erasure
	all, names := map[string]*hits{}, []string{"c0", "c1", "c2", "c3", "c4", "c5"}
	for _, name := range names {
		all[name] = new(hits)
	}
	began := time.Now()
	require.NoError(t, r.Store.AddStream(t.Context(), "MORE"))
	var running sync.WaitGroup
	for _, stream := range []string{"HITS", "MORE"} {
		for shard, w := range r.Open(stream).Writers {
			mine := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return windowtest.ShardOf(name) != shard })
			running.Go(func() {
				for seq := range uint64(commits) {
					b := window.NewBatch(layout)
					for _, name := range mine {
						windowtest.AddHits(b, name, began.UnixMilli(), began.UnixMilli(), 1)
						all[name].begun.Add(1)
					}
					got, err := w.Commit(t.Context(), b.Shard(shard), windowtest.CursorAt(seq+1, began))
					if err != nil || got.Failed != nil {
						t.Errorf("commit: %v, failed %v", err, got.Failed)
						return
					}
					for _, name := range mine {
						all[name].done.Add(1)
					}
				}
			})
		}
	}
	running.Go(func() {
		for round := range erasures {
			some := slices.Delete(slices.Clone(names), round%len(names), round%len(names)+1)
			for _, name := range some {
				all[name].least.Store(all[name].done.Load())
			}
			if _, err := (erase.Eraser{Reader: r.Reader}).Erase(t.Context(), some); err != nil {
				t.Errorf("erase: %v", err)
				return
			}
			for _, name := range some {
				all[name].most.Store(all[name].begun.Load())
			}
		}
	})
	running.Wait()
	for name, hits := range all {
		a, done := r.Total(name, time.Hour, began.Add(time.Second)), hits.done.Load()
		if least, most := done-hits.most.Load(), done-hits.least.Load(); a.Upper != a.Lower || a.Upper < least || a.Upper > most {
			t.Errorf("%s has %+v, want %d to %d", name, a, least, most)
		}
		r.mustBeWhole(name, began, a.Upper)
	}
}

// An erasure removes logs with everything else, and the writer begins again.
func (r *rig) TestErasureRemovesLogs(t *testing.T) {
	r.WithLogs(100)
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	require.Equal(t, 1, r.Erase("a"))
	require.Empty(t, r.Left("a"))
	s.Commit("a", now, 2)
	require.Equal(t, int64(2), r.Total("a", time.Minute, now.Add(time.Second)).Upper)
	require.Len(t, r.LogsOf("a"), 1)
	r.MustExpire(r.LogsOf("a"))
}
