package consume

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
)

// session is one attempt to count a stream: a reader, a committer and a watcher share a buffer.
type session struct {
	setup
	phase  phase
	plan   *resumePlan // nil until resume has decided where the shards continue
	buffer *buffer
	tail   tail
}

// attempt counts until ctx or the session ends. It commits what it has read, unless a commit has failed.
func (s *session) attempt(ctx context.Context) outcome {
	o := newOutcome(s.count(ctx), ctx.Err() != nil)
	o.phase, o.idle = s.phase, true
	if s.plan != nil {
		position, _, _ := s.buffer.position()
		known := max(s.tail.lastSeq(), s.plan.state.Last, position)
		o.unread = slices.ContainsFunc(s.plan.writers, func(w *shardWriter) bool { return w.position.Seq < known })
		o.idle = position <= s.plan.readAfter
	}
	return o
}

func (s *session) count(ctx context.Context) error {
	s.enter(resuming)
	if err := s.resume(ctx); err != nil {
		return err
	}
	s.enter(opening)
	feed, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := feed.Release(); err != nil {
			s.Log.Debug().Err(err).Msg("the consumer could not be deleted, and will expire")
		}
	}()
	runCtx, end := context.WithCancelCause(ctx) // ends with ctx, or when any part of the session fails
	defer end(nil)
	r := newReader(&s.setup, s.plan, s.buffer, end)
	c := newCommitter(&s.setup, s.plan, s.buffer, &s.tail)
	if err := feed.Start(r.deliver, func(err error) { end(s.causeOrGone(ctx, err)) }); err != nil {
		return err
	}
	if err := (planner{&s.setup, s.plan}).verify(ctx, s.buffer); err != nil {
		s.stop(feed)
		return err
	}
	s.enter(counting)
	w := newWatcher(&s.setup, s.plan, s.buffer, &s.tail, &c.committed, end)
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(runCtx) })
	err = s.commitUntil(ctx, runCtx, feed, c)
	end(err) // only the first cause counts
	watching.Wait()
	return context.Cause(runCtx)
}

// resume decides where each shard continues, and acquires all cursors, before any message is read.
func (s *session) resume(ctx context.Context) error {
	plan, err := makePlan(ctx, &s.setup)
	if err != nil {
		return err
	}
	s.plan, s.buffer = plan, newBuffer(s.Layout, s.Limits, plan.positions())
	s.buffer.sparse, s.buffer.beforeFirst = plan.state.Gaps != "", plan.state.BeforeFirst()
	return planner{&s.setup, plan}.acquire(ctx)
}

// open opens a feed of the messages after the smallest cursor.
func (s *session) open(ctx context.Context) (source.Feed, error) {
	smallest := s.plan.smallestPosition()
	seq, stored := smallest.Seq, smallest.Stored
	if seq == s.plan.state.Last {
		// The last stored message is applied or gone, even if the cursor names another message.
		stored = cmp.Or(s.plan.state.EndStored(), stored)
	}
	s.plan.readAfter = seq
	s.buffer.startAt(seq, stored)
	feed, err := s.source.Open(ctx, seq+1)
	if err != nil {
		return nil, err
	}
	s.Log.Info().Uint64("from", seq+1).Uint64("last", s.plan.state.Last).Uint64("pending", feed.Pending()).
		Msg("reading the stream")
	if gaps := s.plan.state.Gaps; gaps != "" {
		s.Log.Warn().Str("gaps", gaps).Msg("missing sequences are no losses here: " +
			"if the stream loses unread messages between others, answers still have complete: true")
	}
	return feed, nil
}

// commitUntil commits until runCtx ends, stops the feed, and commits the rest. It returns the error of a
// failed commit, after which it commits nothing more.
func (s *session) commitUntil(ctx, runCtx context.Context, feed source.Feed, c *committer) error {
	commitCtx := newGrace(ctx) // for the last commit, which outlives ctx
	defer commitCtx.cancel()
	defer context.AfterFunc(runCtx, func() { commitCtx.end(LastCommitWithin) })()
	err := c.flushUntil(runCtx, commitCtx)
	s.enter(ending)
	s.stop(feed)
	// Nothing may follow a failed flush: cursors that did not get its load must not pass it.
	if err == nil {
		err = c.flush(commitCtx, true) // all of the rest was read in order
	}
	if err != nil && runCtx.Err() != nil {
		read, _, _ := s.buffer.position()
		done, _ := c.committed.position()
		s.Log.Error().Err(err).Uint64("committed", done).Uint64("read", read).
			Msg("the last commit failed; the next worker reads these hits again, if the stream still holds them")
	}
	return err
}

