package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tallyroll/internal/boot"
)

const watchEvery = time.Second

// watcher looks at the stream every second while a session counts. It finds out where the stream's
// end is, whether it is still the same stream, and whether the reader gets the messages that the
// stream holds. It runs on a goroutine of its own.
type watcher struct {
	*setup
	judged    streamState // the stream as it was when the session began
	ruled     string      // fingerprint of the rules that the session began with
	buffer    *buffer
	tail      *tail
	committed *committed
	end       func(error) // the session

	seen    uint64 // where the reader was at the last look
	idle    int    // looks in a row that found it there although there were more messages
	backlog backlog
}

func newWatcher(with *setup, from *standing, of *buffer, end *tail, done *committed, fail func(error)) *watcher {
	w := &watcher{setup: with, judged: from.state, ruled: fingerprintOf(from.rules), buffer: of, tail: end, committed: done, end: fail}
	w.seen, _, _ = of.place()
	return w
}

// run looks until ctx ends or a look finds a reason to end the session.
func (w *watcher) run(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	defer w.show(boot.Progress{})
	for {
		if why := w.observe(ctx); why != nil {
			w.end(why)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// observe is one look. An error ends the session.
func (w *watcher) observe(ctx context.Context) error {
	now := fingerprintOf(w.rules.current())
	if now != w.ruled {
		return fmt.Errorf("%w: from %s to %s", errRuled, w.ruled, now)
	}
	// Read the place first: read after the state, it could be beyond the end that the state shows.
	place, stored, waiting := w.buffer.place()
	state, err := confirmed(ctx, w.source)
	if errors.Is(err, errNoStream) {
		return err
	}
	if err != nil { // NATS is away, and the connection's own handlers log that; or the stream has no leader
		w.show(boot.Progress{}) // what it showed may no longer be true
		return nil
	}
	if err := w.same(state, place, stored); err != nil {
		return err
	}
	w.tail.set(state, w.observeLag(place, stored, state))
	w.observeBacklog(place, state)
	if place < state.last && place == w.seen && !waiting {
		w.idle++
	} else {
		w.idle = 0
	}
	w.seen = place
	if w.idle == 0 {
		return nil
	}
	err = w.passDeletedTail(ctx, place, stored)
	if errors.Is(err, errRolledBack) {
		return err
	}
	if err != nil {
		w.log.Debug().Err(err).Uint64("at", place).Msg("it is not known whether a tail was deleted")
	}
	if now, _, _ := w.buffer.place(); now == place && w.idle >= w.maxIdle {
		return fmt.Errorf("%w: at %d of %d", errStalled, place, state.last)
	}
	return nil
}

// same returns an error if the stream is no longer the one that the session reads. place and stored
// are those of the last message read.
func (w *watcher) same(state streamState, place uint64, stored int64) error {
	switch {
	case state.created != w.judged.created:
		return errIncarnated
	case !slices.Equal(state.subjects, w.judged.subjects):
		return fmt.Errorf("%w: from %q to %q", errEdited, w.judged.subjects, state.subjects)
	case state.retention != w.judged.retention:
		return errRetention
	case state.last < place:
		return fmt.Errorf("%w: it ends at %d, and %d had been read", errRolledBack, state.last, place)
	case state.last == place && state.endStored() != 0 && state.endStored() != stored:
		return fmt.Errorf("%w: message %d is not the one that had been read", errRolledBack, place)
	}
	return nil
}

// passDeletedTail moves from a place to the end of a stream whose last messages were deleted. No
// delivery will ever show that gap, so as_of would stand still. It asks twice, and confirms the
// leader in between: a server that lacked the messages because it was deposed would have learnt
// that by then. The place must still belong to this stream: after a roll-back, the messages at its
// end are new ones.
func (w *watcher) passDeletedTail(ctx context.Context, place uint64, stored int64) error {
	var state streamState
	for again := range 2 {
		if again > 0 {
			var err error
			if state, err = confirmed(ctx, w.source); err != nil {
				return err
			}
		}
		found, _, err := w.source.next(ctx, place+1)
		if err != nil || found > 0 {
			return err // the stream holds a message, which will be delivered
		}
	}
	if state.created != w.judged.created || state.last <= place {
		return nil // the stream has changed: the next look judges that
	}
	if _, back, err := newHistory(w.source, state).find(ctx, mark{place, stored}, w.buffer.latest()); err != nil {
		return err
	} else if back {
		return errRolledBack
	}
	// Nobody knows any more when they were stored, but it was before the state was seen.
	w.buffer.pass(place, state.last, state.lastStored, state.seen)
	return nil
}
