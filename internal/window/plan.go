package window

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"

	"tallyroll/internal/platform/human"
)

// Plan holds which hashes answer a question about a counter, and how their cells add up, without Redis.
type Plan struct {
	Tier  Tier // the finest that reaches back to the beginning of the range
	Range Range

	Counter string
	Shard   int // or AllShards: each hash is then one of every shard, with the same cells
	// Stretches are in order. Together they make up the range, once in hashes and (the last one) once in
	// logs. No two of them read the same hash.
	Stretches []stretch
	now       int64
	Sums      bool // of a hash whose cells all count in full, their sum will do

	// Unions are the sets of unique cells that a plan about uniques counts; such a plan has no stretches.
	Unions []Union
}

// stretch is a part of the range, with the epochs of the tier that answers it.
type stretch struct {
	Range
	Tier                  Tier
	firstEpoch, lastEpoch int64
}

// CellHash identifies a hash of cells.
type CellHash struct {
	Shard   int
	Counter string
	Tier    Tier
	Epoch   int64
	Sum     bool // only the sum of its cells is asked for
}

// Range is the time from From up to, but not including, To (Unix milliseconds). To == now asks about all that
// was applied so far: all hits in the cell of To count, unless some are known to be dated later (see sum).
type Range struct{ From, To int64 }

type outOfReachError struct {
	from, now int64 // Unix milliseconds
	tiers     Tiers
	uniques   bool // the tiers are those of uniques
}

func (e *outOfReachError) Error() string {
	which := "any tier"
	if e.uniques {
		which = "any tier of uniques (UNIQUE_TIERS)"
	}
	return fmt.Sprintf("the question reaches back %s (to %s), further than %s: %s",
		human.Millis(e.now-e.from), time.UnixMilli(e.from).UTC().Format(time.RFC3339), which, e.tiers.Reach())
}

// Plan chooses the finest tier that still holds all of the range at now (Redis's clock, Unix milliseconds).
// It returns an error if no tier does, an *EmptyError for an empty range, and an *AheadError if it ends after
// now.
//
// An end before now may cut a cell. If finer tiers reach back to the beginning of that cell, they answer the
// rest, so that only one of their smaller cells is uncertain. Inside, coarser cells replace finer ones if
// they are less to read, which changes no sum and no bound.
//
// No hit falls between the tiers. The stretches share no moment. Each begins where a cell of its own tier and
// a cell of the previous stretch's tier both begin, so a hit lies in exactly one of them. A tier has every
// hit of its stretch: a hit at t ≥ now-W was stored before now (apart from clock differences, which the
// deadline's grace covers; half of it if the range ended a moment ago), and its hash lives until after t+W.
// So coarser tiers, with longer windows and no shorter a grace, have what the finer one has. If a hit was too
// late for a finer tier when it was stored, it is older than that tier's stretch, and the coarser tier still
// held it.
//
// The logs answer the whole range, too. They have no hit that is in a hash.
func (l Layout) Plan(counter string, r Range, now int64) (Plan, error) {
	tier, err := chooseReaching(l, r, now)
	if err != nil {
		return Plan{}, err
	}
	p := NewPlan(l, counter, r, now, tier)
	for {
		finer, edge, ok := refine(l, tier, r, now)
		if !ok {
			break
		}
		p.cover(l.Tiers.from(tier), Range{r.From, edge})
		tier, r.From = finer, edge
	}
	p.cover(l.Tiers.from(tier), r)
	p.AddLogs(l)
	return p, nil
}

// Alone returns the plan as if no coarser tier answered a part of the range.
func (p Plan) Alone(l Layout) Plan {
	p.Stretches = nil
	p.Add(p.Tier, p.Range)
	p.AddLogs(l)
	return p
}

// AddLogs reads the plan's range also from the logs, if the layout has any.
func (p *Plan) AddLogs(l Layout) {
	if t, ok := l.SparseTier(); ok {
		p.Add(t, p.Range)
	}
}

