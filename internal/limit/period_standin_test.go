package limit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window/calendar"
)

// Periods turn with the stand-in, too, also for a process whose clock is a year behind.
func TestPeriodsWithTheStandIn(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, -400 * 24 * time.Hour} {
		w := newWorld(t, backends[2].start(t), "periods")
		w.limiter.now = func() time.Time { return time.UnixMilli(w.clock).Add(ahead) }
		l := &Limit{Name: "day", Max: 3}
		var err error
		l.Period, err = calendar.ParsePeriod(calendar.Today, "", time.UTC)
		require.NoError(t, err)
		l.Window = l.Period.Longest()
		require.NoError(t, l.Check())
		day := (worldStart/86_400_000+1)*86_400_000 - int64(worldStart)
		w.at(day - 1)
		require.True(t, w.take(takeOf(l, "alice", 3)).Allowed)
		d := w.take(takeOf(l, "alice", 1)).Decisions[0]
		require.True(t, !d.Allowed && d.RetryAfter == time.Millisecond && d.Turn == time.Millisecond, "%+v", d)
		w.at(day)
		require.True(t, w.take(takeOf(l, "alice", 3)).Allowed)
		w.at(day - 1) // the key stays in its period
		d = w.take(takeOf(l, "alice", 1)).Decisions[0]
		require.True(t, !d.Allowed && d.RetryAfter == 24*time.Hour+time.Millisecond, "%+v", d)
	}
}
