package bench_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mostClients is how many ask at a time, besides one.
const mostClients = 50

// deciding is how a limiter decided in one state, with so many clients, in all rounds.
type deciding struct {
	limiter, state string
	clients        int
	rates          []float64
	took           []time.Duration
}

// limitFigures are all that is measured of limiters.
type limitFigures struct {
	deciding []*deciding
	occupied []occupied
}

// measureLimits lets the limiters decide in turn, each round beginning with another one.
func measureLimits(t *testing.T, r *rig, o options) (out limitFigures) {
	if !slices.ContainsFunc(limiterPaths(r.limiters(t)), o.wants) {
		return out
	}
	all := r.limiters(t)
	length := max(o.seconds(1)/2, 20*time.Millisecond)
	for _, state := range limiterStates {
		r.empty(t)
		for _, clients := range []int{1, mostClients} {
			var rows []*deciding
			var of []limiter
			for _, l := range all {
				if state.full && l.name == bareName || !o.wants("limits/"+state.name+"/"+l.name) {
					continue
				}
				rows = append(rows, &deciding{limiter: l.name, state: state.name, clients: clients})
				of = append(of, l)
			}
			for run := range o.runs {
				for i := range rows {
					i = (i + run) % len(rows)
					t.Run(fmt.Sprintf("limits/%s/%s/clients=%d/run=%d", state.name, of[i].name, clients, run), func(t *testing.T) {
						rows[i].decide(t, of[i], state, length)
					})
				}
				if t.Failed() {
					t.FailNow()
				}
			}
			out.deciding = append(out.deciding, rows...)
		}
	}
	out.occupied = r.occupy(t, slices.DeleteFunc(all, func(l limiter) bool {
		return l.keys == "" || !o.wants("limits/memory/"+l.name)
	}))
	return out
}

// limiterPaths are what ONLY can select.
func limiterPaths(all []limiter) (out []string) {
	for _, l := range all {
		out = append(out, "limits/memory/"+l.name)
		for _, state := range limiterStates {
			out = append(out, "limits/"+state.name+"/"+l.name)
		}
	}
	return out
}

// errDecision means that a hit was allowed that has to be refused, or the other way round.
var errDecision = errors.New("the wrong decision")

// decisions numbers the keys of idle decisions, so that none comes twice.
var decisions atomic.Int64

// decide asks from all clients, each again when it has its answer.
func (d *deciding) decide(t *testing.T, l limiter, state limiterState, length time.Duration) {
	ctx, most := t.Context(), state.mostOf(l)
	if state.full {
		for {
			allowed, err := l.take(ctx, state.key(0), state.window, most)
			require.NoError(t, err)
			if !allowed {
				break
			}
		}
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
	d.rates = append(d.rates, float64(len(took))/time.Since(began).Seconds())
	d.took = append(d.took, took...)
	fmt.Printf("limits/%s/%s, %d clients: %.0f/s\n", d.state, d.limiter, d.clients, d.rates[len(d.rates)-1])
}
