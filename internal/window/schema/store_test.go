package schema_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

var layout = windowtest.Layout

type rig struct{ *windowtest.Rig }

// TestStore runs every test of a rig, one suite for every kind of Redis.
func TestStore(t *testing.T) {
	windowtest.Suite[rig](t, nil)
}

// If a cursor's position differs in anything, a claim says nothing about it.
func TestClaimIsAboutOnePosition(t *testing.T) {
	t.Parallel()
	claim := schema.Claim{Created: 1, Seq: 2, Stored: 3, AsOf: 40}
	position := window.Cursor{Created: 1, Seq: 2, Stored: 3, AsOf: 30}
	for name, c := range map[string]struct {
		change func(*window.Cursor)
		want   int64
	}{
		"its position": {func(*window.Cursor) {}, 40},
		"its position, with hits missing from long ago": {func(c *window.Cursor) { c.IncompleteBefore = 9 }, 40},
		"its position, and counters are ahead":          {func(c *window.Cursor) { c.Ahead = window.Ahead{Seq: 5, Parts: 2} }, 40},
		"its position, known later":                     {func(c *window.Cursor) { c.AsOf = 50 }, 50},
		"another incarnation":                           {func(c *window.Cursor) { c.Created = 2 }, 30},
		"before it":                                     {func(c *window.Cursor) { c.Seq = 1 }, 30},
		"after it":                                      {func(c *window.Cursor) { c.Seq = 3 }, 30},
		"another message of the same number":            {func(c *window.Cursor) { c.Stored = 4 }, 30},
	} {
		cursor := position
		c.change(&cursor)
		want := cursor
		want.AsOf = c.want
		require.Equal(t, want, claim.Renew(cursor), name)
	}
}

// checkAsOf checks the as_of of each kind of answer, or that all fail.
func (r *rig) checkAsOf(now time.Time, want int64, wantErr func(error) bool) {
	r.T.Helper()
	ctx := r.T.Context()
	check := func(question string, asOf int64, err error) {
		r.T.Helper()
		if wantErr != nil {
			if !wantErr(err) {
				r.T.Errorf("%s: %v", question, err)
			}
		} else if err != nil || asOf != want {
			r.T.Errorf("%s: as_of is %d, %v; want %d", question, asOf, err, want)
		}
	}
	asked := window.Question{Counter: "a", Span: window.Last(time.Minute)}
	r.At(now, func() {
		a, err := r.Reader.Answer(ctx, []window.Question{asked})
		check("answer", a.AsOf, err)
		top, err := r.Reader.Top(ctx, asked.Span, 1)
		check("top", top.AsOf, err)
		names, err := r.Reader.Names(ctx, read.NamesQuestion{Limit: 1})
		check("names", names.AsOf, err)
		found, err := r.Reader.Progress(ctx)
		streams := found.Streams
		asOf := int64(-1)
		for _, p := range streams {
			asOf = p.AsOf
		}
		check("progress", asOf, err)
	})
}

