package consume

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
)

// The watcher ends the session of a stream whose retention is changed.
func TestChangedRetentionEndsTheSession(t *testing.T) {
	t.Parallel()
	w := &watcher{setup: &setup{}, resumePlan: &resumePlan{state: source.State{Created: 1, Last: 5}}}
	if err := w.checkSame(source.State{Created: 1, Last: 5, Retention: jetstream.InterestPolicy}, 5, 0); !errors.Is(err, ErrRetention) {
		t.Errorf("the session goes on: %v", err)
	}
}

// as_of falls with the clock of NATS, whether a message shows that it was set back or the stream's end does.
func TestAsOfFallsWithTheClock(t *testing.T) {
	t.Parallel()
	const second = int64(1e9)
	for _, test := range []struct {
		name   string
		load   load // what was read
		end    source.State
		keep   bool // as_of must not rise
		before int64
		want   int64 // Unix milliseconds
	}{
		{"a later message", load{seq: 11, stored: 110 * second}, source.State{Last: 10}, false, 100_000, 110_000},
		{"a later message, stored before as_of", load{seq: 11, stored: 70 * second}, source.State{Last: 10, At: 100_000, Clock: 100_001}, false, 100_000, 70_000},
		{"the same message, the end", load{seq: 10, stored: 90 * second}, source.State{Last: 10, LastStored: 90 * second, At: 104_000, Clock: 104_001}, false, 100_000, 104_000},
		{"the same message, the end, and the clock was set back", load{seq: 10, stored: 90 * second}, source.State{Last: 10, LastStored: 90 * second, At: 60_000, Clock: 60_001}, false, 100_000, 60_001},
		{"the same message, not the end", load{seq: 10, stored: 90 * second}, source.State{Last: 12, LastStored: 95 * second, At: 60_000, Clock: 60_001}, false, 100_000, 100_000},
		{"another message of the sequence", load{seq: 10, stored: 90 * second}, source.State{Last: 10, LastStored: 91 * second, At: 104_000, Clock: 104_001}, false, 100_000, 100_000},
		{"a later message, and a stream is not listed", load{seq: 11, stored: 110 * second}, source.State{Last: 10}, true, 100_000, 100_000},
	} {
		test.end.First = 1
		c := &committer{setup: &setup{}, resumePlan: &resumePlan{}, tail: &tail{}}
		c.tail.set(test.end, 0)
		next := c.target(&test.load)
		next.keepAsOf = test.keep
		w := &shardWriter{position: window.Cursor{Seq: 10, Stored: 90 * second, AsOf: test.before}}
		if got := w.advance(next).AsOf; got != test.want {
			t.Errorf("%s: as_of %d, want %d", test.name, got, test.want)
		}
	}
}
