package bench_test

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// A number for each hour of a day.

// 25 keys used in turn; each expires 24 hours after its last hit, so the one to
// come has gone by then.
var hourKeys = technique{
	name: "25 hour keys in turn", window: day,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		return hourKeysCountAndAnswer.EvalSha(ctx, c, []string{"k:" + h.counter + ":"}, h.at/hour%25).Err()
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		key := hourKey(h.counter, h.at/hour)
		p.IncrBy(ctx, key, h.n)
		p.Expire(ctx, key, day)
		return nil
	},
	total: func(ctx context.Context, c *redis.Client, counter string, now int64) (sum int64, err error) {
		keys := make([]string, 24)
		for i := range keys {
			keys[i] = hourKey(counter, now/hour-int64(i))
		}
		values, err := c.MGet(ctx, keys...).Result()
		for _, v := range values {
			if text, ok := v.(string); ok {
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return 0, err
				}
				sum += n
			}
		}
		return sum, err
	},
	scripts: []*redis.Script{hourKeysCountAndAnswer},
}

func hourKey(counter string, h int64) string { return "k:" + counter + ":" + itoa(h%25) }

var hourKeysCountAndAnswer = redis.NewScript(`
local h = tonumber(ARGV[1])
local total = redis.call('INCR', KEYS[1] .. h)
redis.call('EXPIRE', KEYS[1] .. h, 86400)
for _ = 1, 23 do
	h = (h + 24) % 25
	total = total + (redis.call('GET', KEYS[1] .. h) or 0)
end
return total`)

// 24 fields of one hash, and a key that says which hour is being written: when
// the hour changes its field begins anew. Nothing expires.
var hoursAndFlag = technique{
	name: "hash of 24 hours and a flag", window: day,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		return flagCountAndAnswer.EvalSha(ctx, c, flagKeys(h.counter), h.at/hour%24).Err()
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		flagCount.EvalSha(ctx, p, flagKeys(h.counter), h.at/hour%24, h.n)
		return nil
	},
	total: func(ctx context.Context, c *redis.Client, counter string, _ int64) (int64, error) {
		fields, err := c.HGetAll(ctx, "f:"+counter).Result()
		if err != nil {
			return 0, err
		}
		sum, _, err := sumFields(fields, 0)
		return sum, err
	},
	scripts: []*redis.Script{flagCount, flagCountAndAnswer},
}

func flagKeys(counter string) []string { return []string{"f:" + counter, "fc:" + counter} }

var flagCount = redis.NewScript(`
if redis.call('GET', KEYS[2]) == ARGV[1] then
	redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
else
	redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
	redis.call('SET', KEYS[2], ARGV[1])
end
return 1`)

var flagCountAndAnswer = redis.NewScript(`
if redis.call('GET', KEYS[2]) == ARGV[1] then
	redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
else
	redis.call('HSET', KEYS[1], ARGV[1], 1)
	redis.call('SET', KEYS[2], ARGV[1])
end
local total = 0
for h = 0, 23 do
	total = total + (redis.call('HGET', KEYS[1], h) or 0)
end
return total`)

// A hash for each granularity, its key the time rounded down to its span: an
// hour of seconds, a day of minutes, a week of hours; each kept for two spans.
var hashPerGranularity = technique{
	name: "hash per granularity (s, min, h)", window: 7 * day,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		for _, g := range granularities {
			key, field, expiry := g.place(h)
			if err := c.HIncrBy(ctx, key, field, h.n).Err(); err != nil {
				return err
			}
			if err := c.ExpireAt(ctx, key, expiry).Err(); err != nil {
				return err
			}
		}
		return nil
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		for _, g := range granularities {
			key, field, expiry := g.place(h)
			p.HIncrBy(ctx, key, field, h.n)
			p.ExpireAt(ctx, key, expiry)
		}
		return nil
	},
	total: func(ctx context.Context, c *redis.Client, counter string, now int64) (sum int64, err error) {
		g := granularities[len(granularities)-1] // hours
		for _, back := range []int64{0, g.cell * g.cells} {
			key, _, _ := g.place(aHit{counter: counter, at: now - back})
			fields, err := c.HGetAll(ctx, key).Result()
			if err != nil {
				return 0, err
			}
			n, _, err := sumFields(fields, (now-g.cell*g.cells)/1000)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	},
}

type granularity struct {
	name        string
	cell, cells int64 // milliseconds, cells of one hash
}

var granularities = []granularity{{"seconds", second, 3600}, {"minutes", minute, 1440}, {"hours", hour, 168}}

func (g granularity) place(h aHit) (key, field string, expiry time.Time) {
	span := g.cell * g.cells
	begin := h.at / span * span
	return h.counter + ":stats:" + g.name + ":" + itoa(begin/1000), itoa(h.at / g.cell * g.cell / 1000), time.UnixMilli(begin + 2*span)
}
