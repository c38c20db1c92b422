package window_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Texts of rules are written where they are missing, read by their fingerprints, and last until they are
// removed.
func (r *rig) TestRulesAreKept(t *testing.T) {
	ctx := t.Context()
	mustKeep := func(want ...string) {
		t.Helper()
		got, err := r.store.Rules.Fingerprints(ctx)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("kept are %v, %v; want %v", got, err, want)
		}
	}
	mustKeep()
	for _, texts := range []map[string][]byte{nil, {"aa": []byte("one")}, {"aa": []byte("one"), "bb": []byte("two\n")}} {
		require.NoError(t, r.store.Rules.Keep(ctx, texts))
	}
	mustKeep("aa", "bb")
	if text, found, err := r.store.Rules.Read(ctx, "bb"); err != nil || !found || string(text) != "two\n" {
		t.Errorf("%q, %v, %v", text, found, err)
	}
	if text, found, err := r.store.Rules.Read(ctx, "cc"); err != nil || found {
		t.Errorf("what was never written: %q, %v, %v", text, found, err)
	}
	if ttl, err := r.client.TTL(ctx, r.store.Rules.Key()).Result(); err != nil || ttl != -1 {
		t.Errorf("the texts expire after %v, %v", ttl, err)
	}
	require.NoError(t, r.store.Rules.Remove(ctx, []string{"aa"}))
	mustKeep("bb")

	require.NoError(t, errors.Join(r.client.Del(ctx, r.store.Rules.Key()).Err(), r.client.Set(ctx, r.store.Rules.Key(), "x", 0).Err()))
	mustName(t, r.store.Rules.Key(), r.store.Rules.Keep(ctx, map[string][]byte{"bb": nil}))
	_, _, err := r.store.Rules.Read(ctx, "bb")
	mustName(t, r.store.Rules.Key(), err)
}
