package commit_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// flood is what a stranger sends: hits of ever new names.
type flood struct {
	*rig
	sent int64
	seq  uint64
}

func (r *rig) flood(logBytes, most int) *flood {
	r.WithLogs(logBytes)
	if most > 0 { // less than a setting may have, so that a test is short
		r.Store.Bounds = window.NameBounds{{Prefix: "web.", Max: most}}
	}
	return &flood{rig: r}
}

func (f *flood) batch(now time.Time, prefix string, from, to int) *window.Batch {
	b := window.NewBatch(f.Layout)
	for i := from; i < to; i++ {
		windowtest.AddHits(b, fmt.Sprint(prefix, i), now.UnixMilli(), now.UnixMilli(), 1)
		f.sent++
	}
	return b
}

func (f *flood) send(s *windowtest.Session, now time.Time, prefix string, from, to int) {
	f.T.Helper()
	f.seq++
	s.CommitBatch(f.batch(now, prefix, from, to), windowtest.CursorAt(f.seq, now))
}

// listed returns the hits of each listed counter with a prefix, and the sum over the names and the overflow.
func (f *flood) listed(prefix string, now time.Time) (totals map[string]int64, hits, overflow int64) {
	f.T.Helper()
	totals = make(map[string]int64)
	span := window.Last(24 * time.Hour)
	f.At(now.Add(time.Second), func() {
		for after := ""; ; {
			page, err := f.Reader.Names(f.T.Context(),
				read.NamesQuestion{Prefix: prefix, After: after, Limit: 1000, Totals: &span})
			require.NoError(f.T, err)
			for i, name := range page.Counters {
				require.Equal(f.T, page.Answers[i].Total, page.Answers[i].Lower)
				totals[name] = page.Answers[i].Total
				if strings.Contains(name, window.OverflowPart) {
					overflow += page.Answers[i].Total
				} else {
					hits += page.Answers[i].Total
				}
			}
			if after = page.Next; after == "" {
				return
			}
		}
	})
	return totals, hits, overflow
}

func (f *flood) all(now time.Time) int64 {
	return f.Total(window.AllHits, 24*time.Hour, now.Add(time.Second)).Upper
}

func (r *rig) TestNamesAreBounded(t *testing.T) {
	for _, logBytes := range []int{1, 512} {
		f, now := r.flood(logBytes, 40), time.Now()
		s := r.Open("HITS")
		// Some names were there before the flood, and another prefix has no bound.
		f.send(s, now, "web.page", 0, 12)
		f.send(s, now, "shop.", 0, 30)
		for i := range 10 {
			if i == 5 {
				s = r.Open("HITS") // a worker that knows no names
			}
			f.send(s, now, "web.x", 40*i, 40*i+40)
			f.send(s, now, "web.page", 0, 12)
		}
		f.send(s, now, "shop.", 30, 60)
		web, hits, overflow := f.listed("web.", now)
		require.EqualValues(t, f.sent-60, hits+overflow)
		require.LessOrEqual(t, len(web), 40+r.Layout.Shards)
		require.GreaterOrEqual(t, len(web), 40-r.Layout.Shards)
		for i := range 12 {
			require.EqualValues(t, 11, web[fmt.Sprint("web.page", i)])
		}
		shop, _, _ := f.listed("shop.", now)
		require.Len(t, shop, 60)
		require.EqualValues(t, f.sent, f.all(now))
		// What a name without room had is known to be in one other counter.
		refused := ""
		for i := 0; refused == ""; i++ {
			if name := fmt.Sprint("web.x", i); web[name] == 0 {
				refused = name
			}
		}
		a := r.Total(refused, time.Hour, now.Add(time.Second))
		require.Equal(t, r.Layout.Overflow("web.", windowtest.ShardOf(refused)), a.Overflow)
		require.Equal(t, window.Estimate{Upper: web[a.Overflow]}, a.Estimate)
		require.True(t, a.Complete)
		require.Empty(t, r.Total("shop.1", time.Hour, now.Add(time.Second)).Overflow)
	}
}

