package window

import (
	"context"
	"time"
)

// SeriesQuestion asks for the hits of one counter in each step of a range.
type SeriesQuestion struct {
	Counter string
	Span    Span
	Step    time.Duration // 0 means one cell

	// Held lets a tier answer for as long as its hashes are sure to live, which is longer than
	// its window. The counts are as exact: a hit of a hash that lives is in it, however late it came.
	// So a range that ended a moment ago gets the cells that the same range ending now would get.
	Held bool
	// Fit, beside Held, leaves out tiers with a window shorter than the range. Whether a range that ends now
	// gets their cells would depend on when their epochs began.
	Fit bool
	// Lead widens the range by the length of a cell at its beginning, so that a whole cell lies before From.
	// It needs Held.
	Lead bool
}

// Series are the hits of a counter step by step. Every count is exact: the
// range and the step are whole cells.
type Series struct {
	// Range is the range asked for, widened to include the cells that its edges cut. The
	// last cell may reach beyond now.
	Range Range
	Asked Range // what the span was when it was answered
	// Step is the step asked for, rounded up to whole cells.
	Step time.Duration
	// Counts has a number per step, in order. The last step ends
	// with the range and may be shorter than the others.
	Counts        []int64
	Tier          Tier
	Now, AsOf     int64 // see Answers
	Complete      bool  // see Answer
	CountingSince int64 // see Answer
}

// Begun returns the first step before whose end counting had begun, or len(Counts) if there
// is none. Earlier steps say nothing, because nobody counted then.
func (s Series) Begun() int {
	if s.CountingSince <= s.Range.From {
		return 0
	}
	return int(min((s.CountingSince-s.Range.From)/s.Step.Milliseconds(), int64(len(s.Counts))))
}

// Finished returns how many steps, from the first on, had ended by AsOf. The counts of later
// steps may still grow, and not only by hits that come late.
func (s Series) Finished() int {
	switch {
	case s.AsOf >= s.Range.To:
		return len(s.Counts)
	case s.AsOf <= s.Range.From:
		return 0
	}
	return int((s.AsOf - s.Range.From) / s.Step.Milliseconds())
}

// Start is the beginning of a step, in Unix milliseconds.
func (s Series) Start(step int) int64 { return s.Range.From + int64(step)*s.Step.Milliseconds() }

// seriesPlan is a plan whose range consists of whole cells, and the step that divides it.
type seriesPlan struct {
	Plan
	asked Range
	step  int64 // milliseconds
}

// planSeries chooses the finest tier that holds all of the range. That tier also holds all of
// the cell that from cuts: a hash lives a window longer than its last cell, so all of its
// cells are there if one of them is.
func (l Layout) planSeries(q SeriesQuestion, now int64) (seriesPlan, error) {
	asked, err := q.Span.At(now)
	if err != nil {
		return seriesPlan{}, err
	}
	t, err := l.reaching(asked, now)
	if q.Held {
		tiers := l.Tiers
		if q.Fit {
			tiers = tiers.windowsFrom(asked.To - asked.From)
		}
		t, asked.From, err = l.holding(tiers, asked.From, now, q.Lead)
	}
	if err != nil {
		return seriesPlan{}, err
	}
	cells := max(1, int64((q.Step+t.Cell-1)/t.Cell))
	r := Range{From: t.cellStart(t.cellAt(asked.From)), To: t.cellStart(t.cellAt(asked.To-1) + 1)}
	p := seriesPlan{l.newPlan(q.Counter, r, now, t), asked, cells * t.cellMillis()}
	p.add(t, r)
	return p, nil
}

// holding returns the finest of some tiers whose hashes hold everything from a moment on, and that moment,
// or the one a cell earlier if lead is set. Half of the grace is left for clocks that differ, and for
// the way to Redis. settle makes sure that no more of it is used up.
func (l Layout) holding(among Tiers, from, now int64, lead bool) (Tier, int64, error) {
	for _, t := range among {
		first := from
		if lead {
			first -= t.cellMillis()
		}
		if end := (t.epochAt(first) + 1) * t.epochMillis(); now <= end+t.Window.Milliseconds()+t.grace()/2 {
			return t, first, nil
		}
	}
	return Tier{}, 0, &outOfReachError{from, now, l.Tiers}
}

// windowsFrom returns the tiers with at least this window (milliseconds), or the last one.
func (ts Tiers) windowsFrom(length int64) Tiers {
	for len(ts) > 1 && ts[0].Window.Milliseconds() < length {
		ts = ts[1:]
	}
	return ts
}

// points returns how many steps the range has.
func (p seriesPlan) points() int64 { return (p.Range.To - p.Range.From + p.step - 1) / p.step }

// counts adds up the cells of each step.
func (p seriesPlan) counts(cells planCells) []int64 {
	out := make([]int64, p.points())
	for h := range p.hashes {
		for _, c := range cells[0] {
			start := p.Tier.cellStart(p.Tier.cellOf(h.epoch, c.field))
			if start >= p.Range.From && start < p.Range.To {
				i := (start - p.Range.From) / p.step
				out[i] = addCounts(out[i], c.n)
			}
		}
		cells = cells[1:]
	}
	return out
}

// Series answers all questions in one pipelined round trip, in their order. Its
// errors are those of Answer.
func (r *Reader) Series(ctx context.Context, questions []SeriesQuestion) ([]Series, error) {
	var steps []seriesPlan
	found, err := r.ask(ctx, func(l Layout, now int64) ([]Plan, error) {
		steps = make([]seriesPlan, len(questions))
		plans := make([]Plan, len(questions))
		var points int64
		for i, q := range questions {
			var err error
			if steps[i], err = l.planSeries(q, now); err != nil {
				return nil, &QuestionError{i, err}
			}
			plans[i] = steps[i].Plan
			points += steps[i].points()
		}
		if r.MaxPoints > 0 && points > r.MaxPoints {
			return nil, &TooMuchError{What: "points", Count: points, Max: r.MaxPoints}
		}
		return plans, nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]Series, len(steps))
	for i, p := range steps {
		out[i] = Series{
			Range: p.Range, Asked: p.asked, Step: time.Duration(p.step) * time.Millisecond, Counts: p.counts(found.cells[i]),
			Tier: p.Tier, Now: found.at.milli, AsOf: found.shards[p.shard].asOf, Complete: found.complete(&p.Plan),
			CountingSince: found.shards[p.shard].began,
		}
	}
	return out, nil
}
