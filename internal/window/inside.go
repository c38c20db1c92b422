package window

import "slices"

// A tier with small hashes needs many of them for a long range: an hour of 1s/1h lies in 15. If another tier
// counts in minutes, its 60 cells lie in one or two, and the seconds are needed only for the edges.

// hashCost is a hash's cost in cells. Redis takes 1 µs for HGETALL, and 0.09 µs for each field (7.0).
const hashCost = 10

// divide returns the part of whole cells inside a range that coarser tiers answer, and the first the rest, if
// that costs least. It uses only tiers whose cells consist of whole cells of the first.
func (ts Tiers) divide(r Range) (coarser Tiers, inside Range, cost int64) {
	fine := ts[0]
	cost = fine.cost(r)
	if fine.isShort(r) {
		return nil, Range{}, cost
	}
	for i, t := range ts[1:] {
		whole := t.wholeCells(r)
		whole.From = max(whole.From, t.Since)
		if t.Cell%fine.Cell != 0 || whole.From >= whole.To {
			continue
		}
		_, _, c := ts[1+i:].divide(whole)
		c += fine.cost(Range{r.From, whole.From}) + fine.cost(Range{whole.To, r.To})
		if c < cost {
			coarser, inside, cost = ts[1+i:], whole, c
		}
	}
	return coarser, inside, cost
}

// isShort reports whether a range is no longer than a hash. It then lies in two hashes at most, and its edges
// usually need both. With the default tiers, only a range of more than 256 hours is longer.
func (t Tier) isShort(r Range) bool { return r.To-r.From <= t.EpochMillis() }

// cost returns the cost of reading a range from a tier's hashes. Each is read whole, and may be full.
func (t Tier) cost(r Range) int64 {
	if r.From >= r.To {
		return 0
	}
	first, last := t.EpochsOf(r)
	return (last - first + 1) * (hashCost + t.CellsPerEpoch())
}

func (t Tier) EpochsOf(r Range) (first, last int64) { return t.EpochAt(r.From), t.EpochAt(r.To - 1) }

// wholeCells returns the part of a range that consists of whole cells. Without any, From is not before To.
func (t Tier) wholeCells(r Range) Range {
	return Range{t.CellStart(t.CellAt(r.From-1) + 1), t.CellStart(t.CellAt(r.To))}
}

func (ts Tiers) from(t Tier) Tiers { return ts[slices.Index(ts, t):] }
