package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/fleet"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
)

// goneFor is the time between the two checks that must both find no stream.
const goneFor = 4 * time.Second

type absence struct {
	at     time.Time // by this process's monotonic clock
	server int64     // by the clock that as_of is taken from, Unix milliseconds
}

// Endings ends streams that were deleted. One goroutine may call Unlisted, any may call AdmitLoss.
type Endings struct {
	JS     jetstream.JetStream
	Store  *window.Store
	Layout window.Layout
	Fleet  *fleet.Fleet
	Reads  func() fleet.Globs // the streams that the worker may read
	Log    zerolog.Logger
	// MakeRejects creates the stream of rejects if it is missing.
	MakeRejects func(context.Context) error

	missing map[string]absence // streams that are no longer listed, with the first look that missed them
}

// Unlisted ends deleted streams and returns the other missing ones: those that the previous list (known)
// named, or that are live in Redis (listed; nil if Redis does not answer), but not in all. A list may be
// incomplete, so a stream counts as deleted only after the server has answered twice that it does not exist.
func (e *Endings) Unlisted(ctx context.Context, known, all []string, listed map[string]window.Listed) (still []string) {
	reads := e.Reads()
	candidates := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !e.Fleet.Matters(name) })
	for name, l := range listed {
		if l.Ended == 0 && reads.Match(name) && e.Fleet.First(name) {
			candidates = append(candidates, name)
		}
	}
	e.removeOld(ctx, listed)
	slices.Sort(candidates)
	missing := make(map[string]absence)
	for _, name := range slices.Compact(candidates) {
		if slices.Contains(all, name) {
			continue
		}
		gone, err := e.isGone(ctx, name)
		if err == nil && !gone {
			still = append(still, name)
			continue
		}
		first, before := e.missing[name]
		if gone && !before {
			first.at = time.Now()
			first.server, err = e.serverTime(ctx)
			before = err == nil
		}
		if before {
			missing[name] = first
		}
		switch {
		case err != nil, time.Since(first.at) < goneFor:
			if slices.Contains(known, name) {
				still = append(still, name)
			}
		case e.Fleet.First(name):
			l, isListed := listed[name]
			if !isListed || l.Ended > 0 {
				continue
			}
			if err := e.end(ctx, name, l.Created, first.server); err != nil {
				e.Log.Warn().Err(err).Str("stream", name).Msg("a deleted stream still holds as_of back")
			}
		}
	}
	e.missing = missing
	return still
}

func (e *Endings) isGone(ctx context.Context, name string) (bool, error) {
	_, err := e.JS.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true, nil
	}
	return false, err
}

// serverTime returns the clock by which streams store messages, in Unix milliseconds. It asks for the stream
// of rejects, which always exists: the worker creates it at start, and here if it was deleted.
func (e *Endings) serverTime(ctx context.Context) (int64, error) {
	s, err := e.JS.Stream(ctx, rejects.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err = e.MakeRejects(ctx); err == nil {
			s, err = e.JS.Stream(ctx, rejects.Stream)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("ask the server's time: %w", err)
	}
	return s.CachedInfo().TimeStamp.UnixMilli(), nil
}

// end ends a stream that is gone: it no longer holds as_of back, and its cursors expire when no window
// reaches back to it. Hits stored before its end may be missing if no worker was reading it when it was
// deleted, or if Redis has lost commits since. created is its incarnation as listed.
func (e *Endings) end(ctx context.Context, name string, created, at int64) error {
	cursors, err := readCursors(ctx, e.Store, e.Layout, name)
	if err != nil {
		return err
	}
	// A worker that lost nothing of the stream has marked the cursors. Redis may have lost that.
	stale := slices.ContainsFunc(cursors, func(c window.Cursor) bool { return !c.Ended })
	if stale {
		if err := e.admit(ctx, name, created, at); err != nil {
			return err
		}
		if cursors, err = readCursors(ctx, e.Store, e.Layout, name); err != nil {
			return err
		}
	}
	oldest := slices.MinFunc(cursors, func(a, b window.Cursor) int { return cmp.Compare(a.Created, b.Created) }).Created / 1e6
	ended, err := e.Store.EndStream(ctx, name, at, oldest, func() (bool, error) { return e.isGone(ctx, name) })
	if err != nil || !ended {
		return err
	}
	e.Log.Warn().Str("stream", name).Bool("hits_may_be_lost", stale).Msg("the stream was deleted: it no longer holds as_of back")
	return e.expireCursors(ctx, name, cursors, e.Layout.Keep())
}

func (e *Endings) expireCursors(ctx context.Context, name string, cursors []window.Cursor, after time.Duration) error {
	return eachShard(ctx, e.Layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		return e.Store.ExpireCursor(ctx, name, shard, cursors[shard].Created, after)
	})
}

