package window

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// What a change of tiers keeps, puts back and deletes.

const (
	// scanCount is how many keys Redis looks at for one SCAN. They take it some hundred µs.
	scanCount = 1000
	// tellEvery is after how many cursors one is told how far it is.
	tellEvery = 1000
)

// seal fences every writer, and keeps a copy of the cursors and of the rules, so that the change can be gone back on.
//
// A worker that was merely paused has read the layout before it said that nobody may count. Its next commit finds
// another "by" in the cursor.
func (s *Store) seal(ctx context.Context, l Layout, generation int, tell RetierProgress) error {
	err := s.eachCursor(ctx, l, generation, tell, func(key, was string) error {
		return s.replace(ctx, key, key, func(p redis.Pipeliner, fields map[string]string, ttl time.Duration) {
			if len(fields) > 0 {
				fields["by"] = newMark()
				p.HSet(ctx, key, "by", fields["by"])
			}
			copyCursor(ctx, p, was, fields, ttl)
		})
	})
	if err != nil {
		return err
	}
	return s.copyRules(ctx, s.keys.rules(), s.keys.rulesWere(generation))
}

// putBack puts the cursors back to where they were when the old tiers were left, and fences every writer by that. A
// stream that was not counted then has no cursor any more.
func (s *Store) putBack(ctx context.Context, l Layout, tell RetierProgress) error {
	generation := l.Tiers[0].generation
	err := s.copyRules(ctx, s.keys.rulesWere(generation), s.keys.rules()) // before a cursor names them
	if err != nil {
		return err
	}
	if err := s.putBackOnce(ctx, l, generation, tell); err != nil || s.cluster == nil {
		return err
	}
	if err := sleep(ctx, replicated); err != nil {
		return err
	}
	return s.putBackOnce(ctx, l, generation, tell) // a replica that lacked them may have taken over meanwhile
}

func (s *Store) putBackOnce(ctx context.Context, l Layout, generation int, tell RetierProgress) error {
	return s.eachCursor(ctx, l, generation, tell, func(key, was string) error {
		return s.replace(ctx, key, was, func(p redis.Pipeliner, fields map[string]string, ttl time.Duration) {
			copyCursor(ctx, p, key, fields, ttl)
		})
	})
}

// copyCursor makes a key what another one was.
func copyCursor(ctx context.Context, p redis.Pipeliner, to string, fields map[string]string, ttl time.Duration) {
	p.Del(ctx, to)
	if len(fields) == 0 {
		return
	}
	p.HSet(ctx, to, fields)
	if ttl > 0 { // of an ended stream
		p.PExpire(ctx, to, ttl)
	}
}

