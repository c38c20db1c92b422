package bench_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/limit"
)

// limiter is a way of allowing at most so many hits of a key in a window. take decides about one hit and
// counts it if it is allowed.
type limiter struct {
	name string
	// exact: it never allows more, even if many clients ask at a time.
	exact bool
	take  taker
	// keys matches what it keeps in Redis; empty if it keeps all in this process.
	keys string
	// put counts a hit without asking, if take is too slow to fill a key.
	put func(ctx context.Context, key string, window time.Duration) error
}

type taker func(ctx context.Context, key string, window time.Duration, most int64) (bool, error)

// limiterClient is a client as the programs make it, with room for 50 callers.
func (r *rig) limiterClient(t testing.TB) *redis.Client {
	t.Helper()
	var settings boot.Redis
	err := settings.URL.UnmarshalText([]byte(r.redis.URL()))
	require.NoError(t, err)
	options := settings.Options().Simple()
	options.PoolSize = mostClients
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

const bareName = "bare INCR: no limit, one round trip"

// limiters are all that is compared, with nothing counted in this process yet. Those of the articles do what the
// articles' code does, in as many round trips.
func (r *rig) limiters(t testing.TB) []limiter {
	c := r.limiterClient(t)
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = away.Close() })
	out := []limiter{
		{name: bareName, keys: "i:*", take: func(ctx context.Context, key string, _ time.Duration, _ int64) (bool, error) {
			return true, c.Incr(ctx, "i:"+key).Err()
		}},
	}
	for _, policy := range limit.Policies {
		out = append(out, limiter{
			name: "Tallyroll, " + string(policy), exact: true, keys: namespace + ":{*}:limit:" + string(policy) + ":*",
			take: takeOf(limit.New(c, namespace, time.Minute), policy),
		})
	}
	return append(out,
		limiter{name: "Tallyroll, Redis away: the ring in the process", exact: true, take: takeOf(limit.New(away, namespace, time.Minute), limit.Cells)},
		limiter{name: "go-redis/redis_rate (GCRA)", exact: true, keys: "rate:*", take: rateTake(c)},
		limiter{name: "sorted set: ZREMRANGEBYSCORE, ZCARD; ZADD", keys: "lz:*", take: sortedSetTake(c)},
		limiter{name: "hash window: HGETALL; HDEL; HINCRBY", keys: "lh:*", take: hashTake(c)},
		limiter{name: "Redis stream: XRANGE, XADD in a script", exact: true, keys: "ls:*", take: streamTake(c), put: streamPut(c)},
		limiter{name: "ring of 60 cells in the process", exact: true, take: ringTake()},
	)
}

// rateTake allows by GCRA: the burst is as large as what a window allows.
func rateTake(c *redis.Client) taker {
	rate := redis_rate.NewLimiter(c)
	return func(ctx context.Context, key string, window time.Duration, most int64) (bool, error) {
		result, err := rate.Allow(ctx, key, redis_rate.Limit{Rate: int(most), Burst: int(most), Period: window})
		return err == nil && result.Allowed == 1, err
	}
}

// takeOf decides with the product.
func takeOf(l *limit.Limiter, policy limit.Policy) taker {
	return func(ctx context.Context, key string, window time.Duration, most int64) (bool, error) {
		rule, err := limit.Adhoc(window, most, policy)
		if err != nil {
			return false, err
		}
		answer, err := l.Take(ctx, []limit.Take{{Limit: rule, Key: key, Under: key, N: 1}})
		return answer.Allowed, err
	}
}

// sortedSetTake looks first and adds then, in two round trips. So two clients can both see the last free place.
func sortedSetTake(c *redis.Client) taker {
	return func(ctx context.Context, key string, window time.Duration, most int64) (bool, error) {
		key = "lz:" + key
		now := time.Now()
		var hits *redis.IntCmd
		_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.ZRemRangeByScore(ctx, key, "0", itoa(now.Add(-window).UnixMicro()))
			hits = p.ZCard(ctx, key)
			return nil
		})
		if err != nil || hits.Val() >= most {
			return false, err
		}
		_, err = c.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.ZAdd(ctx, key, redis.Z{Score: float64(now.UnixMicro()), Member: member()})
			p.PExpire(ctx, key, window)
			return nil
		})
		return err == nil, err
	}
}

