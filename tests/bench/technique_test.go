package bench_test

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

//go:embed testdata/*.lua
var luaFiles embed.FS

// script is a script of testdata.
func script(name string) *redis.Script {
	text, err := luaFiles.ReadFile("testdata/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	return redis.NewScript(string(text))
}

// aHit is one hit as the techniques see it.
type aHit struct {
	counter string
	at      int64 // Unix milliseconds
	n       int64
}

// technique is one way in which articles count hits in a moving window on Redis.
type technique struct {
	name   string
	window time.Duration
	// single: one command, and one member or entry in memory, for each hit,
	// whatever its n; the others add n.
	single bool

	// asWritten does for one hit what the article's code does for it, with as
	// many round trips, the answer included.
	asWritten func(ctx context.Context, c *redis.Client, h aHit) error
	// count sends only what counting one hit needs. In a pipeline that is the technique at its best.
	count func(ctx context.Context, c redis.Cmdable, h aHit) error
	// total is the counter's answer at a moment of the window's end.
	total func(ctx context.Context, c *redis.Client, counter string, now int64) (int64, error)
	// scripts are loaded before anything is counted.
	scripts []*redis.Script
}

const (
	second, minute, hour = int64(1000), int64(60_000), int64(3_600_000) // milliseconds

	day = 24 * time.Hour
)

var techniques = []*technique{&sortedSetIncr, &sortedSetRandom, &hourKeys, &hashPerGranularity, &redisStream}

var zsetCount, zsetCountAndAnswer = script("zset-count"), script("zset-count-and-answer")

// A sorted set for a counter, one member for each hit, its score the time. Members come from a second key
// that counts.
var sortedSetIncr = technique{
	name: "sorted set, members from INCR", window: day, single: true,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		return zsetRun(ctx, c, zsetCountAndAnswer, h)
	},
	count:   func(ctx context.Context, c redis.Cmdable, h aHit) error { return zsetRun(ctx, c, zsetCount, h) },
	total:   zsetTotal,
	scripts: []*redis.Script{zsetCount, zsetCountAndAnswer},
}

func zsetRun(ctx context.Context, c redis.Cmdable, script *redis.Script, h aHit) error {
	return script.EvalSha(ctx, c, []string{"z:" + h.counter, "zi:" + h.counter}, h.at, h.at-day.Milliseconds()).Err()
}

// Random members, and a set that expires; a round trip for each hit.
var sortedSetRandom = technique{
	name: "sorted set, random members", window: day, single: true,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			err := zsetAdd(ctx, p, h)
			p.ZCard(ctx, "z:"+h.counter)
			return err
		})
		return err
	},
	count: zsetAdd,
	total: zsetTotal,
}

func zsetAdd(ctx context.Context, c redis.Cmdable, h aHit) error {
	key := "z:" + h.counter
	return errors.Join(
		c.ZAdd(ctx, key, redis.Z{Score: float64(h.at), Member: member()}).Err(),
		c.ZRemRangeByScore(ctx, key, "0", itoa(h.at-day.Milliseconds())).Err(),
		c.Expire(ctx, key, day+time.Second).Err())
}

func zsetTotal(ctx context.Context, c *redis.Client, counter string, now int64) (int64, error) {
	return c.ZCount(ctx, "z:"+counter, "("+itoa(now-day.Milliseconds()), "+inf").Result()
}

var hoursCountAndAnswer = script("hours-count-and-answer")

// A number for each hour of a day: 25 keys used in turn. Each expires 24 hours after its last hit, so the one
// to come has gone by then.
var hourKeys = technique{
	name: "25 hour keys in turn", window: day,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		return hoursCountAndAnswer.EvalSha(ctx, c, []string{"k:" + h.counter + ":"}, h.at/hour%25).Err()
	},
	count: func(ctx context.Context, c redis.Cmdable, h aHit) error {
		key := hourKey(h.counter, h.at/hour)
		return errors.Join(c.IncrBy(ctx, key, h.n).Err(), c.Expire(ctx, key, day).Err())
	},
	total: func(ctx context.Context, c *redis.Client, counter string, now int64) (int64, error) {
		keys := make([]string, 24)
		for i := range keys {
			keys[i] = hourKey(counter, now/hour-int64(i))
		}
		values, err := c.MGet(ctx, keys...).Result()
		return sumNumbers(values, err)
	},
	scripts: []*redis.Script{hoursCountAndAnswer},
}

