package consume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/progress"
	"tallyroll/internal/source"
)

const watchEvery = time.Second

var (
	errStalled = errors.New("the stream holds messages that are not delivered")
	errEdited  = errors.New("the stream's subjects were edited")
	errRuled   = errors.New("the rules were changed")
)

// watcher checks the stream every second while a session counts: where its end is, whether it is still the
// same stream, and whether the reader gets the messages that it holds. It runs on its own goroutine.
type watcher struct {
	*setup
	*standing // with the stream's state and the rules when the session began
	buffer    *buffer
	tail      *tail
	committed *committed
	fail      func(error) // ends the session

	seen    uint64 // the reader's position at the last check
	idle    int    // checks in a row that found it there although the stream had more messages
	backlog backlog
}

func newWatcher(setup *setup, standing *standing, buffer *buffer, tail *tail, committed *committed, fail func(error)) *watcher {
	w := &watcher{setup: setup, standing: standing, buffer: buffer, tail: tail, committed: committed, fail: fail}
	w.seen, _, _ = buffer.place()
	return w
}

func (w *watcher) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	defer w.show(progress.State{})
	for {
		if why := w.observe(ctx); why != nil {
			w.fail(why)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// observe is one check. An error ends the session.
func (w *watcher) observe(ctx context.Context) error {
	if rules, now := fingerprintOf(w.rules), fingerprintOf(w.rulebook.Current()); now != rules {
		return fmt.Errorf("%w: from %s to %s", errRuled, rules, now)
	}
	// Read the position first: read after the state, it could be beyond the end that the state shows.
	place, stored, waiting := w.buffer.place()
	state, err := source.Confirmed(ctx, w.source)
	if errors.Is(err, source.ErrNoStream) {
		return err
	}
	if err != nil { // NATS is lost, which the connection's handlers log, or the stream has no leader
		w.show(progress.State{}) // the last one may be outdated
		return nil
	}
	if err := w.same(state, place, stored); err != nil {
		return err
	}
	w.tail.set(state, w.observeLag(place, stored, state))
	w.observeBacklog(place, state)
	if place < state.Last && place == w.seen && !waiting {
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
		w.log.Debug().Err(err).Uint64("at", place).Msg("cannot tell whether the end of the stream was deleted")
	}
	if now, _, _ := w.buffer.place(); now == place && w.idle >= w.maxIdle {
		return fmt.Errorf("%w: at %d of %d", errStalled, place, state.Last)
	}
	return nil
}

// same returns an error if this is no longer the stream being read. place and stored are those of the last
// message read.
func (w *watcher) same(state source.State, place uint64, stored int64) error {
	switch {
	case state.Created != w.state.Created:
		return errIncarnated
	case !slices.Equal(state.Subjects, w.state.Subjects):
		return fmt.Errorf("%w: from %q to %q", errEdited, w.state.Subjects, state.Subjects)
	case Refused(state) != nil:
		return Refused(state)
	case state.Last < place:
		return fmt.Errorf("%w: it ends at %d, and %d had been read", errRolledBack, state.Last, place)
	case state.Last == place && state.EndStored() != 0 && state.EndStored() != stored:
		return fmt.Errorf("%w: message %d is not the one that had been read", errRolledBack, place)
	}
	return nil
}

// passDeletedTail moves the position to the end of a stream whose last messages were deleted. No delivery
// will ever show that gap, so as_of would stand still. It checks twice, and confirms the leader in between,
// because by then a deposed server that lacked the messages would have noticed. The position must still
// belong to this stream, because after a roll-back the messages at its end are new ones.
func (w *watcher) passDeletedTail(ctx context.Context, place uint64, stored int64) error {
	var state source.State
	for again := range 2 {
		if again > 0 {
			var err error
			if state, err = source.Confirmed(ctx, w.source); err != nil {
				return err
			}
		}
		found, _, err := w.source.Next(ctx, place+1)
		if err != nil || found > 0 {
			return err // the stream holds a message, which will be delivered
		}
	}
	if state.Created != w.state.Created || state.Last <= place {
		return nil // the stream has changed, which the next check reports
	}
	if _, back, err := newHistory(w.source, state).find(ctx, mark{place, stored}, w.buffer.latest()); err != nil {
		return err
	} else if back {
		return errRolledBack
	}
	// When they were stored is unknown, but it was before the state was read.
	w.buffer.pass(place, state.Last, state.LastStored, state.Seen)
	return nil
}

// observeLag sets the metrics of messages that are not committed. It returns the reader's lag: how much
// earlier than the stream's end the last message in memory was stored; 0 at the end.
func (w *watcher) observeLag(place uint64, stored int64, state source.State) (lag time.Duration) {
	if place < state.Last {
		lag = max(0, time.Duration(state.At*1e6-stored))
	}
	done, at := w.committed.place()
	behind, age := uint64(0), time.Duration(0)
	if done < state.Last {
		behind = state.Last - done
		age = max(0, time.Duration(state.At*1e6-max(at, state.FirstStored)))
	}
	w.metrics.lagMessages.WithLabelValues(w.stream).Set(float64(behind))
	w.metrics.lagSeconds.WithLabelValues(w.stream).Set(age.Seconds())
	w.metrics.uncommitted.WithLabelValues(w.stream).Set(float64(max(place, done) - done))
	w.clocks.observe(clockNATS, state.Ahead)
	return lag
}

// observeBacklog shows and logs how far a backlog is read.
func (w *watcher) observeBacklog(place uint64, state source.State) {
	p, due, caught := w.backlog.observe(time.Now(), place, state.Last, w.tail.gather(place) > 0)
	w.show(p)
	switch {
	case caught > 0:
		w.metrics.catchUp.WithLabelValues(w.stream).Set(0)
		w.log.Info().Stringer("after", caught.Round(time.Second)).Msg("caught up")
	case due:
		w.metrics.catchUp.WithLabelValues(w.stream).Set(p.Seconds())
		w.log.Info().Uint64("behind", p.Left).Float64("per_second", math.Round(p.PerSecond)).
			Func(func(e *zerolog.Event) {
				if math.IsInf(p.Seconds(), 1) {
					e.Str("left", "never at this rate: more is stored than read")
					return
				}
				e.Stringer("left", time.Duration(p.Seconds()*float64(time.Second)).Round(time.Second))
			}).Msg("catching up")
	}
}

func (w *watcher) show(p progress.State) {
	if w.progress != nil {
		w.progress(w.stream, p)
	}
}
