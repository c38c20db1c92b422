package consume

import (
	"slices"
	"strings"
	"sync/atomic"

	"pgregory.net/rapid"

	"tallyroll/internal/window"
)

// simBounded is the prefix of most counters if a plan has a bound of names. Then each hit is in its counter
// or in the overflow counter of its shard, and in one of them only.
const simBounded = "web."

var simOverflows atomic.Int64 // cells of overflow counters with hits that checks have seen

// named is the name of a counter that only one message has.
func (w *simWorld) named(name string) string {
	if w.plan.bound > 0 {
		return simBounded + name
	}
	return name
}

func (w *simWorld) isBounded(h simHit) bool {
	return w.plan.bound > 0 && strings.HasPrefix(h.counter, simBounded)
}

// overflowOf is the hit in the overflow counter of its shard.
func (w *simWorld) overflowOf(h simHit) simHit {
	out := simHit{shard: h.shard, at: h.at, n: h.n}
	out.counter = w.layout.Overflow(simBounded, h.shard)
	out.hash = window.HashCounter([]byte(out.counter))
	return out
}

// overflowRegister is the register of a hit in the overflow counter of its shard. alive says that its cell is
// still there, whatever its jitter.
func (w *simWorld) overflowRegister(h simHit, r simRegister, now int64) (out simRegister, alive bool) {
	o := w.overflowOf(h)
	r.key = strings.TrimSuffix(r.key, h.counter) + o.counter
	return r, w.holdsUnique(r.tier, simHit{at: h.at}, now)
}

// drawBound draws a bound for a third of the plans, without the events whose model does not know the
// overflow.
func (p simPlan) drawBound(t *rapid.T) simPlan {
	p.bound = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 1, 4, 12, 40}).Draw(t, "bound")
	if p.bound > 0 {
		p.declared = 0
		p.events = slices.DeleteFunc(p.events, func(e simEvent) bool {
			return strings.HasPrefix(e.kind, "foreign") || slices.Contains([]string{"another stream ends", "clock of Redis ahead", "declare"}, e.kind)
		})
	}
	return p
}
