package window

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Listed is what the list of streams says of one. Readers find the cursors by that
// list, and a live stream whose cursors stand still holds AsOf back.
type Listed struct {
	// Created is a moment in Unix milliseconds before which the stream cannot have
	// stored anything: AsOf for as long as it has no cursor. 0 is an unknown one.
	Created int64
	// Ended is when the stream was found gone, Unix milliseconds; 0 while it lives.
	Ended int64
}

// The values in the hash of streams: "live", a space and Created; empty for a live
// one of which that is not known; and the bare number Ended.
const livePrefix = "live "

// beganField is no stream, since no name of one has a dot. Its value is when the
// oldest of the streams that have ended was created (Unix milliseconds): it says
// where counting began when their cursors are gone.
const beganField = ".began"

func (l Listed) value() string {
	switch {
	case l.Ended > 0:
		return strconv.FormatInt(l.Ended, 10)
	case l.Created > 0:
		return livePrefix + strconv.FormatInt(l.Created, 10)
	}
	return ""
}

func parseListed(stream, value string) (Listed, error) {
	if value == "" {
		return Listed{}, nil
	}
	text, live := strings.CutPrefix(value, livePrefix)
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil || at <= 0 {
		return Listed{}, fmt.Errorf("stream %s is listed with %q: Unix milliseconds were expected, or %q and them", stream, value, livePrefix)
	}
	if live {
		return Listed{Created: at}, nil
	}
	return Listed{Ended: at}, nil
}

// checkList says what of the list cannot be read.
func checkList(list map[string]string) error {
	for stream, value := range list {
		var err error
		if stream == beganField {
			_, err = parseBegan(value)
		} else {
			_, err = parseListed(stream, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// AddStream lists a stream as live, when it was created not being known.
func (s *Store) AddStream(ctx context.Context, stream string) error {
	return s.AddStreamSince(ctx, stream, 0)
}

// AddStreamSince lists a stream as live; created is that of Listed.
func (s *Store) AddStreamSince(ctx context.Context, stream string, created int64) error {
	if err := s.client.HSet(ctx, s.keys.streams(), stream, Listed{Created: created}.value()).Err(); err != nil {
		return fmt.Errorf("list stream %s: %w", stream, err)
	}
	return nil
}

// AddUnknownStream lists a stream as live if it is not listed at all.
func (s *Store) AddUnknownStream(ctx context.Context, stream string) error {
	if err := s.client.HSetNX(ctx, s.keys.streams(), stream, Listed{}.value()).Err(); err != nil {
		return fmt.Errorf("list stream %s: %w", stream, err)
	}
	return nil
}

// Streams is the list, by name.
func (s *Store) Streams(ctx context.Context) (map[string]Listed, error) {
	values, err := s.client.HGetAll(ctx, s.keys.streams()).Result()
	if err != nil {
		return nil, fmt.Errorf("read the list of streams: %w", err)
	}
	out := make(map[string]Listed, len(values))
	for name, value := range values {
		if name == beganField {
			continue
		}
		if out[name], err = parseListed(name, value); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// EndStream marks a live stream as ended at a moment (Unix milliseconds): its
// cursors no longer count for AsOf, and still for Complete. created is when it was
// made, 0 if it was never counted. gone looks whether the stream is gone indeed;
// whoever lists the stream as live after that look prevails. It reports whether the
// stream was ended.
func (s *Store) EndStream(ctx context.Context, stream string, at, created int64, gone func() (bool, error)) (ended bool, err error) {
	return s.changeStream(ctx, "end", stream, func(l Listed) bool { return l.Ended == 0 }, gone, func(p redis.Pipeliner, began int64) {
		p.HSet(ctx, s.keys.streams(), stream, Listed{Ended: at}.value())
		if created > 0 && (began == 0 || created < began) {
			p.HSet(ctx, s.keys.streams(), beganField, created)
		}
	})
}

// RemoveStream takes an ended stream off the list, when no window reaches back to
// its end any more; gone is that of EndStream.
func (s *Store) RemoveStream(ctx context.Context, stream string, gone func() (bool, error)) (removed bool, err error) {
	return s.changeStream(ctx, "remove", stream, func(l Listed) bool { return l.Ended > 0 }, gone, func(p redis.Pipeliner, _ int64) {
		p.HDel(ctx, s.keys.streams(), stream)
	})
}

// changeStream changes the entry of a stream that is gone, if it is fit for that.
func (s *Store) changeStream(ctx context.Context, what, stream string, fit func(Listed) bool, gone func() (bool, error), change func(p redis.Pipeliner, began int64)) (changed bool, err error) {
	key := s.keys.streams()
	err = s.watch(ctx, key, func(tx *redis.Tx) error {
		values, err := tx.HMGet(ctx, key, stream, beganField).Result()
		if err != nil {
			return err
		}
		value, exists := values[0].(string)
		if !exists {
			return nil
		}
		listed, err := parseListed(stream, value)
		if err != nil || !fit(listed) {
			return err
		}
		began, err := parseBegan(values[1])
		if err != nil {
			return err
		}
		if ok, err := gone(); err != nil || !ok {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			change(p, began)
			return nil
		})
		changed = err == nil
		return err
	})
	if errors.Is(err, redis.TxFailedErr) {
		return false, nil // some stream was listed meanwhile, perhaps this one: look again later
	}
	if err != nil {
		return false, fmt.Errorf("%s stream %s: %w", what, stream, err)
	}
	return changed, nil
}

// parseBegan reads the value of beganField, nil or empty for none.
func parseBegan(value any) (int64, error) {
	text, _ := value.(string)
	if text == "" {
		return 0, nil
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil || at <= 0 {
		return 0, fmt.Errorf("the list of streams has %s %q: Unix milliseconds were expected", beganField, text)
	}
	return at, nil
}

// Keep is how long an ended stream's cursors are of use: no window reaches back to
// its end any more, by the grace that hashes have.
func (l Layout) Keep() time.Duration {
	coarsest := l.Tiers[len(l.Tiers)-1]
	return coarsest.Window + time.Duration(coarsest.grace())*time.Millisecond
}

// ExpireCursor lets the cursor of an ended stream expire after a while, or at once
// for 0. Another incarnation of the stream than the one created then (Unix
// nanoseconds) keeps its cursor. A writer that goes on all the same makes it last again.
func (s *Store) ExpireCursor(ctx context.Context, stream string, shard int, created int64, after time.Duration) error {
	key := s.keys.cursor(shard, stream)
	err := s.watch(ctx, key, func(tx *redis.Tx) error {
		found, err := tx.HGet(ctx, key, "created").Result()
		if errors.Is(err, redis.Nil) || err == nil && found != strconv.FormatInt(created, 10) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			if after > 0 {
				p.Expire(ctx, key, after)
			} else {
				p.Del(ctx, key)
			}
			return nil
		})
		return err
	})
	if err != nil && !errors.Is(err, redis.TxFailedErr) { // a writer goes on
		return fmt.Errorf("let cursor %s expire: %w", key, err)
	}
	return nil
}
