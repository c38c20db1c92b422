package window

import (
	"context"
	"sort"
	"time"
)

// Fall answers, like Answer, how many hits a counter has in the window that ends now, and how long it takes
// without new hits until the total is at most most. Its errors are those of Answer.
func (r *Reader) Fall(ctx context.Context, counter string, length time.Duration, most int64) (Answers, time.Duration, error) {
	found, err := r.ask(ctx, func(l Layout, now int64) ([]Plan, error) {
		plans, err := planAll(l, []Question{{counter, Last(length)}}, now)
		if err == nil {
			plans[0] = plans[0].Alone() // of a divided range, a later one needs other hashes
		}
		return plans, err
	})
	if err != nil {
		return Answers{}, 0, err
	}
	p := &found.plans[0]
	wait := p.Fall(most, func(later *Plan) int64 { return found.estimate(later, found.cells[0]).Total })
	return found.totals(), wait, nil
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
