package consume

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tallyroll/internal/window"
)

// readConcurrency is how many shards' cursors are read or written at the same time.
const readConcurrency = 8

// readCursors returns a stream's cursors by shard; the zero value for a shard without one.
func readCursors(ctx context.Context, store *window.Store, layout window.Layout, name string) ([]window.Cursor, error) {
	out := make([]window.Cursor, layout.Shards)
	err := eachShard(ctx, layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := store.OpenWriter(ctx, layout, name, shard)
		if err == nil {
			out[shard], _ = writer.Cursor()
		}
		return err
	})
	return out, err
}

// eachShard calls do for every shard, at most concurrency at a time. The first error cancels the others.
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
	for range min(shards, atOnce) - 1 { // more goroutines would spend their time growing their stacks
		group.Go(work)
	}
	if err := work(); err != nil {
		group.Go(func() error { return err })
	}
	return group.Wait()
}
