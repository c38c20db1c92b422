package window_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

func isGone() (bool, error) { return true, nil }

// checkAnswers checks what the answers about a window claim.
func (r *rig) checkAnswers(when string, now time.Time, back time.Duration, asOf time.Time, complete bool) {
	r.t.Helper()
	a, err := r.answer(now, window.Question{Counter: "a", Span: window.Last(back)})
	if err != nil || a.AsOf != asOf.UnixMilli() || a.Answers[0].Complete != complete {
		r.t.Errorf("%s: %+v, %v; want as_of %d, complete %v", when, a, err, asOf.UnixMilli(), complete)
	}
}

// startTwo writes the cursors of HITS, counted from a minute ago until now, and of OLD, which was counted
// earlier.
func (r *rig) startTwo(now time.Time, old window.Cursor) *session {
	r.t.Helper()
	require.NoError(r.t, r.store.AddStream(r.t.Context(), "OLD"))
	recent := cursorAt(1, now)
	recent.Created = now.Add(-time.Minute).UnixNano()
	r.write("HITS", recent)
	return r.write("OLD", old)
}

// A stream that was deleted holds as_of back no more; what it counted, and what
// is missing of it, stay.
func (r *rig) TestEndedStreamHoldsNothingBack(t *testing.T) {
	now := time.Now()
	old, began := now.Add(-20*time.Minute), now.Add(-time.Hour)
	cursor := cursorAt(9, old)
	cursor.Created = began.UnixNano()
	r.startTwo(now, cursor)
	r.checkAnswers("while it lives", now, 50*time.Minute, old, true)
	end := func(stream string, at int64, gone func() (bool, error)) bool {
		t.Helper()
		ended, err := r.store.EndStream(t.Context(), stream, at, began.UnixMilli(), gone)
		require.NoError(t, err)
		return ended
	}
	require.False(t, end("OLD", now.UnixMilli(), func() (bool, error) { return false, nil }), "it is there")
	require.True(t, end("OLD", now.UnixMilli(), isGone))
	require.False(t, end("OLD", now.UnixMilli(), isGone), "it has ended")
	r.checkAnswers("after its end, with cursors from before", now, 50*time.Minute, now, false)
	cursor.Ended = true
	r.write("OLD", cursor)
	r.checkAnswers("after its end", now, 50*time.Minute, now, true)
	r.checkAnswers("from before counting began", now, 70*time.Minute, now, false)
	cursor.IncompleteBefore = old.UnixMilli()
	r.write("OLD", cursor)
	r.checkAnswers("with hits missing of it", now, 50*time.Minute, now, false)

	require.NoError(t, r.store.AddStream(t.Context(), "OLD"))
	cursor.Ended = false
	r.write("OLD", cursor)
	r.checkAnswers("alive again", now, 10*time.Minute, old, true)
	listedMeanwhile := func() (bool, error) { return true, r.store.AddStream(t.Context(), "OLD") }
	require.False(t, end("OLD", now.UnixMilli(), listedMeanwhile), "a worker has it")
	require.True(t, end("OLD", now.UnixMilli()+5, isGone))
	require.True(t, end("HITS", now.UnixMilli()+5, isGone))
	r.checkAnswers("with no stream left", now, 10*time.Minute, now.Add(5*time.Millisecond), false)
	listed, err := r.store.Streams(t.Context())
	if err != nil || len(listed) != 2 || listed["OLD"].Ended == 0 || listed["HITS"].Ended == 0 {
		t.Errorf("listed: %+v, %v", listed, err)
	}
}

// A stream that no worker has read yet is counted up to its creation, and no further.
func (r *rig) TestNewStreamHoldsAsOfAtItsCreation(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	cursor := cursorAt(1, now)
	cursor.Created = now.Add(-time.Hour).UnixNano()
	r.write("HITS", cursor)
	for _, created := range []time.Time{now.Add(-time.Minute), time.UnixMilli(0)} {
		require.NoError(t, r.store.AddStreamSince(ctx, "NEW", created.UnixMilli()))
		r.checkAnswers("with a new stream", now, 10*time.Second, created, false)
	}
	// What the previous program has written.
	for value, want := range map[string]schema.Listed{
		"": {}, "1763683200000": {Ended: 1763683200000}, "live 1763683200000": {Created: 1763683200000},
	} {
		require.NoError(t, r.client.HSet(ctx, "test:streams", "NEW", value).Err())
		listed, err := r.store.Streams(ctx)
		require.NoError(t, err)
		require.Equal(t, want, listed["NEW"], value)
	}
	for _, value := range []string{"0", "-5", "live", "live ", "live 0", "live x", "soon", "253402300800000"} {
		require.NoError(t, r.client.HSet(ctx, "test:streams", "NEW", value).Err())
		require.Error(t, errOf(r.store.Streams(ctx)), value)
	}
}

