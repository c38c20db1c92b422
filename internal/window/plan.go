package window

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Range is a piece of time: from From up to, not including, To; Unix milliseconds.
// To == now asks about everything applied so far: hits that lie in the cell of To
// count whole, unless some are known to be dated later (see sum).
type Range struct{ From, To int64 }

// Plan says which hashes answer a question about one counter, and how their
// cells make a total.
type Plan struct {
	Tier    Tier // the finest that reaches back to the beginning of the range
	Range   Range
	Counter string
	Shard   int

	parts []part // one after the other they make up the range
	now   int64
}

// part is a piece of the range, and the hashes of the tier that answers it.
type part struct {
	tier Tier
	Range
	hashes []hashOfEpoch // one or two
}

type hashOfEpoch struct {
	key   string
	epoch int64
}

// OutOfReachError is a question that no tier can answer.
type OutOfReachError struct {
	From  int64 // Unix milliseconds
	Now   int64
	Tiers Tiers
}

func (e *OutOfReachError) Error() string {
	back := time.Duration(e.Now-e.From) * time.Millisecond
	return fmt.Sprintf("the question reaches back %s, further than any tier: %s", back.Round(time.Second), e.Tiers.Reach())
}

// Plan chooses the finest tier that still holds all of the range at the moment
// now (by Redis's clock, Unix milliseconds). It returns an *OutOfReachError where
// none does, an *EmptyError for a range that is empty, and an *AheadError for one
// that ends later.
//
// A range that ends before now may cut a cell at its end, too. Where finer tiers
// reach back to the beginning of that cell, they answer the rest of the range,
// and the doubt there is one of their cells instead.
//
// No hit falls between the tiers. The parts share no moment, and each begins
// where a cell of its own and of the part before begins, so a hit lies in one of
// them. A tier has every hit of its part: one at t ≥ now-W was stored before now
// (but for clocks, which the deadline's grace allows for), and its hash lives
// until after t+W. A hit that was too late for a finer tier when it was stored is
// older than that tier's part, and it is in the coarser one, which held it.
func (l Layout) Plan(namespace, counter string, r Range, now int64) (Plan, error) {
	tier, err := l.reaching(r, now)
	if err != nil {
		return Plan{}, err
	}
	p := l.newPlan(counter, r, now, tier)
	for {
		finer, edge, ok := l.refine(tier, r, now)
		if !ok {
			break
		}
		p.read(namespace, tier, Range{r.From, edge})
		tier, r.From = finer, edge
	}
	p.read(namespace, tier, r)
	return p, nil
}

func (l Layout) newPlan(counter string, r Range, now int64, t Tier) Plan {
	return Plan{Tier: t, Range: r, Counter: counter, Shard: l.ShardOf(HashCounter([]byte(counter))), now: now}
}

// reaching is the finest tier whose window reaches from now back to the
// beginning of the range.
func (l Layout) reaching(r Range, now int64) (Tier, error) {
	switch {
	case r.From >= r.To:
		return Tier{}, &EmptyError{r}
	case r.To > now:
		return Tier{}, &AheadError{To: r.To, Now: now}
	}
	for _, t := range l.Tiers {
		if now-r.From <= t.Window.Milliseconds() {
			return t, nil
		}
	}
	return Tier{}, &OutOfReachError{From: r.From, Now: now, Tiers: l.Tiers}
}

// refine finds the cell of a tier that the end of the range cuts, and the
// finest tier that can answer from the beginning of that cell (edge) on. That is
// after r.From: t is the finest tier that reaches back to there.
func (l Layout) refine(t Tier, r Range, now int64) (finer Tier, edge int64, ok bool) {
	edge = t.cellStart(t.cellAt(r.To))
	if edge == r.To || r.To == now {
		return Tier{}, 0, false
	}
	for _, finer := range l.Tiers {
		if finer.Cell >= t.Cell {
			break
		}
		if now-edge <= finer.Window.Milliseconds() && finer.cellStart(finer.cellAt(edge)) == edge {
			return finer, edge, true
		}
	}
	return Tier{}, 0, false
}

// read adds a part that is answered by a tier.
func (p *Plan) read(namespace string, t Tier, r Range) {
	first, _ := t.place(t.cellAt(r.From))
	last, _ := t.place(t.cellAt(r.To - 1))
	part := part{tier: t, Range: r}
	for e := first; e <= last; e++ {
		part.hashes = append(part.hashes, hashOfEpoch{keys{namespace}.cellsPrefix(p.Shard, t, e) + p.Counter, e})
	}
	p.parts = append(p.parts, part)
}

// Total is an answer: the truth is between Lower and Upper.
type Total struct{ Total, Lower, Upper int64 }

// Cell is the count of one cell of a hash: its field and value.
type Cell struct{ Field, Count int64 }

// sum adds the cells of the plan's hashes, which are given by key. Cells inside
// the range count whole. A cell that an edge cuts counts in Upper whole, in Lower
// not at all, and in Total by the part of its elapsed time that lies inside, rounded.
//
// ahead is a moment after now up to which there may be hits, because the clock of
// NATS is ahead of Redis's, and 0 if none are known: the end of a range that ends
// now then cuts its cell like any other end.
func (p Plan) sum(hashes map[string][]Cell, ahead int64) Total {
	var out Total
	for _, part := range p.parts {
		for _, h := range part.hashes {
			for _, c := range hashes[h.key] {
				part.add(&out, part.tier.cellOf(h.epoch, c.Field), c.Count, max(p.now, ahead))
			}
		}
	}
	return out
}

func (p part) add(out *Total, cell, n, latest int64) {
	start := p.tier.cellStart(cell)
	end := start + p.tier.cellMillis()
	// A cell that is still being filled has hits up to the latest moment only.
	filled := min(end, latest)
	from, to := max(start, p.From), min(filled, p.To)
	switch {
	case from >= to: // outside
	case from == start && to == filled:
		out.Lower = addCounts(out.Lower, n)
		out.Total = addCounts(out.Total, n)
		out.Upper = addCounts(out.Upper, n)
	default:
		out.Total = addCounts(out.Total, portion(n, to-from, filled-start))
		out.Upper = addCounts(out.Upper, n)
	}
}

// portion is n × part / whole, rounded half up, for 0 < part ≤ whole.
func portion(n, part, whole int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(part))
	lo, carry := bits.Add64(lo, uint64(whole)/2, 0)
	q, _ := bits.Div64(hi+carry, lo, uint64(whole))
	return int64(q)
}

// addCounts stops at the largest number instead of wrapping round.
func addCounts(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
