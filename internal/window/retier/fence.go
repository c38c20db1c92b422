package retier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// progressEvery is the number of cursors between two calls of Progress.
const progressEvery = 1000

// fenceAll alters "by" in every cursor, listed or not. A worker that was paused does not know that it may not
// count; its next commit finds another "by".
func fenceAll(ctx context.Context, s *schema.Store, l window.Layout, tell Progress) error {
	streams, err := cursorStreams(ctx, s)
	if err != nil {
		return err
	}
	done := 0
	for _, stream := range streams {
		for shard := range l.Shards {
			if err := fenceCursor(ctx, s, s.Keys.Cursor(shard, stream)); err != nil {
				return err
			}
			if done++; done%progressEvery == 0 {
				tell("cursors", done)
			}
		}
	}
	tell("cursors", done)
	return nil
}

// fenceCursor tries again if the cursor is changed meanwhile, because a worker that nobody has stopped may
// still count: whatever it commits before the fence is in its cells, and is built like the rest.
func fenceCursor(ctx context.Context, s *schema.Store, key string) error {
	for {
		err := s.Client.Watch(ctx, []string{key}, func(tx *cluster.WatchedTx) error {
			var fields *redis.IntCmd
			if err := tx.Read(ctx, func(p redis.Pipeliner) { fields = p.HLen(ctx, key) }); err != nil {
				return err
			}
			n, err := fields.Result()
			if err != nil || n == 0 {
				return cluster.WrapForeign(key, err)
			}
			_, err = tx.Exec(ctx, func(p redis.Pipeliner) { p.HSet(ctx, key, "by", newMark()) })
			return err
		})
		if err == nil {
			return nil
		}
		if !errors.Is(err, redis.TxFailedErr) {
			return fmt.Errorf("fence the writers of cursor %s: %w", key, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// cursorStreams returns the streams that are listed or have a cursor, sorted. The list alone would not do:
// if Redis has lost it, a paused worker still has its cursors, and would count on.
func cursorStreams(ctx context.Context, s *schema.Store) ([]string, error) {
	listed, err := s.Streams(ctx)
	if err != nil {
		return nil, err
	}
	streams := make(map[string]bool)
	for stream := range listed {
		streams[stream] = true
	}
	err = s.Scan(ctx, func(_ cluster.Server, keys []string) error {
		for _, key := range keys {
			if k := s.Keys.Parse(key); k.Kind == "cursor" {
				streams[k.Rest] = true
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(streams)), err
}

// deleteGeneration deletes the cells, names and summaries of tiers from which no answers come. It scans all
// keys, because an interrupted change can leave hashes of counters that no set of names lists.
func deleteGeneration(ctx context.Context, s *schema.Store, generation int, tell Progress) error {
	goes := func(k schema.ShardKey) bool {
		switch k.Kind {
		case "h", "s", "names", "top":
			return k.Generation == generation
		}
		return k.Kind == "built"
	}
	done := 0
	return s.Scan(ctx, func(at cluster.Server, keys []string) error {
		keys = slices.DeleteFunc(keys, func(key string) bool { return !goes(s.Keys.Parse(key)) })
		if len(keys) == 0 {
			return nil
		}
		_, err := at.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys { // one by one: those of a cluster's server are in several slots
				p.Unlink(ctx, key)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("delete %d keys: %w", len(keys), err)
		}
		done += len(keys)
		tell("keys deleted", done)
		return nil
	})
}

// Moves reports whether workers count. They change a cursor, or an idle stream's claim, every second.
func Moves(ctx context.Context, s *schema.Store, within time.Duration) (bool, error) {
	before, err := cursorPositions(ctx, s)
	if err != nil || len(before) == 0 {
		return false, err
	}
	ticker := time.NewTicker(within / 8)
	defer ticker.Stop()
	for range 8 {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-ticker.C:
		}
		now, err := cursorPositions(ctx, s)
		if err != nil || !maps.Equal(before, now) {
			return err == nil, err
		}
	}
	return false, nil
}

// cursorPositions returns what workers write into the cursors of the first shard, and the claims. One shard
// will do, because a worker moves the cursors of all shards, or its claim, also without hits.
func cursorPositions(ctx context.Context, s *schema.Store) (map[string]string, error) {
	listed, err := s.Streams(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := s.Client.HGetAll(ctx, s.Keys.Claims()).Result()
	if err != nil {
		return nil, cluster.WrapForeign(s.Keys.Claims(), err)
	}
	out := make(map[string]string)
	for stream := range listed {
		key := s.Keys.Cursor(0, stream)
		place, err := s.Client.HMGet(ctx, key, "seq", "as_of", "opened", "by").Result()
		if err != nil {
			return nil, cluster.WrapForeign(key, err)
		}
		out[stream] = fmt.Sprint(claims[stream], place)
	}
	return out, nil
}
