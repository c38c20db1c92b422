package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tallyroll/internal/window"
)

// cursorEvery is how often every shard's cursor is moved, also with nothing to
// add: it keeps as_of fresh and replays short.
const cursorEvery = time.Second

// registerEvery is how often the layout and the stream's name are written again:
// Redis can lose them and keep the cursors, or lose all before there are any, and no cursor tells of it.
const registerEvery = 10 * time.Second

const lastCommitFailed = "the last commit failed; the next worker reads these hits again, where the stream still holds them"

// shardWriter is a writer and where its shard stands.
type shardWriter struct {
	*window.Writer
	position window.Cursor
	changed  bool // by resume, not written yet
	moved    time.Time
}

// flushLoop commits the buffer until within ends or a commit fails, and ends the
// reading. Whatever ended it, it commits what is left: all of that was read in
// order. Only after a failed commit it drops the rest, for the next session to read again.
func (s *session) flushLoop(ctx, within context.Context, reading reading) {
	committing := newGrace(ctx)
	defer committing.cancel()
	stop := context.AfterFunc(within, func() { committing.end(shutdownCommit) })
	defer stop()

	err := s.flushUntil(within, committing)
	s.buffer.close() // wakes the reader, and takes nothing more
	reading.stop()
	if err == nil {
		err = s.flush(committing, true)
	}
	// After a failed flush nothing may follow: its load is dropped, and the cursor of
	// a shard that did not get it must not pass it.
	if err != nil {
		if within.Err() != nil {
			s.leftBehind(err)
		}
		s.fail(err)
	}
}

// leftBehind says what a last commit that failed leaves to the next worker.
func (s *session) leftBehind(err error) {
	read, _, _ := s.buffer.place()
	done, _ := s.committed.place()
	s.log.Error().Err(err).Uint64("committed", done).Uint64("read", read).Msg(lastCommitFailed)
}

// flushUntil flushes every flush interval, or sooner if the buffer is full. A load
// of a stream that is far behind gathers for longer, but only while it grows.
func (s *session) flushUntil(within, committing context.Context) error {
	ticker := time.NewTicker(s.limits.flushInterval)
	defer ticker.Stop()
	var seen uint64
	flushed, most := time.Now(), s.limits.flushInterval
	for {
		select {
		case <-ticker.C:
			place, _, _ := s.buffer.place()
			gather := s.tail.gather(place)
			if gather == 0 {
				most = s.limits.flushInterval
			}
			grows := place != seen
			seen = place
			if grows && time.Since(flushed) < min(gather, most) {
				continue
			}
		case <-s.buffer.full:
		case <-within.Done():
			return nil
		}
		if err := s.flush(committing, false); err != nil {
			return err
		}
		flushed, most = time.Now(), min(2*most, maxGather)
	}
}

// flush commits the filling half: first the rejects, acknowledged by the
// stream that keeps them, then each shard.
func (s *session) flush(ctx context.Context, all bool) error {
	l := s.buffer.take()
	defer s.buffer.give(l)
	s.waits.begin(s.stream)
	if err := s.flushRejects(ctx, l); err != nil {
		return err
	}
	now := time.Now()
	next := s.target(l)
	if s.listed != nil && !s.listed(ctx) {
		next.AsOf = 0 // it may claim hits of a stream that readers do not know yet: it stays where it is
	}
	flushing := ctx // which another shard's failure does not end
	if err := eachShard(ctx, len(s.writers), s.atOnce, func(ctx context.Context, shard int) error {
		w := s.writers[shard]
		cells := l.batch.Shard(shard)
		target := w.advance(next)
		due := target != w.position && (all || now.Sub(w.moved) >= cursorEvery)
		// The next load does not know of what was discarded before this one.
		due = due || target.IncompleteBefore != w.position.IncompleteBefore
		if cells.Hits() == 0 && !due {
			return nil
		}
		return s.commitShard(ctx, flushing, shard, cells, target)
	}); err != nil {
		return err
	}
	if now.Sub(s.registered) >= registerEvery {
		if err := s.register(ctx); err != nil {
			return err
		}
	}
	s.outage.over()
	s.waits.end(s.stream)
	s.committed.set(l.seq, l.stored)
	s.metrics.messages.WithLabelValues(s.stream).Add(float64(l.messages))
	s.metrics.discarded.WithLabelValues(s.stream).Add(float64(l.discarded))
	if l.discarded > 0 {
		s.log.Warn().Uint64("discarded", l.discarded).Uint64("at", l.seq).Msg("messages were discarded before they were read")
	}
	return nil
}

