package consume

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
)

// cursorEvery is how often cursors move, with or without hits, to keep as_of fresh and replays short (see
// dueShards).
const cursorEvery = time.Second

// registerEvery is how often the layout and the stream's name are written again. Redis can lose them and keep
// the cursors, or lose everything before the first cursor is written. No cursor shows either loss.
const registerEvery = 10 * time.Second

// committer commits the buffer. The session's goroutine owns it; the watcher only reads committed.
type committer struct {
	*setup
	*resumePlan
	buffer     *buffer
	tail       *tail
	committed  committed
	suspicions int // of the claims, when every cursor had moved
}

func newCommitter(setup *setup, plan *resumePlan, buffer *buffer, tail *tail) *committer {
	c := &committer{setup: setup, resumePlan: plan, buffer: buffer, tail: tail,
		suspicions: setup.claims.suspicions(setup.stream)}
	c.committed.set(buffer.filling.seq, buffer.filling.stored)
	return c
}

// flushUntil flushes until runCtx ends. A load's first message makes the next flush due: a pause after the
// previous one began, a multiple of what flushes take, so that they cost a bounded part of the time, and at
// most the flush interval. Without messages a flush per interval moves the cursors.
//
// If a flush takes longer than the pause, the next one follows at once, so a load gathers for as long as
// flushes take. (Gathering for longer was tried: hits waited for 460 ms, not 270, at 350,000 hits/s, and no
// shorter at 700,000.) If the worker is far behind, a load gathers for longer, but only while it grows.
func (c *committer) flushUntil(runCtx, commitCtx context.Context) error {
	interval := c.Limits.FlushInterval
	timer := time.NewTimer(interval)
	defer timer.Stop()
	var seen uint64
	began, flushed := time.Now(), time.Now()
	pause, most := min(leastPause, interval), interval
	for {
		select {
		case <-c.buffer.first:
			if position, _, _ := c.buffer.position(); c.tail.gatherTime(position) == 0 {
				timer.Reset(max(pause-time.Since(began), leastGather))
			}
			continue
		case <-timer.C:
			position, _, _ := c.buffer.position()
			gather := c.tail.gatherTime(position)
			if gather == 0 {
				most = interval
			}
			grows := position != seen
			seen = position
			if grows && time.Since(flushed) < min(gather, most) {
				timer.Reset(interval)
				continue
			}
		case <-c.buffer.full:
		case <-runCtx.Done():
			return nil
		}
		began = time.Now()
		if err := c.flush(commitCtx, false); err != nil {
			return err
		}
		flushed, most = time.Now(), min(2*most, maxGather)
		took := flushed.Sub(began)
		pause = min((3*pause+max(pausePart*took, leastPause))/4, interval) // smoothed: one slow flush says little
		timer.Reset(interval - took)
	}
}

// Flushes begin after a pause of pausePart times what they take, and of leastPause. A load gathers for
// leastGather, because messages come in groups.
const (
	leastPause  = 10 * time.Millisecond
	pausePart   = 16
	leastGather = time.Millisecond
)

// flush commits the filling half: first the rejects, until all are acknowledged, then each shard. all: move
// every cursor that is not at its target.
func (c *committer) flush(ctx context.Context, all bool) error {
	l := c.buffer.drain()
	defer c.buffer.recycle(l)
	c.Waits.begin(c.stream)
	if err := c.storeRejects(ctx, l); err != nil {
		return err
	}
	now := time.Now()
	next := c.target(l)
	if err := c.commit(ctx, l, next, now, c.dueShards(l, next, now, all)); err != nil {
		return err
	}
	c.claims.put(c.stream, next.claim())
	if now.Sub(c.registeredAt) >= registerEvery {
		var err error
		if c.registeredAt, err = c.register(ctx, c.resumePlan); err != nil {
			return err
		}
	}
	c.outage.end()
	c.Waits.end(c.stream)
	c.committed.set(l.seq, l.stored)
	c.Metrics.messages.WithLabelValues(c.stream).Add(float64(l.messages))
	c.Metrics.discarded.WithLabelValues(c.stream).Add(float64(l.discarded))
	if l.unmet > 0 {
		c.Metrics.unmet.WithLabelValues(c.stream).Add(float64(l.unmet))
	}
	if l.discarded > 0 {
		c.Log.Warn().Uint64("discarded", l.discarded).Uint64("at", l.seq).Msg(reasons[discardedUnread])
	}
	return nil
}