// NewPlan returns a plan of a tier that reads no hash yet: see Add.
func NewPlan(l Layout, counter string, r Range, now int64, t Tier) Plan {
	return Plan{Tier: t, Range: r, Counter: counter, Shard: l.shardOf(counter), now: now}
}

// For returns the plan for another counter.
func (p Plan) For(counter string, l Layout) Plan {
	p.Counter, p.Shard = counter, l.shardOf(counter)
	return p
}

// chooseReaching returns the finest tier that reaches from now back to the beginning of the range.
func chooseReaching(l Layout, r Range, now int64) (Tier, error) {
	switch {
	case r.From >= r.To:
		return Tier{}, &EmptyError{r}
	case r.To > now:
		return Tier{}, &AheadError{To: r.To, Now: now}
	}
	if t, ok := l.Tiers.fullest(r.From, func(t Tier) bool { return t.reaches(r, now) }); ok {
		return t, nil
	}
	return Tier{}, &outOfReachError{from: r.From, now: now, tiers: l.Tiers}
}

// reaches reports whether a tier reaches from now back to the beginning of a range. One that ended a moment
// ago, within half of the grace (see HoldsSince), gets the tier that it would get if it ended now.
func (t Tier) reaches(r Range, now int64) bool {
	return r.To-r.From <= t.Window.Milliseconds() && now-r.From <= t.Window.Milliseconds()+t.Grace()/2
}

// fullest returns the finest fitting tier that lacks no hit from a moment on, or the one that lacks least.
func (ts Tiers) fullest(from int64, fit func(Tier) bool) (out Tier, ok bool) {
	for _, t := range ts {
		if !fit(t) {
			continue
		}
		if t.Since <= from {
			return t, true
		}
		if !ok || t.Since < out.Since {
			out, ok = t, true
		}
	}
	return out, ok
}

// Lacks reports whether the plan reads cells from before its tiers held everything (Tier.Since).
func (p *Plan) Lacks() bool {
	return slices.ContainsFunc(p.Stretches, func(s stretch) bool { return s.From < s.Tier.Since })
}

// refine finds the cell of tier t that the end of the range cuts, and the finest tier that can answer from
// the beginning of that cell (edge) on. edge lies after r.From.
func refine(l Layout, t Tier, r Range, now int64) (finer Tier, edge int64, ok bool) {
	edge = t.CellStart(t.CellAt(r.To))
	if edge == r.To || r.To == now || edge <= r.From {
		return Tier{}, 0, false
	}
	for _, finer := range l.Tiers {
		if finer.Cell >= t.Cell {
			break
		}
		if now-edge <= finer.Window.Milliseconds() && finer.Since <= edge &&
			finer.CellStart(finer.CellAt(edge)) == edge {
			return finer, edge, true
		}
	}
	return Tier{}, 0, false
}

// cover adds a range that the first of the tiers answers, by itself or with coarser ones inside.
func (p *Plan) cover(tiers Tiers, r Range) {
	var coarser Tiers
	var inside Range
	if !isShort(tiers[0], r) { // most are, and need not be thought over
		coarser, inside, _ = tiers.divide(r)
	}
	if coarser == nil {
		p.Add(tiers[0], r)
		return
	}
	p.Stretches = slices.Grow(p.Stretches, 3)
	p.Add(tiers[0], Range{r.From, inside.From})
	p.cover(coarser, inside)
	p.Add(tiers[0], Range{inside.To, r.To})
}

// A tier with small hashes needs many of them for a long range: an hour of 1s/1h lies in 15. If another tier
// counts in minutes, its 60 cells lie in one or two, and the seconds are needed only for the edges.

// hashCost is a hash's cost in cells. Redis takes 1 µs for HGETALL, and 0.09 µs for each field (7.0).
const hashCost = 10

