package audit

import (
	"context"
	"math"

	"golang.org/x/time/rate"
)

// pace bounds how many messages, hashes and keys are read per second.
type pace struct{ *rate.Limiter }

// newPace bounds items per second; 0 is unlimited. After a slow reply it catches up on a tenth of a second.
func newPace(perSecond float64) pace {
	if perSecond == 0 {
		return pace{rate.NewLimiter(rate.Inf, math.MaxInt)}
	}
	return pace{rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/10)))}
}

func (p pace) wait(ctx context.Context, items int) {
	for ; items > 0; items -= p.Burst() {
		_ = p.WaitN(ctx, min(items, p.Burst())) // it fails when ctx ends, which the caller's read reports
	}
}
