package window_test

import (
	"errors"
	"slices"
	"testing"
	"time"

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
		if err := r.store.KeepRules(ctx, texts); err != nil {
			t.Fatal(err)
		}
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
	if err := r.store.DropRules(ctx, []string{"aa"}); err != nil {
		t.Fatal(err)
	}
	kept("bb")

	if err := errors.Join(r.client.Del(ctx, r.store.RulesKey()).Err(), r.client.Set(ctx, r.store.RulesKey(), "x", 0).Err()); err != nil {
		t.Fatal(err)
	}
	var foreign *window.ForeignError
	if _, _, err := r.store.RulesText(ctx, "bb"); !errors.As(err, &foreign) || foreign.Key != r.store.RulesKey() {
		t.Errorf("a key of another type: %v", err)
	}
	if err := r.store.KeepRules(ctx, map[string][]byte{"bb": nil}); !errors.As(err, &foreign) {
		t.Errorf("a key of another type: %v", err)
	}
}

// A cursor that its writer had seized before is not the one that it gave a version to.
func aLostVersionFences(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	if _, err := r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(1, now)); err != nil {
		t.Fatal(err)
	}
	w := r.writers()[shard]
	if err := w.Seize(t.Context()); err != nil {
		t.Fatal(err)
	}
	seized := r.client.HGetAll(t.Context(), cursorKey(shard)).Val()
	named := cursorAt(1, now)
	named.Naming = "a version"
	if _, err := w.Commit(t.Context(), window.NewBatch(layout).Shard(shard), named); err != nil {
		t.Fatal(err)
	}
	if err := r.client.HSet(t.Context(), cursorKey(shard), seized).Err(); err != nil { // Redis has lost that commit alone
		t.Fatal(err)
	}
	next := cursorAt(2, now)
	next.Naming = named.Naming
	if _, err := w.Commit(t.Context(), b.Shard(shard), next); !errors.Is(err, window.ErrFenced) {
		t.Errorf("over a lost version: %v", err)
	}
}

// A writer that seizes a cursor leaves it where it is, and fences all others, which can see that by looking.
func aSeizedCursorFences(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	if err := r.writers()[shard].Seize(t.Context()); err != nil {
		t.Errorf("no cursor: %v", err)
	}
	old := r.writers()[shard]
	if _, err := old.Commit(t.Context(), b.Shard(shard), cursorAt(5, now)); err != nil {
		t.Fatal(err)
	}
	young := r.writers()[shard]
	for name, w := range map[string]*window.Writer{"old": old, "young": young} {
		if err := w.Check(t.Context()); err != nil {
			t.Errorf("%s, before: %v", name, err)
		}
	}
	if err := young.Seize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := old.Check(t.Context()); !errors.Is(err, window.ErrFenced) {
		t.Errorf("a writer whose cursor was seized: %v", err)
	}
	if _, err := old.Commit(t.Context(), b.Shard(shard), cursorAt(6, now)); !errors.Is(err, window.ErrFenced) {
		t.Errorf("a writer whose cursor was seized commits: %v", err)
	}
	if err := young.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if c, exists := r.writers()[shard].Cursor(); !exists || c.Seq != 5 {
		t.Errorf("the cursor is %+v, %v", c, exists)
	}
	if _, err := young.Commit(t.Context(), b.Shard(shard), cursorAt(6, now)); err != nil {
		t.Error(err)
	}
}
