package window_test

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
)

func registerOf(visitor int) unique.Register { return unique.Of(fmt.Append(nil, visitor)) }

// addVisits adds hits of a counter's visitors, from one number to another, to a batch.
func addVisits(b *window.Batch, counter string, at time.Time, from, to int) {
	hash := window.HashCounter([]byte(counter))
	for i := from; i < to; i++ {
		b.AddUnique([]byte(counter), hash, at.UnixMilli(), at.UnixMilli(), 1, registerOf(i))
	}
}

// commitVisits commits the visitors of a counter alone.
func (s *session) commitVisits(counter string, at time.Time, from, to int) (commit.Commit, error) {
	s.r.t.Helper()
	b := window.NewBatch(layout)
	addVisits(b, counter, at, from, to)
	s.seq++
	got, err := s.of(counter).Commit(s.r.t.Context(), b.Shard(shardOf(counter)), cursorAt(s.seq, at))
	// The cursor's commands are not of the batch, nor is the note of a new one.
	require.LessOrEqual(s.r.t, got.Commands, b.Shard(shardOf(counter)).Commands()+5, "commands; that many were foretold")
	return got, err
}

func (s *session) mustCommitVisits(counter string, at time.Time, from, to int) commit.Commit {
	s.r.t.Helper()
	got, err := s.commitVisits(counter, at, from, to)
	if err != nil || got.Failed != nil || got.Hits != int64(to-from) {
		s.r.t.Fatalf("commit: %+v, %v", got, err)
	}
	return got
}

// mustHoldVisitors checks that each unique cell of a counter at a moment has the registers of exactly these
// visitors, and expires in time.
func (r *rig) mustHoldVisitors(counter string, at time.Time, from, to int) {
	r.t.Helper()
	want := new(unique.Sketch)
	for i := from; i < to; i++ {
		want.Add(registerOf(i))
	}
	for _, tier := range layout.UniqueTiers {
		key, got := uniqueKey(counter, tier, at), new(unique.Sketch)
		text, err := r.client.Get(r.t.Context(), key).Result()
		if err != redis.Nil {
			require.NoError(r.t, err)
			got, err = unique.Decode(text)
			require.NoError(r.t, err)
			kept := at.Truncate(tier.Cell).Add(tier.Cell + tier.Window)
			expires := time.Now().Add(r.client.TTL(r.t.Context(), key).Val())
			if expires.Before(kept) || expires.After(kept.Add(tier.Cell+6*time.Minute)) {
				r.t.Errorf("%s expires at %v, want some minutes after %v", key, expires, kept)
			}
		}
		require.True(r.t, got.Equal(want), "%s has %d registers, want %d", key, got.Len(), want.Len())
	}
}