// storeRejects stores the load's rejects. It retries until ctx ends.
func (c *committer) storeRejects(ctx context.Context, l *load) error {
	c.rejects.report(time.Now(), false)
	if len(l.rejects) == 0 {
		return nil
	}
	if err := c.markRefused(ctx, l.rejects[len(l.rejects)-1].Seq); err != nil {
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
		c.Waits.setCause(c.stream, err)
		c.Log.Warn().Err(err).Msg("counting waits until rejects are stored")
		if err := wait.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	c.Waits.begin(c.stream)
	c.rejects.add(time.Now(), l.rejects)
	for _, r := range l.rejects {
		c.Metrics.rejects.WithLabelValues(c.stream, string(r.Reason)).Inc()
	}
	return nil
}

// markRefused writes into the first cursor that rejects of messages up to this one may be stored. The version
// that refuses a message must also be the one that counts it, so no new version may begin at or before this
// message.
func (c *committer) markRefused(ctx context.Context, upTo uint64) error {
	w := c.writers[0]
	cursor := w.position
	if cursor.Refused >= upTo {
		return nil
	}
	cursor.Refused = upTo
	return w.write(ctx, cursor)
}

// goal is what a load reaches, before it is fitted to each shard.
type goal struct {
	window.Cursor
	clock    int64 // of NATS when the position was the stream's end, Unix milliseconds; 0 if it was not
	keepAsOf bool  // as_of must not rise
}

func (g goal) claim() schema.Claim {
	return schema.Claim{Created: g.Created, Seq: g.Seq, Stored: g.Stored, AsOf: g.AsOf}
}

// target returns what a load reaches. Its as_of is the time of the load's last message, or, if that message
// was the end of the stream, the last time at which the watcher found it to be the end.
func (c *committer) target(l *load) goal {
	next := goal{Cursor: window.Cursor{
		Created: c.state.Created, Seq: l.seq, Stored: l.stored, Latest: l.latest,
		AsOf: l.stored / 1e6, IncompleteBefore: l.incompleteBefore, Naming: c.namingText,
		Settings: c.state.Settings(),
	}}
	at, clock := c.tail.timeAtEnd(l.seq, l.stored)
	next.AsOf, next.clock = max(next.AsOf, at), clock
	if clock > 0 {
		next.AsOf = min(next.AsOf, clock)
	}
	return next
}

// dueShards returns the shards whose cursors are to move: those with hits, or not moved for long enough.
func (c *committer) dueShards(l *load, next goal, now time.Time, all bool) (shards []int) {
	all = all || c.claims.suspicions(c.stream) != c.suspicions
	claim := next.claim()
	for shard, w := range c.writers {
		target, every := w.advance(next), cursorEvery
		if c.claims != nil && claim.IsOf(target) && target.DiffersInAsOf(w.position) {
			every = renewEvery
		}
		falls := target.AsOf < w.position.AsOf // the present as_of is too late
		moves := target != w.position && (all || falls || now.Sub(w.movedAt) >= every)
		// The next load will not have what was discarded before this one.
		moves = moves || target.IncompleteBefore != w.position.IncompleteBefore
		if moves || l.batch.Shard(shard).Hits() > 0 {
			shards = append(shards, shard)
		}
	}
	return shards
}

// advance returns the target for one shard, which may already be further on in a replay.
//
// as_of falls if the clock of NATS was set back: a message stored before as_of follows a position for which
// as_of was claimed, or the stream's end was checked at such a moment. More such messages may come.
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
	next.keepAsOf = c.Listed != nil && !c.Listed(ctx)
	suspicions := c.claims.suspicions(c.stream)
	flushing := ctx
	if err := eachShard(ctx, len(due), c.concurrency, func(ctx context.Context, i int) error {
		w, cells := c.writers[due[i]], l.batch.Shard(due[i])
		target := w.advance(next)
		if cells.Hits() == 0 && target == w.position {
			return nil
		}
		return c.commitShard(ctx, flushing, due[i], cells, target)
	}); err != nil {
		return err
	}
	if !slices.ContainsFunc(c.writers, func(w *shardWriter) bool { return w.movedAt.Before(now) }) {
		c.suspicions = suspicions
	}
	return nil
}

