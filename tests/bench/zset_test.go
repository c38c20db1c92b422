package bench_test

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A sorted set for a counter, one member for each hit, its score the time.

const day = 24 * time.Hour

// Members from a second key that counts (INCR).
var sortedSetIncr = technique{
	name: "sorted set, members from INCR", window: day, single: true,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		return zsetCountAndAnswer.EvalSha(ctx, c, []string{"z:" + h.counter, "zi:" + h.counter}, h.at, h.at-day.Milliseconds()).Err()
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		zsetCount.EvalSha(ctx, p, []string{"z:" + h.counter, "zi:" + h.counter}, h.at, h.at-day.Milliseconds())
		return nil
	},
	total:   zsetTotal,
	scripts: []*redis.Script{zsetCount, zsetCountAndAnswer},
}

var zsetCount = redis.NewScript(`
local member = redis.call('INCR', KEYS[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[2])
return redis.call('ZADD', KEYS[1], ARGV[1], member)`)

var zsetCountAndAnswer = redis.NewScript(`
local member = redis.call('INCR', KEYS[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[2])
redis.call('ZADD', KEYS[1], ARGV[1], member)
return redis.call('ZCOUNT', KEYS[1], '-inf', '+inf')`)

// Random members, and a set that expires; a round trip for each hit.
var sortedSetRandom = technique{
	name: "sorted set, random members", window: day, single: true,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			zsetAdd(ctx, p, h)
			p.ZCard(ctx, "z:"+h.counter)
			return nil
		})
		return err
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		zsetAdd(ctx, p, h)
		return nil
	},
	total: zsetTotal,
}

func zsetAdd(ctx context.Context, p redis.Pipeliner, h aHit) {
	key := "z:" + h.counter
	p.ZAdd(ctx, key, redis.Z{Score: float64(h.at), Member: member()})
	p.ZRemRangeByScore(ctx, key, "0", itoa(h.at-day.Milliseconds()))
	p.Expire(ctx, key, day+time.Second)
}

func zsetTotal(ctx context.Context, c *redis.Client, counter string, now int64) (int64, error) {
	return c.ZCount(ctx, "z:"+counter, "("+itoa(now-day.Milliseconds()), "+inf").Result()
}
