package window

import (
	"slices"
	"time"
)

// SeriesQuestion asks for the hits of one counter in each step of a range.
type SeriesQuestion struct {
	Counter string // or AllHits
	Span    Span
	Step    time.Duration // 0 means one cell
	// Steps, if not nil, divides the range in place of Step.
	Steps Steps
	Reach Reach
}

// Reach is how far back a tier may answer a series.
type Reach int

const (
	// WithinWindow is as far as its window.
	WithinWindow Reach = iota
	// WhileHeld is for as long as its hashes are sure to exist, which is longer. The counts are as exact,
	// because a hash has every hit, however late. So a range that ended a moment ago gets the cells that it
	// would get if it ended now.
	WhileHeld
	// WhileHeldIfFitting is WhileHeld without tiers whose window is shorter than the range. Whether a range
	// that ends now gets their cells would depend on when their epochs began.
	WhileHeldIfFitting
	// WhileHeldWithLead is WhileHeld of a range widened by a cell, so that a whole cell lies before From.
	WhileHeldWithLead
)

// Steps divide time into steps of any lengths, such as the days of a time zone. They must be comparable.
type Steps interface {
	// At returns the step that holds a moment (Unix milliseconds).
	At(milli int64) Range
	// String returns the name of the steps, such as 1d.
	String() string
}

// Series are a counter's hits by step. Equally long steps are whole cells and exact; for others see Bounds.
type Series struct {
	// Range is the range asked for, widened to whole cells, or to the steps. It may reach beyond now.
	Range Range
	Asked Range // what the span was when it was answered
	// Step is the step asked for, rounded up to whole cells; 0 if there are Steps.
	Step time.Duration
	// Steps are those asked for. Edges are then where they begin, in order, and the end of the last.
	Steps Steps
	Edges []int64
	// Counts has a number per step, in order. The last step ends with the range and may be shorter.
	Counts []int64
	// Bounds has the least and the most hits of each step; nil if no edge cuts a cell: all are exact.
	Bounds        [][2]int64
	Tier          Tier
	Now, AsOf     int64 // see Answers
	Complete      bool  // see Answer, and ask Asked.Outruns
	CountingSince int64 // see Answer
	// CompleteSince is the moment from which no hit is known to be missing; later than any range if unknown.
	CompleteSince int64
}

// Begun returns the first step that holds hits or ends after counting began, or len(Counts). Earlier steps
// without hits show nothing, because no worker counted then. Those with hits have hits with a ts.
func (s Series) Begun() int {
	begun := 0
	if s.CountingSince > s.Range.From {
		begun = s.stepOf(s.CountingSince)
	}
	for i, n := range s.Counts[:begun] {
		if n > 0 {
			return i
		}
	}
	return begun
}

// CompleteFrom returns the first step from which on no hit is known to be missing, or len(Counts).
func (s Series) CompleteFrom() int {
	if s.CompleteSince <= s.Range.From {
		return 0
	}
	i := s.stepOf(s.CompleteSince)
	if i < len(s.Counts) && s.Start(i) < s.CompleteSince {
		i++
	}
	return i
}

// Finished returns how many steps had ended by AsOf. Later counts may still grow, and not only by late hits.
func (s Series) Finished() int {
	switch {
	case s.AsOf >= s.Range.To:
		return len(s.Counts)
	case s.AsOf <= s.Range.From:
		return 0
	}
	return s.stepOf(s.AsOf)
}

// stepOf returns the step of a moment that is not before the range; len(Counts) if it is after it.
func (s Series) stepOf(milli int64) int {
	if s.Edges != nil {
		return stepAt(s.Edges, milli)
	}
	return int(min((milli-s.Range.From)/s.Step.Milliseconds(), int64(len(s.Counts))))
}

// stepAt returns which of the steps between edges holds a moment that is not before the first.
func stepAt(edges []int64, milli int64) int {
	i, found := slices.BinarySearch(edges, milli)
	if !found {
		i--
	}
	return i
}

// Start returns the beginning of a step, in Unix milliseconds, or the end of the last.
func (s Series) Start(step int) int64 {
	if s.Edges != nil {
		return s.Edges[step]
	}
	return s.Range.From + int64(step)*s.Step.Milliseconds()
}

// SeriesPlan has the cells that a series needs, and turns them into its points.
type SeriesPlan struct {
	Plan
	asked Range
	Step  int64 // milliseconds, if edges is nil

	// edges are where steps begin, and the end of the last; the tier's cells cover all of that. finer has, by
	// its beginning, each cut cell that a finer tier replaces. cuts: an edge cuts even those.
	edges []int64
	finer map[int64]Tier
	Cuts  bool

	Covers []uniqueCover // of each step, if the plan is about uniques; it has their unions then
}

