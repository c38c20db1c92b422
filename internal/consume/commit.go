package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
	"tallyroll/internal/trace"
	"tallyroll/internal/window"
)

// cursorEvery is how often cursors move, also without hits, to keep as_of fresh and replays short; see due.
const cursorEvery = time.Second

// commitConcurrency is how many shards are committed at the same time per Redis server. Redis executes
// commits that arrive together before it serves any other client: with 8, the PING of another client took
// 12.8 ms (p99). With 2 it takes 6 ms, at the cost of 5 % of the speed.
const commitConcurrency = 2

// registerEvery is how often the layout and the stream's name are written again. Redis can lose them and keep
// the cursors, or lose everything before there are cursors. No cursor shows either loss.
const registerEvery = 10 * time.Second

const lastCommitFailed = "the last commit failed; the next worker reads these hits again, if the stream still holds them"

// committer commits the buffer. The session's goroutine owns it; the watcher only reads committed.
type committer struct {
	*setup
	*standing
	buffer    *buffer
	tail      *tail
	committed committed
	doubts    int // of claims.doubted: those after which every cursor has moved
}

func newCommitter(setup *setup, standing *standing, buffer *buffer, tail *tail) *committer {
	c := &committer{setup: setup, standing: standing, buffer: buffer, tail: tail, doubts: setup.claims.doubted(setup.stream)}
	c.committed.set(buffer.filling.seq, buffer.filling.stored)
	return c
}

// flushUntil flushes once per flush interval, or sooner if the buffer is full. If a commit takes longer than
// that, the next one follows at once, so a load gathers for as long as commits take. (Gathering for longer
// was tried: hits waited for 460 ms, not 270, at 350,000 hits/s, and no shorter at 700,000.) If the stream is
// far behind, a load gathers for longer, but only while it grows.
func (c *committer) flushUntil(life, last context.Context) error {
	interval := c.limits.FlushInterval
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var seen uint64
	flushed, most := time.Now(), interval
	for {
		select {
		case <-ticker.C:
			place, _, _ := c.buffer.place()
			gather := c.tail.gather(place)
			if gather == 0 {
				most = interval
			}
			grows := place != seen
			seen = place
			if grows && time.Since(flushed) < min(gather, most) {
				continue
			}
		case <-c.buffer.full:
		case <-life.Done():
			return nil
		}
		if err := c.flush(last, false); err != nil {
			return err
		}
		flushed, most = time.Now(), min(2*most, maxGather)
	}
}

// flush commits the filling half: first the rejects, until all are acknowledged, then each shard.
func (c *committer) flush(ctx context.Context, all bool) error {
	l := c.buffer.take()
	defer c.buffer.give(l)
	c.waits.begin(c.stream)
	if err := c.flushRejects(ctx, l); err != nil {
		return err
	}
	now := time.Now()
	next := c.target(l)
	if err := c.commit(ctx, l, next, now, c.due(l, next, now, all)); err != nil {
		return err
	}
	c.claims.put(c.stream, next.claim())
	if now.Sub(c.registered) >= registerEvery {
		var err error
		if c.registered, err = c.register(ctx, c.standing); err != nil {
			return err
		}
	}
	c.outage.over()
	c.waits.end(c.stream)
	c.committed.set(l.seq, l.stored)
	c.metrics.messages.WithLabelValues(c.stream).Add(float64(l.messages))
	c.metrics.discarded.WithLabelValues(c.stream).Add(float64(l.discarded))
	if l.unmet > 0 {
		c.metrics.unmet.WithLabelValues(c.stream).Add(float64(l.unmet))
	}
	if l.discarded > 0 {
		c.log.Warn().Uint64("discarded", l.discarded).Uint64("at", l.seq).Msg(reasons[discardedUnread])
	}
	return nil
}

