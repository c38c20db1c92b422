package window

import (
	"context"
	"time"
)

// SeriesQuestion asks for the hits of one counter in each step of a range.
type SeriesQuestion struct {
	Counter string
	Span    Span
	Step    time.Duration // 0 for a cell
}

// Series are the hits of a counter step by step. Every count is exact: the
// range and the step are whole cells.
type Series struct {
	// Range is the range asked for, widened to the cells that its edges cut. The
	// last cell may reach beyond now.
	Range Range
	Asked Range // what the span was when it was answered
	// Step is the step asked for, rounded up to whole cells.
	Step time.Duration
	// Counts has a number for every step, from the first on; the last step ends
	// with the range and may be shorter than the others.
	Counts        []int64
	Tier          Tier
	Now, AsOf     int64 // see Answers
	Complete      bool  // see Answer
	CountingSince int64 // see Answer
}

// Begun is the first step that counting had begun before the end of; len(Counts)
// if there is none. Steps before it say nothing: nobody counted.
func (s Series) Begun() int {
	if s.CountingSince <= s.Range.From {
		return 0
	}
	return int(min((s.CountingSince-s.Range.From)/s.Step.Milliseconds(), int64(len(s.Counts))))
}

// Finished is how many steps, from the first on, had ended by AsOf. What later
// ones count may still grow by more than hits that come late.
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

// seriesPlan is a plan whose range is made of whole cells, and how it is cut into steps.
type seriesPlan struct {
	Plan
	asked Range
	step  int64 // milliseconds
}

// planSeries chooses the finest tier that holds all of the range. The cell that
// from cuts is whole in it, too: a hash lives a window longer than its last
// cell, so all of its cells are there when one of them is.
func (l Layout) planSeries(namespace string, q SeriesQuestion, now int64) (seriesPlan, error) {
	asked, err := q.Span.At(now)
	if err != nil {
		return seriesPlan{}, err
	}
	t, err := l.reaching(asked, now)
	if err != nil {
		return seriesPlan{}, err
	}
	cells := max(1, int64((q.Step+t.Cell-1)/t.Cell))
	r := Range{From: t.cellStart(t.cellAt(asked.From)), To: t.cellStart(t.cellAt(asked.To-1) + 1)}
	p := seriesPlan{l.newPlan(q.Counter, r, now, t), asked, cells * t.cellMillis()}
	p.read(namespace, t, r)
	return p, nil
}

// points is how many steps the range has.
func (p seriesPlan) points() int64 { return (p.Range.To - p.Range.From + p.step - 1) / p.step }

// counts adds up the cells of each step.
func (p seriesPlan) counts(hashes map[string][]Cell) []int64 {
	out := make([]int64, p.points())
	for _, h := range p.parts[0].hashes {
		for _, c := range hashes[h.key] {
			start := p.Tier.cellStart(p.Tier.cellOf(h.epoch, c.Field))
			if start >= p.Range.From && start < p.Range.To {
				i := (start - p.Range.From) / p.step
				out[i] = addCounts(out[i], c.Count)
			}
		}
	}
	return out
}

// Series answers all questions in one pipelined round trip, in their order; its
// errors are those of Answer.
func (r *Reader) Series(ctx context.Context, questions []SeriesQuestion) ([]Series, error) {
	var steps []seriesPlan
	found, err := r.ask(ctx, func(l Layout, now int64) ([]Plan, error) {
		steps = make([]seriesPlan, len(questions))
		plans := make([]Plan, len(questions))
		var points int64
		for i, q := range questions {
			var err error
			if steps[i], err = l.planSeries(r.store.keys.namespace, q, now); err != nil {
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
			Range: p.Range, Asked: p.asked, Step: time.Duration(p.step) * time.Millisecond, Counts: p.counts(found.cells),
			Tier: p.Tier, Now: found.at.milli, AsOf: found.byShard[p.Shard].asOf, Complete: found.complete(p.Plan),
			CountingSince: found.byShard[p.Shard].began,
		}
	}
	return out, nil
}
