package main

import (
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"tallyroll/internal/hit"
)

// synthetic generates hits of the counters api-1 … api-N, uniformly or Zipf-distributed, at a steady rate.
// They have no time of their own, and count when they are stored.
type synthetic struct {
	counters int64
	zipf     float64       // the exponent, above 1; 0 is a uniform distribution
	rate     float64       // hits per second; 0 is as fast as possible
	duration time.Duration // 0 is without end
	count    int64         // hits in all; 0 is without end
}

// rateStep is how often hits are released, in small groups: a timer per hit reaches only some thousand per
// second.
const rateStep = 5 * time.Millisecond

// checkEvery is how many hits are generated between checks of the clock.
const checkEvery = 64

// run passes hits to take until the count or the duration is reached. If take or the stream is slower than
// the rate, it catches up afterwards: the rate is that of the whole run.
func (s synthetic) run(feed func(hit.Hit) error, wait func(until time.Time) error) error {
	draw := s.drawer()
	start := time.Now()
	limit := s.count
	if limit == 0 {
		limit = math.MaxInt64
	}
	key := []byte("api-")
	for generated := int64(0); generated < limit; {
		elapsed := time.Since(start)
		over := s.duration > 0 && elapsed >= s.duration
		if over {
			elapsed = s.duration
		}
		target := limit
		switch {
		case s.rate > 0:
			target = min(limit, int64(s.rate*elapsed.Seconds()))
		case over:
			return nil
		default:
			target = min(limit, generated+checkEvery)
		}
		for ; generated < target; generated++ {
			key = strconv.AppendInt(key[:len("api-")], draw(), 10)
			if err := feed(hit.Hit{Counter: key, N: 1, At: hit.NoTime}); err != nil {
				return err
			}
		}
		if over {
			return nil
		}
		if s.rate > 0 && generated < limit {
			if err := wait(s.next(start, elapsed, generated)); err != nil {
				return err
			}
		}
	}
	return nil
}

// next is when there is more to do: a step later, or later still if the next hit or the end is further away.
func (s synthetic) next(start time.Time, elapsed time.Duration, generated int64) time.Time {
	due := float64(generated+1) / s.rate * float64(time.Second)
	pause := max(elapsed+rateStep, time.Duration(min(due, float64(maxPause))))
	if s.duration > 0 {
		pause = min(pause, s.duration)
	}
	return start.Add(pause)
}

func (s synthetic) drawer() func() int64 {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	if s.zipf == 0 {
		return func() int64 { return 1 + random.Int64N(s.counters) }
	}
	z := rand.NewZipf(random, s.zipf, 1, uint64(s.counters-1))
	return func() int64 { return 1 + int64(z.Uint64()) }
}

// total is how many hits there will be; 0 if unknown.
func (s synthetic) total() int64 {
	byTime := int64(s.rate * s.duration.Seconds())
	switch {
	case byTime > 0 && s.count > 0:
		return min(byTime, s.count)
	case s.count > 0 && s.duration == 0:
		return s.count
	}
	return byTime
}