func (r *rig) TestRegistersAreThoseOfTheValues(t *testing.T) {
	now, s := time.Now(), r.open("HITS")
	for i, n := range []int{1, 10, 500, 3000, 40_000} {
		counter := fmt.Sprintf("v%d", i)
		s.mustCommitVisits(counter, now, 0, n/2)
		s.mustCommitVisits(counter, now, n/3, n)
		s.mustCommitVisits(counter, now, 0, n)
		r.mustHoldVisitors(counter, now, 0, n)
	}
	// In parts, which take turns with a large counter.
	b := window.NewBatch(layout)
	for i := range 200 {
		addVisits(b, fmt.Sprintf("few%d", i), now, 0, i%7)
	}
	addVisits(b, "many", now, 0, 30_000)
	parts, largest := 0, 0
	for shard, w := range r.open("HITS").writers {
		place, _ := w.Cursor()
		place.Created = 1
		require.NoError(t, w.Acquire(t.Context(), place))
		for part, to := range b.Shard(shard).Split(place, cursorAt(s.seq+1000, now), 100) {
			require.NoError(t, errOf(w.Commit(t.Context(), part, to)))
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
	now, s := time.Now(), r.open("HITS")
	s.mustCommitVisits("a", now, 0, 100)
	again := s.mustCommitVisits("a", now, 0, 100).Commands
	require.Equal(t, again+2*len(layout.UniqueTiers), s.mustCommitVisits("a", now, 100, 101).Commands, "for a new visitor")
	r.mustHoldVisitors("a", now, 0, 101)
	require.Equal(t, again, s.mustCommitVisits("a", now, 40, 60).Commands, "for visitors that were known")
}

// After whatever may have taken registers away, the next hits bring theirs back.
func (r *rig) TestLostRegistersComeBack(t *testing.T) {
	now, next := time.Now(), r.addTrouble()
	remove := func() { // as if they had expired
		for _, key := range stack.Scan(t, r.client, "test:*:u:*") {
			require.NoError(t, r.client.Del(t.Context(), key).Err())
		}
	}
	for _, lose := range []func(*session){
		func(s *session) { require.Equal(t, 1, s.r.erase("a")) },
		func(s *session) { // the clock falls
			later := now.Add(100 * 24 * time.Hour)
			r.at(later, func() { s.mustCommitVisits(sameShardAs("a"), later, 0, 1) })
			remove()
		},
		func(s *session) { // a reply is lost, of a commit of nothing new
			remove()
			next.Store(&trouble{lost: true})
			require.NoError(t, errOf(s.commitVisits("a", now, 0, 1)))
		},
	} {
		r := newRig(t, r.backend)
		s := r.open("HITS")
		s.mustCommitVisits("a", now, 0, 300)
		lose(s)
		s.mustCommitVisits("a", now, 0, 400)
		r.mustHoldVisitors("a", now, 0, 400)
	}
}

// Hits that were stored long ago and are committed now do not go into cells that have expired.
func (r *rig) TestExpiredCellsAreLeftOut(t *testing.T) {
	now := time.Now()
	old := now.Add(-3 * time.Hour)
	r.open("HITS").mustCommitVisits("a", old, 0, 1)
	require.Empty(t, stack.Scan(t, r.client, "test:*:h:1s:*"))
	require.EqualValues(t, 1, r.total("a", 24*time.Hour, now).Upper)
	require.Len(t, stack.Scan(t, r.client, "test:*:u:*"), 2, "unique cells, of an hour and of a day")
	// A hit that is dated so, and was stored now, was never in the finest tier.
	b := window.NewBatch(layout)
	b.AddUnique([]byte("a"), window.HashCounter([]byte("a")), old.UnixMilli(), now.UnixMilli(), 1, unique.Of([]byte("x")))
	r.open("HITS").commitBatch(b, cursorAt(2, now))
	require.Empty(t, stack.Scan(t, r.client, "test:*:u:5m:*"))
	require.Empty(t, stack.Scan(t, r.client, "test:*:h:1s:*"))
}

func (r *rig) TestForeignUniqueCellIsReported(t *testing.T) {
	now, next := time.Now(), r.addTrouble()
	for name, write := range map[string]func(ctx context.Context, key string) error{
		"of another type": func(ctx context.Context, key string) error { return r.client.HSet(ctx, key, "x", "y").Err() },
		"another text": func(ctx context.Context, key string) error {
			return r.client.Set(ctx, key, "x", time.Hour).Err()
		},
		"none": nil,
	} {
		for _, lost := range []bool{false, true} {
			s, counter := r.open("HITS"), fmt.Sprintf("%s %v", name, lost)
			s.mustCommitVisits(counter, now, 0, 5)
			for _, key := range stack.Scan(t, r.client, "test:*:u:1h:*:"+counter) {
				if write != nil {
					r.client.Del(t.Context(), key)
					require.NoError(t, write(t.Context(), key))
				}
			}
			next.Store(&trouble{lost: lost})
			got, err := s.commitVisits(counter, now, 3, 9)
			if err != nil || (got.Failed != nil) != (write != nil) {
				t.Errorf("%s: %+v, %v", counter, got, err)
			}
			if got.Failed != nil {
				require.Contains(t, got.Failed.Error(), ":u:1h:", counter)
			} else {
				r.mustHoldVisitors(counter, now, 0, 9)
			}
		}
	}
}