// flushRejects stores the load's rejects. It tries for as long as ctx lives.
func (c *committer) flushRejects(ctx context.Context, l *load) error {
	c.rejects.report(time.Now(), false)
	if len(l.rejects) == 0 {
		return nil
	}
	if err := c.refuse(ctx, l.rejects[len(l.rejects)-1].Seq); err != nil {
		return err
	}
	for left := l.rejects; ; {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		stored, err := c.source.Reject(attempt, left)
		cancel()
		left = left[stored:]
		if err == nil {
			break
		}
		err = fmt.Errorf("%d rejects are not stored in %s yet: %w", len(left), rejects.Stream, err)
		c.waits.blame(c.stream, err)
		c.log.Warn().Err(err).Msg("counting waits")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	c.waits.begin(c.stream)
	c.rejects.add(time.Now(), l.rejects)
	for _, r := range l.rejects {
		c.metrics.rejects.WithLabelValues(c.stream, string(r.Reason)).Inc()
	}
	return nil
}

// refuse writes into the first cursor that rejects of messages up to this one may be stored. The version that
// refuses a message must be the one that counts it, so no new version may begin at or before this message.
func (c *committer) refuse(ctx context.Context, upTo uint64) error {
	w := c.writers[0]
	cursor := w.position
	if cursor.Refused >= upTo {
		return nil
	}
	cursor.Refused = upTo
	return w.write(ctx, cursor)
}

type goal struct {
	window.Cursor
	clock    int64 // of NATS when the place was found to be the stream's end; 0 if it was not
	keepAsOf bool  // as_of must not rise
}

func (g goal) claim() window.Claim {
	return window.Claim{Created: g.Created, Seq: g.Seq, Stored: g.Stored, AsOf: g.AsOf}
}

// target returns what a load reaches. Its as_of is the time of the load's last message. If that message was
// the end of the stream, as_of is the last time at which the watcher found it to be the end.
func (c *committer) target(l *load) goal {
	next := goal{Cursor: window.Cursor{
		Created: c.state.Created, Seq: l.seq, Stored: l.stored, Latest: l.latest,
		AsOf: l.stored / 1e6, IncompleteBefore: l.incompleteBefore, Naming: c.naming,
	}}
	at, clock := c.tail.reached(l.seq, l.stored)
	next.AsOf, next.clock = max(next.AsOf, at), clock
	if clock > 0 {
		next.AsOf = min(next.AsOf, clock)
	}
	return next
}

// due returns the shards whose cursors are to move: those with hits, or not moved for long enough.
func (c *committer) due(l *load, next goal, now time.Time, all bool) (shards []int) {
	all = all || c.claims.doubted(c.stream) != c.doubts
	claim := next.claim()
	for shard, w := range c.writers {
		target, every := w.advance(next), cursorEvery
		if c.claims != nil && claim.IsOf(target) && target.DiffersInAsOf(w.position) {
			every = renewEvery
		}
		falls := target.AsOf < w.position.AsOf // the present as_of is too late
		moves := target != w.position && (all || falls || now.Sub(w.moved) >= every)
		// The next load will not contain what was discarded before this one.
		moves = moves || target.IncompleteBefore != w.position.IncompleteBefore
		if moves || l.batch.Shard(shard).Hits() > 0 {
			shards = append(shards, shard)
		}
	}
	return shards
}

// advance returns the target for one shard, which in a replay may already be further on.
//
// as_of falls if the clock of NATS was set back: a message stored before as_of follows a position for which
// as_of was claimed, or the stream's end is seen at such a moment. More such messages may come.
func (w *shardWriter) advance(next goal) window.Cursor {
	if next.Seq < w.position.Seq {
		return w.position
	}
	if next.Seq == w.position.Seq {
		next.Stored = w.position.Stored
		next.AsOf = max(next.AsOf, w.position.AsOf)
	}
	if next.clock > 0 {
		next.AsOf = min(next.AsOf, next.clock)
	}
	if next.keepAsOf {
		next.AsOf = min(next.AsOf, w.position.AsOf)
	}
	if next.Seq < w.position.Ahead.Seq {
		next.Ahead = w.position.Ahead
	}
	next.Refused = w.position.Refused
	next.Latest = max(next.Latest, w.position.Latest)
	next.IncompleteBefore = max(next.IncompleteBefore, w.position.IncompleteBefore)
	return next.Cursor
}

// commit moves the cursors of the due shards, and adds their parts of a load. now is when due was decided.
func (c *committer) commit(ctx context.Context, l *load, next goal, now time.Time, due []int) error {
	if len(due) == 0 {
		return nil
	}
	// A later as_of may claim hits of a stream that is not listed yet.
	next.keepAsOf = c.listed != nil && !c.listed(ctx)
	doubted := c.claims.doubted(c.stream)
	flushing := ctx
	if err := eachShard(ctx, len(due), c.atOnce, func(ctx context.Context, i int) error {
		w, cells := c.writers[due[i]], l.batch.Shard(due[i])
		target := w.advance(next)
		if cells.Hits() == 0 && target == w.position {
			return nil
		}
		return c.commitShard(ctx, flushing, due[i], cells, target)
	}); err != nil {
		return err
	}
	if !slices.ContainsFunc(c.writers, func(w *shardWriter) bool { return w.moved.Before(now) }) {
		c.doubts = doubted
	}
	return nil
}

// commitShard commits the shard's part of a load, in several transactions if one would be too large. If
// another shard fails, ctx ends and no further transaction begins. One that has begun goes on for as long as
// flushing lives, because if it could not add some hits, only commitShard can detect and report that loss.
func (c *committer) commitShard(ctx, flushing context.Context, shard int, cells *window.ShardBatch, target window.Cursor) error {
	w := c.writers[shard]
	for cells, cursor := range cells.Split(w.position, target, c.limits.MaxCommands) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		cursor.IncompleteBefore = max(cursor.IncompleteBefore, w.position.IncompleteBefore) // what an earlier part has admitted
		done, err := w.Commit(flushing, cells, cursor)
		if done.Conflicts > 0 || errors.Is(err, window.ErrFenced) || errors.Is(err, window.ErrRewound) {
			c.metrics.conflicts.WithLabelValues(c.stream).Inc()
		}
		if err == nil {
			w.settle()
			w.moved = time.Now()
			c.waits.begin(c.stream)
			c.clocks.observe(clockRedis, done.Ahead)
			c.metrics.hits.WithLabelValues(c.stream).Add(float64(done.Hits))
			c.metrics.commands.Add(float64(done.Commands))
			c.metrics.commitSeconds.Observe(done.Took.Seconds())
			c.metrics.commitCommands.Observe(float64(done.Commands))
			c.metrics.commitHits.Observe(float64(done.Hits))
		}
		if done.Failed != nil {
			c.metrics.lost.WithLabelValues(c.stream).Inc()
			c.log.Error().Err(done.Failed).Int("shard", shard).Uint64("at", cursor.Furthest()).
				Msg("hits, or the unique values of hits, are not counted because of a foreign key: answers about their time say complete: false; move or delete the key, so that later ones count")
			if failed := c.admitLost(flushing, shard, cells.End()); failed != nil && err == nil {
				err = failed
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *shardWriter) settle() { w.position, _ = w.Cursor() }

// write writes the cursor's fields other than the position.
func (w *shardWriter) write(ctx context.Context, cursor window.Cursor) error {
	err := w.Write(ctx, cursor)
	if err == nil {
		w.settle()
	}
	return err
}

// admitLost writes into a shard's cursor that hits dated before a moment (Unix milliseconds) are missing, at
// once, because after a crash the loss would stay unreported until the next hit of the same key. If another
// program has written to the cursor, it waits until an operator has repaired it. If another worker, which
// does not know of the loss, has moved the cursor on, it writes into that worker's cursor.
func (c *committer) admitLost(ctx context.Context, shard int, before int64) error {
	w := c.writers[shard]
	cursor := w.position
	cursor.IncompleteBefore = max(cursor.IncompleteBefore, before)
	err := w.write(ctx, cursor)
	for window.IsForeign(err) && ctx.Err() == nil {
		c.waits.blame(c.stream, err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
			err = w.write(ctx, cursor)
		}
	}
	for fenced := err; errors.Is(fenced, window.ErrFenced); {
		other, failed := window.OpenWriter(ctx, c.store, c.layout, c.stream, shard)
		if failed != nil {
			return errors.Join(err, failed)
		}
		cursor, exists := other.Cursor()
		if !exists || cursor.IncompleteBefore >= before {
			break
		}
		cursor.IncompleteBefore = before
		fenced = other.Write(ctx, cursor)
	}
	return err
}

func (c *committer) leftBehind(err error) {
	read, _, _ := c.buffer.place()
	done, _ := c.committed.place()
	c.log.Error().Err(err).Uint64("committed", done).Uint64("read", read).Msg(lastCommitFailed)
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

func (c *committed) place() (seq uint64, stored int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq, c.stored
}

const reportRejectsEvery = time.Minute

// rejectLog logs the first reject of each reason, then their number once per minute. It outlives sessions,
// whose flushes use it one after the other.
type rejectLog struct {
	log    zerolog.Logger
	counts map[hit.Reason]*rejectCount
}

type rejectCount struct {
	more   int       // rejects since logged
	logged time.Time // when the log last reported them
}

func newRejectLog(log zerolog.Logger) *rejectLog {
	return &rejectLog{log, make(map[hit.Reason]*rejectCount)}
}

func (l *rejectLog) add(now time.Time, stored []rejects.Reject) {
	for _, r := range stored {
		if count := l.counts[r.Reason]; count != nil {
			count.more++
			continue
		}
		l.counts[r.Reason] = &rejectCount{logged: now}
		line := l.log.Warn().Str("reason", string(r.Reason)).Str("detail", rejects.HeaderText(r.Detail)).Uint64("sequence", r.Seq).Int("item", r.Item)
		if r.Trace != "" {
			line = line.Str("trace_id", trace.ID(r.Trace))
		}
		line.Msg("a hit is rejected: it is in " + rejects.Stream + "; further ones of this reason are counted once a minute")
	}
}

// report logs the number of rejects since its last line, for each reason that is due, or for all.
func (l *rejectLog) report(now time.Time, all bool) {
	for _, reason := range hit.Reasons {
		count := l.counts[reason]
		if count == nil || count.more == 0 || !all && now.Sub(count.logged) < reportRejectsEvery {
			continue
		}
		l.log.Warn().Str("reason", string(reason)).Int("rejected", count.more).Stringer("within", now.Sub(count.logged).Round(time.Second)).
			Msg("hits were rejected")
		count.more, count.logged = 0, now
	}
}
