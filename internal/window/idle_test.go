package window_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
)

// Whatever a cursor's place differs in, a claim says nothing about it.
func TestAClaimIsAboutOnePlace(t *testing.T) {
	t.Parallel()
	claim := window.Claim{Created: 1, Seq: 2, Stored: 3, AsOf: 40}
	for _, test := range []struct {
		name   string
		cursor window.Cursor
		want   int64
	}{
		{"its place", window.Cursor{Created: 1, Seq: 2, Stored: 3, AsOf: 30}, 40},
		{"its place, with hits missing from long ago", window.Cursor{Created: 1, Seq: 2, Stored: 3, AsOf: 30, IncompleteBefore: 9}, 40},
		{"its place, and some counters are ahead", window.Cursor{Created: 1, Seq: 2, Stored: 3, AsOf: 30, Ahead: window.Ahead{Seq: 5, Stored: 41, Done: 1, Parts: 2}}, 40},
		{"its place, known later", window.Cursor{Created: 1, Seq: 2, Stored: 3, AsOf: 50}, 50},
		{"another incarnation", window.Cursor{Created: 2, Seq: 2, Stored: 3, AsOf: 30}, 30},
		{"before it", window.Cursor{Created: 1, Seq: 1, Stored: 3, AsOf: 30}, 30},
		{"after it", window.Cursor{Created: 1, Seq: 3, Stored: 3, AsOf: 30}, 30},
		{"another message of the same number", window.Cursor{Created: 1, Seq: 2, Stored: 4, AsOf: 30}, 30},
	} {
		got := claim.Renew(test.cursor)
		if got.AsOf != test.want {
			t.Errorf("%s: as_of %d, want %d", test.name, got.AsOf, test.want)
		}
		if got.AsOf = test.cursor.AsOf; got != test.cursor {
			t.Errorf("%s: %+v has become %+v", test.name, test.cursor, got)
		}
	}
}

// asOfs is what each kind of question says of the shards of a counter, by the question's name.
func (r *rig) asOfs(now time.Time) (map[string]int64, error) {
	ctx := context.Background()
	out := make(map[string]int64)
	var errs []error
	said := func(question string, asOf int64, err error) {
		out[question] = asOf
		errs = append(errs, err)
	}
	asked := window.Question{Counter: "a", Span: window.Last(time.Minute)}
	r.at(now, func() {
		a, err := r.reader.Answer(ctx, []window.Question{asked})
		said("answer", a.AsOf, err)
		top, err := r.reader.Top(ctx, asked.Span, 1)
		said("top", top.AsOf, err)
		names, err := r.reader.Names(ctx, window.NamesQuestion{Limit: 1})
		said("names", names.AsOf, err)
		_, streams, err := r.reader.Progress(ctx)
		said("progress", 0, err)
		for _, p := range streams {
			out["progress"] = p.AsOf
		}
	})
	return out, errors.Join(errs...)
}

// One claim moves the as_of of all shards, and of every kind of answer.
func aClaimMovesAsOf(t *testing.T, r *rig) {
	now := time.Now()
	at := cursorAt(7, now)
	r.shardsOf("HITS", at)
	claim := window.Claim{Created: at.Created, Seq: at.Seq, Stored: at.Stored, AsOf: at.AsOf + 5000}
	check := func(want int64) {
		t.Helper()
		got, err := r.asOfs(now)
		for question, asOf := range got {
			if asOf != want {
				t.Errorf("%s: as_of is %d after the cursors', want %d", question, asOf-at.AsOf, want-at.AsOf)
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	check(at.AsOf)
	other := claim
	other.Stored++
	for _, step := range []struct {
		claims map[string]window.Claim
		want   int64
	}{
		{map[string]window.Claim{"HITS": other}, at.AsOf},
		{map[string]window.Claim{"HITS": claim, "UNLISTED": other}, claim.AsOf},
	} {
		require.NoError(t, errOf(r.store.WriteClaims(t.Context(), step.claims, nil)))
		check(step.want)
	}
	if got, err := r.store.Claim(t.Context(), "HITS"); err != nil || got != claim {
		t.Errorf("the claim is %v, %v: want %v", got, err, claim)
	}
	if ttl := r.client.TTL(t.Context(), "test:idle").Val(); ttl <= 0 || ttl > time.Hour {
		t.Errorf("the claims expire in %v, want an hour", ttl)
	}
	require.NoError(t, r.store.RemoveClaim(t.Context(), "HITS"))
	check(at.AsOf)
	if got, err := r.store.Claim(t.Context(), "HITS"); err != nil || got != (window.Claim{}) {
		t.Errorf("the removed claim is %v, %v", got, err)
	}
}

// A worker notices when Redis no longer has what it claimed last.
func lostClaimsAreNoticed(t *testing.T, r *rig) {
	is := func(asOf int64) map[string]window.Claim {
		return map[string]window.Claim{"A": {Seq: 1, AsOf: asOf}, "B": {Seq: 2, AsOf: asOf}}
	}
	write := func(claims, before map[string]window.Claim, want ...string) {
		t.Helper()
		if changed, err := r.store.WriteClaims(t.Context(), claims, before); err != nil || !slices.Equal(changed, want) {
			t.Errorf("changed %q, %v: want %q", changed, err, want)
		}
	}
	write(is(1), nil)
	write(is(2), is(1))
	write(map[string]window.Claim{"B": {Seq: 3, AsOf: 9}}, nil) // another worker
	write(is(3), is(2), "B")
	require.NoError(t, r.client.Del(t.Context(), "test:idle").Err())
	write(is(4), is(3), "A", "B")
	write(is(5), is(4))
}

func foreignClaimsAreNamed(t *testing.T, r *rig) {
	now := time.Now()
	r.shardsOf("HITS", cursorAt(7, now))
	named := func(what string, err error) {
		t.Helper()
		var foreign *window.ForeignError
		if !errors.As(err, &foreign) || foreign.Key != "test:idle" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, value := range []string{"", "x", "1 2 3", "1 2 3 4 5", "1 2 3 x", "1  2 3"} {
		require.NoError(t, r.client.HSet(t.Context(), "test:idle", "HITS", value, "UNLISTED", "x").Err())
		_, err := r.asOfs(now)
		named(fmt.Sprintf("answers with %q", value), err)
		_, err = r.store.Claim(t.Context(), "HITS")
		named(fmt.Sprintf("the claim %q", value), err)
	}
	require.NoError(t, r.client.HDel(t.Context(), "test:idle", "HITS").Err())
	if _, err := r.asOfs(now); err != nil {
		t.Errorf("what is claimed about a stream that is not listed is in the way: %v", err)
	}
	require.NoError(t, r.client.Set(t.Context(), "test:idle", "not ours", 0).Err())
	_, err := r.asOfs(now)
	named("answers", err)
	_, err = r.store.Claim(t.Context(), "HITS")
	named("the claim", err)
	_, err = r.store.WriteClaims(t.Context(), map[string]window.Claim{"HITS": {}}, nil)
	named("a write", err)
	named("a removal", r.store.RemoveClaim(t.Context(), "HITS"))
}
