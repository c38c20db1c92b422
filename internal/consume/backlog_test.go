package consume

import (
	"math"
	"testing"
	"time"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/progress"
)

func TestBacklogTellsTheTimeLeft(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_795_250_000, 0)
	var b backlog
	for i, step := range []struct {
		after       time.Duration
		place, last uint64
		far         bool

		want   progress.State
		due    bool
		left   float64
		caught time.Duration
	}{
		{place: 100, last: 100},
		{place: 100, last: 50_100, far: true}, // one sight has no speed
		{after: 4 * time.Second, place: 8_100, last: 50_100, far: true,
			want: progress.State{Done: 8_000, Left: 42_000, PerSecond: 2000, Gained: 2000}, left: 21},
		{after: 6 * time.Second, place: 20_100, last: 50_100, far: true,
			want: progress.State{Done: 20_000, Left: 30_000, PerSecond: 2000, Gained: 2000}, due: true, left: 15},
		{after: 10 * time.Second, place: 40_100, last: 60_100, far: true, // 1,000 a second come
			want: progress.State{Done: 40_000, Left: 20_000, PerSecond: 2000, Gained: 1000}, due: true, left: 20},
		{after: 4 * time.Second, place: 44_100, last: 72_100, far: true, // the last 14 s: no sight is nearer to 10
			want: progress.State{Done: 44_000, Left: 28_000, PerSecond: 24_000. / 14, Gained: 2_000. / 14}, left: 196},
		{after: 6 * time.Second, place: 50_100, last: 90_100, far: true,
			want: progress.State{Done: 50_000, Left: 40_000, PerSecond: 1000, Gained: -2000}, due: true, left: math.Inf(1)},
		{after: 5 * time.Second, place: 90_000, last: 90_100, caught: 35 * time.Second},
		{after: time.Second, place: 90_100, last: 90_100},
		{place: 90_100, last: 95_100, far: true}, // the next backlog starts from the beginning
		{after: time.Second, place: 91_100, last: 95_100, far: true,
			want: progress.State{Done: 1000, Left: 4000, PerSecond: 1000, Gained: 1000}, left: 4},
	} {
		now = now.Add(step.after)
		p, due, caught := b.observe(now, step.place, step.last, step.far)
		if p != step.want || due != step.due || caught != step.caught {
			t.Errorf("step %d: %+v, for the log %v, caught up after %v; want %+v", i, p, due, caught, step)
		}
		if p.Left > 0 && math.Abs(p.Seconds()-step.left) > 1e-9 && p.Seconds() != step.left {
			t.Errorf("step %d: %v s left; want %v", i, p.Seconds(), step.left)
		}
	}
}

// Hits gather for a fifth of the lag, but not at the end of the stream.
func TestHitsAreGatheredForAFifthOfTheLag(t *testing.T) {
	t.Parallel()
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
		end.set(source.State{First: 1, Last: 100, LastStored: 1, At: 1}, c.lag)
		if got := end.gatherTime(c.place); got != c.want {
			t.Errorf("at %d of 100, %v late: %v, want %v", c.place, c.lag, got, c.want)
		}
	}
}