func (s *session) enter(p phase) {
	s.phase = p
	s.enterPhase(p)
}

// stop ends the reading. It closes the buffer, which wakes a reader that waits for capacity.
func (s *session) stop(feed source.Feed) {
	s.buffer.close()
	feed.Stop()
}

func (s *session) causeOrGone(ctx context.Context, err error) error {
	if errors.Is(err, source.ErrReconnected) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, gone := s.source.Check(ctx); errors.Is(gone, source.ErrNoStream) {
		return gone
	}
	return err
}

// markEnded writes into all cursors that the stream was applied to its end, and reports whether it succeeded.
// It fails if Redis has lost commits, or does not answer: hits may be lost with the stream. Call it after
// attempt.
func (s *session) markEnded(ctx context.Context) bool {
	if s.plan == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LastCommitWithin)
	defer cancel()
	return eachShard(ctx, len(s.plan.writers), readConcurrency, func(ctx context.Context, shard int) error {
		w := s.plan.writers[shard]
		cursor := w.position
		cursor.Ended = true
		return w.write(ctx, cursor)
	}) == nil
}

type verdict int

const (
	drained verdict = iota // its context ended; it has logged what it could not commit
	gone                   // the stream does not exist any more
	fenced                 // another worker has moved a cursor
	failed                 // any other error
)

type outcome struct {
	verdict verdict
	cause   error // the first cause of its end; that of its context if it was stopped
	phase   phase // the last one that began
	// unread: the stream is known to have held messages that are not applied on every shard.
	unread bool
	idle   bool // it received no message
}

// newOutcome decides the verdict. stopped is whether the session was stopped. A stream that is gone takes
// precedence, because the fleet also releases it, maybe before the last commit has ended.
func newOutcome(cause error, stopped bool) outcome {
	switch {
	case errors.Is(cause, source.ErrNoStream):
		return outcome{verdict: gone, cause: cause}
	case stopped:
		return outcome{verdict: drained, cause: cause}
	case errors.Is(cause, commit.ErrFenced):
		return outcome{verdict: fenced, cause: cause}
	}
	return outcome{verdict: failed, cause: cause}
}

const (
	// maxReopen bounds the pause before the next session of a stream whose sessions keep failing.
	maxReopen = 2 * time.Second
	// foreignRetry is the pause if only an operator can repair the stream: another program has written to its
	// cursor, rules are lost, or the stream is unidentified.
	foreignRetry = 10 * time.Second
	// stalledAfter is how many checks in a row may find the reader idle although messages are undelivered. If
	// a session stalls without a message, the next one may be idle for twice as many, up to maxStalledAfter.
	stalledAfter, maxStalledAfter = 3, 48
)

type backoff struct {
	pause   time.Duration // before the session
	maxIdle int           // see setup
}

func firstBackoff() backoff { return backoff{maxIdle: stalledAfter} }

// next returns what follows a session with outcome o that lasted for the given time.
func (r backoff) next(o outcome, lasted time.Duration) backoff {
	next := backoff{maxIdle: stalledAfter}
	if errors.Is(o.cause, errStalled) && o.idle {
		next.maxIdle = min(2*r.maxIdle, maxStalledAfter)
	}
	switch {
	case window.IsForeign(o.cause), errors.Is(o.cause, errRulesLost), errors.Is(o.cause, errUnidentified),
		errors.Is(o.cause, ErrRetention), errors.Is(o.cause, ErrCopy):
		next.pause = foreignRetry
	case o.phase == resuming || o.verdict == fenced: // it did not begin to read, or another worker has the stream
		next.pause = min(max(2*r.pause, 100*time.Millisecond), maxReopen)
	case lasted > maxReopen:
		next.pause = 0
	default:
		next.pause = min(r.pause+50*time.Millisecond, maxReopen)
	}
	return next
}

// LastCommitWithin bounds the commit with which a session ends.
const LastCommitWithin = 7 * time.Second

// grace is a context that outlives another one, and gets a deadline when end is called. A cancellation is not
// enough, because only a deadline stops the Redis client while it reads from a socket.
type grace struct {
	context.Context
	cancel   context.CancelFunc
	deadline atomic.Pointer[time.Time]
}

func newGrace(ctx context.Context) *grace {
	g := new(grace)
	g.Context, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return g
}

// Deadline also passes the deadline on to derived contexts.
func (g *grace) Deadline() (time.Time, bool) {
	if d := g.deadline.Load(); d != nil {
		return *d, true
	}
	return time.Time{}, false
}

func (g *grace) end(within time.Duration) {
	deadline := time.Now().Add(within)
	g.deadline.Store(&deadline)
	time.AfterFunc(within, g.cancel)
}
