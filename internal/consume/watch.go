package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

const (
	watchEvery = time.Second
	// stalledAfter is how many looks in a row may find the reader idle before messages
	// that it has not been given; maxStalledAfter is what it grows to (see keep).
	stalledAfter, maxStalledAfter = 3, 48
)

// watch looks at the stream every second: where its end is, whether it is still
// the same stream, and whether the reader gets what is there.
func (s *session) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	seen, _, _ := s.buffer.place()
	idle := 0
	var behind backlog
	defer s.show(boot.Progress{})
	for {
		// The place first: read afterwards it can be beyond the end that the state tells of.
		place, stored, waiting := s.buffer.place()
		state, err := confirmed(ctx, s.source)
		switch {
		case errors.Is(err, errNoStream):
			s.fail(err)
			return
		case err != nil: // NATS is away, and the connection's own handlers say so; or the stream has no leader
			s.show(boot.Progress{}) // what it showed is not true any more
		case state.created != s.info.created:
			s.fail(errIncarnated)
			return
		case !slices.Equal(state.subjects, s.info.subjects):
			s.fail(fmt.Errorf("%w: from %q to %q", errEdited, s.info.subjects, state.subjects))
			return
		case state.last < place:
			s.fail(fmt.Errorf("%w: it ends at %d, and %d had been read", errRolledBack, state.last, place))
			return
		case state.last == place && state.endStored() > stored:
			s.fail(fmt.Errorf("%w: message %d is another one than had been read", errRolledBack, place))
			return
		default:
			s.tail.set(state, s.observeLag(place, stored, state))
			s.observeBacklog(&behind, place, state)
			if place < state.last && place == seen && !waiting {
				idle++
			} else {
				idle = 0
			}
			seen = place
			if idle > 0 {
				err := s.passDeletedTail(ctx, place, stored)
				if errors.Is(err, errRolledBack) {
					s.fail(err)
					return
				}
				if err != nil {
					s.log.Debug().Err(err).Uint64("at", place).Msg("it is not known whether a tail was deleted")
				}
			}
			if place, _, _ := s.buffer.place(); place == seen && idle >= s.maxIdle {
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

// passDeletedTail goes on from a place to the end of a stream whose last messages
// were deleted: no delivery will ever show that gap, so as_of would stand still. It
// asks twice with a leader confirmed in between: a server that missed the messages
// because it was deposed would have learnt of it. The place must still be one in
// this stream: after a roll-back the messages at its end are new ones.
func (s *session) passDeletedTail(ctx context.Context, place uint64, stored int64) error {
	var state streamState
	for again := range 2 {
		if again > 0 {
			var err error
			if state, err = confirmed(ctx, s.source); err != nil {
				return err
			}
		}
		found, _, err := s.source.next(ctx, place+1)
		if err != nil || found > 0 {
			return err // it will be delivered
		}
	}
	if state.created != s.info.created || state.last <= place {
		return nil // the next look judges that
	}
	at, err := newHistory(s.source, state).checkAt(ctx, place, stored)
	if err != nil {
		return err
	}
	if at.found {
		return errRolledBack
	}
	// Nobody knows any more when they were stored, but it was before the state was seen.
	s.buffer.pass(place, state.last, state.lastStored, state.seen)
	return nil
}

// endStored is when the last message was stored, 0 where the stream is empty: a
// purge sets that time to its own.
func (s streamState) endStored() int64 {
	if s.first > s.last {
		return 0
	}
	return s.lastStored
}

// history compares cursors with the messages that the stream holds; the shards'
// cursors are mostly the same, so it asks about each sequence once.
type history struct {
	source source
	state  streamState
	stored map[uint64]int64 // by sequence; 0 where the stream no longer holds it
	after  map[int64]uint64 // by stored time
}

func newHistory(source source, state streamState) *history {
	return &history{source, state, map[uint64]int64{}, map[int64]uint64{}}
}

// check reports whether the stream was rolled back under a cursor, at its
// sequence and at the one that some of its counters have reached. It rests on the
// state, and on messages that are found: one that a lagging server misses proves nothing.
func (h *history) check(ctx context.Context, c window.Cursor, exists bool) (at, ahead rollBack, err error) {
	if !exists || c.Created != h.state.created {
		return rollBack{}, rollBack{}, nil
	}
	if at, err = h.checkAt(ctx, c.Seq, c.Stored); err != nil {
		return at, ahead, err
	}
	ahead, err = h.checkAt(ctx, c.Ahead.Seq, c.Ahead.Stored)
	return at, ahead, err
}

func (h *history) checkAt(ctx context.Context, seq uint64, stored int64) (rollBack, error) {
	if seq == 0 {
		return rollBack{}, nil
	}
	if seq <= h.state.last {
		if seq < h.state.first || stored == 0 {
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

// storedAt is when a message was stored (Unix nanoseconds), 0 where the stream does not hold it.
func (h *history) storedAt(ctx context.Context, seq uint64) (int64, error) {
	if stored, asked := h.stored[seq]; asked {
		return stored, nil
	}
	found, stored, err := h.source.next(ctx, seq)
	if err != nil {
		return 0, err
	}
	if found != seq {
		stored = 0
	}
	h.stored[seq] = stored
	return stored, nil
}

// lastUpTo is the sequence before the first message that was stored after a
// moment (Unix nanoseconds), or the stream's last. Within a stream times do not
// decrease, so halving finds it, also among deleted messages.
func (h *history) lastUpTo(ctx context.Context, moment int64) (uint64, error) {
	if seq, asked := h.after[moment]; asked {
		return seq, nil
	}
	later := h.state.last + 1 // the first later message known
	for low, high := h.state.first, later; low < high; {
		middle := low + (high-low)/2
		seq, stored, err := h.source.next(ctx, middle)
		switch {
		case err != nil:
			return 0, err
		case seq == 0 || seq > h.state.last: // nothing more that the state tells of
			high = middle
		case stored > moment:
			high, later = middle, seq
		default:
			low = seq + 1
		}
	}
	h.after[moment] = later - 1
	return later - 1, nil
}
