package consume

import (
	"context"
	"errors"
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
// reading. When ctx has ended, or the stream is gone, it commits what is left;
// when the session has failed it drops it, for the next session to read again.
func (s *session) flushLoop(ctx, within context.Context, reading reading) {
	committing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	last := func() bool { return ctx.Err() != nil || errors.Is(context.Cause(within), errNoStream) }
	stop := context.AfterFunc(within, func() {
		if !last() {
			cancel()
			return
		}
		time.AfterFunc(shutdownCommit, cancel)
	})
	defer stop()

	err := s.flushUntil(within, committing)
	s.buffer.close() // wakes the reader, and takes nothing more
	reading.stop()
	switch {
	case err != nil:
		// Also at the end nothing may follow: the failed load is dropped, and the
		// cursor of a shard that did not get it must not pass it.
		if last() {
			s.log.Error().Err(err).Msg(lastCommitFailed)
		}
		s.fail(err)
	case last():
		if err := s.flush(committing, true); err != nil {
			s.log.Error().Err(err).Msg(lastCommitFailed)
		}
	}
}

// flushUntil flushes every flush interval, or sooner where the buffer is full.
func (s *session) flushUntil(within, committing context.Context) error {
	ticker := time.NewTicker(s.limits.flushInterval)
	defer ticker.Stop()
	flushed := time.Now()
	for {
		select {
		case <-ticker.C:
			if place, _, _ := s.buffer.place(); time.Since(flushed) < s.tail.gather(place) {
				continue
			}
		case <-s.buffer.full:
		case <-within.Done():
			return nil
		}
		if err := s.flush(committing, false); err != nil {
			return err
		}
		flushed = time.Now()
	}
}

// flush commits the filling half: first the rejects, acknowledged by the
// stream that keeps them, then each shard.
func (s *session) flush(ctx context.Context, all bool) error {
	l := s.buffer.take()
	defer s.buffer.give(l)
	if err := s.flushRejects(ctx, l); err != nil {
		return err
	}
	now := time.Now()
	next := s.target(l)
	if s.listed != nil && !s.tail.old() && !s.listed(ctx) {
		next.AsOf = 0 // it may claim hits of a stream that readers do not know yet: it stays where it is
	}
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
		return s.commitShard(ctx, w, cells, target)
	}); err != nil {
		return err
	}
	if now.Sub(s.registered) >= registerEvery {
		if err := s.register(ctx); err != nil {
			return err
		}
	}
	s.outage.over()
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
		AsOf: l.stored / 1e6, IncompleteBefore: l.incompleteBefore,
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

// commitShard commits the shard's part of a load, in several transactions where one would be too large.
func (s *session) commitShard(ctx context.Context, w *shardWriter, cells *window.Cells, target window.Cursor) error {
	for cells, cursor := range cells.Parts(w.position, target, s.limits.maxCommands) {
		done, err := w.Commit(ctx, cells, cursor)
		if done.Conflicts > 0 || errors.Is(err, window.ErrFenced) || errors.Is(err, window.ErrRewound) {
			s.metrics.conflicts.WithLabelValues(s.stream).Inc()
		}
		if err != nil {
			return err
		}
		w.position, w.moved = cursor, time.Now()
		s.metrics.hits.WithLabelValues(s.stream).Add(float64(done.Hits))
		s.metrics.commands.Add(float64(done.Commands))
		s.metrics.commitSeconds.Observe(done.Took.Seconds())
		s.metrics.commitCommands.Observe(float64(done.Commands))
		s.metrics.commitHits.Observe(float64(done.Hits))
		if done.Failed != nil {
			s.metrics.lost.WithLabelValues(s.stream).Inc()
			s.log.Error().Err(done.Failed).Uint64("at", cursor.Furthest()).Msg("a command failed inside an applied transaction: its hits are not counted; does something else write to this namespace?")
		}
	}
	return nil
}

// flushRejects stores the load's rejects, trying for as long as ctx lives.
func (s *session) flushRejects(ctx context.Context, l *load) error {
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
		s.log.Warn().Err(err).Int("rejects", len(left)).Msg("rejects are not stored yet; counting waits")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	for _, r := range l.rejects {
		s.metrics.rejects.WithLabelValues(s.stream, r.reason).Inc()
	}
	return nil
}