// Another counter that is named like an overflow counter has no room either.
func (r *rig) TestOverflowIsNoBackDoor(t *testing.T) {
	f, now := r.flood(512, 4), time.Now()
	s := r.Open("HITS")
	f.send(s, now, "web.x", 0, 40)
	f.send(s, now, "web."+window.OverflowPart, 0, 400)
	web, hits, overflow := f.listed("web.", now)
	require.EqualValues(t, f.sent, hits+overflow)
	require.LessOrEqual(t, len(web), 4+2*r.Layout.Shards)
	for i := range 400 {
		if name := fmt.Sprint("web.", window.OverflowPart, i); web[name] == 0 {
			require.NotEmpty(t, r.Total(name, time.Hour, now.Add(time.Second)).Overflow, name)
		}
	}
}

// Streams that fill a bound at the same moment do not pass it.
func (r *rig) TestStreamsShareABound(t *testing.T) {
	f, now := r.flood(512, 400), time.Now()
	var all sync.WaitGroup
	for n := range 8 {
		name := fmt.Sprint("S", n)
		require.NoError(t, r.Store.AddStream(t.Context(), name))
		s, own := r.Open(name), &flood{rig: r}
		all.Go(func() {
			for i := range 30 {
				own.send(s, now, fmt.Sprintf("web.%d-", n), 40*i, 40*i+40)
			}
		})
	}
	all.Wait()
	web, hits, overflow := f.listed("web.", now)
	require.EqualValues(t, 8*30*40, hits+overflow)
	require.LessOrEqual(t, len(web), 400+r.Layout.Shards, "and the overflow counters")
}

// A worker dies between the parts of a commit. What reads on adds to each counter what it lacks by its own
// hash, whatever was decided before.
func (r *rig) TestPartsOverflowApart(t *testing.T) {
	for died := range 8 {
		f, now := r.flood(512, 40), time.Now()
		to := windowtest.CursorAt(1, now)
		b := f.batch(now, "web.p", 0, 200)
		for shard, w := range r.Open("HITS").Writers {
			w.Place(b.Shard(shard))
			from, _ := w.Cursor()
			from.Created = to.Created
			require.NoError(t, w.Write(t.Context(), from))
			n := 0
			for part, at := range b.Shard(shard).Split(from, to, 40) {
				if n++; n > died && shard%2 == 0 {
					break
				}
				require.NoError(t, windowtest.ErrOf(w.Commit(t.Context(), part, at)))
			}
		}
		for shard, w := range r.Open("HITS").Writers {
			at, _ := w.Cursor()
			if at.Seq == to.Seq {
				continue
			}
			rest := window.NewBatch(r.Layout)
			for i := range 200 {
				name := fmt.Sprint("web.p", i)
				if to.Seq > at.Applied(window.HashCounter([]byte(name))) {
					windowtest.AddHits(rest, name, now.UnixMilli(), now.UnixMilli(), 1)
				}
			}
			require.NoError(t, windowtest.ErrOf(w.Commit(t.Context(), rest.Shard(shard), to)))
		}
		web, hits, overflow := f.listed("web.", now)
		require.EqualValues(t, f.sent, hits+overflow, "died after %d parts", died)
		require.LessOrEqual(t, len(web), 40+r.Layout.Shards)
		require.EqualValues(t, f.sent, f.all(now))
	}
}

// When another set of names begins, names that are listed stay; erasing gives room.
func (r *rig) TestNamesKeepTheirRoom(t *testing.T) {
	f, now := r.flood(512, 40), time.Now()
	s := r.Open("HITS")
	f.send(s, now, "web.a", 0, 200)
	before, _, _ := f.listed("web.a", now)
	var some []string
	for name := range before {
		some = append(some, name)
	}
	require.Len(t, some, 40)
	require.Equal(t, 10, r.Erase(some[:10]...))
	f.send(s, now, "web.new", 0, 100)
	fresh, _, _ := f.listed("web.new", now)
	require.LessOrEqual(t, len(fresh), 10)
	require.NotEmpty(t, fresh)
	// A set lists the names of two windows.
	t1, _ := r.Layout.SparseTier()
	then := time.UnixMilli(t1.CellStart(t1.CellAt(now.UnixMilli()))).Add(2 * t1.Window)
	r.At(then, func() {
		f.send(s, then, "web.late", 0, 200)
		b := window.NewBatch(r.Layout)
		for _, name := range some[10:] {
			windowtest.AddHits(b, name, then.UnixMilli(), then.UnixMilli(), 1)
		}
		f.seq++
		s.CommitBatch(b, windowtest.CursorAt(f.seq, then))
	})
	old, _, _ := f.listed("web.a", then)
	require.Len(t, old, 30)
}

