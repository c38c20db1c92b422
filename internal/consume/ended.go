package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
)

// goneFor is the time between the two looks that must both find no stream.
const goneFor = 4 * time.Second

// absence is a look that found no stream.
type absence struct {
	at     time.Time // by this process's monotonic clock
	server int64     // by the clock that as_of is taken from, Unix milliseconds
}

// unlisted looks for streams that the list all does not name: those that the previous list named,
// and those that Redis takes to be live (listed; nil if Redis does not answer). It
// returns those that must not be taken for deleted yet, and ends the others. A list may be
// incomplete, so a stream counts as deleted only after the server has said twice that it does not exist.
func (w *worker) unlisted(ctx context.Context, all []string, listed map[string]window.Listed) (still []string) {
	reads := w.reads()
	candidates := slices.DeleteFunc(slices.Clone(w.known), func(name string) bool { return !w.fleet.Matters(name) })
	for name, l := range listed {
		if l.Ended == 0 && reads.Match(name) && w.fleet.First(name) {
			candidates = append(candidates, name)
		}
	}
	w.removeOld(ctx, listed)
	slices.Sort(candidates)
	missing := make(map[string]absence)
	for _, name := range slices.Compact(candidates) {
		if slices.Contains(all, name) {
			continue
		}
		gone, err := w.isGone(ctx, name)
		if err == nil && !gone {
			still = append(still, name)
			continue
		}
		first, before := w.missing[name]
		if gone && !before {
			first.at = time.Now()
			first.server, err = w.serverTime(ctx)
			before = err == nil
		}
		if before {
			missing[name] = first
		}
		switch {
		case err != nil, time.Since(first.at) < goneFor:
			if slices.Contains(w.known, name) {
				still = append(still, name)
			}
		case w.fleet.First(name):
			l, known := listed[name]
			if !known || l.Ended > 0 {
				continue
			}
			if err := w.endStream(ctx, name, l.Created, first.server); err != nil {
				w.log.Warn().Err(err).Str("stream", name).Msg("a deleted stream still holds as_of back")
			}
		}
	}
	w.missing = missing
	return still
}

// isGone reports whether the server says that a stream does not exist.
func (w *worker) isGone(ctx context.Context, name string) (bool, error) {
	_, err := w.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true, nil
	}
	return false, err
}

// serverTime reads the clock by which streams store messages, in Unix milliseconds. It asks for
// the stream of rejects, which always exists: the worker makes it at start, and again if it was deleted.
func (w *worker) serverTime(ctx context.Context) (int64, error) {
	s, err := w.js.Stream(ctx, rejects.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err = w.ensureRejected(ctx); err == nil {
			s, err = w.js.Stream(ctx, rejects.Stream)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("ask the server's time: %w", err)
	}
	return s.CachedInfo().TimeStamp.UnixMilli(), nil
}

// endStream lets go of a stream that is gone. The stream no longer holds as_of back, and
// its cursors expire when no window reaches back to it. If nobody was reading it when it
// went, or Redis has lost commits since, hits stored before its end may be missing. created is its incarnation as listed.
func (w *worker) endStream(ctx context.Context, name string, created, at int64) error {
	cursors, err := w.cursors(ctx, name)
	if err != nil {
		return err
	}
	// The worker that read the stream has marked the cursors, if it was there and nothing was lost; and Redis may have
	// lost that.
	stale := slices.ContainsFunc(cursors, func(c window.Cursor) bool { return !c.Ended })
	if stale {
		if err := w.admit(ctx, name, created, at); err != nil {
			return err
		}
		if cursors, err = w.cursors(ctx, name); err != nil {
			return err
		}
	}
	oldest := slices.MinFunc(cursors, func(a, b window.Cursor) int { return cmp.Compare(a.Created, b.Created) }).Created / 1e6
	ended, err := w.store.EndStream(ctx, name, at, oldest, func() (bool, error) { return w.isGone(ctx, name) })
	if err != nil || !ended {
		return err
	}
	w.log.Warn().Str("stream", name).Bool("hits_may_be_lost", stale).Msg("the stream was deleted: it no longer holds as_of back")
	return w.expireCursors(ctx, name, cursors, w.layout.Keep())
}

// cursors returns a stream's cursors, by shard. A shard without a cursor has the zero value.
func (w *worker) cursors(ctx context.Context, name string) ([]window.Cursor, error) {
	out := make([]window.Cursor, w.layout.Shards)
	err := eachShard(ctx, w.layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := w.store.OpenWriter(ctx, w.layout, name, shard)
		if err == nil {
			out[shard], _ = writer.Cursor()
		}
		return err
	})
	return out, err
}

