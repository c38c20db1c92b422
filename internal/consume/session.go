package consume

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/source"
	"tallyroll/internal/window"
)

// setup holds the parts and settings of a session. All its parts share it, and none changes it.
type setup struct {
	stream  string
	source  source.Stream
	store   *window.Store
	layout  window.Layout
	limits  Limits // of this stream
	metrics *Metrics
	outage  *outage
	waits   *Waits
	clocks  *clocks
	rejects *rejectLog
	rules   *Rulebook // nil: there are none
	log     zerolog.Logger

	progress Progress    // may be nil
	maxIdle  int         // looks in a row that may find the reader idle, see stalledAfter
	enter    func(phase) // is called as each phase begins
	// listed reports whether every stream created before the call is listed in Redis; nil means always.
	listed func(context.Context) bool
	claims *claims // nil: only cursors tell as_of
}

// session is one attempt to count a stream: a reader, a committer and a watcher share a buffer.
type session struct {
	setup
	phase    phase
	standing *standing // nil until resume has decided where the shards go on
	buffer   *buffer
	tail     tail
}

// attempt counts until ctx ends or it cannot go on. It commits what it has read, unless a commit has failed.
func (s *session) attempt(ctx context.Context) outcome {
	o := newOutcome(s.pass(ctx), ctx.Err() != nil)
	o.phase, o.unread, o.idle = s.phase, s.unread(), s.idle()
	return o
}

func (s *session) pass(ctx context.Context) error {
	s.begin(resuming)
	if err := s.resume(ctx); err != nil {
		return err
	}
	s.begin(opening)
	feed, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := feed.Release(); err != nil {
			s.log.Debug().Err(err).Msg("the consumer was left to expire")
		}
	}()
	life, end := context.WithCancelCause(ctx) // ends with ctx, or when any part of the session finds a reason
	defer end(nil)
	r := newReader(&s.setup, s.standing, s.buffer, end)
	c := newCommitter(&s.setup, s.standing, s.buffer, &s.tail)
	if err := feed.Start(r.deliver, func(err error) { end(s.orGone(ctx, err)) }); err != nil {
		return err
	}
	if err := s.verify(ctx); err != nil {
		s.stop(feed)
		return err
	}
	s.begin(counting)
	w := newWatcher(&s.setup, s.standing, s.buffer, &s.tail, &c.committed, end)
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(life) })
	err = s.count(ctx, life, feed, c)
	end(err) // only the first reason counts
	watching.Wait()
	return context.Cause(life)
}

// count commits until life ends, stops the feed, and commits the rest. It returns the error of a failed
// commit, after which it commits nothing more.
func (s *session) count(ctx, life context.Context, feed source.Feed, c *committer) error {
	last := newGrace(ctx) // for the last commit, which outlives ctx
	defer last.cancel()
	defer context.AfterFunc(life, func() { last.end(LastCommitWithin) })()
	err := c.flushUntil(life, last)
	s.begin(ending)
	s.stop(feed)
	// Nothing may follow a failed flush: cursors that did not get its load must not pass it.
	if err == nil {
		err = c.flush(last, true) // all of it was read in order
	}
	if err != nil && life.Err() != nil {
		c.leftBehind(err)
	}
	return err
}

func (s *session) begin(p phase) {
	s.phase = p
	s.enter(p)
}

// stop ends the reading. The buffer takes nothing more, which wakes a reader that waits for space.
func (s *session) stop(feed source.Feed) {
	s.buffer.close()
	feed.Stop()
}

// open asks for the messages after the smallest cursor.
func (s *session) open(ctx context.Context) (source.Feed, error) {
	smallest := slices.MinFunc(s.standing.writers, func(a, b *shardWriter) int { return cmp.Compare(a.position.Seq, b.position.Seq) })
	from, stored := smallest.position.Seq, smallest.position.Stored
	if from == s.standing.state.Last {
		// The last stored message is applied or gone, even if it is not the one that the cursor names.
		stored = cmp.Or(s.standing.state.EndStored(), stored)
	}
	s.standing.from = from
	s.buffer.begin(from, stored)
	feed, err := s.source.Open(ctx, from+1)
	if err != nil {
		return nil, err
	}
	s.log.Info().Uint64("from", from+1).Uint64("last", s.standing.state.Last).Uint64("pending", feed.Pending()).Msg("stream taken")
	return feed, nil
}

