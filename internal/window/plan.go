package window

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Range is the time that a question is about: from From up to, not including,
// To; Unix milliseconds. To == now asks about everything applied so far: hits
// that lie in the cell of To count whole.
type Range struct{ From, To int64 }

// Plan says which hashes answer a question about one counter, and how their
// cells make a total.
type Plan struct {
	Tier    Tier
	Range   Range
	Counter string
	Shard   int

	keys   []string // one or two
	epochs []int64  // of each key
	now    int64
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
// now (Unix milliseconds). It returns an *OutOfReachError where none does, and
// another error for a range that is empty or lies ahead of now.
func (l Layout) Plan(namespace, counter string, r Range, now int64) (Plan, error) {
	switch {
	case r.From >= r.To:
		return Plan{}, fmt.Errorf("the range is empty: from must be before to")
	case r.To > now:
		return Plan{}, fmt.Errorf("the range ends %s after now", time.Duration(r.To-now)*time.Millisecond)
	}
	for _, t := range l.Tiers {
		if now-r.From > t.Window.Milliseconds() {
			continue
		}
		shard := l.ShardOf(HashCounter([]byte(counter)))
		p := Plan{Tier: t, Range: r, Counter: counter, Shard: shard, now: now}
		first, _ := t.place(t.cellAt(r.From))
		last, _ := t.place(t.cellAt(r.To - 1))
		for e := first; e <= last; e++ {
			p.epochs = append(p.epochs, e)
			p.keys = append(p.keys, keys{namespace}.cellsPrefix(shard, t, e)+counter)
		}
		return p, nil
	}
	return Plan{}, &OutOfReachError{From: r.From, Now: now, Tiers: l.Tiers}
}

// Total is an answer: the truth is between Lower and Upper.
type Total struct{ Total, Lower, Upper int64 }

// Cell is the count of one cell of a hash: its field and value.
type Cell struct{ Field, Count int64 }

// sum adds the cells of the plan's hashes (in the order of its keys). Cells
// inside the range count whole. A cell that an edge cuts counts in Upper
// whole, in Lower not at all, and in Total by the part of its elapsed time that
// lies inside, rounded.
func (p Plan) sum(hashes [][]Cell) Total {
	var out Total
	for i, cells := range hashes {
		for _, c := range cells {
			p.add(&out, p.Tier.cellOf(p.epochs[i], c.Field), c.Count)
		}
	}
	return out
}

func (p Plan) add(out *Total, cell, n int64) {
	start := p.Tier.cellStart(cell)
	end := start + p.Tier.cellMillis()
	// A cell that is still being filled has hits up to now only.
	filled := min(end, p.now)
	from, to := max(start, p.Range.From), min(filled, p.Range.To)
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
