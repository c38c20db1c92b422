package window

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// ScanCount is how many keys Redis checks for one SCAN. They take it some hundred µs.
const ScanCount = 1000

// tellEvery is the number of cursors between two calls of RetierProgress.
const tellEvery = 1000

// fence alters "by" in every cursor, listed or not. A worker that was paused does not know that it may not
// count; its next commit finds another "by".
func fenceAll(ctx context.Context, s *Store, l Layout, tell RetierProgress) error {
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
			if done++; done%tellEvery == 0 {
				tell("cursors", done)
			}
		}
	}
	tell("cursors", done)
	return nil
}

// fenceCursor tries again if the cursor is changed meanwhile.
func fenceCursor(ctx context.Context, s *Store, key string) error {
	for {
		err := s.Client.Watch(ctx, []string{key}, func(tx *WatchedTx) error {
			var fields *redis.IntCmd
			if err := tx.Read(ctx, func(p redis.Pipeliner) { fields = p.HLen(ctx, key) }); err != nil {
				return err
			}
			n, err := fields.Result()
			if err != nil || n == 0 {
				return WrapForeign(key, err)
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

// cursorStreams returns the streams that are listed or have a cursor, sorted.
func cursorStreams(ctx context.Context, s *Store) ([]string, error) {
	listed, err := s.Streams(ctx)
	if err != nil {
		return nil, err
	}
	streams := make(map[string]bool)
	for stream := range listed {
		streams[stream] = true
	}
	err = s.Scan(ctx, func(_ Server, keys []string) error {
		for _, key := range keys {
			if k := s.Keys.Parse(key); k.Kind == "cursor" {
				streams[k.Rest] = true
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(streams)), err
}

// Scan calls do with keys of the namespace's shards, some at a time, and their server. A key may come twice.
func (s *Store) Scan(ctx context.Context, do func(at Server, keys []string) error) error {
	servers, err := s.Client.Masters(ctx)
	if err != nil {
		return fmt.Errorf("find the masters of the cluster: %w", err)
	}
	for _, at := range servers {
		var cursor uint64
		for {
			keys, next, err := at.Scan(ctx, cursor, s.Keys.Namespace+":{*}:*", ScanCount).Result()
			if err != nil {
				return fmt.Errorf("look for keys in %s: %w", at.Name, err)
			}
			if err := do(at, keys); err != nil {
				return err
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return nil
}

// deleteGeneration deletes the cells, names and summaries of tiers from which no answers come.
func deleteGeneration(ctx context.Context, s *Store, generation int, tell RetierProgress) error {
	goes := func(k ShardKey) bool {
		switch k.Kind {
		case "h", "names", "top":
			return k.Generation == generation
		}
		return k.Kind == "built"
	}
	done := 0
	return s.Scan(ctx, func(at Server, keys []string) error {
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
func Moves(ctx context.Context, s *Store, within time.Duration) (bool, error) {
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

// places returns what workers write into the cursors of the first shard, and the claims.
func cursorPositions(ctx context.Context, s *Store) (map[string]string, error) {
	listed, err := s.Streams(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := s.Client.HGetAll(ctx, s.Keys.Claims()).Result()
	if err != nil {
		return nil, WrapForeign(s.Keys.Claims(), err)
	}
	out := make(map[string]string)
	for stream := range listed {
		key := s.Keys.Cursor(0, stream)
		place, err := s.Client.HMGet(ctx, key, "seq", "as_of", "opened", "by").Result()
		if err != nil {
			return nil, WrapForeign(key, err)
		}
		out[stream] = fmt.Sprint(claims[stream], place)
	}
	return out, nil
}
