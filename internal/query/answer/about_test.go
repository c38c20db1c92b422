package answer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
)

// What is offered is what the tiers answer well, and each length stands once.
func TestWhatIsOfferedIsAnsweredWell(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ tiers, windows, steps string }{
		{window.DefaultTiers, "1m 5m 15m 1h 6h 24h 7d 30d 32d", "1s 5s 10s 30s 1m 5m 15m 30m 1h 3h 6h 12h 1d 1w"},
		{"1s/1h,1m/1d,1h/92d", "1m 5m 15m 1h 6h 24h 7d 30d 90d 92d", "1s 5s 10s 30s 1m 5m 15m 30m 1h 3h 6h 12h 1d 1w"},
		{"1s/1m,1m/1d", "1m 5m 15m 1h 6h 24h", "1s 5s 10s 30s 1m 5m 15m 30m 1h 3h 6h 12h 1d"},
		{"1s/30s", "30s", "1s 5s 10s 30s"},
		// A cell of six hours is no answer to five minutes.
		{"1s/1m,6h/32d", "1m 6h 24h 7d 30d 32d", "1s 5s 10s 30s 1m 6h 12h 1d 1w"},
		{"7s/49s,7m/210m", "49s 15m 1h 210m", "7s 7m"},
		{"1d/520w", "24h 7d 30d 90d 365d 3640d", "1d 1w"},
	} {
		tiers, err := window.ParseTiers(c.tiers)
		require.NoError(t, err)
		require.Equal(t, c.windows, strings.Join(windowsOf(tiers), " "), c.tiers)
		require.Equal(t, c.steps, strings.Join(stepsOf(tiers), " "), c.tiers)
	}
}