// commitShard commits the shard's part of a load, in several transactions if one would be too large. If
// another shard fails, ctx ends and no further transaction begins. One that has begun goes on until flushing
// ends, because if it could not add some hits, only commitShard can detect and report that loss.
func (c *committer) commitShard(ctx, flushing context.Context, shard int, cells *window.ShardBatch,
	target window.Cursor) error {
	w := c.writers[shard]
	w.Place(cells)
	for cells, cursor := range cells.Split(w.position, target, c.Limits.MaxCommands) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		cursor.IncompleteBefore = max(cursor.IncompleteBefore,
			w.position.IncompleteBefore) // what an earlier part reported
		done, err := w.Commit(flushing, cells, cursor)
		if done.Conflicts > 0 || errors.Is(err, commit.ErrFenced) || errors.Is(err, commit.ErrRewound) {
			c.Metrics.conflicts.WithLabelValues(c.stream).Inc()
		}
		if err == nil {
			w.updatePosition()
			w.movedAt = time.Now()
			c.Waits.begin(c.stream)
			c.clocks.observe(clockRedis, done.Ahead)
			c.Metrics.hits.WithLabelValues(c.stream).Add(float64(done.Hits))
			c.Metrics.commands.Add(float64(done.Commands))
			c.Metrics.commitSeconds.Observe(done.Took.Seconds())
			c.Metrics.commitCommands.Observe(float64(done.Commands))
			c.Metrics.commitHits.Observe(float64(done.Hits))
			c.reportOverflow(&done)
		}
		if done.Failed != nil {
			c.Metrics.lost.WithLabelValues(c.stream).Inc()
			c.Log.Error().Err(done.Failed).Int("shard", shard).Uint64("at", cursor.Furthest()).
				Msg("hits, or the unique values of hits, are not counted: " +
					"answers about their time have complete: false")
			if failed := c.reportLostHits(flushing, shard, cells.End()); failed != nil && err == nil {
				err = failed
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reportOverflow counts new names without room. It logs the first of each prefix, and once if memory cannot
// bound names.
func (c *committer) reportOverflow(done *commit.Commit) {
	for prefix, names := range done.Overflowed {
		c.Metrics.overflowed.WithLabelValues(c.stream, prefix).Add(float64(names))
		if _, logged := c.overflows.LoadOrStore(prefix, true); logged {
			continue
		}
		line := c.Log.Warn().Str("prefix", prefix)
		if i := slices.IndexFunc(c.Store.Bounds, func(b window.NameBound) bool { return b.Prefix == prefix }); i >= 0 {
			line = line.Int("max", c.Store.Bounds[i].Max)
		}
		line.Msgf("new names have no room: their hits count on counters such as %s%s0. Find who makes names "+
			"(/v1/counters?prefix=%s), or raise INGEST_MAX_NAMES or, if Redis is nearly full, its maxmemory", prefix,
			window.OverflowPart, url.QueryEscape(prefix))
	}
	if done.MemoryHidden == nil {
		return
	}
	if _, logged := c.overflows.LoadOrStore(hidden{}, true); !logged {
		c.Log.Warn().Err(done.MemoryHidden).Msg("Redis does not reveal how full it is, so INGEST_NAMES_MEMORY has no " +
			"effect: allow info, or bound names with INGEST_MAX_NAMES")
	}
}

// hidden is the key in overflows of a Redis that does not reveal how full it is.
type hidden struct{}

// reportLostHits writes into a shard's cursor that hits dated before a moment (Unix milliseconds) are
// missing, at once, because after a crash the loss would stay unreported until the next hit of the same key.
// If another program has written to the cursor, it waits until an operator has repaired it. If another worker
// has moved the cursor, it writes into that worker's cursor.
func (c *committer) reportLostHits(ctx context.Context, shard int, before int64) error {
	w := c.writers[shard]
	cursor := w.position
	cursor.IncompleteBefore = max(cursor.IncompleteBefore, before)
	err := w.write(ctx, cursor)
	for window.IsForeign(err) && ctx.Err() == nil {
		c.Waits.setCause(c.stream, err)
		if wait.Sleep(ctx, time.Second) == nil {
			err = w.write(ctx, cursor)
		}
	}
	for fenced := err; errors.Is(fenced, commit.ErrFenced); {
		other, failed := commit.OpenWriter(ctx, c.Store, c.Layout, c.stream, shard)
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