// target is the cursor that a load reaches. as_of is the time of its last
// message, or, at the end of the stream, the time at which that was the end.
func (s *session) target(l *load) window.Cursor {
	next := window.Cursor{
		Created: s.info.created, Seq: l.seq, Stored: l.stored,
		AsOf: l.stored / 1e6, IncompleteBefore: l.incompleteBefore, Naming: s.naming,
	}
	next.AsOf = max(next.AsOf, s.tail.reached(l.seq, l.stored))
	return next
}

// advance is the target for one shard, which may be further on in a replay.
func (w *shardWriter) advance(next window.Cursor) window.Cursor {
	if next.Seq < w.position.Seq {
		return w.position
	}
	if next.Seq == w.position.Seq {
		next.Stored = w.position.Stored
	}
	if next.Seq < w.position.Ahead.Seq {
		next.Ahead = w.position.Ahead
	}
	next.AsOf = max(next.AsOf, w.position.AsOf)
	next.IncompleteBefore = max(next.IncompleteBefore, w.position.IncompleteBefore)
	return next
}

// commitShard commits the shard's part of a load, in several transactions if one
// would be too large. It admits what a transaction could not add for as long as
// admitting lives: nobody else knows of that loss.
func (s *session) commitShard(ctx, admitting context.Context, shard int, cells *window.Cells, target window.Cursor) error {
	w := s.writers[shard]
	for cells, cursor := range cells.Parts(w.position, target, s.limits.maxCommands) {
		cursor.IncompleteBefore = max(cursor.IncompleteBefore, w.position.IncompleteBefore) // what an earlier part has admitted
		done, err := w.Commit(ctx, cells, cursor)
		if done.Conflicts > 0 || errors.Is(err, window.ErrFenced) || errors.Is(err, window.ErrRewound) {
			s.metrics.conflicts.WithLabelValues(s.stream).Inc()
		}
		if err == nil {
			w.position, w.moved = cursor, time.Now()
			s.waits.begin(s.stream)
			s.clocks.observe(clockRedis, done.Ahead)
			s.metrics.hits.WithLabelValues(s.stream).Add(float64(done.Hits))
			s.metrics.commands.Add(float64(done.Commands))
			s.metrics.commitSeconds.Observe(done.Took.Seconds())
			s.metrics.commitCommands.Observe(float64(done.Commands))
			s.metrics.commitHits.Observe(float64(done.Hits))
		}
		if done.Failed != nil {
			s.metrics.lost.WithLabelValues(s.stream).Inc()
			s.log.Error().Err(done.Failed).Int("shard", shard).Uint64("at", cursor.Furthest()).
				Msg("hits of an applied transaction are not counted: answers about their time say complete: false")
			if failed := s.admitLost(admitting, shard, cells.End()); failed != nil && err == nil {
				err = failed
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// admitLost writes to a shard's cursor that hits dated before a moment (Unix
// milliseconds) are missing, at once: a crash before that would leave the loss unsaid until
// the next hit of the same key. Another worker that has gone on from the cursor does not know of
// the loss, so it is told in its cursor.
func (s *session) admitLost(ctx context.Context, shard int, before int64) error {
	w := s.writers[shard]
	none := window.NewBatch(s.layout).Shard(shard)
	cursor := w.position
	cursor.IncompleteBefore = max(cursor.IncompleteBefore, before)
	_, err := w.Commit(ctx, none, cursor)
	if err == nil {
		w.position = cursor
	}
	for fenced := err; errors.Is(fenced, window.ErrFenced); {
		other, failed := s.store.OpenWriter(ctx, s.layout, s.stream, shard)
		if failed != nil {
			return errors.Join(err, failed)
		}
		cursor, exists := other.Cursor()
		if !exists || cursor.IncompleteBefore >= before {
			break
		}
		cursor.IncompleteBefore = before
		_, fenced = other.Commit(ctx, none, cursor)
	}
	return err
}

// flushRejects stores the load's rejects, trying for as long as ctx lives.
func (s *session) flushRejects(ctx context.Context, l *load) error {
	s.rejects.tell(time.Now(), false)
	if len(l.rejects) == 0 {
		return nil
	}
	for left := l.rejects; ; {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		stored, err := s.source.reject(attempt, left)
		cancel()
		left = left[stored:]
		if err == nil {
			break
		}
		err = fmt.Errorf("%d rejects are not stored in %s yet: %w", len(left), rejectedStream, err)
		s.waits.because(s.stream, err)
		s.log.Warn().Err(err).Msg("counting waits")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	s.waits.begin(s.stream)
	s.rejects.add(time.Now(), l.rejects)
	for _, r := range l.rejects {
		s.metrics.rejects.WithLabelValues(s.stream, r.reason).Inc()
	}
	return nil
}
