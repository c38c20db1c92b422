package commit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// commitVisits commits the visitors of a counter alone.
func (r *rig) commitVisits(s *windowtest.Session, counter string, at time.Time, from, to int) (commit.Commit, error) {
	r.T.Helper()
	b := window.NewBatch(layout)
	windowtest.AddVisits(b, counter, at, from, to)
	s.Seq++
	hits := b.Shard(windowtest.ShardOf(counter))
	got, err := s.Of(counter).Commit(r.T.Context(), hits, windowtest.CursorAt(s.Seq, at))
	// The cursor's commands are not of the batch, nor is the note of a new one.
	require.LessOrEqual(r.T, got.Commands, hits.Commands()+5, "commands; that many were foretold")
	return got, err
}

func (r *rig) mustCommitVisits(s *windowtest.Session, counter string, at time.Time, from, to int) commit.Commit {
	r.T.Helper()
	got, err := r.commitVisits(s, counter, at, from, to)
	if err != nil || got.Failed != nil || got.Hits != int64(to-from) {
		r.T.Fatalf("commit: %+v, %v", got, err)
	}
	return got
}

// mustHoldVisitors checks that each unique cell of a counter at a moment has the registers of exactly these
// visitors, and expires in time.
func (r *rig) mustHoldVisitors(counter string, at time.Time, from, to int) {
	r.T.Helper()
	want := new(unique.Sketch)
	for i := from; i < to; i++ {
		want.Add(windowtest.RegisterOf(i))
	}
	for _, tier := range layout.UniqueTiers {
		key, got := windowtest.UniqueKey(counter, tier, at), new(unique.Sketch)
		text, err := r.Client.Get(r.T.Context(), key).Result()
		if err != redis.Nil {
			require.NoError(r.T, err)
			got, err = unique.Decode(text)
			require.NoError(r.T, err)
			kept := at.Truncate(tier.Cell).Add(tier.Cell + tier.Window)
			expires := time.Now().Add(r.Client.TTL(r.T.Context(), key).Val())
			if expires.Before(kept) || expires.After(kept.Add(tier.Cell+6*time.Minute)) {
				r.T.Errorf("%s expires at %v, want some minutes after %v", key, expires, kept)
			}
		}
		require.True(r.T, got.Equal(want), "%s has %d registers, want %d", key, got.Len(), want.Len())
	}
}

func (r *rig) TestRegistersAreThoseOfTheValues(t *testing.T) {
	now, s := time.Now(), r.Open("HITS")
	for i, n := range []int{1, 10, 500, 3000, 40_000} {
		counter := fmt.Sprintf("v%d", i)
		r.mustCommitVisits(s, counter, now, 0, n/2)
		r.mustCommitVisits(s, counter, now, n/3, n)
		r.mustCommitVisits(s, counter, now, 0, n)
		r.mustHoldVisitors(counter, now, 0, n)
	}
	// In parts, which take turns with a large counter.
	b := window.NewBatch(layout)
	for i := range 200 {
		windowtest.AddVisits(b, fmt.Sprintf("few%d", i), now, 0, i%7)
	}
	windowtest.AddVisits(b, "many", now, 0, 30_000)
	parts, largest := 0, 0
	for shard, w := range r.Open("HITS").Writers {
		place, _ := w.Cursor()
		place.Created = 1
		require.NoError(t, w.Acquire(t.Context(), place))
		for part, to := range b.Shard(shard).Split(place, windowtest.CursorAt(s.Seq+1000, now), 100) {
			require.NoError(t, windowtest.ErrOf(w.Commit(t.Context(), part, to)))
			if part.Commands() > 100 {
				largest++
			}
			parts++
		}
	}
	if parts < 20 || parts > 1000 || largest != 1 {
		t.Errorf("%d parts, %d of which are large", parts, largest)
	}
	for i := range 200 {
		r.mustHoldVisitors(fmt.Sprintf("few%d", i), now, 0, i%7)
	}
	r.mustHoldVisitors("many", now, 0, 30_000)
}

