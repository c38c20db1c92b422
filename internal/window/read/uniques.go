package read

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// nameForeign finds out which key of a union is not Tallyroll's, which Redis's error does not show.
func nameForeign(ctx context.Context, r *Reader, err error) error {
	var foreign *window.ForeignError
	if !errors.As(err, &foreign) || !strings.Contains(foreign.Key, keySeparator) {
		return err
	}
	for key := range strings.SplitSeq(foreign.Key, keySeparator) {
		switch err := r.Store.Client.PFCount(ctx, key).Err(); {
		case cluster.IsAboutValue(err):
			return &window.ForeignError{Key: key, Err: err}
		case err != nil: // it may be this key or a later one
			return fmt.Errorf("find the unique cell that is not Tallyroll's: %w", err)
		}
	}
	return fmt.Errorf("a unique cell was not Tallyroll's, and is gone: %w", foreign.Err)
}

// Uniques estimates the number of unique values. The bounds hold with UniqueConfidence. Its errors are
// those of Answer. If the clock of NATS is ahead of Redis's, it asks Redis twice.
func (r *Reader) Uniques(ctx context.Context, questions []window.Question) (window.Answers, error) {
	found, plans, err := askUniques(ctx, r, questions, false)
	if err == nil && found.isAhead(plans) {
		found, plans, err = askUniques(ctx, r, questions, true)
	}
	if err != nil {
		return window.Answers{}, err
	}
	return found.answers(func(i int, p *window.Plan) window.Estimate {
		return plans[i].Cover.Estimate(found.counts[i], found.latest(p))
	}), nil
}

func askUniques(ctx context.Context, r *Reader, questions []window.Question, doubt bool) (found snapshot,
	plans []window.UniquePlan, err error) {
	found, err = r.ask(ctx, func(l window.Layout, now int64) ([]window.Plan, error) {
		plans = make([]window.UniquePlan, len(questions))
		out := make([]window.Plan, len(questions))
		for i, q := range questions {
			if plans[i], err = l.PlanUniques(q, now, doubt); err != nil {
				return nil, &window.QuestionError{Index: i, Err: err}
			}
			out[i] = plans[i].Plan
		}
		return out, nil
	})
	return found, plans, err
}

// UniqueSeries estimates the number of unique values per step of Series, in cells of the unique tiers,
// with bounds that hold with UniqueConfidence. Its errors are those of Answer.
func (r *Reader) UniqueSeries(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	found, steps, err := askSeries(ctx, r, questions, true)
	if err != nil {
		return nil, err
	}
	out := make([]window.Series, len(steps))
	for i := range steps {
		p := &steps[i]
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
