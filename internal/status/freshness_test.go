package status

import (
	"testing"

	"tallyroll/internal/window"
)

// The last stream that has ended says up to when answers are whole, if there is no other.
func TestOldest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		streams []window.Progress
		want    int64
	}{
		{nil, 0},
		{[]window.Progress{{AsOf: 5}, {AsOf: 3}, {AsOf: 9}}, 3},
		{[]window.Progress{{AsOf: 1, Ended: 8}, {AsOf: 5}}, 5},
		{[]window.Progress{{AsOf: 5}, {AsOf: 1, Ended: 8}}, 5},
		{[]window.Progress{{AsOf: 5}, {AsOf: 0}}, 0},
		{[]window.Progress{{AsOf: 1, Ended: 8}, {AsOf: 1, Ended: 9}}, 9},
	} {
		if got := oldest(c.streams); got != c.want {
			t.Errorf("%+v: %d, want %d", c.streams, got, c.want)
		}
	}
}