// PlanSeries chooses the finest tier that holds all of the range. It also holds all of the cell that from
// cuts: a hash lives a window longer than its last cell, so if one of its cells is there, all are.
func (l Layout) PlanSeries(q SeriesQuestion, now int64) (SeriesPlan, error) {
	asked, err := q.Span.At(now)
	if err != nil {
		return SeriesPlan{}, err
	}
	if q.Steps != nil {
		return planSteps(l, q, asked, now)
	}
	t, asked, err := chooseTier(l, q, asked, now)
	if err != nil {
		return SeriesPlan{}, err
	}
	cells := max(1, int64((q.Step+t.Cell-1)/t.Cell))
	r := roundOut(t, asked)
	p := SeriesPlan{Plan: NewPlan(l, q.Counter, r, now, t), asked: asked, Step: cells * t.CellMillis()}
	p.Add(t, r)
	p.AddLogs(l)
	return p, nil
}

// planSteps widens the range to whole steps; a last step that goes on ends soon after now. If no tier reaches
// back to the first step's beginning, that step begins where the range does. If an edge cuts a cell of the
// finest tier that holds the range, and a finer tier still holds all of that cell, its cells replace it: both
// hold the same hits (see Layout.Plan).
func planSteps(l Layout, q SeriesQuestion, asked Range, now int64) (SeriesPlan, error) {
	first := q.Steps.At(asked.From).From
	t, _, err := chooseTier(l, q, Range{first, asked.To}, now)
	if err != nil {
		if t, _, err = chooseTier(l, q, asked, now); err != nil {
			return SeriesPlan{}, err
		}
		first = t.CellStart(t.CellAt(asked.From))
	}
	edges := []int64{first}
	for last := first; last < asked.To; {
		last = q.Steps.At(last).To
		edges = append(edges, last)
	}
	if last := &edges[len(edges)-1]; *last > now {
		*last = min(*last, t.CellStart(t.CellAt(now-1)+1))
	}
	p := SeriesPlan{Plan: NewPlan(l, q.Counter, Range{first, edges[len(edges)-1]}, now, t), asked: asked, edges: edges}
	p.Add(t, roundOut(t, p.Range))
	p.refineEdges(l.Tiers)
	p.AddLogs(l)
	return p, nil
}

// refineEdges finds cut cells, and the tiers to replace them: the coarsest that no edge cuts, or the finest.
func (p *SeriesPlan) refineEdges(tiers Tiers) {
	spans := make(map[Tier]Range) // that finer tiers answer
	for rest := p.edges; len(rest) > 0; {
		start := p.Tier.CellStart(p.Tier.CellAt(rest[0]))
		end := start + p.Tier.CellMillis()
		inside := rest
		if i, _ := slices.BinarySearch(rest, end); i < len(rest) {
			inside = rest[:i]
		}
		rest = rest[len(inside):]
		if !isCut(p.Tier, inside, p.now) {
			continue
		}
		finer, found := Tier{}, false
		for i := slices.Index(tiers, p.Tier) - 1; i >= 0; i-- {
			t := tiers[i]
			if p.Tier.Cell%t.Cell == 0 && t.Since <= start && t.HoldsSince(start, p.now) {
				finer, found = t, true
				if !isCut(t, inside, p.now) {
					break
				}
			}
		}
		if !found {
			p.Cuts = true
			continue
		}
		p.Cuts = p.Cuts || isCut(finer, inside, p.now)
		if p.finer == nil {
			p.finer = make(map[int64]Tier)
		}
		p.finer[start] = finer
		span, ok := spans[finer]
		if !ok {
			span.From = start
		}
		spans[finer] = Range{span.From, end}
	}
	for _, t := range tiers { // in a fixed order
		p.Add(t, spans[t])
	}
}

// isCut reports whether a moment up to now is not the beginning of a cell. Later ones cut no hits.
func isCut(t Tier, moments []int64, now int64) bool {
	return slices.ContainsFunc(moments, func(at int64) bool { return at <= now && t.CellStart(t.CellAt(at)) != at })
}

func roundOut(t Tier, r Range) Range {
	return Range{t.CellStart(t.CellAt(r.From)), t.CellStart(t.CellAt(r.To-1) + 1)}
}

// chooseTier returns the tier that answers a range, and the range, which WhileHeldWithLead widens by a cell.
func chooseTier(l Layout, q SeriesQuestion, r Range, now int64) (Tier, Range, error) {
	if q.Reach == WithinWindow {
		t, err := chooseReaching(l, r, now)
		return t, r, err
	}
	tiers := l.Tiers
	if q.Reach == WhileHeldIfFitting {
		tiers = tiers.windowsFrom(r.To - r.From)
	}
	t, first, err := l.Holding(tiers, r.From, now, q.Reach == WhileHeldWithLead)
	return t, Range{first, r.To}, err
}

