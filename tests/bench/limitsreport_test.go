package bench_test

import (
	"fmt"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tallyroll/internal/boot"
)

type limitsView struct{ Deciding, Occupied []string }

// view is the rows of the tables. Ratios are to the bare INCR of the same state; if everything is refused, to that
// of the hot key.
func (f limitFigures) view() (v limitsView) {
	for _, d := range f.deciding {
		bare := slices.IndexFunc(f.deciding, func(other *deciding) bool {
			return other.limiter == bareName && other.clients == d.clients && (other.state == d.state || d.state == "refused" && other.state == "hot")
		})
		ofBare := "–"
		if bare >= 0 {
			ofBare = ratio(micros(exactPercentile(d.took, 50)), micros(exactPercentile(f.deciding[bare].took, 50)))
		}
		v.Deciding = append(v.Deciding, cellsOf(d.state, fmt.Sprint(d.clients), d.limiter, spread(d.rates),
			short(micros(exactPercentile(d.took, 50)))+" µs", short(micros(exactPercentile(d.took, 99)))+" µs", ofBare))
	}
	for _, o := range f.occupied {
		cells := []string{o.limiter}
		for _, b := range o.bytes {
			cells = append(cells, boot.Thousands(b))
		}
		v.Occupied = append(v.Occupied, cellsOf(cells...))
	}
	return v
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// exactPercentile is percentile to the nanosecond: memory decides within one of percentile's steps.
func exactPercentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p/100))]
}

// Every limiter allows as many as its limit says, and then no more.
func TestEveryLimiterLimits(t *testing.T) {
	r := newRig(t)
	for _, l := range r.limiters(t) {
		if l.name == bareName {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			const most, clients = 40, 8
			var allowed atomic.Int64
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for range most {
						ok, err := l.take(t.Context(), "smoke", time.Hour, most)
						if err != nil {
							t.Error(err)
							return
						}
						if ok {
							allowed.Add(1)
						}
					}
				})
			}
			wg.Wait()
			got := allowed.Load()
			if got < most || l.exact && got > most || got > most+clients {
				t.Errorf("%d hits were allowed, not %d", got, most)
			}
		})
	}
	v := measureLimits(t, r, options{runs: 1, scale: 0.001, only: regexp.MustCompile("^limits/idle/(bare|ring)")}).view()
	if len(v.Deciding) != 4 || len(v.Occupied) != 0 {
		t.Errorf("%+v", v)
	}
}
