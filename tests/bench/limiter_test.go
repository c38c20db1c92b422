package bench_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/tests/stack"
)

// limiter is a way of allowing at most n hits of a key in a window. take decides about one hit and
// counts it if it is allowed.
type limiter struct {
	name string
	// exact: it never allows more, even if many clients ask at a time.
	exact bool
	keys  string // matches what it keeps in Redis
	take  taker
	// put counts a hit without asking, if take is too slow to fill a key.
	put taker
}

type taker func(ctx context.Context, key string, window time.Duration, most int64) (bool, error)

// mostClients is how many ask at a time, besides one.
const mostClients = 50

// limiterClient is a client as the programs make it, with room for 50 callers.
func (r *rig) limiterClient(t testing.TB) *redis.Client {
	t.Helper()
	var settings redisconn.Settings
	require.NoError(t, settings.URL.UnmarshalText([]byte(r.redis.URL())))
	options := settings.Options().Simple()
	options.PoolSize = mostClients
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

const bareName = "bare INCR: no limit, one round trip"

// limiters are all that is compared. Those of the articles do what the articles' code does, in as many round
// trips.
func (r *rig) limiters(t testing.TB) []limiter {
	c := r.limiterClient(t)
	out := []limiter{
		{name: bareName, keys: "i:*", take: func(ctx context.Context, key string, _ time.Duration, _ int64) (bool, error) {
			return true, c.Incr(ctx, "i:"+key).Err()
		}},
	}
	for _, policy := range limit.Policies() {
		out = append(out, limiter{
			name: "Tallyroll, " + string(policy), exact: true, keys: namespace + ":{*}:limit:" + string(policy) + ":*",
			take: takeOf(limit.New(c, namespace, time.Minute), policy),
		})
	}
	return append(out,
		limiter{name: "go-redis/redis_rate (GCRA)", exact: true, keys: "rate:*", take: rateTake(c)},
		limiter{name: "sorted set: ZREMRANGEBYSCORE, ZCARD; ZADD", keys: "lz:*", take: sortedSetTake(c)},
		limiter{name: "hash window: HGETALL; HDEL; HINCRBY", keys: "lh:*", take: hashTake(c)},
		limiter{
			name: "Redis stream: XRANGE, XADD in a script", exact: true, keys: "ls:*",
			take: streamTake(c), put: streamPut(c),
		})
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
		answer, err := l.Take(ctx, []limit.Take{{Limit: rule, Caller: key, Key: key, N: 1}})
		return answer.Allowed, err
	}
}

// sortedSetTake looks first and adds then, in two round trips. So two clients can both see the last free
// place.
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
		if err == nil && len(old) > 0 {
			err = c.HDel(ctx, key, old...).Err()
		}
		if err != nil || sum >= most {
			return false, err
		}
		_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.HIncrBy(ctx, key, itoa(now/cell), 1)
			p.PExpire(ctx, key, window)
			return nil
		})
		return err == nil, err
	}
}

var streamAllow = script("stream-allow")

// streamTake adds up the window's entries in a script, and adds one if there is room.
func streamTake(c *redis.Client) taker {
	return func(ctx context.Context, key string, window time.Duration, most int64) (bool, error) {
		allowed, err := streamAllow.Run(ctx, c, []string{"ls:" + key}, window.Milliseconds(), most, 1).Int()
		return allowed == 1, err
	}
}

func streamPut(c *redis.Client) taker {
	return func(ctx context.Context, key string, window time.Duration, _ int64) (bool, error) {
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.XAdd(ctx, &redis.XAddArgs{Stream: "ls:" + key, Values: []any{"count", 1}})
			p.PExpire(ctx, "ls:"+key, window)
			return nil
		})
		return err == nil, err
	}
}

// limiterRun is how a limiter decides about another key each time, asked by n clients.
type limiterRun struct {
	sample
	limiter limiter
	Clients int
	Base    *limiterRun // the bare INCR of as many clients
}

// OfBase is the median time as a ratio to that of the bare INCR.
func (d *limiterRun) OfBase() string {
	if len(d.Base.took) == 0 {
		return "–"
	}
	return short(float64(percentile(d.took, 50)) / float64(percentile(d.Base.took, 50)))
}

// measureLimits lets the limiters decide in turn, each round beginning with another one.
func measureLimits(t *testing.T, r *rig, o options) (out []*limiterRun) {
	length := max(o.seconds(1)/2, 20*time.Millisecond)
	for _, clients := range []int{1, mostClients} {
		var all []*limiterRun
		for _, l := range r.limiters(t) {
			part := fmt.Sprintf("limits/idle/clients=%d", clients)
			all = append(all, &limiterRun{sample: sample{part: part, name: l.name}, limiter: l, Clients: clients})
			all[len(all)-1].Base = all[0]
		}
		all = chosen(o, all...)
		if len(all) > 0 && clients == 1 {
			r.empty(t)
		}
		inTurns(t, o, all, func(t *testing.T, d *limiterRun, _ int) { d.decide(t, length) })
		out = append(out, all...)
	}
	return out
}

