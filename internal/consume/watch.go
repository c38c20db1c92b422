package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tallyroll/internal/window"
)

const (
	watchEvery = time.Second
	// stalledAfter is how many looks in a row may find the reader idle before messages that it has not been given.
	stalledAfter = 3
)

// watch looks at the stream every second: where its end is, whether it is still
// the same stream, and whether the reader gets what is there.
func (s *session) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var seen uint64
	idle := 0
	for {
		// The place first: read afterwards it can be beyond the end that the state tells of.
		place, stored, waiting := s.buffer.place()
		state, err := s.source.state(ctx)
		switch {
		case errors.Is(err, errNoStream):
			s.fail(err)
			return
		case err != nil: // NATS is away; the connection's own handlers say so
		case state.created != s.info.created:
			s.fail(errIncarnated)
			return
		case state.last < place:
			s.fail(fmt.Errorf("%w: it ends at %d, and %d had been read", errRolledBack, state.last, place))
			return
		case state.last == place && state.endStored() > stored:
			s.fail(fmt.Errorf("%w: message %d is another one than had been read", errRolledBack, place))
			return
		default:
			s.tail.set(state, s.observeLag(place, stored, state))
			if place < state.last && place == seen && !waiting {
				idle++
			} else {
				idle = 0
			}
			if seen = place; idle >= stalledAfter {
				s.fail(fmt.Errorf("%w: at %d of %d", errStalled, place, state.last))
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// endStored is when the last message was stored, 0 where the stream is empty: a
// purge sets that time to its own.
func (s streamState) endStored() int64 {
	if s.first > s.last {
		return 0
	}
	return s.lastStored
}

func (s *session) observeLag(place uint64, stored int64, state streamState) (lag time.Duration) {
	if place < state.last {
		lag = max(0, time.Duration(state.at*1e6-stored))
	}
	s.metrics.lagMessages.WithLabelValues(s.stream).Set(float64(state.last - place))
	s.metrics.lagSeconds.WithLabelValues(s.stream).Set(lag.Seconds())
	return lag
}

// history compares cursors with the messages that the stream holds; the shards'
// cursors are mostly the same, so it asks about each sequence once.
type history struct {
	source source
	stored map[uint64]int64 // by sequence; 0 where the stream no longer holds it
	after  map[int64]uint64 // by stored time
}

func newHistory(s source) *history {
	return &history{s, map[uint64]int64{}, map[int64]uint64{}}
}

// check reports whether the stream was rolled back under a cursor, at its
// sequence and at the one that some of its counters have reached.
func (h *history) check(ctx context.Context, c window.Cursor, exists bool, s streamState) (at, ahead rollBack, err error) {
	if !exists || c.Created != s.created {
		return rollBack{}, rollBack{}, nil
	}
	if at, err = h.checkAt(ctx, c.Seq, c.Stored, s); err != nil {
		return at, ahead, err
	}
	ahead, err = h.checkAt(ctx, c.Ahead.Seq, c.Ahead.Stored, s)
	return at, ahead, err
}

func (h *history) checkAt(ctx context.Context, seq uint64, stored int64, s streamState) (rollBack, error) {
	if seq == 0 {
		return rollBack{}, nil
	}
	if seq <= s.last {
		if seq < s.first || stored == 0 {
			return rollBack{}, nil // nothing to compare
		}
		found, err := h.storedAt(ctx, seq)
		if err != nil || found == stored {
			return rollBack{}, err
		}
		// Another message, or (0) a deleted one, which may have been another.
	}
	afterTime, err := h.lastUpTo(ctx, stored)
	return rollBack{afterTime < seq, afterTime}, err
}

func (h *history) storedAt(ctx context.Context, seq uint64) (stored int64, err error) {
	stored, asked := h.stored[seq]
	if !asked {
		stored, err = h.source.storedAt(ctx, seq)
		h.stored[seq] = stored
	}
	return stored, err
}

func (h *history) lastUpTo(ctx context.Context, stored int64) (seq uint64, err error) {
	seq, asked := h.after[stored]
	if !asked {
		seq, err = h.source.lastUpTo(ctx, stored)
		h.after[stored] = seq
	}
	return seq, err
}