func (r *rig) TestOnlyNewRegistersAreSent(t *testing.T) {
	now, s := time.Now(), r.Open("HITS")
	r.mustCommitVisits(s, "a", now, 0, 100)
	again := r.mustCommitVisits(s, "a", now, 0, 100).Commands
	require.Equal(t, again+2*len(layout.UniqueTiers), r.mustCommitVisits(s, "a", now, 100, 101).Commands, "for a new visitor")
	r.mustHoldVisitors("a", now, 0, 101)
	require.Equal(t, again, r.mustCommitVisits(s, "a", now, 40, 60).Commands, "for visitors that were known")
}

// After whatever may have taken registers away, the next hits bring theirs back.
func (r *rig) TestLostRegistersComeBack(t *testing.T) {
	now, next := time.Now(), r.AddTrouble(t)
	remove := func() { // as if they had expired
		for _, key := range stack.Scan(t, r.Client, "test:*:u:*") {
			require.NoError(t, r.Client.Del(t.Context(), key).Err())
		}
	}
	for _, lose := range []func(*rig, *windowtest.Session){
		func(r *rig, _ *windowtest.Session) { require.Equal(t, 1, r.Erase("a")) },
		func(r *rig, s *windowtest.Session) { // the clock falls
			later := now.Add(100 * 24 * time.Hour)
			r.At(later, func() { r.mustCommitVisits(s, windowtest.SameShardAs("a"), later, 0, 1) })
			remove()
		},
		func(r *rig, s *windowtest.Session) { // a reply is lost, of a commit of nothing new
			remove()
			next.Store(&windowtest.Trouble{Lost: true})
			require.NoError(t, windowtest.ErrOf(r.commitVisits(s, "a", now, 0, 1)))
		},
	} {
		r := &rig{windowtest.NewRig(t, r.Backend)}
		s := r.Open("HITS")
		r.mustCommitVisits(s, "a", now, 0, 300)
		lose(r, s)
		r.mustCommitVisits(s, "a", now, 0, 400)
		r.mustHoldVisitors("a", now, 0, 400)
	}
}

// Hits that were stored long ago and are committed now do not go into cells that have expired.
func (r *rig) TestExpiredCellsAreLeftOut(t *testing.T) {
	r.WithLogs(1)
	now := time.Now()
	old := now.Add(-3 * time.Hour)
	r.mustCommitVisits(r.Open("HITS"), "a", old, 0, 1)
	require.Empty(t, stack.Scan(t, r.Client, "test:*:h:1s:*"))
	require.EqualValues(t, 1, r.Total("a", 24*time.Hour, now).Upper)
	require.Len(t, stack.Scan(t, r.Client, "test:*:u:*"), 2, "unique cells, of an hour and of a day")
	// A hit that is dated so, and was stored now, was never in the finest tier.
	b := window.NewBatch(layout)
	windowtest.AddHits(b, "a", old.UnixMilli(), now.UnixMilli(), 1)
	b.AddUnique([]byte("a"), window.HashCounter([]byte("a")), old.UnixMilli(), now.UnixMilli(), unique.Of([]byte("x")))
	r.Open("HITS").CommitBatch(b, windowtest.CursorAt(2, now))
	require.Empty(t, stack.Scan(t, r.Client, "test:*:u:5m:*"))
	require.Empty(t, stack.Scan(t, r.Client, "test:*:h:1s:*"))
}

func (r *rig) TestForeignUniqueCellIsReported(t *testing.T) {
	now := time.Now()
	for name, write := range map[string]func(ctx context.Context, key string) error{
		"of another type": func(ctx context.Context, key string) error { return r.Client.HSet(ctx, key, "x", "y").Err() },
		"another text": func(ctx context.Context, key string) error {
			return r.Client.Set(ctx, key, "x", time.Hour).Err()
		},
		"none": nil,
	} {
		s := r.Open("HITS")
		r.mustCommitVisits(s, name, now, 0, 5)
		for _, key := range stack.Scan(t, r.Client, "test:*:u:1h:*:"+name) {
			if write != nil {
				r.Client.Del(t.Context(), key)
				require.NoError(t, write(t.Context(), key))
			}
		}
		got, err := r.commitVisits(s, name, now, 3, 9)
		if err != nil || (got.Failed != nil) != (write != nil) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if got.Failed != nil {
			require.Contains(t, got.Failed.Error(), ":u:1h:", name)
		} else {
			r.mustHoldVisitors(name, now, 0, 9)
		}
	}
}
