package bench_test

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A hash for a counter and a window of an hour, a field for each minute.

const hashWindow = time.Hour

// One hash: with each hit all fields are read, and the old ones deleted.
var hashPerWindow = technique{
	name: "hash per window, read with each hit", window: hashWindow,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		key := "h:" + h.counter
		if err := c.HIncrBy(ctx, key, itoa(h.at/minute), h.n).Err(); err != nil {
			return err
		}
		if err := c.Expire(ctx, key, hashWindow+time.Second).Err(); err != nil {
			return err
		}
		fields, err := c.HGetAll(ctx, key).Result()
		if err != nil {
			return err
		}
		_, old, err := sumFields(fields, oldestMinute(h.at))
		if err == nil && len(old) > 0 {
			err = c.HDel(ctx, key, old...).Err()
		}
		return err
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		key := "h:" + h.counter
		p.HIncrBy(ctx, key, itoa(h.at/minute), h.n)
		p.Expire(ctx, key, hashWindow+time.Second)
		all := p.HGetAll(ctx, key)
		return func(next redis.Pipeliner) {
			if _, old, err := sumFields(all.Val(), oldestMinute(h.at)); err == nil && len(old) > 0 {
				next.HDel(ctx, key, old...)
			}
		}
	},
	total: func(ctx context.Context, c *redis.Client, counter string, now int64) (int64, error) {
		return minutesOf(ctx, c, "h:"+counter, now)
	},
}

// Two hashes of two windows each, written in turn, their expiry refreshed by
// each write: what is old vanishes by itself.
var twoKeys = technique{
	name: "two hashes in turn", window: hashWindow,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		key := turnKey(h.counter, h.at)
		if err := c.HIncrBy(ctx, key, itoa(h.at/minute), h.n).Err(); err != nil {
			return err
		}
		return c.Expire(ctx, key, hashWindow+time.Minute).Err()
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		key := turnKey(h.counter, h.at)
		p.HIncrBy(ctx, key, itoa(h.at/minute), h.n)
		p.Expire(ctx, key, hashWindow+time.Minute)
		return nil
	},
	total: func(ctx context.Context, c *redis.Client, counter string, now int64) (sum int64, err error) {
		for _, back := range []int64{0, 2 * hashWindow.Milliseconds()} {
			n, err := minutesOf(ctx, c, turnKey(counter, now-back), now)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	},
}

func turnKey(counter string, at int64) string {
	return "t:" + counter + ":" + itoa(at/(2*hashWindow.Milliseconds())%2)
}

func oldestMinute(now int64) int64 { return (now - hashWindow.Milliseconds()) / minute }

func minutesOf(ctx context.Context, c *redis.Client, key string, now int64) (int64, error) {
	fields, err := c.HGetAll(ctx, key).Result()
	if err != nil {
		return 0, err
	}
	sum, _, err := sumFields(fields, oldestMinute(now))
	return sum, err
}
