package query

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/window"
)

// lookEvery is the pause between looks at Redis: how old the answer of /readyz can be.
const lookEvery = 500 * time.Millisecond

// maxClockDifference is how far the clock of this machine may be from Redis's
// before it is worth a warning. No answer depends on it, but it tells of machines whose
// clocks nobody keeps.
const maxClockDifference = 2 * time.Second

// health knows whether Redis answers and has a layout. One goroutine, run,
// looks and logs what changes; everyone else reads what it has found.
type health struct {
	reader      looker
	clockWarned bool // run's own
	log         zerolog.Logger
	asked       chan struct{}
	found       atomic.Pointer[finding]
}

// looker is the part of window.Reader that finds out about Redis.
type looker interface {
	Look(context.Context) (window.Layout, error)
	ClockDifference() (ahead time.Duration, known bool)
}

// finding is what a look at Redis found.
type finding struct{ err error }

func newHealth(r looker, log zerolog.Logger) *health {
	return &health{reader: r, log: log, asked: make(chan struct{}, 1)}
}

// look asks for a look before the next is due.
func (h *health) look() {
	select {
	case h.asked <- struct{}{}:
	default: // one is asked for already
	}
}

// run looks until ctx ends.
func (h *health) run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, answerTimeout)
		layout, err := h.reader.Look(bounded)
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
		case <-h.asked:
		}
	}
}

// report keeps what was found and logs what it changes.
func (h *health) report(layout window.Layout, err error) {
	before := h.found.Swap(&finding{err})
	first := before == nil
	wasLost := !first && lost(before.err)
	hadLayout := !first && before.err == nil
	switch {
	case lost(err) && !wasLost:
		h.log.Warn().Err(err).Msg("Redis lost")
	case !lost(err) && wasLost:
		h.log.Info().Msg("Redis back")
	}
	switch {
	case err == nil && !hadLayout:
		h.log.Debug().Stringer("tiers", layout.Tiers).Int("shards", layout.Shards).Msg("layout known")
	case spoilt(err) && (first || !spoilt(before.err)):
		h.log.Error().Err(err).Msg("no question can be answered")
	case errors.Is(err, window.ErrNoLayout) && (first || !errors.Is(before.err, window.ErrNoLayout)):
		h.log.Warn().Err(err).Msg("nothing to answer from")
	}
}

// reportClock warns once when the clocks part, and says when they agree again.
func (h *health) reportClock() {
	ahead, known := h.reader.ClockDifference()
	apart := known && ahead.Abs() > maxClockDifference
	if apart == h.clockWarned {
		return
	}
	h.clockWarned = apart
	if apart {
		h.log.Warn().Float64("redis_ahead_seconds", ahead.Seconds()).
			Msg("the clocks of Redis and of this machine differ: answers go by that of Redis; look at the time synchronisation of both")
		return
	}
	h.log.Info().Msg("the clocks of Redis and of this machine agree again")
}

// lost tells an error of Redis from the answer that there is no layout yet, and
// from one that cannot be used.
func lost(err error) bool { return err != nil && !errors.Is(err, window.ErrNoLayout) && !spoilt(err) }

// spoilt reports whether an error is about a key that something else has written.
func spoilt(err error) bool {
	var foreign *window.ForeignError
	return errors.As(err, &foreign) || errors.Is(err, window.ErrBadLayout)
}

// notReady says why no question can be answered now; empty where they can.
func (h *health) notReady() string {
	f := h.found.Load()
	switch {
	case f == nil:
		return "Redis has not answered yet"
	case lost(f.err):
		return "Redis does not answer"
	case spoilt(f.err):
		return spoiltProblem(f.err).Detail
	case f.err != nil:
		return f.err.Error()
	}
	return ""
}
