package window

import (
	"fmt"
	"math"
	"time"
)

// reading is what one round trip to Redis has found.
type reading struct {
	known   *known
	plans   []Plan
	at      instant // that it was planned for
	clock   int64   // the latest clock of the servers when all had been read, Unix milliseconds
	byShard map[int]progress
	cells   map[string][]Cell // by key; of all hashes of the plans
}

// total is what the plan adds up to.
func (r reading) total(p Plan) Total {
	ahead := r.byShard[p.Shard].latest
	if ahead <= r.clock {
		ahead = 0 // the hits came while the question was on its way
	}
	return p.sum(r.cells, ahead)
}

// answers are those to the questions of the plans.
func (r reading) answers() Answers {
	out := Answers{Now: r.at.milli, AsOf: r.asOf(), Answers: make([]Answer, len(r.plans))}
	for i, p := range r.plans {
		out.Answers[i] = Answer{
			Total: r.total(p), Range: p.Range, Tier: p.Tier, Complete: r.complete(p), CountingSince: r.byShard[p.Shard].began,
		}
	}
	return out
}

// asOf is the earliest moment that the shards of the plans are counted up to.
func (r reading) asOf() int64 {
	var out int64
	for i, p := range r.plans {
		if at := r.byShard[p.Shard].asOf; i == 0 || at < out {
			out = at
		}
	}
	return out
}

// complete reports whether no hit of the plan's range is known to be missing.
func (r reading) complete(p Plan) bool {
	on := r.byShard[p.Shard]
	return on.known && p.Range.From >= on.completeSince
}

// graceOf is how long the hashes of the plans outlive the moment that these were
// made for: the shortest grace of their tiers.
func graceOf(plans []Plan) time.Duration {
	out := int64(math.MaxInt64 / time.Millisecond)
	for _, p := range plans {
		for _, part := range p.parts {
			out = min(out, part.tier.grace())
		}
	}
	return time.Duration(out) * time.Millisecond
}

// TooMuchError is a call that would cost more than it may.
type TooMuchError struct {
	What       string // cells or points
	Count, Max int64
}

func (e *TooMuchError) Error() string {
	return fmt.Sprintf("%d %s: at most %d are allowed", e.Count, e.What, e.Max)
}

// cellsOf is how many cells the hashes of the plans can hold, each hash counted once.
func cellsOf(plans []Plan) int64 {
	var n int64
	seen := make(map[string]bool)
	for _, p := range plans {
		for _, part := range p.parts {
			for _, h := range part.hashes {
				if !seen[h.key] {
					seen[h.key] = true
					n += part.tier.cellsPerEpoch()
				}
			}
		}
	}
	return n
}

// affordable is how many counters MaxCells allows to be read as the plan says:
// what a counter costs does not depend on its name. A *TooMuchError where those
// are fewer than least.
func (r *Reader) affordable(plan Plan, least int) (int, error) {
	if r.MaxCells == 0 {
		return math.MaxInt, nil
	}
	each := cellsOf([]Plan{plan})
	if need := each * int64(least); need > r.MaxCells {
		return 0, &TooMuchError{What: "cells", Count: need, Max: r.MaxCells}
	}
	return int(r.MaxCells / each), nil
}
