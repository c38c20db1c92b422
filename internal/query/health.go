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

// health knows whether Redis answers and has a layout. One goroutine, run,
// looks and logs what changes; everyone else reads what it has found.
type health struct {
	layout func(context.Context) (window.Layout, error)
	log    zerolog.Logger
	asked  chan struct{}
	found  atomic.Pointer[finding]
}

// finding is what a look at Redis found.
type finding struct{ err error }

func newHealth(layout func(context.Context) (window.Layout, error), log zerolog.Logger) *health {
	return &health{layout: layout, log: log, asked: make(chan struct{}, 1)}
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
		layout, err := h.layout(bounded)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		h.report(layout, err)
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
	case errors.Is(err, window.ErrNoLayout) && (first || !errors.Is(before.err, window.ErrNoLayout)):
		h.log.Warn().Err(err).Msg("nothing to answer from")
	}
}

// lost tells an error of Redis from the answer that there is no layout yet.
func lost(err error) bool { return err != nil && !errors.Is(err, window.ErrNoLayout) }

// notReady says why no question can be answered now; empty where they can.
func (h *health) notReady() string {
	f := h.found.Load()
	switch {
	case f == nil:
		return "Redis has not answered yet"
	case lost(f.err):
		return "Redis does not answer"
	case f.err != nil:
		return f.err.Error()
	}
	return ""
}
