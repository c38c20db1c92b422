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

	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/progress"
)

const watchEvery = time.Second

var (
	errStalled         = errors.New("the stream holds messages that are not delivered")
	errSubjectsChanged = errors.New("the stream's subjects were edited")
	errSettingsChanged = errors.New("settings by which missing messages are judged were edited")
	errRulesChanged    = errors.New("the rules were changed")
)

// watcher checks the stream every second while a session counts: where its end is, whether it is still the
// same stream, and whether the reader gets the messages that it holds. It runs on its own goroutine.
type watcher struct {
	*setup
	*resumePlan // with the stream's state and the rules when the session began
	buffer      *buffer
	tail        *tail
	committed   *committed
	fail        func(error) // ends the session

	lastPosition uint64 // the reader's position at the last check
	idleChecks   int    // checks in a row that found it there although the stream had more messages
	copied       uint64 // a mirror had everything of its origin up to here at the last check,
	copiedAt     int64  // and from before this moment, Unix milliseconds
	backlog      backlog
}

func newWatcher(setup *setup, plan *resumePlan, buffer *buffer, tail *tail, committed *committed,
	fail func(error)) *watcher {
	w := &watcher{setup: setup, resumePlan: plan, buffer: buffer, tail: tail, committed: committed, fail: fail}
	w.lastPosition, _, _ = buffer.position()
	w.copied, w.copiedAt = w.state.Last, w.state.At
	return w
}