// Holding returns the finest of some tiers whose hashes hold everything from a moment on, and that moment;
// with lead, from a cell earlier.
func (l Layout) Holding(among Tiers, from, now int64, lead bool) (Tier, int64, error) {
	first := func(t Tier) int64 {
		if lead {
			return from - t.CellMillis()
		}
		return from
	}
	t, ok := among.fullest(from, func(t Tier) bool { return t.HoldsSince(first(t), now) })
	if !ok {
		return Tier{}, 0, &outOfReachError{from: from, now: now, tiers: l.Tiers}
	}
	return t, first(t), nil
}

// HoldsSince reports whether a tier's hashes hold everything from a moment on. Half of the grace is left for
// clocks that differ, and for the way to Redis. settle makes sure that no more of it is used up.
func (t Tier) HoldsSince(from, now int64) bool {
	end := (t.EpochAt(from) + 1) * t.EpochMillis()
	return now <= end+t.Window.Milliseconds()+t.Grace()/2
}

// windowsFrom returns the tiers with at least this window (milliseconds), or the last one.
func (ts Tiers) windowsFrom(length int64) Tiers {
	for len(ts) > 1 && ts[0].Window.Milliseconds() < length {
		ts = ts[1:]
	}
	return ts
}

func (p SeriesPlan) Points() int64 {
	if p.edges != nil {
		return int64(len(p.edges) - 1)
	}
	return (p.Range.To - p.Range.From + p.Step - 1) / p.Step
}

// Counts adds up the cells of each step. There may be hits up to the latest moment.
func (p SeriesPlan) Counts(cells PlanCells, latest int64) []Estimate {
	out := make([]Estimate, p.Points())
	p.Count(out, cells, latest)
	return out
}

func (p SeriesPlan) Count(out []Estimate, cells PlanCells, latest int64) {
	for h := range p.Hashes {
		for _, c := range cells[0] {
			start := h.Tier.CellStart(h.Tier.CellIn(h.Epoch, c.Field))
			switch {
			case p.edges != nil:
				p.spread(out, h.Tier, start, c.N, latest)
			case start >= p.Range.From && start < p.Range.To:
				out[(start-p.Range.From)/p.Step].add(c.N)
			}
		}
		cells = cells[1:]
	}
}

// spread divides the n hits of a cell among its steps by the elapsed time inside each: no hit is in two.
func (p SeriesPlan) spread(out []Estimate, t Tier, start, n, latest int64) {
	if !t.Sparse && p.tierAt(start) != t {
		return
	}
	filled := min(start+t.CellMillis(), latest)
	for i := stepAt(p.edges, max(start, p.edges[0])); i < len(out) && p.edges[i] < filled; i++ {
		from, to := max(start, p.edges[i]), min(filled, p.edges[i+1])
		switch {
		case from >= to: // nothing of the cell has passed
		case from == start && to == filled:
			out[i].add(n)
		default:
			whole := filled - start
			out[i].Total = AddCounts(out[i].Total, portion(n, to-start, whole)-portion(n, from-start, whole))
			out[i].Upper = AddCounts(out[i].Upper, atMost(n))
		}
	}
}

func (p SeriesPlan) tierAt(milli int64) Tier {
	if t, ok := p.finer[p.Tier.CellStart(p.Tier.CellAt(milli))]; ok {
		return t
	}
	return p.Tier
}

// Series returns a series without counts, and without its shard's progress.
func (p SeriesPlan) Series(q SeriesQuestion, now int64) Series {
	out := Series{Range: p.Range, Asked: p.asked, Step: time.Duration(p.Step) * time.Millisecond, Edges: p.edges,
		Tier: p.Tier, Now: now}
	if p.edges != nil {
		out.Steps = q.Steps
	}
	return out
}

// WithCounts returns the series with these counts, and with bounds if bounded.
func (s Series) WithCounts(counts []Estimate, bounded bool) Series {
	s.Counts = make([]int64, len(counts))
	if bounded {
		s.Bounds = make([][2]int64, len(counts))
	}
	for i, e := range counts {
		s.Counts[i] = e.Total
		if e.IsSaturated() {
			s.Complete, s.CompleteSince = false, max(s.CompleteSince, s.Start(i)+1)
		}
		if bounded {
			s.Bounds[i] = [2]int64{e.Lower, e.Upper}
		}
	}
	return s
}

func (q SeriesQuestion) HasSameSteps(o SeriesQuestion) bool {
	q.Counter = o.Counter
	return q == o
}
