package limit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
)

func TestCountersOfKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template         CounterName
		limit, key, want string
		prefix           string
	}{
		{"usage.{limit}.{key}", "plan-pro", "alice", "usage.plan-pro.alice", "usage.plan-pro."},
		{"usage.{limit}.{key}", "a.b", "c", "usage.a:b.c", "usage.a:b."},
		{"usage.{limit}.{key}", "a", "b.c", "usage.a.b.c", "usage.a."},
		{"usage.{key}", "a", "{limit}", "usage.{limit}", "usage."},
		{"{limit}.of.{limit}.{key}", "a", "{key}", "a.of.a.{key}", "a.of.a."},
		{"sum.usage.{limit}", "a.b", "c", "sum.usage.a:b", "sum.usage.a:b"},
	} {
		require.Equal(t, c.want, c.template.Of(c.limit, c.key))
		require.Equal(t, c.prefix, c.template.Prefix(c.limit))
	}
}

// Distinct limits and keys have distinct counters, however long they are, and a limit's prefix is that of its
// own counters alone.
func TestCountersKeepLimitsAndKeysApart(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[ab.]{1,4}`)
	key := rapid.OneOf(rapid.StringMatching(`[ab.:]{1,4}`), rapid.Map(rapid.StringMatching(`[ab.:]{1,2}`),
		func(end string) string { return strings.Repeat("é", 252) + end }))
	rapid.Check(t, func(t *rapid.T) {
		const template = CounterName("usage.{limit}.{key}")
		limits, keys := [2]string{name.Draw(t, "a"), name.Draw(t, "b")}, [2]string{key.Draw(t, "c"), key.Draw(t, "d")}
		one, other := template.Of(limits[0], keys[0]), template.Of(limits[1], keys[1])
		if (one == other) != (limits[0] == limits[1] && keys[0] == keys[1]) {
			t.Fatalf("%q and %q of %q and %q", one, other, limits, keys)
		}
		if strings.HasPrefix(one, template.Prefix(limits[1])) != (limits[0] == limits[1]) {
			t.Fatalf("%q begins with %q", one, template.Prefix(limits[1]))
		}
		if err := hit.CheckName([]byte(one)); err != nil {
			t.Fatal(err)
		}
	})
}
