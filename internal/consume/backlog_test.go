package consume

import (
	"math"
	"testing"
	"time"
)

func TestBacklogTellsTheTimeLeft(t *testing.T) {
	now := time.Unix(1_795_250_000, 0)
	var b backlog
	for i, step := range []struct {
		after       time.Duration
		place, last uint64
		far         bool

		measured  bool
		perSecond float64
		left      float64
		caught    time.Duration
	}{
		{place: 100, last: 100},
		{place: 100, last: 50_100, far: true},
		{after: 4 * time.Second, place: 10_000, last: 50_100, far: true},
		{after: 6 * time.Second, place: 20_100, last: 50_100, far: true, measured: true, perSecond: 2000, left: 15},
		{after: 10 * time.Second, place: 40_100, last: 60_100, far: true, measured: true, perSecond: 2000, left: 20}, // 1,000 a second come
		{after: 10 * time.Second, place: 50_100, last: 90_100, far: true, measured: true, perSecond: 1000, left: math.Inf(1)},
		{after: 5 * time.Second, place: 90_000, last: 90_100, caught: 35 * time.Second},
		{after: time.Second, place: 90_100, last: 90_100},
	} {
		now = now.Add(step.after)
		s, measured, caught := b.observe(now, step.place, step.last, step.far)
		if measured != step.measured || caught != step.caught || s.perSecond != step.perSecond || s.left != step.left {
			t.Errorf("step %d: %+v, %v, caught up after %v; want %+v", i, s, measured, caught, step)
		}
		if measured && s.behind != step.last-step.place {
			t.Errorf("step %d: %d behind", i, s.behind)
		}
	}
}

// Hits gather for a fifth of the lag, and whoever has reached the end that was
// seen last waits no longer than others.
func TestGather(t *testing.T) {
	for _, c := range []struct {
		lag   time.Duration
		place uint64
		want  time.Duration
	}{
		{farBehind, 50, 0},
		{6 * time.Second, 1, 1200 * time.Millisecond},
		{6 * time.Second, 99, 1200 * time.Millisecond},
		{6 * time.Second, 100, 0},
		{6 * time.Second, 120, 0},
		{time.Hour, 50, maxGather},
	} {
		var end tail
		end.set(streamState{first: 1, last: 100, lastStored: 1, at: 1}, c.lag)
		if got := end.gather(c.place); got != c.want {
			t.Errorf("at %d of 100, %v late: %v, want %v", c.place, c.lag, got, c.want)
		}
	}
}
