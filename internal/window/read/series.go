package read

import (
	"context"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// seriesPlanner plans questions for series, and keeps their plans for the answers.
type seriesPlanner struct {
	questions []window.SeriesQuestion
	uniques   bool  // the questions are about unique values
	maxPoints int64 // see Reader.MaxPoints
	steps     []window.SeriesPlan
}

func (s *seriesPlanner) plan(d *schema.Directory, now int64) (_ []window.Plan, err error) {
	l := d.Layout
	if s.uniques {
		if l, err = l.UniqueLayout(); err != nil {
			return nil, &window.QuestionError{Index: 0, Err: err}
		}
	}
	s.steps = make([]window.SeriesPlan, len(s.questions))
	plans := make([]window.Plan, len(s.questions))
	var points int64
	for i, q := range s.questions {
		p := &s.steps[i]
		alike := i > 0 && q.HasSameSteps(s.questions[i-1]) // a calendar need not be asked again
		if alike {
			*p = s.steps[i-1]
			p.Plan = p.For(q.Counter, l)
		} else if *p, err = l.PlanSeries(q, now); err != nil {
			if s.uniques {
				err = window.NameUniques(err)
			}
			return nil, &window.QuestionError{Index: i, Err: err}
		}
		points += p.Points()
		if s.uniques && !alike && (s.maxPoints == 0 || points <= s.maxPoints) {
			window.CoverSteps(l, p, now)
		}
		plans[i] = p.Plan
	}
	if s.maxPoints > 0 && points > s.maxPoints {
		return nil, &window.TooMuchError{What: "points", Count: points, Max: s.maxPoints}
	}
	return plans, nil
}

// Series answers all questions in one pipelined round trip, in their order. Its errors are those of Answer.
func (r *Reader) Series(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	asked := seriesPlanner{questions: questions, maxPoints: r.MaxPoints}
	found, err := r.ask(ctx, asked.plan)
	if err != nil {
		return nil, err
	}
	out := make([]window.Series, len(asked.steps))
	for i := range asked.steps {
		p := &asked.steps[i]
		out[i] = found.series(p, questions[i]).WithCounts(p.Counts(found.cells[i], found.latest(&p.Plan)), p.Cuts)
	}
	return out, nil
}

// series returns a series without counts, with the progress of its shard.
func (s *snapshot) series(p *window.SeriesPlan, q window.SeriesQuestion) window.Series {
	shard, out := s.progress(&p.Plan), p.Series(q, s.at.milli)
	out.AsOf, out.Complete, out.CountingSince, out.CompleteSince = shard.asOf, s.complete(&p.Plan), shard.began,
		max(shard.whole(), p.Tier.Since)
	return out
}

// UniqueSeries estimates the number of unique values per step of Series, in cells of the unique tiers,
// with bounds that hold with UniqueConfidence. Its errors are those of Answer.
func (r *Reader) UniqueSeries(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	asked := seriesPlanner{questions: questions, uniques: true, maxPoints: r.MaxPoints}
	found, err := r.ask(ctx, asked.plan)
	if err != nil {
		return nil, err
	}
	out := make([]window.Series, len(asked.steps))
	for i := range asked.steps {
		p := &asked.steps[i]
		counts, estimates := found.counts[i], make([]window.Estimate, len(p.Covers))
		for k := range p.Covers {
			c := &p.Covers[k]
			estimates[k] = c.Estimate(counts, found.latest(&p.Plan))
			counts = counts[1+len(c.Gaps):]
		}
		out[i] = found.series(p, questions[i]).WithCounts(estimates, true)
	}
	return out, nil
}
