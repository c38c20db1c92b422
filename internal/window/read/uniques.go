package read

import (
	"context"

	"tallyroll/internal/window"
)

// uniquesPlanner plans questions about unique values, and keeps their plans for the answers.
type uniquesPlanner struct {
	questions []window.Question
	doubt     bool // see Layout.PlanUniques
	plans     []window.UniquePlan
}

func (u *uniquesPlanner) plan(l window.Layout, now int64) (_ []window.Plan, err error) {
	u.plans = make([]window.UniquePlan, len(u.questions))
	out := make([]window.Plan, len(u.questions))
	for i, q := range u.questions {
		if u.plans[i], err = l.PlanUniques(q, now, u.doubt); err != nil {
			return nil, &window.QuestionError{Index: i, Err: err}
		}
		out[i] = u.plans[i].Plan
	}
	return out, nil
}

// Uniques estimates the number of unique values. The bounds hold with UniqueConfidence. Its errors are
// those of Answer. If the clock of NATS is ahead of Redis's, it asks Redis twice.
func (r *Reader) Uniques(ctx context.Context, questions []window.Question) (window.Answers, error) {
	asked := uniquesPlanner{questions: questions}
	found, err := r.ask(ctx, asked.plan)
	if err == nil && found.isAhead(asked.plans) {
		asked.doubt = true
		found, err = r.ask(ctx, asked.plan)
	}
	if err != nil {
		return window.Answers{}, err
	}
	return found.answers(func(i int, p *window.Plan) window.Estimate {
		return asked.plans[i].Cover.Estimate(found.counts[i], found.latest(p))
	}), nil
}