// A counter that the writer knows costs nothing; a new one costs a round trip, and another one without room.
func (r *rig) TestWhatABoundCosts(t *testing.T) {
	r.flood(512, 8)
	now, s, hook := time.Now(), r.Open("HITS"), r.AddInterrupts(t)
	trips := func(name string) int32 {
		hook.Disarm()
		s.Commit(name, now, 1)
		return hook.Trips.Load()
	}
	var names []string // of one shard, which has room for two
	for i := 0; len(names) < 3; i++ {
		if name := fmt.Sprint("web.b", i); windowtest.ShardOf(name) == 0 {
			names = append(names, name)
		}
	}
	require.EqualValues(t, 2, trips(windowtest.SameShardAs(names[0])), "no bound")
	for _, name := range names[:2] {
		require.EqualValues(t, 3, trips(name), "new")
		require.EqualValues(t, 2, trips(name), "known")
	}
	require.EqualValues(t, 8, trips(names[2]), "no room, and the prefix is listed before a second attempt")
	require.EqualValues(t, 4, trips(names[2]), "no room")
}

// Without any bound, a flood of names does not fill Redis: known counters count on.
func TestMemoryBoundsNames(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t, stack.RedisArgs("--maxmemory", "12mb", "--maxmemory-policy", "noeviction"))
	r := &rig{windowtest.NewRig(t, windowtest.NewBackend(stack.ProgramClient(t, server.URL())))}
	f, now := r.flood(512, 0), time.Now()
	r.Store.NamesMemory = 80
	s := r.Open("HITS")
	for i := range 200 {
		f.send(s, now, fmt.Sprintf("web.%d-%s", i, strings.Repeat("x", 100)), 0, 500)
		f.send(s, now, "shop.orders", 0, 1)
	}
	_, hits, overflow := f.listed("", now)
	require.EqualValues(t, f.sent, hits+overflow)
	require.Positive(t, overflow)
	require.EqualValues(t, 200, r.Total("shop.orders0", time.Hour, now.Add(time.Second)).Lower)
}

// Redis is filled between the decision and the transaction. Then new names, which had room before, have none
// in the next attempt.
func TestNamesAreDecidedAgainIfRedisIsFull(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t, stack.RedisArgs("--maxmemory-policy", "noeviction"))
	r := &rig{windowtest.NewRig(t, windowtest.NewBackend(stack.ProgramClient(t, server.URL())))}
	r.Store.NamesMemory = 80
	now, next, s := time.Now(), r.AddTrouble(t), r.Open("HITS")
	limit := func(bytes int) {
		require.NoError(t, r.Client.ConfigSet(t.Context(), "maxmemory", fmt.Sprint(bytes)).Err())
	}
	next.Store(&windowtest.Trouble{Before: func() { limit(1) }})
	s.Of("a").OnRetry = func(error) {
		used := r.Client.InfoMap(t.Context(), "memory").Item("Memory", "used_memory")
		n, err := strconv.Atoi(used)
		require.NoError(t, err)
		limit(n * 100 / 90)
	}
	done := s.Commit("a", now, 3)
	require.Equal(t, 2, done.Attempts)
	a := r.Total("a", time.Hour, now.Add(time.Second))
	require.Equal(t, window.Estimate{Upper: 3}, a.Estimate)
	require.NotEmpty(t, a.Overflow)
}

// A Redis user that may not ask how full Redis is counts on.
func TestNamesAreNotBoundedByMemoryWithoutInfo(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	r := &rig{windowtest.NewRig(t, windowtest.NewBackend(stack.ProgramClient(t, server.URL())))}
	r.Store.NamesMemory = 80
	stack.NewUser(t, server, "default", "hunter2", "~*", "+@all", "-info", "nopass")
	b := window.NewBatch(r.Layout)
	now := time.Now()
	windowtest.AddHits(b, "a", now.UnixMilli(), now.UnixMilli(), 1)
	shard := r.Layout.ShardOf(window.HashCounter([]byte("a")))
	w, err := commit.OpenWriter(t.Context(), r.Store, r.Layout, "HITS", shard)
	require.NoError(t, err)
	done, err := w.Commit(t.Context(), b.Shard(shard), windowtest.CursorAt(1, now))
	require.NoError(t, err)
	require.ErrorContains(t, done.MemoryHidden, "NOPERM")
	require.EqualValues(t, 1, done.Hits)
}