// replace changes what belongs to a cursor in one transaction, by what the hash from holds. It tries again if the cursor
// is changed meanwhile.
func (s *Store) replace(ctx context.Context, cursor, from string, change func(p redis.Pipeliner, fields map[string]string, ttl time.Duration)) error {
	for {
		err := s.watch(ctx, []string{cursor}, func(tx *watched) error {
			var fields *redis.MapStringStringCmd
			var ttl *redis.DurationCmd
			if err := tx.look(ctx, func(p redis.Pipeliner) { fields, ttl = p.HGetAll(ctx, from), p.PTTL(ctx, from) }); err != nil {
				return err
			}
			values, err := fields.Result()
			if err == nil {
				err = ttl.Err()
			}
			if err != nil {
				return foreign(from, err)
			}
			_, err = tx.exec(ctx, func(p redis.Pipeliner) { change(p, values, ttl.Val()) })
			return err
		})
		if !errors.Is(err, redis.TxFailedErr) {
			if err != nil {
				return fmt.Errorf("change cursor %s: %w", cursor, err)
			}
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// eachCursor calls do with each shard's cursor of every stream, listed or not, and with the key where it is kept.
func (s *Store) eachCursor(ctx context.Context, l Layout, generation int, tell RetierProgress, do func(key, was string) error) error {
	streams, err := s.cursorStreams(ctx, generation)
	if err != nil {
		return err
	}
	done := 0
	for _, stream := range streams {
		for shard := range l.Shards {
			if err := do(s.keys.cursor(shard, stream), s.keys.was(shard, generation, stream)); err != nil {
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

// cursorStreams returns the streams that are listed, or have a cursor or one that is kept, in order.
func (s *Store) cursorStreams(ctx context.Context, generation int) ([]string, error) {
	listed, err := s.Streams(ctx)
	if err != nil {
		return nil, err
	}
	streams := make(map[string]bool)
	for stream := range listed {
		streams[stream] = true
	}
	err = s.scan(ctx, func(_ server, keys []string) error {
		for _, key := range keys {
			if k := s.keys.split(key); k.kind == "cursor" || k.kind == "was" && k.generation == generation {
				streams[k.rest] = true
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(streams)), err
}

// copyRules adds the rules of one key to those of another.
func (s *Store) copyRules(ctx context.Context, from, to string) error {
	rules, err := s.client.HGetAll(ctx, from).Result()
	if err != nil || len(rules) == 0 {
		return foreign(from, err)
	}
	return foreign(to, s.client.HSet(ctx, to, rules).Err())
}

// scan calls do with the keys of the namespace's shards, some at a time, and the server that has them. It may call do
// twice with the same key.
func (s *Store) scan(ctx context.Context, do func(at server, keys []string) error) error {
	servers, err := s.masters(ctx)
	if err != nil {
		return fmt.Errorf("find the masters of the cluster: %w", err)
	}
	for _, at := range servers {
		var cursor uint64
		for {
			keys, next, err := at.Scan(ctx, cursor, s.keys.namespace+":{*}:*", scanCount).Result()
			if err != nil {
				return fmt.Errorf("look for keys in %s: %w", at.name, err)
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

// deleteGeneration deletes the cells, names and summaries of the tiers that a change has left, and what was kept for
// going back.
func (s *Store) deleteGeneration(ctx context.Context, l Layout, c change, tell RetierProgress) error {
	left, own := c.other[0].generation, l.Tiers[0].generation
	goes := func(k shardKey) bool {
		switch k.kind {
		case "h", "names", "top":
			return k.generation == left
		case "was", "rules", "built":
			return k.generation == left && left > 0 || k.generation == own && c.phase == confirmed
		}
		return false
	}
	done := 0
	return s.scan(ctx, func(at server, keys []string) error {
		keys = slices.DeleteFunc(keys, func(key string) bool { return !goes(s.keys.split(key)) })
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

// listUniques lists the counter of every unique cell.
func (s *Store) listUniques(ctx context.Context, l Layout, tell RetierProgress) error {
	done := 0
	return s.scan(ctx, func(at server, keys []string) error {
		cmds, err := at.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				k := s.keys.split(key)
				cell, rest, _ := strings.Cut(k.rest, ":")
				number, counter, _ := strings.Cut(rest, ":")
				n, err := strconv.ParseInt(number, 10, 64)
				i := slices.IndexFunc(l.UniqueTiers, func(t Tier) bool { return FormatDuration(t.Cell) == cell })
				if k.kind != "u" || i < 0 || err != nil {
					continue
				}
				set := l.uniqueNamesOf(l.UniqueTiers[i].cellStart(n))
				list(ctx, p, s.keys.uniqueNames(k.shard, set), []string{counter}, l.uniqueNamesDeadline(set))
				done++
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("list counters with unique values: %w", foreignReply(cmds, err))
		}
		tell("unique cells listed", done)
		return nil
	})
}

// Moves reports whether anybody counts: whether a cursor or a claim about a stream at rest changes within a while. Workers
// change one of them every second.
func (s *Store) Moves(ctx context.Context, within time.Duration) (bool, error) {
	before, err := s.places(ctx)
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
		now, err := s.places(ctx)
		if err != nil || !maps.Equal(before, now) {
			return err == nil, err
		}
	}
	return false, nil
}

// places are what workers write into the cursors of the first shard, and the claims.
func (s *Store) places(ctx context.Context) (map[string]string, error) {
	listed, err := s.Streams(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := s.client.HGetAll(ctx, s.keys.idle()).Result()
	if err != nil {
		return nil, foreign(s.keys.idle(), err)
	}
	out := make(map[string]string)
	for stream := range listed {
		key := s.keys.cursor(0, stream)
		place, err := s.client.HMGet(ctx, key, "seq", "as_of", "opened", "by").Result()
		if err != nil {
			return nil, foreign(key, err)
		}
		out[stream] = fmt.Sprint(claims[stream], place)
	}
	return out, nil
}
