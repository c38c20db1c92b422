package status

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// checkEvery is the pause between checks of Redis, and so the largest age of the answer of /readyz.
const checkEvery = 500 * time.Millisecond

// maxClockDifference is how far this machine's clock may be from Redis's without a warning. No answer depends
// on it, but it reveals machines whose clocks are not synchronised.
const maxClockDifference = 2 * time.Second

// Health finds whether Redis answers and has a layout. Run's goroutine checks and logs changes; others read
// the result.
type Health struct {
	reader      scope.Namespace
	Timeout     time.Duration // of one check
	clockWarned bool          // Run's own
	log         zerolog.Logger
	due         wait.Signal // check before the next check is due
	last        atomic.Pointer[healthCheck]
}

type healthCheck struct{ err error }

func NewHealth(r scope.Namespace, timeout time.Duration, log zerolog.Logger, registry prometheus.Registerer) *Health {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "tallyroll", Subsystem: "query", Name: "clock_difference_seconds",
		ConstLabels: prometheus.Labels{"clock": "redis"},
		Help: "Seconds that a clock is ahead of this machine's (negative: behind). Answers go by the clock " +
			"of Redis.",
	}, func() float64 {
		ahead, _ := r.ClockDifference()
		return ahead.Seconds()
	}))
	return &Health{reader: r, Timeout: timeout, log: log, due: wait.NewSignal()}
}

// Run checks until ctx ends.
func (h *Health) Run(ctx context.Context) error {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, h.Timeout)
		layout, err := h.reader.Look(bounded)
		err = redisconn.Explain(err)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		h.report(layout, err)
		h.reportClock()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-h.due:
		}
	}
}

func (h *Health) report(layout window.Layout, err error) {
	before := h.last.Swap(&healthCheck{err})
	first := before == nil
	wasLost := !first && answer.IsLost(before.err)
	hadLayout := !first && before.err == nil
	switch {
	case answer.IsLost(err) && !wasLost:
		h.log.Warn().Err(err).Msg("Redis lost")
	case !answer.IsLost(err) && wasLost:
		h.log.Info().Msg("Redis back")
	}
	switch {
	case err == nil && !hadLayout:
		h.log.Debug().Stringer("tiers", layout.Tiers).Int("shards", layout.Shards).Msg("layout known")
	case answer.IsCorrupt(err) && (first || !answer.IsCorrupt(before.err)):
		h.log.Error().Err(err).Msg("no question can be answered")
	case errors.Is(err, schema.ErrNoLayout) && (first || !errors.Is(before.err, schema.ErrNoLayout)):
		h.log.Warn().Err(err).Msg("nothing to answer from")
	}
}

// reportClock logs once when the clocks diverge, and once when they agree again.
func (h *Health) reportClock() {
	ahead, known := h.reader.ClockDifference()
	apart := known && ahead.Abs() > maxClockDifference
	if apart == h.clockWarned {
		return
	}
	h.clockWarned = apart
	if apart {
		h.log.Warn().Float64("redis_ahead_seconds", ahead.Seconds()).
			Msg("the clocks of Redis and of this machine differ: answers go by that of Redis; check the time " +
				"synchronisation of both")
		return
	}
	h.log.Info().Msg("the clocks of Redis and of this machine agree again")
}

// RequestCheck triggers a check at once.
func (h *Health) RequestCheck() { h.due.Give() }

// Why returns why no question about counters can be answered now; "" if they can.
func (h *Health) Why() string {
	last := h.last.Load()
	switch {
	case last == nil:
		return redisUnknown
	case answer.IsLost(last.err):
		return redisLost
	case answer.IsCorrupt(last.err):
		return answer.CorruptProblem(last.err).Detail
	case last.err != nil:
		return last.err.Error()
	}
	return ""
}

const (
	redisUnknown = "Redis has not answered yet"
	redisLost    = "Redis does not answer"
)

// State reports whether Redis has been checked, and whether it did not answer.
func (h *Health) State() (known, lost bool) {
	last := h.last.Load()
	return last != nil, last != nil && answer.IsLost(last.err)
}