func hourKey(counter string, h int64) string { return "k:" + counter + ":" + itoa(h%25) }

// A hash for each granularity, its key the time rounded down to its span: an
// hour of seconds, a day of minutes, a week of hours; each kept for two spans.
var hashPerGranularity = technique{
	name: "hash per granularity (s, min, h)", window: 7 * day,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error { return countGranularities(ctx, c, h, 0) },
	count:     func(ctx context.Context, c redis.Cmdable, h aHit) error { return countGranularities(ctx, c, h, 0) },
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
	key = h.counter + ":stats:" + g.name + ":" + itoa(begin/1000)
	return key, itoa(h.at / g.cell * g.cell / 1000), time.UnixMilli(begin + 2*span)
}

// countGranularities counts a hit in the hashes that are alive at a moment.
func countGranularities(ctx context.Context, c redis.Cmdable, h aHit, now int64) (err error) {
	for _, g := range granularities {
		if key, field, expiry := g.place(h); expiry.UnixMilli() > now {
			err = errors.Join(err, c.HIncrBy(ctx, key, field, h.n).Err(), c.ExpireAt(ctx, key, expiry).Err())
		}
	}
	return err
}

var streamAnswerAndCount = script("stream-answer-and-count")

// A Redis stream for a counter, an entry for each hit, trimmed by the smallest
// id of the window. As written, a script also adds up the window's entries, to
// decide before it counts; Redis's own clock gives the ids. At its best the ids
// come from the hits and nothing is added up.
var redisStream = technique{
	name: "Redis stream", window: day, single: true,
	asWritten: func(ctx context.Context, c *redis.Client, h aHit) error {
		return streamAnswerAndCount.EvalSha(ctx, c, []string{"s:" + h.counter}, day.Milliseconds(), h.n).Err()
	},
	count: func(ctx context.Context, c redis.Cmdable, h aHit) error {
		key := "s:" + h.counter
		entry := c.XAdd(ctx, &redis.XAddArgs{
			Stream: key, MinID: itoa(h.at - day.Milliseconds()), Approx: true,
			ID: itoa(h.at) + "-*", Values: []any{"count", h.n},
		})
		return errors.Join(entry.Err(), c.Expire(ctx, key, day).Err())
	},
	total: func(ctx context.Context, c *redis.Client, counter string, now int64) (int64, error) {
		entries, err := c.XRange(ctx, "s:"+counter, itoa(now-day.Milliseconds()), "+").Result()
		var counts []any
		for _, e := range entries {
			counts = append(counts, e.Values["count"])
		}
		return sumNumbers(counts, err)
	},
	scripts: []*redis.Script{streamAnswerAndCount},
}

// load puts the technique's scripts into Redis.
func (t *technique) load(tb testing.TB, c *redis.Client) {
	tb.Helper()
	for _, s := range t.scripts {
		require.NoError(tb, s.Load(tb.Context(), c).Err(), t.name)
	}
}

// pipeline counts hits by a technique, size of them in each round trip.
type pipeline struct {
	redis.Pipeliner
	size, hits int
}

func newPipeline(c *redis.Client, size int) *pipeline {
	return &pipeline{Pipeliner: c.Pipeline(), size: size}
}

func (p *pipeline) count(ctx context.Context, t *technique, h aHit) error {
	if err := t.count(ctx, p, h); err != nil {
		return err
	}
	if p.hits++; p.hits < p.size {
		return nil
	}
	return p.flush(ctx)
}

func (p *pipeline) flush(ctx context.Context) error {
	p.hits = 0
	_, err := p.Exec(ctx)
	return err
}

// member is a random name for a hit, of a UUID's length.
func member() string {
	return fmt.Sprintf("%016x-%08x-%08x--", rand.Uint64(), rand.Uint32(), rand.Uint32())
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// sumNumbers adds numbers of Redis, of which some may be missing.
func sumNumbers(values []any, err error) (sum int64, _ error) {
	for _, value := range values {
		if text, ok := value.(string); ok {
			n, wrong := strconv.ParseInt(text, 10, 64)
			sum, err = sum+n, errors.Join(err, wrong)
		}
	}
	return sum, err
}

// sumFields adds the fields of a hash whose names, as numbers, are at least from.
func sumFields(fields map[string]string, from int64) (sum int64, old []string, err error) {
	for name, value := range fields {
		at, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			return 0, nil, err
		}
		if at < from {
			old = append(old, name)
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, nil, err
		}
		sum += n
	}
	return sum, old, nil
}