func (s *session) orGone(ctx context.Context, err error) error {
	if errors.Is(err, source.ErrReconnected) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, gone := s.source.Look(ctx); errors.Is(gone, source.ErrNoStream) {
		return gone
	}
	return err
}

// unread reports whether messages are known that some shard has not applied. Call it after pass.
func (s *session) unread() bool {
	if s.standing == nil {
		return false
	}
	place, _, _ := s.buffer.place()
	known := max(s.tail.end(), s.standing.state.Last, place)
	return slices.ContainsFunc(s.standing.writers, func(w *shardWriter) bool { return w.position.Seq < known })
}

// markEnded writes into all cursors that the stream was applied to its end, and reports whether it could. If
// Redis has lost commits, or does not answer, hits may be lost with the stream. Call it after pass.
func (s *session) markEnded(ctx context.Context) bool {
	if s.standing == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LastCommitWithin)
	defer cancel()
	return eachShard(ctx, len(s.standing.writers), readConcurrency, func(ctx context.Context, shard int) error {
		w := s.standing.writers[shard]
		cursor := w.position
		cursor.Ended = true
		return w.write(ctx, cursor)
	}) == nil
}

// idle reports whether the session received no message. Call it after pass.
func (s *session) idle() bool {
	if s.standing == nil {
		return true
	}
	place, _, _ := s.buffer.place()
	return place <= s.standing.from
}

// phase is how far a session has got. The phases follow one another in this order, and any may be the last.
type phase int32

const (
	resuming phase = iota // reads the cursors, decides where each shard goes on, and writes what that changes
	opening               // asks for messages, and makes sure that the stream is still the one that was judged
	counting              // reads, coalesces and commits
	ending                // has stopped reading: commits what is in memory and frees the consumer
)

type verdict int

const (
	drained verdict = iota // its context ended; the log has what it could not commit, if anything
	gone                   // the stream does not exist any more
	fenced                 // another worker has moved a cursor
	failed                 // anything else: the unexpected ends a session
)

var (
	errGap        = errors.New("messages were lost on the way")
	errStalled    = errors.New("the stream holds messages that are not delivered")
	errIncarnated = errors.New("the stream was made anew")
	errRolledBack = errors.New("the stream was rolled back")
	errEdited     = errors.New("the stream's subjects were edited")
	errRuled      = errors.New("the rules were changed")
)

type outcome struct {
	verdict verdict
	why     error // what ended it first; the end of its context if it was to stop
	phase   phase // the last one that it began
	// unread: the stream is known to have held messages that are not applied on every shard.
	unread bool
	idle   bool // it was given no message
}

// newOutcome decides the verdict; told is whether the session was to stop. A stream that is gone takes
// precedence, because the fleet releases it too, perhaps before the last commit has ended.
func newOutcome(why error, told bool) outcome {
	switch {
	case errors.Is(why, source.ErrNoStream):
		return outcome{verdict: gone, why: why}
	case told:
		return outcome{verdict: drained, why: why}
	case errors.Is(why, window.ErrFenced):
		return outcome{verdict: fenced, why: why}
	}
	return outcome{verdict: failed, why: why}
}

// eachShard calls do for every shard, at most atOnce at a time. The first error cancels the others.
func eachShard(ctx context.Context, shards, atOnce int, do func(ctx context.Context, shard int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var begun atomic.Int64
	work := func() error {
		for {
			shard := int(begun.Add(1)) - 1
			if shard >= shards {
				return nil
			}
			if err := do(ctx, shard); err != nil {
				return err
			}
		}
	}
	for range min(shards, atOnce) - 1 { // a goroutine for each shard would spend its time growing its stack
		group.Go(work)
	}
	if err := work(); err != nil {
		group.Go(func() error { return err })
	}
	return group.Wait()
}

// LastCommitWithin bounds the commit with which a session ends.
const LastCommitWithin = 7 * time.Second

// grace is a context that outlives another one, and gets a deadline when told to end. A cancellation is not
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
