package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/window"
)

const (
	// goneFor is how far apart the two looks are that must both find no stream.
	goneFor = 4 * time.Second
	// unwatched is how old a stream's as_of may be when it is found gone: nobody can
	// say that nothing was stored after an older one.
	unwatched = 10 * time.Second
)

// absence is a look that found no stream.
type absence struct {
	at     time.Time // by this process's monotonic clock
	server int64     // by the clock that as_of comes from, Unix milliseconds
}

// unlisted looks for streams that a list does not name: those that were on the
// one before, and those that Redis takes to be live. It returns those that must
// not be taken for deleted yet, and ends the others. Only the server's own word
// that a stream does not exist counts, twice: a list may be incomplete.
func (w *worker) unlisted(ctx context.Context, listed []string) (still []string) {
	candidates := slices.DeleteFunc(slices.Clone(w.known), func(name string) bool { return !w.fleet.matters(name) })
	live, err := w.store.LiveStreams(ctx)
	if err != nil {
		w.log.Debug().Err(err).Msg("streams that have ended are not looked for")
	}
	for _, name := range live {
		if w.settings.Streams.match(name) && w.fleet.first(name) {
			candidates = append(candidates, name)
		}
	}
	slices.Sort(candidates)
	missing := make(map[string]absence)
	for _, name := range slices.Compact(candidates) {
		if slices.Contains(listed, name) {
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
		case w.fleet.first(name) && slices.Contains(live, name):
			if err := w.endStream(ctx, name, first.server); err != nil {
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

// serverTime is the clock that streams are stored by, in Unix milliseconds. The
// stream of rejects is there to ask: it is made at start.
func (w *worker) serverTime(ctx context.Context) (int64, error) {
	s, err := w.js.Stream(ctx, rejectedStream)
	if err != nil {
		return 0, fmt.Errorf("ask the server's time: %w", err)
	}
	return s.CachedInfo().TimeStamp.UnixMilli(), nil
}

// endStream lets go of a stream that is gone: it no longer holds as_of back.
// Where nobody had watched it lately, hits from before may be missing.
func (w *worker) endStream(ctx context.Context, name string, at int64) error {
	stale, err := w.asOfBefore(ctx, name, at-unwatched.Milliseconds())
	if err == nil && stale {
		err = w.admit(ctx, name, at)
	}
	if err != nil {
		return err
	}
	ended, err := w.store.EndStream(ctx, name, at, func() (bool, error) { return w.isGone(ctx, name) })
	if ended {
		w.log.Warn().Str("stream", name).Bool("hits_may_be_lost", stale).Msg("the stream was deleted: it no longer holds as_of back")
	}
	return err
}

// asOfBefore reports whether any shard's as_of of a stream is before a moment.
func (w *worker) asOfBefore(ctx context.Context, name string, moment int64) (bool, error) {
	stale := make([]bool, w.layout.Shards)
	err := eachShard(ctx, w.layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := w.store.OpenWriter(ctx, w.layout, name, shard)
		if err == nil {
			c, exists := writer.Cursor()
			stale[shard] = exists && c.AsOf < moment
		}
		return err
	})
	return slices.Contains(stale, true), err
}

// admit writes to all cursors of a stream that hits from before a moment may be
// missing. It moves nothing else, and it is fenced like any commit.
func (w *worker) admit(ctx context.Context, name string, before int64) error {
	empty := window.NewBatch(w.layout)
	return eachShard(ctx, w.layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := w.store.OpenWriter(ctx, w.layout, name, shard)
		if err != nil {
			return err
		}
		c, exists := writer.Cursor()
		if !exists || c.IncompleteBefore >= before {
			return nil
		}
		c.IncompleteBefore = before
		_, err = writer.Commit(ctx, empty.Shard(shard), c)
		return err
	})
}

// admitLoss admits that a stream was deleted before all of it was read, trying
// for as long as ctx lives.
func (w *worker) admitLoss(ctx context.Context, name string) {
	for ctx.Err() == nil {
		at, err := w.serverTime(ctx)
		if err == nil {
			err = w.admit(ctx, name, at)
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