// hashTake reads a field for each sixtieth of the window, in two or three round trips.
func hashTake(c *redis.Client) taker {
	return func(ctx context.Context, key string, window time.Duration, most int64) (bool, error) {
		key = "lh:" + key
		cell := window.Milliseconds() / 60
		now := time.Now().UnixMilli()
		fields, err := c.HGetAll(ctx, key).Result()
		if err != nil {
			return false, err
		}
		sum, old, err := sumFields(fields, (now-window.Milliseconds())/cell)
		if err != nil {
			return false, err
		}
		if len(old) > 0 {
			err := c.HDel(ctx, key, old...).Err()
			if err != nil {
				return false, err
			}
		}
		if sum >= most {
			return false, nil
		}
		_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.HIncrBy(ctx, key, itoa(now/cell), 1)
			p.PExpire(ctx, key, window)
			return nil
		})
		return err == nil, err
	}
}

// streamTake adds up the window's entries in a script, and adds one if there is room.
func streamTake(c *redis.Client) taker {
	return func(ctx context.Context, key string, window time.Duration, most int64) (bool, error) {
		allowed, err := streamAllow.Run(ctx, c, []string{"ls:" + key}, window.Milliseconds(), most, 1).Int()
		return allowed == 1, err
	}
}

func streamPut(c *redis.Client) func(context.Context, string, time.Duration) error {
	return func(ctx context.Context, key string, window time.Duration) error {
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.XAdd(ctx, &redis.XAddArgs{Stream: "ls:" + key, Values: []any{"count", 1}})
			p.PExpire(ctx, "ls:"+key, window)
			return nil
		})
		return err
	}
}

var streamAllow = redis.NewScript(`
local now = redis.call('TIME')
local from = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[1])
local count = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], from, '+')) do
	count = count + entry[2][2]
end
if count + ARGV[3] > tonumber(ARGV[2]) then
	return 0
end
redis.call('XADD', KEYS[1], 'MINID', from, '*', 'count', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1`)

// ringTake keeps 60 cells of a key in memory.
func ringTake() taker {
	type ring struct {
		cells [60]int64
		last  int64
	}
	var mu sync.Mutex
	rings := make(map[string]*ring)
	return func(_ context.Context, key string, window time.Duration, most int64) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now().UnixMilli() / (window.Milliseconds() / 60)
		r := rings[key]
		if r == nil {
			r = &ring{last: now}
			rings[key] = r
		}
		for i := max(r.last+1, now-59); i <= now; i++ {
			r.cells[i%60] = 0
		}
		r.last = now
		sum := int64(0)
		for _, n := range r.cells {
			sum += n
		}
		if sum >= most {
			return false, nil
		}
		r.cells[now%60]++
		return true, nil
	}
}

// limiterState is what limiters are asked about.
type limiterState struct {
	name   string
	window time.Duration
	most   int64
	key    func(i int64) string
	full   bool // the key has no room: every decision refuses
}

var limiterStates = []limiterState{
	{"idle", time.Minute, 100, func(i int64) string { return "idle-" + itoa(i) }, false},
	{"hot", time.Second, limit.MaxExactHits, func(int64) string { return "hot" }, false},
	// So long a window that GCRA, which lets one in after each hundredth of it, refuses during the whole measurement.
	{"refused", 24 * time.Hour, 100, func(int64) string { return "full" }, true},
}

// mostOf is the max for a limiter. In this process more is counted in a second than a policy of Redis can allow.
func (s limiterState) mostOf(l limiter) int64 {
	if l.keys == "" && !s.full {
		return limit.MaxHits
	}
	return s.most
}
