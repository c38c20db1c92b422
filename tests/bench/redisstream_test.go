package bench_test

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// A Redis stream for a counter, an entry for each hit, trimmed by the smallest
// id of the window. As written, a script also adds up the window's entries, to
// decide before it counts; Redis's own clock gives the ids. At its best the ids
// come from the hits and nothing is added up.
var redisStream = technique{
	name: "Redis stream", window: day, single: true,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		return streamDecideAndCount.EvalSha(ctx, c, []string{"s:" + h.counter}, day.Milliseconds(), h.n).Err()
	},
	queue: func(ctx context.Context, p redis.Pipeliner, h aHit) func(redis.Pipeliner) {
		key := "s:" + h.counter
		p.XAdd(ctx, &redis.XAddArgs{
			Stream: key, MinID: itoa(h.at - day.Milliseconds()), Approx: true,
			ID: itoa(h.at) + "-*", Values: []any{"count", h.n},
		})
		p.Expire(ctx, key, day)
		return nil
	},
	total: func(ctx context.Context, c *redis.Client, counter string, now int64) (sum int64, err error) {
		entries, err := c.XRange(ctx, "s:"+counter, itoa(now-day.Milliseconds()), "+").Result()
		for _, e := range entries {
			text, _ := e.Values["count"].(string)
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, err
	},
	scripts: []*redis.Script{streamDecideAndCount},
}

var streamDecideAndCount = redis.NewScript(`
local now = redis.call('TIME')
local from = now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[1]
local count = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], string.format('%d', from), '+')) do
	count = count + entry[2][2]
end
redis.call('XADD', KEYS[1], 'MINID', '~', string.format('%d', from), '*', 'count', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return count`)
