package window_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

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
	r.t.Helper()
	ctx := r.t.Context()
	check := func(question string, asOf int64, err error) {
		r.t.Helper()
		if wantErr != nil {
			if !wantErr(err) {
				r.t.Errorf("%s: %v", question, err)
			}
		} else if err != nil || asOf != want {
			r.t.Errorf("%s: as_of is %d, %v; want %d", question, asOf, err, want)
		}
	}
	asked := window.Question{Counter: "a", Span: window.Last(time.Minute)}
	r.at(now, func() {
		a, err := r.reader.Answer(ctx, []window.Question{asked})
		check("answer", a.AsOf, err)
		top, err := r.reader.Top(ctx, asked.Span, 1)
		check("top", top.AsOf, err)
		names, err := r.reader.Names(ctx, read.NamesQuestion{Limit: 1})
		check("names", names.AsOf, err)
		found, err := r.reader.Progress(ctx)
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
	at := cursorAt(7, now)
	r.write("HITS", at)
	claim := schema.Claim{Created: at.Created, Seq: at.Seq, Stored: at.Stored, AsOf: at.AsOf + 5000}
	other := claim
	other.Stored++
	mustClaim := func(want schema.Claim) {
		t.Helper()
		got, err := r.store.Claims.Read(ctx, "HITS")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	r.checkAsOf(now, at.AsOf, nil)
	require.NoError(t, errOf(r.store.Claims.Write(ctx, map[string]schema.Claim{"HITS": other}, nil)))
	r.checkAsOf(now, at.AsOf, nil)
	require.NoError(t, errOf(r.store.Claims.Write(ctx, map[string]schema.Claim{"HITS": claim, "UNLISTED": other}, nil)))
	r.checkAsOf(now, claim.AsOf, nil)
	mustClaim(claim)
	if ttl := r.client.TTL(ctx, "test:idle").Val(); ttl <= 0 || ttl > time.Hour {
		t.Errorf("the claims expire in %v, want an hour", ttl)
	}
	require.NoError(t, r.store.Claims.Remove(ctx, "HITS"))
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
		if changed, err := r.store.Claims.Write(t.Context(), claims, before); err != nil || !slices.Equal(changed, want) {
			t.Errorf("changed %q, %v: want %q", changed, err, want)
		}
	}
	write(claims(1), nil)
	write(claims(2), claims(1))
	write(map[string]schema.Claim{"B": {Seq: 3, AsOf: 9}}, nil) // another worker
	write(claims(3), claims(2), "B")
	require.NoError(t, r.client.Del(t.Context(), "test:idle").Err())
	write(claims(4), claims(3), "A", "B")
	write(claims(5), claims(4))
}

func (r *rig) TestForeignClaimsAreNamed(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	at := cursorAt(7, now)
	r.write("HITS", at)
	named := func(err error) bool {
		var foreign *window.ForeignError
		return errors.As(err, &foreign) && foreign.Key == "test:idle"
	}
	for _, value := range []string{"", "x", "1 2 3", "1 2 3 4 5", "1 2 3 x", "1  2 3"} {
		require.NoError(t, r.client.HSet(ctx, "test:idle", "HITS", value, "UNLISTED", "x").Err())
		r.checkAsOf(now, 0, named)
		mustName(t, "test:idle", errOf(r.store.Claims.Read(ctx, "HITS")))
	}
	require.NoError(t, r.client.HDel(ctx, "test:idle", "HITS").Err())
	r.checkAsOf(now, at.AsOf, nil) // what is claimed about a stream that is not listed is not in the way
	require.NoError(t, r.client.Set(ctx, "test:idle", "not ours", 0).Err())
	r.checkAsOf(now, 0, named)
	mustName(t, "test:idle", errOf(r.store.Claims.Read(ctx, "HITS")))
	mustName(t, "test:idle", errOf(r.store.Claims.Write(ctx, map[string]schema.Claim{"HITS": {}}, nil)))
	mustName(t, "test:idle", r.store.Claims.Remove(ctx, "HITS"))
}