func (w *watcher) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	defer w.showProgress(progress.State{})
	for {
		if why := w.check(ctx); why != nil {
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

// check is one check. An error ends the session.
func (w *watcher) check(ctx context.Context) error {
	if rules, now := fingerprintOf(w.rules), fingerprintOf(w.Rules.Current()); now != rules {
		return fmt.Errorf("%w: from %s to %s", errRulesChanged, rules, now)
	}
	// Read the position first: read after the state, it could be beyond the end that the state shows.
	position, stored, waiting := w.buffer.position()
	state, err := source.Confirmed(ctx, w.source)
	if errors.Is(err, source.ErrNoStream) {
		return err
	}
	if err != nil { // NATS is lost, which the connection's handlers log, or the stream has no leader
		w.showProgress(progress.State{}) // the last one may be outdated
		return nil
	}
	if err := w.checkSame(state, position, stored); err != nil {
		return err
	}
	w.checkFront(state, position, stored)
	w.tail.set(state, w.observeLag(position, stored, state))
	w.observeBacklog(position, state)
	if position < state.Last && position == w.lastPosition && !waiting {
		w.idleChecks++
	} else {
		w.idleChecks = 0
	}
	w.lastPosition = position
	if w.idleChecks == 0 {
		return nil
	}
	err = w.skipDeletedTail(ctx, position, stored)
	if errors.Is(err, errRolledBack) {
		return err
	}
	if err != nil {
		w.Log.Debug().Err(err).Uint64("at", position).Msg("cannot tell whether the end of the stream was deleted")
	}
	if now, _, _ := w.buffer.position(); now == position && w.idleChecks >= w.maxIdle {
		return fmt.Errorf("%w: at %d of %d", errStalled, position, state.Last)
	}
	return nil
}

// checkSame returns an error if this is no longer the stream being read. position and stored are those of the
// last message read.
func (w *watcher) checkSame(state source.State, position uint64, stored int64) error {
	switch {
	case state.Created != w.state.Created:
		return errRecreated
	case !slices.Equal(state.Subjects, w.state.Subjects):
		return fmt.Errorf("%w: from %q to %q", errSubjectsChanged, w.state.Subjects, state.Subjects)
	case state.Copy != w.state.Copy || state.Gaps != "" && state.Limits != w.state.Limits:
		return errSettingsChanged
	case Refused(state) != nil:
		return Refused(state)
	case w.Copies.refused(state) != nil:
		return w.Copies.refused(state)
	case state.Last < position:
		return fmt.Errorf("%w: it ends at %d, and %d had been read", errRolledBack, state.Last, position)
	case state.Last == position && state.EndStored() != 0 && state.EndStored() != stored:
		return fmt.Errorf("%w: message %d is not the one that had been read", errRolledBack, position)
	}
	return nil
}

// checkFront reports that a stream's limits have discarded what the reader had not read, or its origin what
// had not been copied, if its sequences have gaps. The gaps of other streams show that by themselves.
func (w *watcher) checkFront(state source.State, position uint64, stored int64) {
	h := history{state: state}
	at, _ := w.tail.timeAtEnd(position, stored)
	lost, before := h.lostAfter(max(position, state.BeforeFirst()), max(stored/1e6, at), true)
	before = max(before, h.uncopiedAfter(w.copied, w.copiedAt))
	w.copied, w.copiedAt = state.Last, max(w.copiedAt, state.At)
	if state.Gaps != "" && before > 0 && w.buffer.markIncomplete(before) {
		w.Metrics.discarded.WithLabelValues(w.stream).Add(float64(lost))
		w.reportLoss(discardedUnread).Uint64("at", position).Uint64("first", state.First).Msg(reasons[discardedUnread])
	}
}

// skipDeletedTail moves the position to the end of a stream whose last messages were deleted. No delivery
// will ever show that gap, so as_of would stand still. It checks twice, and confirms the leader in between,
// because by then a deposed server that lacked the messages would have noticed. The position must still
// belong to this stream, because after a roll-back the messages at its end are new ones.
func (w *watcher) skipDeletedTail(ctx context.Context, position uint64, stored int64) error {
	var state source.State
	for again := range 2 {
		if again > 0 {
			var err error
			if state, err = source.Confirmed(ctx, w.source); err != nil {
				return err
			}
		}
		found, _, err := w.source.Next(ctx, position+1)
		if err != nil || found > 0 {
			return err // the stream holds a message, which will be delivered
		}
	}
	if state.Created != w.state.Created || state.Limits != w.state.Limits || state.Last <= position {
		return nil // the stream has changed, which the next check reports
	}
	_, back, err := newHistory(w.source, state).locate(ctx, messageID{position, stored}, w.buffer.latest())
	if err != nil {
		return err
	}
	if back {
		return errRolledBack
	}
	// When they were stored is unknown, but it was before the state was read.
	lost, before := state.Last-position, state.Seen
	if state.Gaps != "" && state.Dropped <= stored/1e6 {
		lost, before = 0, 0
	}
	w.buffer.skip(position, state.Last, lost, state.LastStored, before)
	return nil
}

// observeLag sets the metrics of messages that are not committed. It returns the reader's lag: how much
// earlier than the stream's end the last message in memory was stored; 0 at the end.
func (w *watcher) observeLag(position uint64, stored int64, state source.State) (lag time.Duration) {
	if position < state.Last {
		lag = max(0, time.Duration(state.At*1e6-stored))
	}
	done, at := w.committed.position()
	behind, age := uint64(0), time.Duration(0)
	if done < state.Last {
		behind = state.Last - done
		age = max(0, time.Duration(state.At*1e6-max(at, state.FirstStored)))
	}
	w.Metrics.lagMessages.WithLabelValues(w.stream).Set(float64(behind))
	w.Metrics.lagSeconds.WithLabelValues(w.stream).Set(age.Seconds())
	w.Metrics.uncommitted.WithLabelValues(w.stream).Set(float64(max(position, done) - done))
	w.clocks.observe(clockNATS, state.Ahead)
	return lag
}

// observeBacklog shows and logs how far a backlog is read.
func (w *watcher) observeBacklog(position uint64, state source.State) {
	p, due, caught := w.backlog.observe(time.Now(), position, state.Last, w.tail.gatherTime(position) > 0)
	w.showProgress(p)
	switch {
	case caught > 0:
		w.Metrics.catchUp.WithLabelValues(w.stream).Set(0)
		w.Log.Info().Stringer("after", caught.Round(time.Second)).Msg("caught up")
	case due:
		w.Metrics.catchUp.WithLabelValues(w.stream).Set(p.Seconds())
		w.Log.Info().Uint64("behind", p.Left).Float64("per_second", math.Round(p.PerSecond)).
			Func(func(e *zerolog.Event) {
				if math.IsInf(p.Seconds(), 1) {
					e.Str("left", "never at this rate: more is stored than read")
					return
				}
				e.Stringer("left", time.Duration(p.Seconds()*float64(time.Second)).Round(time.Second))
			}).Msg("catching up")
	}
}

func (w *watcher) showProgress(p progress.State) {
	if w.Progress != nil {
		w.Progress(w.stream, p)
	}
}

// tail is the stream's end, as the watcher read it last.
type tail struct {
	mu    sync.Mutex
	state source.State  // zero before the first check
	lag   time.Duration // of the reader, see observeLag
}

func (t *tail) set(state source.State, lag time.Duration) {
	t.mu.Lock()
	t.state, t.lag = state, lag
	t.mu.Unlock()
}

// lastSeq returns the sequence of the last message; 0 before the first check.
func (t *tail) lastSeq() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.Last
}

// timeAtEnd returns when a message was the stream's end, and NATS's clock then (Unix milliseconds); both 0 if
// unknown. The sequence alone does not identify a message, because after a roll-back another one can have it.
func (t *tail) timeAtEnd(seq uint64, stored int64) (at, clock int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if end := t.state.EndStored(); seq != t.state.Last || end != 0 && stored != end {
		return 0, 0
	}
	return t.state.At, t.state.Clock
}

// If a worker is far behind, loads gather for longer, because more hits of a larger load coalesce. After a
// crash, the whole load is read again. So that a worker always makes progress:
//
//   - a load gathers only while it grows, so it is committed before the watcher ends a session that stalls;
//   - the first load of a backlog gathers for one flush interval, each later one for at most twice as long: a
//     worker that is killed repeatedly commits within its first second;
//   - a session that ends first commits what it has read, unless a commit has failed;
//   - after a session that stalled without a message, the next one has twice the time.
const (
	// farBehind is the lag from which loads gather for longer.
	farBehind = 5 * time.Second
	// A load may gather for the lag divided by gatherPart, at most for maxGather.
	gatherPart = 5
	maxGather  = 5 * time.Second
)

// gatherTime returns how long a load at this position may gather; 0 if it is not far behind.
func (t *tail) gatherTime(position uint64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lag <= farBehind || position >= t.state.Last {
		return 0
	}
	return min(t.lag/gatherPart, maxGather)
}

// backlogSpan is how often a backlog is logged, and the time over which its speed is measured.
const backlogSpan = 10 * time.Second

// backlog measures how fast a worker that is far behind catches up.
type backlog struct {
	since     time.Time  // when the worker fell far behind; zero without a backlog
	start     uint64     // the reader's position then
	loggedAt  time.Time  // when it was logged last
	snapshots []snapshot // of the last backlogSpan
}

type snapshot struct {
	at             time.Time
	position, last uint64
}

// observe records the reader's position and the stream's end. The progress is empty without a backlog, and at
// its first check, which shows no speed yet. due is whether to log it. caught is how long a backlog lasted
// that has just ended.
func (b *backlog) observe(now time.Time, position, last uint64,
	far bool) (p progress.State, due bool, caught time.Duration) {
	if !far {
		if !b.since.IsZero() {
			caught = now.Sub(b.since)
		}
		*b = backlog{}
		return p, false, caught
	}
	if b.since.IsZero() {
		*b = backlog{since: now, start: position, loggedAt: now}
	}
	b.snapshots = append(b.snapshots, snapshot{now, position, last})
	for len(b.snapshots) > 2 && now.Sub(b.snapshots[1].at) >= backlogSpan {
		b.snapshots = b.snapshots[1:]
	}
	first := b.snapshots[0]
	seconds := now.Sub(first.at).Seconds()
	if seconds == 0 {
		return p, false, 0
	}
	read := float64(position - first.position)
	p = progress.State{
		Done: position - b.start, Left: last - position,
		PerSecond: read / seconds, Gained: (read - (float64(last) - float64(first.last))) / seconds,
	}
	due = now.Sub(b.loggedAt) >= backlogSpan
	if due {
		b.loggedAt = now
	}
	return p, due, 0
}

// committed is the position up to which every shard has committed counts and rejects.
type committed struct {
	mu     sync.Mutex
	seq    uint64
	stored int64 // of that message, Unix nanoseconds
}

func (c *committed) set(seq uint64, stored int64) {
	c.mu.Lock()
	c.seq, c.stored = seq, stored
	c.mu.Unlock()
}

func (c *committed) position() (seq uint64, stored int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq, c.stored
}
