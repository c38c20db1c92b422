package bench_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
)

// mostClients is how many ask at a time, besides one.
const mostClients = 50

// deciding is how a limiter decides in one state, with so many clients.
type deciding struct {
	sample
	limiter limiter
	state   limiterState
	clients int
}

func (d *deciding) path() string { return "limits/" + d.state.name + "/" + d.limiter.name }

// limitFigures are all that is measured of limiters.
type limitFigures struct {
	deciding []*deciding
	occupied []occupied
}

// measureLimits lets the limiters decide in turn, each round beginning with another one.
func measureLimits(t *testing.T, r *rig, o options) (out limitFigures) {
	all := r.limiters(t)
	length := max(o.seconds(1)/2, 20*time.Millisecond)
	for _, state := range limiterStates {
		for _, clients := range []int{1, mostClients} {
			var rows []*deciding
			for _, l := range all {
				if !state.full || l.name != bareName {
					rows = append(rows, &deciding{limiter: l, state: state, clients: clients})
				}
			}
			rows = chosen(o, (*deciding).path, rows...)
			if len(rows) > 0 && clients == 1 {
				r.empty(t)
			}
			path := func(d *deciding) string { return fmt.Sprintf("%s/clients=%d", d.path(), clients) }
			inTurns(t, o, rows, path, func(t *testing.T, d *deciding, _ int) { d.decide(t, length) })
			out.deciding = append(out.deciding, rows...)
		}
	}
	all = slices.DeleteFunc(all, func(l limiter) bool { return l.keys == "" })
	out.occupied = r.occupy(t, chosen(o, func(l limiter) string { return "limits/memory/" + l.name }, all...))
	return out
}

// errDecision means that a hit was allowed that has to be refused, or the other way round.
var errDecision = errors.New("the wrong decision")

// decisions numbers the keys of idle decisions, so that none comes twice.
var decisions atomic.Int64

// decide asks from all clients, each again when it has its answer.
func (d *deciding) decide(t *testing.T, length time.Duration) {
	ctx, l, state, most := t.Context(), d.limiter, d.state, d.state.mostOf(d.limiter)
	for allowed := state.full; allowed; {
		var err error
		allowed, err = l.take(ctx, state.key(0), state.window, most)
		require.NoError(t, err)
	}
	var mu sync.Mutex
	var took []time.Duration
	var clients sync.WaitGroup
	began := time.Now()
	for range d.clients {
		clients.Go(func() {
			var mine []time.Duration
			for time.Since(began) < length {
				asked := time.Now()
				allowed, err := l.take(ctx, state.key(decisions.Add(1)), state.window, most)
				if err == nil && allowed == state.full {
					err = errDecision
				}
				if err != nil {
					t.Errorf("%s: %v", l.name, err)
					return
				}
				mine = append(mine, time.Since(asked))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	clients.Wait()
	d.add("rate", float64(len(took))/time.Since(began).Seconds())
	d.took = append(d.took, took...)
	fmt.Printf("%s, %d clients: %.0f/s\n", d.path(), d.clients, d.last("rate"))
}

type limitsView struct{ Deciding, Occupied []string }

// view is the rows of the tables. Ratios are to the bare INCR of the same state; if everything is refused, to that
// of the hot key.
func (f limitFigures) view() (v limitsView) {
	for _, d := range f.deciding {
		bare := slices.IndexFunc(f.deciding, func(other *deciding) bool {
			same := other.state.name == d.state.name || d.state.name == "refused" && other.state.name == "hot"
			return other.limiter.name == bareName && other.clients == d.clients && same
		})
		ofBare := "–"
		if bare >= 0 {
			ofBare = ratio(micros(d.took, 50), micros(f.deciding[bare].took, 50))
		}
		v.Deciding = append(v.Deciding, cellsOf(d.state.name, fmt.Sprint(d.clients), d.limiter.name, spread(d.rounds["rate"]),
			short(micros(d.took, 50))+" µs", short(micros(d.took, 99))+" µs", ofBare))
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

// micros is a percentile in microseconds, to the nanosecond: memory decides within one step of what percentile returns.
func micros(took []time.Duration, p float64) float64 {
	return float64(exactPercentile(took, p).Nanoseconds()) / 1000
}

// Every limiter allows as many as its limit says, and then no more.
func checkLimiters(t *testing.T, r *rig) {
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
	v := measureLimits(t, r, options{runs: 1, scale: 0.001, only: regexp.MustCompile("^limits/(idle|hot|refused)/")}).view()
	require.Len(t, v.Deciding, 2*(3*len(r.limiters(t))-1))
	require.Empty(t, v.Occupied)
}
