package window

import (
	"fmt"
	"math"
)

// reading is what one round trip to Redis has found.
type reading struct {
	byShard map[int]progress
	cells   map[string][]Cell // by key; of all hashes of the plans
}

// asOf is the earliest moment that the shards of the plans are counted up to.
func (r reading) asOf(plans []Plan) int64 {
	var out int64
	for i, p := range plans {
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