func (w *worker) expireCursors(ctx context.Context, name string, cursors []window.Cursor, after time.Duration) error {
	return eachShard(ctx, w.layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		return w.store.ExpireCursor(ctx, name, shard, cursors[shard].Created, after)
	})
}

// removeOld takes streams off the list if no window reaches back to their end any more. It also
// removes the cursors that a late commit has made permanent.
func (w *worker) removeOld(ctx context.Context, listed map[string]window.Listed) {
	keep, reads := w.layout.Keep().Milliseconds(), w.reads()
	for name, l := range listed {
		// This worker's clock serves only to save requests.
		if l.Ended == 0 || time.Now().UnixMilli() <= l.Ended+keep || !reads.Match(name) || !w.fleet.First(name) {
			continue
		}
		if err := w.remove(ctx, name, l.Ended+keep); err != nil {
			w.log.Warn().Err(err).Str("stream", name).Msg("a stream that ended long ago is still listed")
		}
	}
}

func (w *worker) remove(ctx context.Context, name string, after int64) error {
	if now, err := w.serverTime(ctx); err != nil || now <= after {
		return err
	}
	cursors, err := w.cursors(ctx, name)
	if err != nil {
		return err
	}
	// The cursors first: a listed stream without cursors is tried again, but nobody
	// looks for the cursors of a stream that is not listed.
	gone, err := w.isGone(ctx, name)
	if err != nil || !gone {
		return err
	}
	if err := w.expireCursors(ctx, name, cursors, 0); err != nil {
		return err
	}
	if err := w.store.RemoveClaim(ctx, name); err != nil {
		return err
	}
	_, err = w.store.RemoveStream(ctx, name, func() (bool, error) { return w.isGone(ctx, name) })
	return err
}

// admit writes to all cursors of a stream that hits from before a moment may be missing. It makes
// the cursors that do not exist: nobody has read the stream, or Redis has lost what was
// read. It changes nothing else, and it is fenced like any commit.
func (w *worker) admit(ctx context.Context, name string, created, before int64) error {
	if created == 0 {
		created = before
	}
	empty := window.NewBatch(w.layout)
	return eachShard(ctx, w.layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := w.store.OpenWriter(ctx, w.layout, name, shard)
		if err != nil {
			return err
		}
		c, exists := writer.Cursor()
		if !exists {
			c = window.Cursor{Created: created * 1e6, AsOf: created}
		}
		if c.IncompleteBefore >= before {
			return nil
		}
		c.IncompleteBefore = before
		_, err = writer.Commit(ctx, empty.Shard(shard), c)
		return err
	})
}

// admitLoss admits that a stream was deleted before all of it was read. It tries
// for as long as ctx lives.
func (w *worker) admitLoss(ctx context.Context, name string) {
	for ctx.Err() == nil {
		at, err := w.serverTime(ctx)
		if err == nil {
			err = w.admit(ctx, name, 0, at)
		}
		if err == nil {
			return
		}
		w.log.Warn().Err(err).Str("stream", name).Msg("hits were lost with the stream, and answers do not say so yet")
		select {
		case <-ctx.Done():
		case <-time.After(maxReopen):
		}
	}
}
