package window_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
)

// Texts of rules are written where they are missing, read by their fingerprints, and last until they are removed.
func rulesAreKept(t *testing.T, r *rig) {
	ctx := t.Context()
	kept := func(want ...string) {
		t.Helper()
		got, err := r.store.RulesKept(ctx)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("kept are %v, %v; want %v", got, err, want)
		}
	}
	kept()
	for _, texts := range []map[string][]byte{nil, {"aa": []byte("one")}, {"aa": []byte("one"), "bb": []byte("two\n")}} {
		require.NoError(t, r.store.KeepRules(ctx, texts))
	}
	kept("aa", "bb")
	if text, found, err := r.store.RulesText(ctx, "bb"); err != nil || !found || string(text) != "two\n" {
		t.Errorf("%q, %v, %v", text, found, err)
	}
	if text, found, err := r.store.RulesText(ctx, "cc"); err != nil || found {
		t.Errorf("what was never written: %q, %v, %v", text, found, err)
	}
	if ttl, err := r.client.TTL(ctx, r.store.RulesKey()).Result(); err != nil || ttl != -1 {
		t.Errorf("the texts expire after %v, %v", ttl, err)
	}
	require.NoError(t, r.store.DropRules(ctx, []string{"aa"}))
	kept("bb")

	require.NoError(t, errors.Join(r.client.Del(ctx, r.store.RulesKey()).Err(), r.client.Set(ctx, r.store.RulesKey(), "x", 0).Err()))
	var foreign *window.ForeignError
	if _, _, err := r.store.RulesText(ctx, "bb"); !errors.As(err, &foreign) || foreign.Key != r.store.RulesKey() {
		t.Errorf("a key of another type: %v", err)
	}
	if err := r.store.KeepRules(ctx, map[string][]byte{"bb": nil}); !errors.As(err, &foreign) {
		t.Errorf("a key of another type: %v", err)
	}
}

// What a cursor says of versions and rejects is part of what its writer relies on: if Redis loses that alone, or
// somebody else has written it, the writer goes no further.
func aChangeOfVersionsOrRejectsFences(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	none := window.NewBatch(layout).Shard(shard)
	require.NoError(t, errOf(r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	for name, change := range map[string]func(*window.Cursor){
		"a version": func(c *window.Cursor) { c.Naming += "a version" },
		"a reject":  func(c *window.Cursor) { c.Refused += 3 },
	} {
		w, other := r.writers()[shard], r.writers()[shard]
		at, _ := w.Cursor()
		at.Refused++ // so that the writer has the cursor already
		require.NoError(t, errOf(w.Commit(t.Context(), none, at)))
		before := r.client.HGetAll(t.Context(), cursorKey(shard)).Val()
		change(&at)
		require.NoError(t, errOf(w.Commit(t.Context(), none, at)))
		if got, _ := r.writers()[shard].Cursor(); got != at {
			t.Errorf("%s: the cursor is %+v, want %+v", name, got, at)
		}
		otherAt, _ := other.Cursor()
		change(&otherAt)
		if _, err := other.Commit(t.Context(), none, otherAt); !errors.Is(err, window.ErrFenced) {
			t.Errorf("%s that somebody else has written: %v", name, err)
		}
		if err := r.client.HSet(t.Context(), cursorKey(shard), before).Err(); err != nil { // Redis has lost the last commit alone
			t.Fatal(err)
		}
		next := at
		next.Seq++
		if _, err := w.Commit(t.Context(), b.Shard(shard), next); !errors.Is(err, window.ErrFenced) {
			t.Errorf("over %s that is lost: %v", name, err)
		}
	}
}

// A writer that takes a cursor leaves it where it is, and fences all others.
func aTakenCursorFences(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	old, older := r.writers()[shard], r.writers()[shard]
	if err := old.Take(t.Context(), cursorAt(4, now)); err != nil {
		t.Errorf("no cursor: %v", err)
	}
	require.ErrorIs(t, older.Take(t.Context(), cursorAt(4, now)), window.ErrFenced, "a cursor that somebody else has made")
	require.NoError(t, errOf(old.Commit(t.Context(), b.Shard(shard), cursorAt(5, now))))
	young := r.writers()[shard]
	require.NoError(t, young.Take(t.Context(), cursorAt(5, now)))
	if c, exists := r.writers()[shard].Cursor(); !exists || c != cursorAt(5, now) {
		t.Errorf("the cursor is %+v, %v", c, exists)
	}
	if _, err := old.Commit(t.Context(), b.Shard(shard), cursorAt(6, now)); !errors.Is(err, window.ErrFenced) {
		t.Errorf("a writer whose cursor was taken commits: %v", err)
	}
	if _, err := young.Commit(t.Context(), b.Shard(shard), cursorAt(6, now)); err != nil {
		t.Error(err)
	}
}