// divide returns the part of whole cells inside a range that coarser tiers answer, and the first the rest, if
// that costs least. It uses only tiers whose cells consist of whole cells of the first.
func (ts Tiers) divide(r Range) (coarser Tiers, inside Range, cost int64) {
	fine := ts[0]
	cost = readCost(fine, r)
	if isShort(fine, r) {
		return nil, Range{}, cost
	}
	for i, t := range ts[1:] {
		whole := wholeCells(t, r)
		whole.From = max(whole.From, t.Since)
		if t.Cell%fine.Cell != 0 || whole.From >= whole.To {
			continue
		}
		_, _, c := ts[1+i:].divide(whole)
		c += readCost(fine, Range{r.From, whole.From}) + readCost(fine, Range{whole.To, r.To})
		if c < cost {
			coarser, inside, cost = ts[1+i:], whole, c
		}
	}
	return coarser, inside, cost
}

// isShort reports whether a range is no longer than a hash. It then lies in two hashes at most, and its edges
// usually need both. With the default tiers, only a range of more than 256 hours is longer.
func isShort(t Tier, r Range) bool { return r.To-r.From <= t.EpochMillis() }

// readCost returns the cost of reading a range from a tier's hashes. Each is read whole, and may be full.
func readCost(t Tier, r Range) int64 {
	if r.From >= r.To {
		return 0
	}
	first, last := EpochsOf(t, r)
	return (last - first + 1) * (hashCost + t.CellsPerEpoch())
}

func EpochsOf(t Tier, r Range) (first, last int64) { return t.EpochAt(r.From), t.EpochAt(r.To - 1) }

// wholeCells returns the part of a range that consists of whole cells. Without any, From is not before To.
func wholeCells(t Tier, r Range) Range {
	return Range{t.CellStart(t.CellAt(r.From-1) + 1), t.CellStart(t.CellAt(r.To))}
}

func (ts Tiers) from(t Tier) Tiers { return ts[slices.Index(ts, t):] }

// Add reads a range, which may be empty, from a tier.
func (p *Plan) Add(t Tier, r Range) {
	if r.From < r.To {
		first, last := EpochsOf(t, r)
		p.Stretches = append(p.Stretches, stretch{r, t, first, last})
	}
}

// Hashes yields the hashes that the plan reads, in an order that the plan alone decides.
func (p *Plan) Hashes(yield func(CellHash) bool) {
	for _, s := range p.Stretches {
		for epoch := s.firstEpoch; epoch <= s.lastEpoch; epoch++ {
			h := p.hash(s.Tier, epoch)
			h.Sum = p.Sums && s.holds(epoch)
			if !yield(h) {
				return
			}
		}
	}
}

func (p *Plan) hash(t Tier, epoch int64) CellHash {
	return CellHash{Shard: p.Shard, Counter: p.Counter, Tier: t, Epoch: epoch}
}

func (s *stretch) holds(epoch int64) bool {
	return !s.Tier.Sparse && s.Tier.EpochStart(epoch) >= s.From && s.Tier.EpochStart(epoch+1) <= s.To
}

func (p *Plan) HashCount() (n int) {
	for _, s := range p.Stretches {
		n += int(s.lastEpoch - s.firstEpoch + 1)
	}
	return n
}

// ReadsLike reports whether two plans read the same hashes of their counters in the same way and order.
func (p *Plan) ReadsLike(o *Plan) bool {
	return slices.EqualFunc(p.Unions, o.Unions, slices.Equal[Union]) && slices.EqualFunc(p.Stretches, o.Stretches,
		func(a, b stretch) bool {
			return a.Tier == b.Tier && a.firstEpoch == b.firstEpoch && a.lastEpoch == b.lastEpoch &&
				(!p.Sums || a.holds(a.firstEpoch) == b.holds(b.firstEpoch) &&
					a.holds(a.lastEpoch) == b.holds(b.lastEpoch))
		})
}

// Capacity returns how many cells the plan's hashes can hold.
func (p *Plan) Capacity() (n int64) {
	for h := range p.Hashes {
		n += h.Tier.Capacity()
	}
	return n
}

// Capacity returns how many cells a hash of the tier can hold. A log counts as many as cost the same: it is
// one string.
func (t Tier) Capacity() int64 {
	if t.Sparse {
		return MaxLogBytes / 16
	}
	return t.CellsPerEpoch()
}

// Estimate is a number of hits. Total is the best guess; the truth lies between Lower and Upper.
type Estimate struct{ Total, Lower, Upper int64 }