// One claim moves the as_of of all shards, and of every kind of answer.
func (r *rig) TestClaimMovesAsOf(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	at := windowtest.CursorAt(7, now)
	r.Write("HITS", at)
	claim := schema.Claim{Created: at.Created, Seq: at.Seq, Stored: at.Stored, AsOf: at.AsOf + 5000}
	other := claim
	other.Stored++
	mustClaim := func(want schema.Claim) {
		t.Helper()
		got, err := r.Store.Claims.Read(ctx, "HITS")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	r.checkAsOf(now, at.AsOf, nil)
	require.NoError(t, windowtest.ErrOf(r.Store.Claims.Write(ctx, map[string]schema.Claim{"HITS": other}, nil)))
	r.checkAsOf(now, at.AsOf, nil)
	require.NoError(t, windowtest.ErrOf(r.Store.Claims.Write(ctx, map[string]schema.Claim{"HITS": claim, "UNLISTED": other}, nil)))
	r.checkAsOf(now, claim.AsOf, nil)
	mustClaim(claim)
	if ttl := r.Client.TTL(ctx, "test:idle").Val(); ttl <= 0 || ttl > time.Hour {
		t.Errorf("the claims expire in %v, want an hour", ttl)
	}
	require.NoError(t, r.Store.Claims.Remove(ctx, "HITS"))
	r.checkAsOf(now, at.AsOf, nil)
	mustClaim(schema.Claim{})
}

// A worker notices when Redis no longer has what it claimed last.
func (r *rig) TestLostClaimsAreNoticed(t *testing.T) {
	claims := func(asOf int64) map[string]schema.Claim {
		return map[string]schema.Claim{"A": {Seq: 1, AsOf: asOf}, "B": {Seq: 2, AsOf: asOf}}
	}
	write := func(claims, before map[string]schema.Claim, want ...string) {
		t.Helper()
		if changed, err := r.Store.Claims.Write(t.Context(), claims, before); err != nil || !slices.Equal(changed, want) {
			t.Errorf("changed %q, %v: want %q", changed, err, want)
		}
	}
	write(claims(1), nil)
	write(claims(2), claims(1))
	write(map[string]schema.Claim{"B": {Seq: 3, AsOf: 9}}, nil) // another worker
	write(claims(3), claims(2), "B")
	require.NoError(t, r.Client.Del(t.Context(), "test:idle").Err())
	write(claims(4), claims(3), "A", "B")
	write(claims(5), claims(4))
}

func (r *rig) TestForeignClaimsAreNamed(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	at := windowtest.CursorAt(7, now)
	r.Write("HITS", at)
	named := func(err error) bool {
		var foreign *window.ForeignError
		return errors.As(err, &foreign) && foreign.Key == "test:idle"
	}
	for _, value := range []string{"", "x", "1 2 3", "1 2 3 4 5", "1 2 3 x", "1  2 3"} {
		require.NoError(t, r.Client.HSet(ctx, "test:idle", "HITS", value, "UNLISTED", "x").Err())
		r.checkAsOf(now, 0, named)
		windowtest.MustName(t, "test:idle", windowtest.ErrOf(r.Store.Claims.Read(ctx, "HITS")))
	}
	require.NoError(t, r.Client.HDel(ctx, "test:idle", "HITS").Err())
	r.checkAsOf(now, at.AsOf, nil) // what is claimed about a stream that is not listed is not in the way
	require.NoError(t, r.Client.Set(ctx, "test:idle", "not ours", 0).Err())
	r.checkAsOf(now, 0, named)
	windowtest.MustName(t, "test:idle", windowtest.ErrOf(r.Store.Claims.Read(ctx, "HITS")))
	windowtest.MustName(t, "test:idle", windowtest.ErrOf(r.Store.Claims.Write(ctx, map[string]schema.Claim{"HITS": {}}, nil)))
	windowtest.MustName(t, "test:idle", r.Store.Claims.Remove(ctx, "HITS"))
}

func isGone() (bool, error) { return true, nil }

// checkAnswers checks what the answers about a window claim.
func (r *rig) checkAnswers(when string, now time.Time, back time.Duration, asOf time.Time, complete bool) {
	r.T.Helper()
	a, err := r.Answer(now, window.Question{Counter: "a", Span: window.Last(back)})
	if err != nil || a.AsOf != asOf.UnixMilli() || a.Answers[0].Complete != complete {
		r.T.Errorf("%s: %+v, %v; want as_of %d, complete %v", when, a, err, asOf.UnixMilli(), complete)
	}
}

// startTwo writes the cursors of HITS, counted from a minute ago until now, and of OLD, which was counted
// earlier.
func (r *rig) startTwo(now time.Time, old window.Cursor) *windowtest.Session {
	r.T.Helper()
	require.NoError(r.T, r.Store.AddStream(r.T.Context(), "OLD"))
	recent := windowtest.CursorAt(1, now)
	recent.Created = now.Add(-time.Minute).UnixNano()
	r.Write("HITS", recent)
	return r.Write("OLD", old)
}

// A stream that was deleted holds as_of back no more; what it counted, and what
// is missing of it, stay.
func (r *rig) TestEndedStreamHoldsNothingBack(t *testing.T) {
	now := time.Now()
	old, began := now.Add(-20*time.Minute), now.Add(-time.Hour)
	cursor := windowtest.CursorAt(9, old)
	cursor.Created = began.UnixNano()
	r.startTwo(now, cursor)
	r.checkAnswers("while it lives", now, 50*time.Minute, old, true)
	end := func(stream string, at int64, gone func() (bool, error)) bool {
		t.Helper()
		ended, err := r.Store.EndStream(t.Context(), stream, at, began.UnixMilli(), gone)
		require.NoError(t, err)
		return ended
	}
	require.False(t, end("OLD", now.UnixMilli(), func() (bool, error) { return false, nil }), "it is there")
	require.True(t, end("OLD", now.UnixMilli(), isGone))
	require.False(t, end("OLD", now.UnixMilli(), isGone), "it has ended")
	r.checkAnswers("after its end, with cursors from before", now, 50*time.Minute, now, false)
	cursor.Ended = true
	r.Write("OLD", cursor)
	r.checkAnswers("after its end", now, 50*time.Minute, now, true)
	r.checkAnswers("from before counting began", now, 70*time.Minute, now, false)
	cursor.IncompleteBefore = old.UnixMilli()
	r.Write("OLD", cursor)
	r.checkAnswers("with hits missing of it", now, 50*time.Minute, now, false)

	require.NoError(t, r.Store.AddStream(t.Context(), "OLD"))
	cursor.Ended = false
	r.Write("OLD", cursor)
	r.checkAnswers("alive again", now, 10*time.Minute, old, true)
	listedMeanwhile := func() (bool, error) { return true, r.Store.AddStream(t.Context(), "OLD") }
	require.False(t, end("OLD", now.UnixMilli(), listedMeanwhile), "a worker has it")
	require.True(t, end("OLD", now.UnixMilli()+5, isGone))
	require.True(t, end("HITS", now.UnixMilli()+5, isGone))
	r.checkAnswers("with no stream left", now, 10*time.Minute, now.Add(5*time.Millisecond), false)
	listed, err := r.Store.Streams(t.Context())
	if err != nil || len(listed) != 2 || listed["OLD"].Ended == 0 || listed["HITS"].Ended == 0 {
		t.Errorf("listed: %+v, %v", listed, err)
	}
}

// A stream that no worker has read yet is counted up to its creation, and no further.
func (r *rig) TestNewStreamHoldsAsOfAtItsCreation(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	cursor := windowtest.CursorAt(1, now)
	cursor.Created = now.Add(-time.Hour).UnixNano()
	r.Write("HITS", cursor)
	for _, created := range []time.Time{now.Add(-time.Minute), time.UnixMilli(0)} {
		require.NoError(t, r.Store.AddStreamSince(ctx, "NEW", created.UnixMilli()))
		r.checkAnswers("with a new stream", now, 10*time.Second, created, false)
	}
	// What the previous program has written.
	for value, want := range map[string]schema.Listed{
		"": {}, "1763683200000": {Ended: 1763683200000}, "live 1763683200000": {Created: 1763683200000},
	} {
		require.NoError(t, r.Client.HSet(ctx, "test:streams", "NEW", value).Err())
		listed, err := r.Store.Streams(ctx)
		require.NoError(t, err)
		require.Equal(t, want, listed["NEW"], value)
	}
	for _, value := range []string{"0", "-5", "live", "live ", "live 0", "live x", "soon", "253402300800000"} {
		require.NoError(t, r.Client.HSet(ctx, "test:streams", "NEW", value).Err())
		require.Error(t, windowtest.ErrOf(r.Store.Streams(ctx)), value)
	}
}

// The cursors of an ended stream expire, unless a worker goes on with them or the
// name is another stream's; and complete stays what it was when all of it is gone.
func (r *rig) TestCursorsOfAnEndedStreamExpire(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	began := now.Add(-time.Hour)
	cursor := windowtest.CursorAt(9, began)
	cursor.Created = began.UnixNano()
	s := r.startTwo(now, cursor)
	expire := func(created int64, after time.Duration) {
		t.Helper()
		for shard := range layout.Shards {
			require.NoError(t, r.Store.ExpireCursor(ctx, "OLD", shard, created, after))
		}
	}
	checkCursors := func(which string, expiring bool) {
		t.Helper()
		for _, key := range stack.Scan(t, r.Client, "test:*:cursor:OLD") {
			if got := r.Client.TTL(ctx, key).Val() > 0; got != expiring {
				t.Errorf("%s: %s expires %v, want %v", which, key, got, expiring)
			}
		}
		require.Len(t, stack.Scan(t, r.Client, "test:*:cursor:OLD"), layout.Shards)
	}
	remove := func() bool {
		removed, err := r.Store.RemoveStream(ctx, "OLD", isGone)
		require.NoError(t, err)
		return removed
	}
	require.False(t, remove(), "it lives")
	require.NoError(t, windowtest.ErrOf(r.Store.EndStream(ctx, "OLD", now.UnixMilli(), began.UnixMilli(), isGone)))
	expire(cursor.Created+1, layout.Keep())
	checkCursors("of another incarnation", false)
	expire(cursor.Created, layout.Keep())
	checkCursors("of an ended stream", true)
	cursor.Ended = true
	s.CommitBatch(window.NewBatch(layout), cursor)
	checkCursors("that are written again: it was not gone, or was recreated", false)

	check := func(when string, complete bool) {
		t.Helper()
		r.checkAnswers(when, now, 50*time.Minute, now, complete)
		r.checkAnswers(when+", from before counting began", now, 70*time.Minute, now, false)
	}
	check("while its cursors are there", true)
	expire(cursor.Created, 0)
	require.Empty(t, stack.Scan(t, r.Client, "test:*:cursor:OLD"))
	check("without them, which Redis may have lost", false)
	require.True(t, remove())
	check("off the list", true)
	listed, err := r.Store.Streams(ctx)
	require.NoError(t, err)
	require.Len(t, listed, 1)
}

// Texts of rules are written where they are missing, read by their fingerprints, and last until they are
// removed.
func (r *rig) TestRulesAreKept(t *testing.T) {
	ctx := t.Context()
	mustKeep := func(want ...string) {
		t.Helper()
		got, err := r.Store.Rules.Fingerprints(ctx)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("kept are %v, %v; want %v", got, err, want)
		}
	}
	mustKeep()
	for _, texts := range []map[string][]byte{nil, {"aa": []byte("one")}, {"aa": []byte("one"), "bb": []byte("two\n")}} {
		require.NoError(t, r.Store.Rules.Keep(ctx, texts))
	}
	mustKeep("aa", "bb")
	if text, found, err := r.Store.Rules.Read(ctx, "bb"); err != nil || !found || string(text) != "two\n" {
		t.Errorf("%q, %v, %v", text, found, err)
	}
	if text, found, err := r.Store.Rules.Read(ctx, "cc"); err != nil || found {
		t.Errorf("what was never written: %q, %v, %v", text, found, err)
	}
	if ttl, err := r.Client.TTL(ctx, r.Store.Rules.Key()).Result(); err != nil || ttl != -1 {
		t.Errorf("the texts expire after %v, %v", ttl, err)
	}
	require.NoError(t, r.Store.Rules.Remove(ctx, []string{"aa"}))
	mustKeep("bb")

	require.NoError(t, errors.Join(r.Client.Del(ctx, r.Store.Rules.Key()).Err(), r.Client.Set(ctx, r.Store.Rules.Key(), "x", 0).Err()))
	windowtest.MustName(t, r.Store.Rules.Key(), r.Store.Rules.Keep(ctx, map[string][]byte{"bb": nil}))
	_, _, err := r.Store.Rules.Read(ctx, "bb")
	windowtest.MustName(t, r.Store.Rules.Key(), err)
}

// What a server's clock has fallen by is measured against what has passed since it was last read.
func TestAClockThatFellBetweenTwoReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := schema.NewStore(nil, "test")
		began := time.Now()
		shown := began.Add(3 * time.Second)
		observe := func(clock time.Time) (time.Time, time.Duration) {
			return store.LatestClocks.Observe(0, clock, time.Now())
		}
		observe(shown)
		for range 3 {
			latest, fell := observe(time.Now())
			require.Equal(t, shown, latest)
			require.Equal(t, 3*time.Second, fell)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		latest, fell := observe(time.Now())
		require.Equal(t, time.Now(), latest)
		require.Zero(t, fell, "deadlines before this clock have passed")
	})
}
