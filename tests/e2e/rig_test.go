package e2e_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// The tests of packages run in namespaces as ingest makes them, except for the number of shards.
func TestRigMakesNamespacesAsIngestDoes(t *testing.T) {
	t.Parallel()
	s := start(t, "SHARDS=4")
	record := func(namespace string) string {
		t.Helper()
		text, err := s.redis.Client().Get(t.Context(), namespace+":layout").Result()
		require.NoError(t, err)
		return regexp.MustCompile(`"id":"\w+"`).ReplaceAllLiteralString(text, `"id":""`)
	}
	store := schema.NewStore(stack.ProgramClient(t, s.redis.URL()), "rig")
	require.NoError(t, store.EnsureLayout(t.Context(), windowtest.Layout))
	require.Equal(t, record("tallyroll"), record("rig"))
}