// The cursors of an ended stream expire, unless a worker goes on with them or the
// name is another stream's; and complete stays what it was when all of it is gone.
func (r *rig) TestCursorsOfAnEndedStreamExpire(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	began := now.Add(-time.Hour)
	cursor := cursorAt(9, began)
	cursor.Created = began.UnixNano()
	s := r.startTwo(now, cursor)
	expire := func(created int64, after time.Duration) {
		t.Helper()
		for shard := range layout.Shards {
			require.NoError(t, r.store.ExpireCursor(ctx, "OLD", shard, created, after))
		}
	}
	checkCursors := func(which string, expiring bool) {
		t.Helper()
		for _, key := range stack.Scan(t, r.client, "test:*:cursor:OLD") {
			if got := r.client.TTL(ctx, key).Val() > 0; got != expiring {
				t.Errorf("%s: %s expires %v, want %v", which, key, got, expiring)
			}
		}
		require.Len(t, stack.Scan(t, r.client, "test:*:cursor:OLD"), layout.Shards)
	}
	remove := func() bool {
		removed, err := r.store.RemoveStream(ctx, "OLD", isGone)
		require.NoError(t, err)
		return removed
	}
	require.False(t, remove(), "it lives")
	require.NoError(t, errOf(r.store.EndStream(ctx, "OLD", now.UnixMilli(), began.UnixMilli(), isGone)))
	expire(cursor.Created+1, layout.Keep())
	checkCursors("of another incarnation", false)
	expire(cursor.Created, layout.Keep())
	checkCursors("of an ended stream", true)
	cursor.Ended = true
	s.commitBatch(window.NewBatch(layout), cursor)
	checkCursors("that are written again: it was not gone, or was recreated", false)

	check := func(when string, complete bool) {
		t.Helper()
		r.checkAnswers(when, now, 50*time.Minute, now, complete)
		r.checkAnswers(when+", from before counting began", now, 70*time.Minute, now, false)
	}
	check("while its cursors are there", true)
	expire(cursor.Created, 0)
	require.Empty(t, stack.Scan(t, r.client, "test:*:cursor:OLD"))
	check("without them, which Redis may have lost", false)
	require.True(t, remove())
	check("off the list", true)
	listed, err := r.store.Streams(ctx)
	require.NoError(t, err)
	require.Len(t, listed, 1)
}

// How far a stream is counted is what each shard, and the least one, has wholly applied of this very stream.
func (r *rig) TestReachIsThatOfTheLeastShard(t *testing.T) {
	ctx, now := t.Context(), time.Now().Truncate(time.Millisecond)
	check := func(when string, want uint64) (read.Reach, read.Progress) {
		t.Helper()
		found, err := r.reader.Progress(ctx)
		require.NoError(t, err)
		hits, listed := found.Stream("HITS")
		require.True(t, listed)
		require.Equal(t, want, slices.Min(hits.Shards), when)
		return found, hits
	}
	move := func(cursor window.Cursor, shards ...int) {
		t.Helper()
		for _, shard := range shards {
			w, err := commit.OpenWriter(ctx, r.store, layout, "HITS", shard)
			require.NoError(t, err)
			_, err = w.Commit(ctx, window.NewBatch(layout).Shard(shard), cursor)
			require.NoError(t, err)
		}
	}
	all := make([]int, layout.Shards)
	for shard := range all {
		all[shard] = shard
	}
	created := now.Add(-time.Hour)
	at := func(seq uint64, stored time.Time) window.Cursor {
		out := cursorAt(seq, stored)
		out.Created = created.UnixNano()
		return out
	}
	require.NoError(t, r.store.AddStreamSince(ctx, "HITS", created.UnixMilli()))
	check("without cursors", 0)
	move(at(5, now), all[1:]...)
	check("with a shard that has not begun", 0)
	move(at(5, now), 0)
	found, hits := check("with all", 5)
	require.Equal(t, []int64{now.UnixMilli(), now.UnixMilli()}, []int64{found.AsOf, hits.Latest})
	require.Equal(t, layout, found.Layout)

	later := now.Add(time.Second)
	move(at(9, later), all[1:]...)
	found, hits = check("with a shard that is behind", 5)
	require.Equal(t, []uint64{5, 9}, hits.Shards[:2])
	require.Equal(t, []int64{now.UnixMilli(), later.UnixMilli()}, []int64{found.AsOf, hits.Latest})
	partial := at(5, now)
	partial.Ahead = window.Ahead{Seq: 9, Stored: later.UnixNano(), Done: 1, Parts: 2}
	move(partial, 0)
	check("with one that has applied a part", 5)
	move(at(9, later), 0)
	check("with all again", 9)
	require.Zero(t, hits.Ended)

	// A stream of the same name that is newer: its sequences are other messages.
	created = now.Add(-time.Minute)
	require.NoError(t, r.store.AddStreamSince(ctx, "HITS", created.UnixMilli()))
	check("with cursors of the earlier stream", 0)
	require.NoError(t, r.store.AddStream(ctx, "HITS"))
	check("with a creation that is unknown", 9)
	move(at(2, later), all[1:]...)
	_, hits = check("with one of the earlier stream", 0)
	require.Equal(t, []uint64{0, 2}, hits.Shards[:2])
	move(at(2, later), 0)
	check("with all of the newer stream", 2)
	_, err := r.store.EndStream(ctx, "HITS", later.UnixMilli(), created.UnixMilli(), isGone)
	require.NoError(t, err)
	_, hits = check("ended", 2)
	require.NotZero(t, hits.Ended)
	_, listed := found.Stream("OTHER")
	require.False(t, listed)
}
