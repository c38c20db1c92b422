package window

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// live is the value of a stream that has not ended, in the hash of streams.
const live = ""

// AddStream lists a stream as live: readers find the cursors by that list, and a
// live stream whose cursors stand still holds AsOf back.
func (s *Store) AddStream(ctx context.Context, stream string) error {
	if err := s.client.HSet(ctx, s.keys.streams(), stream, live).Err(); err != nil {
		return fmt.Errorf("list stream %s: %w", stream, err)
	}
	return nil
}

// LiveStreams are the listed streams that have not ended.
func (s *Store) LiveStreams(ctx context.Context) ([]string, error) {
	listed, err := s.client.HGetAll(ctx, s.keys.streams()).Result()
	if err != nil {
		return nil, fmt.Errorf("read the list of streams: %w", err)
	}
	var out []string
	for name, ended := range listed {
		if ended == live {
			out = append(out, name)
		}
	}
	return out, nil
}

// EndStream marks a live stream as ended at a moment (Unix milliseconds): its
// cursors no longer count for AsOf, and still for Complete. gone looks whether
// the stream is gone indeed; whoever lists the stream as live after that look
// prevails. It reports whether the stream was ended.
func (s *Store) EndStream(ctx context.Context, stream string, at int64, gone func() (bool, error)) (ended bool, err error) {
	key := s.keys.streams()
	err = s.watch(ctx, key, func(tx *redis.Tx) error {
		value, err := tx.HGet(ctx, key, stream).Result()
		if errors.Is(err, redis.Nil) || err == nil && value != live {
			return nil
		}
		if err != nil {
			return err
		}
		if ok, err := gone(); err != nil || !ok {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.HSet(ctx, key, stream, at)
			return nil
		})
		ended = err == nil
		return err
	})
	if errors.Is(err, redis.TxFailedErr) {
		return false, nil // some stream was listed meanwhile, perhaps this one: look again later
	}
	if err != nil {
		return false, fmt.Errorf("end stream %s: %w", stream, err)
	}
	return ended, nil
}

// parseEnded reads a value of the hash of streams: when the stream ended, in Unix
// milliseconds, 0 for a live one.
func parseEnded(stream, value string) (at int64, err error) {
	if value == live {
		return 0, nil
	}
	if at, err = strconv.ParseInt(value, 10, 64); err != nil || at <= 0 {
		return 0, fmt.Errorf("stream %s ended at %q: Unix milliseconds were expected", stream, value)
	}
	return at, nil
}
