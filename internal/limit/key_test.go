package limit_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/limit"
)

// Any bytes make a key, and the name of a counter. A name stays as it is, so a key is its own key, and what
// is no name has a key that no other has.
func TestAnyBytesMakeAKey(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a\t\x00\x7f]{0,3}`), rapid.StringMatching(`x{510,515}`),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 600), func(b []byte) string { return string(b) }))
	keys := make(map[string]string)
	rapid.Check(t, func(t *rapid.T) {
		given := text.Draw(t, "bytes")
		key := limit.KeyOf(given)
		require.NoError(t, hit.CheckName([]byte(key)), "%q", given)
		require.Equal(t, key, limit.KeyOf(key), "%q", given)
		require.Equal(t, hit.CheckName([]byte(given)) == nil, key == given, "%q", given)
		if other, known := keys[key]; known && other != given {
			t.Fatalf("%q and %q have the key %s", given, other, key)
		}
		keys[key] = given
		counter := limit.CounterName("usage.{limit}.{key}").Of("login", key)
		require.NoError(t, hit.CheckName([]byte(counter)), "%q", given)
		require.True(t, strings.HasPrefix(counter, "usage.login."))
	})
}
