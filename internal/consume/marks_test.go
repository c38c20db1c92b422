package consume

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/window"
)

// A stream that was more than a minute behind is marked once it has caught up, over sessions; one that is counted for the
// first time is not.
func TestLateness(t *testing.T) {
	t.Parallel()
	const begin = int64(1_800_000_000_000)
	at := func(d time.Duration) int64 { return begin + d.Milliseconds() }
	cursors := func(asOf time.Duration) []window.Cursor {
		return []window.Cursor{{AsOf: at(asOf + time.Second)}, {AsOf: at(asOf)}}
	}
	caught := func(l *lateness, asOf, now time.Duration, want ...time.Duration) {
		t.Helper()
		m, got := l.observe(at(asOf), at(now))
		if got != (len(want) > 0) || got && (m.At != at(want[0]) || m.Until != at(want[1]) || m.Kind != window.MarkLate) {
			t.Errorf("counted up to %v at %v: %v %+v, want %v", asOf, now, got, m, want)
		}
	}
	t.Run("a stop", func(t *testing.T) {
		l := new(lateness)
		l.resume(cursors(0), 2, at(10*time.Minute))
		caught(l, 5*time.Minute, 10*time.Minute)
		l.resume(cursors(7*time.Minute), 2, at(11*time.Minute)) // the session failed
		caught(l, 11*time.Minute, 11*time.Minute+5*time.Second, 0, 11*time.Minute+5*time.Second)
		caught(l, 12*time.Minute, 12*time.Minute)
	})
	t.Run("caught up between sessions", func(t *testing.T) {
		l := new(lateness)
		l.resume(cursors(0), 2, at(10*time.Minute))
		l.resume(cursors(10*time.Minute), 2, at(10*time.Minute))
		caught(l, 10*time.Minute, 10*time.Minute, 0, 10*time.Minute)
	})
	t.Run("too slow", func(t *testing.T) {
		l := new(lateness)
		l.resume(cursors(0), 2, at(time.Minute))
		caught(l, 0, time.Minute)
		caught(l, time.Minute, 2*time.Minute+time.Millisecond)
		caught(l, 3*time.Minute, 3*time.Minute+6*time.Second)
		caught(l, 4*time.Minute, 4*time.Minute, time.Minute, 4*time.Minute)
	})
	t.Run("for the first time", func(t *testing.T) {
		l := new(lateness)
		l.resume(cursors(0)[:1], 2, at(time.Hour))
		caught(l, 0, time.Hour)
		caught(l, time.Hour, time.Hour)
		caught(l, time.Hour, 2*time.Hour)
		caught(l, 2*time.Hour, 2*time.Hour, time.Hour, 2*time.Hour)
	})
	var none *lateness
	none.resume(nil, 2, begin)
	caught(none, 0, time.Hour)
}

// A loss lies between the last message applied and the moment that the cursor admits; if there was none, since the stream
// began.
func TestLossMark(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cursor            window.Cursor
		since, before     int64
		wantAt, wantUntil int64
	}{
		{window.Cursor{Stored: 5e6, AsOf: 7}, 1, 9, 7, 9},
		{window.Cursor{Stored: 8e6, AsOf: 7}, 1, 9, 8, 9},
		{window.Cursor{}, 3, 9, 3, 9},
		{window.Cursor{}, 0, 9, 9, 0}, // of a mirror, nobody knows when it began
		{window.Cursor{Stored: 9e6}, 0, 9, 9, 0},
	} {
		if m := lossMark(recreated, c.cursor, c.since, c.before); m.At != c.wantAt || m.Until != c.wantUntil || m.Kind != window.MarkLoss {
			t.Errorf("%+v: %+v", c, m)
		}
	}
}

// Whoever puts a mark never waits, whether there is room or not.
func TestMarksDoNotWait(t *testing.T) {
	t.Parallel()
	k := NewKeeper(Config{Metrics: simMetrics, Log: zerolog.Nop()})
	for range 2 * maxMarksWaiting {
		k.Mark(window.Mark{})
	}
	if len(k.marks) != maxMarksWaiting {
		t.Errorf("%d marks wait", len(k.marks))
	}
	marks(nil).put(window.Mark{}, zerolog.Nop())
}