// errDecision means that a hit was refused that has to be allowed.
var errDecision = errors.New("the wrong decision")

// decisions numbers the keys, so that none comes twice.
var decisions atomic.Int64

// decide asks from all clients, each again when it has its answer.
func (d *limiterRun) decide(t *testing.T, length time.Duration) {
	began := time.Now()
	took, _ := press(t, d.Clients, during(length), func(int, int) error {
		return d.limiter.mustAllow(t.Context(), "idle-"+itoa(decisions.Add(1)), time.Minute, 100)
	})
	d.add("rate", float64(len(took))/time.Since(began).Seconds())
	d.took = append(d.took, took...)
}

func (l limiter) mustAllow(ctx context.Context, key string, window time.Duration, most int64) error {
	allowed, err := l.take(ctx, key, window, most)
	if err == nil && !allowed {
		err = errDecision
	}
	return err
}

// limiterMemory is how many bytes of Redis a key of a limiter takes that is full: its figures are named for
// its max.
type limiterMemory struct {
	sample
	limiter limiter
}

var limitSizes = []int64{100, 10_000}

// measureLimitMemory fills keys to their max, evenly over a window, and asks Redis how many bytes each takes.
// All limiters fill theirs at the same time.
func measureLimitMemory(t *testing.T, r *rig, o options) (all []*limiterMemory) {
	const window = 20 * time.Second
	for _, l := range r.limiters(t) {
		if l.put == nil {
			l.put = l.take
		}
		all = append(all, &limiterMemory{sample{part: "limits/memory", name: l.name}, l})
	}
	if all = chosen(o, all...); len(all) == 0 {
		return nil
	}
	for _, most := range limitSizes {
		subtest(t, fmt.Sprintf("limits/memory/max=%d", most), func(t *testing.T) {
			r.empty(t)
			began := time.Now()
			keys := max(2, 10_000/most)
			var clients sync.WaitGroup
			for _, l := range all {
				clients.Go(func() {
					for hit := range most {
						// The last one comes before the first one leaves.
						time.Sleep(time.Until(began.Add(window * 8 / 10 * time.Duration(hit) / time.Duration(most))))
						for k := range keys {
							allowed, err := l.limiter.put(t.Context(), fmt.Sprintf("m-%03d", k), window, most)
							if err != nil || !allowed {
								t.Errorf("%s, hit %d: %v %v", l.name, hit, allowed, err)
								return
							}
						}
					}
				})
			}
			clients.Wait()
			if took := time.Since(began); took > window {
				t.Fatalf("the keys took %v to fill: the first hits have left", took)
			}
			for _, l := range all {
				l.add(fmt.Sprint(most), r.bytesOf(t, l.limiter.keys, keys))
				l.print(0, nil)
			}
		})
	}
	return all
}

// bytesOf is the mean size of keys, whose number is known.
func (r *rig) bytesOf(t *testing.T, pattern string, keys int64) float64 {
	t.Helper()
	found := stack.Scan(t, r.rdb, pattern)
	require.Len(t, found, int(keys), pattern)
	sum := int64(0)
	for _, key := range found {
		n, err := r.rdb.MemoryUsage(t.Context(), key, 0).Result()
		require.NoError(t, err)
		sum += n
	}
	return float64(sum) / float64(keys)
}

// Every limiter allows as many as its max, and then no more.
func checkLimiters(t *testing.T, r *rig) {
	const most, clients = 40, 8
	for _, l := range r.limiters(t)[1:] { // the first one is no limit
		var allowed atomic.Int64
		press(t, clients, func(n int) bool { return n < most }, func(int, int) error {
			ok, err := l.take(t.Context(), "smoke", time.Hour, most)
			if ok {
				allowed.Add(1)
			}
			return err
		})
		got := allowed.Load()
		if got < most || l.exact && got > most || got > most+clients {
			t.Errorf("%s: %d hits were allowed, not %d", l.name, got, most)
		}
	}
	o := options{runs: 1, scale: 0.001, only: regexp.MustCompile("^limits/idle/")}
	tables := view{"Limits": measureLimits(t, r, o), "Occupied": measureLimitMemory(t, r, o)}.tables(t, o)
	for _, clients := range []string{"\n| 1 | ", "\n| 50 | "} {
		require.Equal(t, len(r.limiters(t)), strings.Count(tables, clients))
	}
	require.NotContains(t, tables, "MEMORY USAGE")
}
