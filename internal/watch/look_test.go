package watch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// storeFor is a namespace in Redis that a worker has made with the default tiers.
func storeFor(t *testing.T) *window.Store {
	t.Helper()
	tiers, err := window.ParseTiers(window.DefaultTiers)
	require.NoError(t, err)
	store := window.NewStore(stack.ProgramClient(t, stack.Redis(t).URL()), "tallyroll")
	require.NoError(t, store.EnsureLayout(t.Context(), window.Layout{Tiers: tiers, Shards: 1}))
	return store
}

// Windows that no tier holds make only their own rules unknown, however many they are, and the reason names the tiers.
func TestWindowsThatNoTierHolds(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("targets: {a: {nats: alerts}}\nrules:\n- {name: good, key: k, window: 1m, above: 1, to: [a]}\n")
	for i := range 100 {
		fmt.Fprintf(&text, "- {name: bad%d, %s, window: %dd, above: 1, to: [a]}\n", i, []string{"key: k", "prefix: k", "prefix: k, group: 1", "top: 3"}[i%4], 100+i)
	}
	text.WriteString("- {name: before, key: k, window: 20d, change: +50%, to: [a]}\n")
	book := parse(t, text.String())
	e := eye{window.NewReader(storeFor(t)), 10}
	seen, err := e.look(t.Context(), book.Rules, func(*Rule) []string { return nil })
	require.NoError(t, err)
	for _, s := range seen.seen {
		bad := s.Rule.Name != "good"
		if refused := strings.HasPrefix(s.Reason, "it cannot be asked: ") && strings.Contains(s.Reason, "1h cells reach back 32d"); refused != bad {
			t.Errorf("%s: %q", s.Rule.Name, s.Reason)
		}
	}
}