// StoredCell is a field of a hash and its count.
type StoredCell struct{ Field, N int64 }

// PlanCells are the cells of a plan's hashes, in the order of Plan.Hashes.
type PlanCells [][]StoredCell

// Sum adds up the plan's cells. One that an edge cuts counts in full in Upper, not at all in Lower, and in
// Total by the part of its elapsed time that lies inside, rounded. ahead is a moment after now up to which
// there may be hits because the clock of NATS is ahead of Redis's, or 0. The end of a range that ends now
// then cuts its cell, too.
func (p *Plan) Sum(cells PlanCells, ahead int64) (out Estimate) {
	for _, s := range p.Stretches {
		for epoch := s.firstEpoch; epoch <= s.lastEpoch; epoch++ {
			first := s.Tier.CellIn(epoch, 0)
			for _, c := range cells[0] {
				s.count(&out, first+c.Field, c.N, max(p.now, ahead))
			}
			cells = cells[1:]
		}
	}
	return out
}

func (s *stretch) count(out *Estimate, cell, n, latest int64) {
	start := s.Tier.CellStart(cell)
	end := start + s.Tier.CellMillis()
	// A cell that is still being filled has hits only up to the latest moment.
	filled := min(end, latest)
	from, to := max(start, s.From), min(filled, s.To)
	switch {
	case from >= to: // outside
	case from == start && to == filled:
		out.add(n)
	default:
		out.Total = AddCounts(out.Total, portion(n, to-from, filled-start))
		out.Upper = AddCounts(out.Upper, atMost(n))
	}
}

// add adds hits that are surely inside.
func (e *Estimate) add(n int64) {
	e.Lower, e.Total, e.Upper = AddCounts(e.Lower, n), AddCounts(e.Total, n), AddCounts(e.Upper, atMost(n))
}

// Saturated is a count from which on a cell has no upper bound. Redis refuses an increment if an int64 cannot
// hold the count, and the rest of the transaction stays applied. No increment is larger than this, so if one
// was refused, the cell is saturated. No other cell is affected.
const Saturated = 1 << 62

// IsSaturated reports whether a cell of the estimate is, so that Upper is Unbounded and hits may be missing.
func (e Estimate) IsSaturated() bool { return e.Upper == int64(Unbounded) }

// atMost returns the most hits that there can have been in a cell.
func atMost(n int64) int64 {
	if n >= Saturated {
		return int64(Unbounded)
	}
	return n
}

// portion returns n × inside / whole, rounded half up, for 0 < inside ≤ whole.
func portion(n, inside, whole int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(inside))
	lo, carry := bits.Add64(lo, uint64(whole)/2, 0)
	q, _ := bits.Div64(hi+carry, lo, uint64(whole))
	return int64(q)
}

// AddCounts saturates at the largest int64.
func AddCounts(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func (e *Estimate) AddAll(o Estimate) {
	e.Lower, e.Total, e.Upper = AddCounts(e.Lower, o.Lower), AddCounts(e.Total, o.Total), AddCounts(e.Upper, o.Upper)
}

// Fall returns how long it takes until the total of a plan that ends now is at most most. total adds up a
// later plan. Without new hits it never rises, and is 0 after the window and the cell that is being filled.
func (p *Plan) Fall(most int64, total func(later *Plan) int64) time.Duration {
	longest := p.Range.To - p.Range.From + p.Tier.CellMillis()
	wait := sort.Search(int(longest), func(ms int) bool {
		later := p.after(int64(ms))
		return total(&later) <= most
	})
	return time.Duration(wait) * time.Millisecond
}

// after returns the plan with all of its times later, for the hashes that it already reads.
func (p *Plan) after(ms int64) Plan {
	out := *p
	out.now += ms
	out.Range = Range{p.Range.From + ms, p.Range.To + ms}
	out.Stretches = make([]stretch, len(p.Stretches))
	for i, s := range p.Stretches {
		s.Range = Range{s.From + ms, s.To + ms}
		out.Stretches[i] = s
	}
	return out
}
