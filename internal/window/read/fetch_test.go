package read

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
)

// A plan about uniques is good for as long as the cells that it reads surely live.
func TestUniquePlansLiveAsLongAsTheirCells(t *testing.T) {
	t.Parallel()
	tiers, err := window.ParseTiers("1s/20s,1m/1h")
	require.NoError(t, err)
	l := window.Layout{Shards: 4, UniqueTiers: tiers}
	now := time.Date(2026, 11, 24, 10, 0, 30, 5e8, time.UTC).UnixMilli()
	for length, want := range map[time.Duration]time.Duration{10 * time.Second: 5 * time.Second, 20 * time.Minute: 5 * time.Minute} {
		p, err := l.PlanUniques(window.Question{Counter: "c", Span: window.Last(length)}, now, false)
		require.NoError(t, err)
		if got := graceOf([]window.Plan{p.Plan}); got != want {
			t.Errorf("%v: %v, want %v", length, got, want)
		}
	}
}
