package read

import (
	"context"
	"time"

	"tallyroll/internal/window"
)

// Fall answers, like Answer, how many hits a counter has in the window that ends now, and how long it takes
// without new hits until the total is at most most. Its errors are those of Answer.
func (r *Reader) Fall(ctx context.Context, counter string, length time.Duration, most int64) (window.Answers,
	time.Duration, error) {
	found, err := r.ask(ctx, func(l window.Layout, now int64) ([]window.Plan, error) {
		plans, err := planAll(l, []window.Question{{Counter: counter, Span: window.Last(length)}}, now)
		if err == nil {
			plans[0] = plans[0].Alone() // of a divided range, a later one needs other hashes
		}
		return plans, err
	})
	if err != nil {
		return window.Answers{}, 0, err
	}
	p := &found.plans[0]
	wait := p.Fall(most, func(later *window.Plan) int64 { return found.estimate(later, found.cells[0]).Total })
	return found.totals(), wait, nil
}