// removeOld unlists streams to whose end no window reaches, and removes cursors left by late commits.
func (e *Endings) removeOld(ctx context.Context, listed map[string]window.Listed) {
	keep, reads := e.Layout.Keep().Milliseconds(), e.Reads()
	for name, l := range listed {
		// This worker's clock serves only to save requests.
		if l.Ended == 0 || time.Now().UnixMilli() <= l.Ended+keep || !reads.Match(name) || !e.Fleet.First(name) {
			continue
		}
		if err := e.remove(ctx, name, l.Ended+keep); err != nil {
			e.Log.Warn().Err(err).Str("stream", name).Msg("a stream that ended long ago is still listed")
		}
	}
}

func (e *Endings) remove(ctx context.Context, name string, after int64) error {
	if now, err := e.serverTime(ctx); err != nil || now <= after {
		return err
	}
	cursors, err := readCursors(ctx, e.Store, e.Layout, name)
	if err != nil {
		return err
	}
	// The cursors first: a listed stream without cursors is tried again, an unlisted one never.
	gone, err := e.isGone(ctx, name)
	if err != nil || !gone {
		return err
	}
	if err := e.expireCursors(ctx, name, cursors, 0); err != nil {
		return err
	}
	if err := e.Store.Claims.Remove(ctx, name); err != nil {
		return err
	}
	_, err = e.Store.RemoveStream(ctx, name, func() (bool, error) { return e.isGone(ctx, name) })
	return err
}

// admit marks in all cursors of a stream that hits from before a moment may be missing. It creates cursors
// that no worker has written or Redis has lost. It changes nothing else, and is fenced like any commit.
func (e *Endings) admit(ctx context.Context, name string, created, before int64) error {
	if created == 0 {
		created = before
	}
	empty := window.NewBatch(e.Layout)
	return eachShard(ctx, e.Layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := window.OpenWriter(ctx, e.Store, e.Layout, name, shard)
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

// AdmitLoss marks that a stream was deleted before all of it was read. It tries for as long as ctx lives.
func (e *Endings) AdmitLoss(ctx context.Context, name string) {
	for ctx.Err() == nil {
		at, err := e.serverTime(ctx)
		if err == nil {
			err = e.admit(ctx, name, 0, at)
		}
		if err == nil {
			return
		}
		e.Log.Warn().Err(err).Str("stream", name).Msg("hits were lost with the stream, and answers do not say so yet")
		select {
		case <-ctx.Done():
		case <-time.After(maxReopen):
		}
	}
}

// readCursors returns a stream's cursors by shard; the zero value for a shard without one.
func readCursors(ctx context.Context, store *window.Store, layout window.Layout, name string) ([]window.Cursor, error) {
	out := make([]window.Cursor, layout.Shards)
	err := eachShard(ctx, layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := window.OpenWriter(ctx, store, layout, name, shard)
		if err == nil {
			out[shard], _ = writer.Cursor()
		}
		return err
	})
	return out, err
}
