package consume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/progress"
	"tallyroll/internal/source"
)

const watchEvery = time.Second

// watcher checks the stream every second while a session counts: where its end is, whether it is still the
// same stream, and whether the reader gets the messages that it holds. It runs on its own goroutine.
type watcher struct {
	*setup
	judged    source.State // the stream as it was when the session began
	ruled     string       // fingerprint of the rules that the session began with
	buffer    *buffer
	tail      *tail
	committed *committed
	fail      func(error) // ends the session

	seen    uint64 // where the reader was at the last look
	idle    int    // looks in a row that found it there although there were more messages
	backlog backlog
}

func newWatcher(setup *setup, standing *standing, buffer *buffer, tail *tail, committed *committed, fail func(error)) *watcher {
	w := &watcher{
		setup: setup, judged: standing.state, ruled: fingerprintOf(standing.rules),
		buffer: buffer, tail: tail, committed: committed, fail: fail,
	}
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
	now := fingerprintOf(w.rules.Current())
	if now != w.ruled {
		return fmt.Errorf("%w: from %s to %s", errRuled, w.ruled, now)
	}
	// Read the place first: read after the state, it could be beyond the end that the state shows.
	place, stored, waiting := w.buffer.place()
	state, err := source.Confirmed(ctx, w.source)
	if errors.Is(err, source.ErrNoStream) {
		return err
	}
	if err != nil { // NATS is away, and the connection's own handlers log that; or the stream has no leader
		w.show(progress.State{}) // what it showed may no longer be true
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
		w.log.Debug().Err(err).Uint64("at", place).Msg("it is not known whether a tail was deleted")
	}
	if now, _, _ := w.buffer.place(); now == place && w.idle >= w.maxIdle {
		return fmt.Errorf("%w: at %d of %d", errStalled, place, state.Last)
	}
	return nil
}

// same returns an error if this is no longer the stream being read. place and stored are the last message's.
func (w *watcher) same(state source.State, place uint64, stored int64) error {
	switch {
	case state.Created != w.judged.Created:
		return errIncarnated
	case !slices.Equal(state.Subjects, w.judged.Subjects):
		return fmt.Errorf("%w: from %q to %q", errEdited, w.judged.Subjects, state.Subjects)
	case Refused(state) != nil:
		return Refused(state)
	case state.Last < place:
		return fmt.Errorf("%w: it ends at %d, and %d had been read", errRolledBack, state.Last, place)
	case state.Last == place && state.EndStored() != 0 && state.EndStored() != stored:
		return fmt.Errorf("%w: message %d is not the one that had been read", errRolledBack, place)
	}
	return nil
}

// passDeletedTail moves from a place to the end of a stream whose last messages were deleted. No delivery
// will ever show that gap, so as_of would stand still. It asks twice, and confirms the leader in between,
// because by then a deposed server that lacked the messages would have noticed. The place must still belong
// to this stream, because after a roll-back the messages at its end are new ones.
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
	if state.Created != w.judged.Created || state.Last <= place {
		return nil // the stream has changed: the next look judges that
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

// observeLag sets the metrics of what the stream holds and is not committed. It returns the reader's lag: how
// much earlier than the stream's end the last message in memory was stored; 0 if there are no more messages.
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

// backlogSpan is how often a far-behind worker logs that, and the time over which its speed is measured.
const backlogSpan = 10 * time.Second

type backlog struct {
	since  time.Time // when it fell far behind; zero while it is not
	from   uint64    // where the reader was then
	logged time.Time
	seen   []sight // of the last backlogSpan
}

type sight struct {
	at          time.Time
	place, last uint64
}

// observe records place and last. The progress is empty without a backlog, and at its first check, which
// shows no speed yet. due is whether to log it. caught is how long a backlog lasted that has just ended.
func (b *backlog) observe(now time.Time, place, last uint64, far bool) (p progress.State, due bool, caught time.Duration) {
	if !far {
		if !b.since.IsZero() {
			caught = now.Sub(b.since)
		}
		*b = backlog{}
		return p, false, caught
	}
	if b.since.IsZero() {
		*b = backlog{since: now, from: place, logged: now}
	}
	b.seen = append(b.seen, sight{now, place, last})
	for len(b.seen) > 2 && now.Sub(b.seen[1].at) >= backlogSpan {
		b.seen = b.seen[1:]
	}
	first := b.seen[0]
	seconds := now.Sub(first.at).Seconds()
	if seconds == 0 {
		return p, false, 0
	}
	read := float64(place - first.place)
	p = progress.State{
		Done: place - b.from, Left: last - place,
		PerSecond: read / seconds, Gained: (read - (float64(last) - float64(first.last))) / seconds,
	}
	due = now.Sub(b.logged) >= backlogSpan
	if due {
		b.logged = now
	}
	return p, due, 0
}

// tail is the stream's end as the watcher last read it.
type tail struct {
	mu     sync.Mutex
	last   uint64
	stored int64         // of that message, Unix nanoseconds
	at     int64         // Unix milliseconds: when it was the end
	clock  int64         // see source.State
	lag    time.Duration // of the reader, see observeLag
}

// While a stream is far behind, its loads gather for longer, because more hits of a larger load coalesce.
// After a crash, the whole load is read again. So that no wait starves another one:
//
//   - a load gathers only while it grows, so it is committed before the watcher ends a session that stalls;
//   - the first load of a backlog gathers for one flush interval, each later one for at most twice as long: a
//     worker that is killed again and again makes progress within its first second;
//   - a session that ends first commits what it has read, unless a commit has failed;
//   - after a session that stalled without a message, the next one has twice the time.
const (
	// farBehind is a lag so large that another second does not matter.
	farBehind = 5 * time.Second
	// A load may gather for one gatherPart-th of the lag, and at most for maxGather.
	gatherPart = 5
	maxGather  = 5 * time.Second
)

func (t *tail) set(state source.State, lag time.Duration) {
	t.mu.Lock()
	t.last, t.stored, t.at, t.clock, t.lag = state.Last, state.EndStored(), state.At, state.Clock, lag
	t.mu.Unlock()
}

// end returns the sequence of the last message; 0 before the first check.
func (t *tail) end() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// gather returns how long a load may wait at this place for more; 0 if it is not far behind.
func (t *tail) gather(place uint64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lag <= farBehind || place >= t.last {
		return 0
	}
	return min(t.lag/gatherPart, maxGather)
}

// reached returns the moment at which a message was the stream's end, and NATS's clock then; both 0 if
// unknown. The sequence alone does not identify a message, because after a roll-back another one can have it.
func (t *tail) reached(seq uint64, stored int64) (at, clock int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq != t.last || t.stored != 0 && stored != t.stored {
		return 0, 0
	}
	return t.at, t.clock
}
