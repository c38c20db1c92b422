package read

import (
	"context"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// uniquesPlanner plans questions about unique values, and keeps their plans for the answers.
type uniquesPlanner struct {
	questions []window.Question
	doubt     bool // see Layout.PlanUniques
	plans     []window.UniquePlan
	overflows
}

func (u *uniquesPlanner) plan(d *schema.Directory, now int64) ([]window.Plan, error) {
	u.plans = u.plans[:0]
	plans, err := u.planAll(d.Layout, u.questions, now)
	if err != nil {
		return nil, err
	}
	more, err := u.planAll(d.Layout, u.find(d, u.questions, plans), now)
	return append(plans, more...), err
}

func (u *uniquesPlanner) planAll(l window.Layout, questions []window.Question, now int64) ([]window.Plan, error) {
	out := make([]window.Plan, len(questions))
	for i, q := range questions {
		p, err := l.PlanUniques(q, now, u.doubt)
		if err != nil {
			return nil, &window.QuestionError{Index: i, Err: err}
		}
		u.plans, out[i] = append(u.plans, p), p.Plan
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
		return window.Answers{}, asked.named(err, len(questions))
	}
	return asked.add(found.answers(func(i int, p *window.Plan) window.Estimate {
		return asked.plans[i].Cover.Estimate(found.counts[i], found.latest(p))
	})), nil
}
