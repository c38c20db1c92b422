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

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
)

// Endings ends streams that were deleted, in Redis. Package worker decides which ones. Any goroutine may
// call ReportLoss.
type Endings struct {
	JS     jetstream.JetStream
	Store  *schema.Store
	Layout window.Layout
	Log    zerolog.Logger
	// MakeRejects creates the stream of rejects if it is missing.
	MakeRejects func(context.Context) error
}

// IsGone reports whether the server answers that a stream does not exist.
func (e *Endings) IsGone(ctx context.Context, name string) (bool, error) {
	_, err := e.JS.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true, nil
	}
	return false, err
}

// ServerTime returns the clock by which streams store messages, in Unix milliseconds. It reads it from the
// info of the stream of rejects, which always exists: the worker creates it at start, and here if it was
// deleted.
func (e *Endings) ServerTime(ctx context.Context) (int64, error) {
	s, err := e.JS.Stream(ctx, rejects.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err = e.MakeRejects(ctx); err == nil {
			s, err = e.JS.Stream(ctx, rejects.Stream)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("get the server's time: %w", err)
	}
	return s.CachedInfo().TimeStamp.UnixMilli(), nil
}

// End ends a stream that is gone: it no longer holds as_of back, and its cursors expire when no window
// reaches back to it. Hits stored before its end may be missing if no worker was reading it when it was
// deleted, or if Redis has lost commits since. created is its incarnation as listed.
func (e *Endings) End(ctx context.Context, name string, created, at int64) error {
	cursors, err := readCursors(ctx, e.Store, e.Layout, name)
	if err != nil {
		return err
	}
	// A worker that lost nothing of the stream has marked the cursors. Redis may have lost the marks.
	stale := slices.ContainsFunc(cursors, func(c window.Cursor) bool { return !c.Ended })
	if stale {
		if err := e.markIncomplete(ctx, name, created, at); err != nil {
			return err
		}
		if cursors, err = readCursors(ctx, e.Store, e.Layout, name); err != nil {
			return err
		}
	}
	oldest := slices.MinFunc(cursors, func(a, b window.Cursor) int {
		return cmp.Compare(a.Created, b.Created)
	}).Created / 1e6
	ended, err := e.Store.EndStream(ctx, name, at, oldest, func() (bool, error) { return e.IsGone(ctx, name) })
	if err != nil || !ended {
		return err
	}
	e.Log.Warn().Str("stream", name).Bool("hits_may_be_lost", stale).
		Msg("the stream was deleted: it no longer holds as_of back")
	return e.expireCursors(ctx, name, cursors, e.Layout.Keep())
}

func (e *Endings) expireCursors(ctx context.Context, name string, cursors []window.Cursor, after time.Duration) error {
	return eachShard(ctx, e.Layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		return e.Store.ExpireCursor(ctx, name, shard, cursors[shard].Created, after)
	})
}

// Remove unlists a stream to whose end no window reaches after a moment of the server's clock (Unix
// milliseconds), and removes cursors that late commits left.
func (e *Endings) Remove(ctx context.Context, name string, after int64) error {
	if now, err := e.ServerTime(ctx); err != nil || now <= after {
		return err
	}
	cursors, err := readCursors(ctx, e.Store, e.Layout, name)
	if err != nil {
		return err
	}
	// The cursors first: a listed stream without cursors is tried again, an unlisted one never.
	gone, err := e.IsGone(ctx, name)
	if err != nil || !gone {
		return err
	}
	if err := e.expireCursors(ctx, name, cursors, 0); err != nil {
		return err
	}
	if err := e.Store.Claims.Remove(ctx, name); err != nil {
		return err
	}
	_, err = e.Store.RemoveStream(ctx, name, func() (bool, error) { return e.IsGone(ctx, name) })
	return err
}

// markIncomplete marks in all cursors of a stream that hits from before a moment (Unix milliseconds) may be
// missing. It creates cursors that no worker has written or Redis has lost. It changes nothing else, and is
// fenced like any commit.
func (e *Endings) markIncomplete(ctx context.Context, name string, created, before int64) error {
	if created == 0 {
		created = before
	}
	empty := window.NewBatch(e.Layout)
	return eachShard(ctx, e.Layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := commit.OpenWriter(ctx, e.Store, e.Layout, name, shard)
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

// ReportLoss marks that a stream was deleted before all of it was read. It retries until ctx ends.
func (e *Endings) ReportLoss(ctx context.Context, name string) {
	for ctx.Err() == nil {
		at, err := e.ServerTime(ctx)
		if err == nil {
			err = e.markIncomplete(ctx, name, 0, at)
		}
		if err == nil {
			return
		}
		e.Log.Warn().Err(err).Str("stream", name).Msg("hits were lost with the stream, and answers about their time " +
			"still have complete: true")
		_ = wait.Sleep(ctx, maxReopen)
	}
}

// sweepEvery is the time between two checks for unnamed texts. Two in a row must find a text unnamed, because
// it is written before the cursor that names it.
const sweepEvery = time.Hour

// sweeper removes texts of rules from Redis. One goroutine uses it.
type sweeper struct {
	store        *schema.Store
	layout       window.Layout
	log          zerolog.Logger
	unnamedTexts []string // at the last check
}

func (s *sweeper) sweepPeriodically(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug().Err(err).Msg("texts of rules that no cursor names may be left in Redis")
		}
	}
}

// sweep removes texts that no cursor of a listed stream has named at two checks. A session that names one
// again in that instant writes it again after its cursors.
func (s *sweeper) sweep(ctx context.Context) error {
	kept, err := s.store.Rules.Fingerprints(ctx)
	if err != nil || len(kept) == 0 {
		s.unnamedTexts = nil
		return err
	}
	streams, err := s.store.Streams(ctx)
	if err != nil {
		return err
	}
	named := make(map[string]bool)
	for stream := range streams {
		cursors, err := readCursors(ctx, s.store, s.layout, stream)
		if err != nil {
			return err
		}
		if err := addNamedRules(cursors, named); err != nil {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
	}
	var drop []string
	unnamed := slices.DeleteFunc(kept, func(fingerprint string) bool { return named[fingerprint] })
	for _, fingerprint := range unnamed {
		if slices.Contains(s.unnamedTexts, fingerprint) {
			drop = append(drop, fingerprint)
		}
	}
	s.unnamedTexts = unnamed
	if len(drop) == 0 {
		return nil
	}
	if err := s.store.Rules.Remove(ctx, drop); err != nil {
		return err
	}
	s.log.Info().Strs("rules", drop).Msg("rules removed from Redis: no cursor names them")
	return nil
}
