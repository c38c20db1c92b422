package read

import (
	"context"

	"tallyroll/internal/window"
)

// Series answers all questions in one pipelined round trip, in their order. Its errors are those of Answer.
func (r *Reader) Series(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	found, steps, err := askSeries(ctx, r, questions, false)
	if err != nil {
		return nil, err
	}
	out := make([]window.Series, len(steps))
	for i := range steps {
		p := &steps[i]
		out[i] = found.series(p, questions[i]).WithCounts(p.Counts(found.cells[i], found.latest(&p.Plan)), p.Cuts)
	}
	return out, nil
}

// askSeries plans the questions, about uniques if that is set, and fetches what the plans need.
func askSeries(ctx context.Context, r *Reader, questions []window.SeriesQuestion, uniques bool) (found snapshot,
	steps []window.SeriesPlan, err error) {
	found, err = r.ask(ctx, func(l window.Layout, now int64) (_ []window.Plan, err error) {
		if uniques {
			if l, err = l.UniqueLayout(); err != nil {
				return nil, &window.QuestionError{Index: 0, Err: err}
			}
		}
		steps = make([]window.SeriesPlan, len(questions))
		plans := make([]window.Plan, len(questions))
		var points int64
		for i, q := range questions {
			p := &steps[i]
			alike := i > 0 && q.HasSameSteps(questions[i-1]) // a calendar need not be asked again
			if alike {
				*p = steps[i-1]
				p.Plan = p.For(q.Counter, l)
			} else if *p, err = l.PlanSeries(q, now); err != nil {
				if uniques {
					err = window.NameUniques(err)
				}
				return nil, &window.QuestionError{Index: i, Err: err}
			}
			points += p.Points()
			if uniques && !alike && (r.MaxPoints == 0 || points <= r.MaxPoints) {
				window.CoverSteps(l, p, now)
			}
			plans[i] = p.Plan
		}
		if r.MaxPoints > 0 && points > r.MaxPoints {
			return nil, &window.TooMuchError{What: "points", Count: points, Max: r.MaxPoints}
		}
		return plans, nil
	})
	return found, steps, err
}

// series returns a series without counts, with the progress of its shard.
func (s *snapshot) series(p *window.SeriesPlan, q window.SeriesQuestion) window.Series {
	shard, out := s.shards[p.Shard], p.Series(q, s.at.milli)
	out.AsOf, out.Complete, out.CountingSince, out.CompleteSince = shard.asOf, s.complete(&p.Plan), shard.began,
		max(shard.whole(), p.Tier.Since)
	return out
}
