package counts_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/counts"
	"tallyroll/tests/stack"
)

// counted is how many hits counters must have. Their names are those of the limit's count.
type counted map[string]int64

// player takes for one case, under limits of its own.
type player struct {
	t       *testing.T
	name    string // of the case's limits
	limiter *limit.Limiter
	redis   *stack.RedisServer
	counts  *counts.Counts
}

// connect returns a limiter of another Redis.
func (p *player) connect(url string) *limit.Limiter {
	out := limit.New(stack.ProgramClient(p.t, url), "counts", stack.Hung)
	out.Counted = p.counts.Add
	return out
}

// asking counts the commands that are on their way to Redis.
type asking struct{ asked *atomic.Int64 }

func (a asking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a asking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.asked.Add(1)
		return next(ctx, cmd)
	}
}

func (a asking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		a.asked.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// bothOf are a counter per key, and their sum.
func bothOf(kind string) limit.CounterNames {
	return limit.CounterNames{limit.CounterName(kind + ".{limit}.{key}"), limit.CounterName("sum." + kind + ".{limit}")}
}

// limit returns a limit of the case that counts everything. A name distinguishes several.
func (p *player) limit(name string, most int64, change ...func(*limit.Limit)) *limit.Limit {
	if name != "" {
		name = "." + name
	}
	l := &limit.Limit{Name: p.name + name, Window: time.Hour, Max: most, Count: limit.Count{
		Allowed: bothOf("allowed"), Refused: bothOf("refused"), Returned: bothOf("returned"), WouldRefuse: bothOf("would_refuse"),
	}}
	for _, do := range change {
		do(l)
	}
	require.NoError(p.t, l.Check())
	return l
}

func unlimited(l *limit.Limit) { l.Unlimited = true }

func nearly(l *limit.Limit) { l.Count.Nearly, l.Count.At = bothOf("nearly"), 80_00 }

func shadow(l *limit.Limit) { l.Mode = limit.Shadow }

func failing(how limit.Fail) func(*limit.Limit) { return func(l *limit.Limit) { l.Fail = how } }

// take takes hits, and requires the answer and where it comes from.
func (p *player) take(allowed bool, source limit.Source, takes ...limit.Take) {
	p.t.Helper()
	for i := range takes {
		takes[i].Caller, takes[i].Key = takes[i].Key+"k", takes[i].Key+"k"
	}
	a, err := p.limiter.Take(context.Background(), takes)
	require.NoError(p.t, err)
	require.Equal(p.t, allowed, a.Allowed)
	require.Equal(p.t, source, a.Decisive().Source)
}

func (p *player) settle(l *limit.Limit, n int64) {
	p.t.Helper()
	a, err := p.limiter.Settle(context.Background(), []limit.Take{{Limit: l, Caller: "k", Key: "k", ID: "id", N: n}})
	require.NoError(p.t, err)
	require.Equal(p.t, n, *a.Decisions[0].Settled)
}

const (
	fromRedis  = limit.SourceRedis
	fromMemory = limit.SourceMemory
	withoutOne = limit.SourceLocal
)

func take(l *limit.Limit, n int64) limit.Take { return limit.Take{Limit: l, N: n} }

func withID(l *limit.Limit, n int64) limit.Take { return limit.Take{Limit: l, N: n, ID: "id"} }

func withTTL(l *limit.Limit, n int64) limit.Take {
	return limit.Take{Limit: l, N: n, ID: "id", TTL: time.Minute}
}

// cases are the rows of the table in docs/limits-counters.md, by what their first column says.
var cases = []struct {
	name string
	do   func(p *player)
	want counted // by the kind of counter, and the limit's own name, if it has one
}{
	{"a take is allowed", func(p *player) {
		p.take(true, fromRedis, take(p.limit("", 5), 3))
	}, counted{"allowed": 3}},
	{"a take is refused, also from memory", func(p *player) {
		l := p.limit("", 5)
		p.take(true, fromRedis, take(l, 4))
		p.take(false, fromRedis, take(l, 2))
		p.take(false, fromMemory, take(l, 3))
	}, counted{"allowed": 4, "refused": 5}},
	{"`n` is 0, or a check without counting", func(p *player) {
		l := p.limit("", 5)
		p.take(true, fromRedis, take(l, 0))
		_, err := p.limiter.Look(context.Background(), []limit.Take{{Limit: l, Caller: "k", Key: "k", N: 5}})
		require.NoError(p.t, err)
	}, counted{}},
	{"a take with an `id` is repeated", func(p *player) {
		l := p.limit("", 5)
		p.take(true, fromRedis, withID(l, 3))
		p.take(true, fromRedis, withID(l, 3))
	}, counted{"allowed": 3}},
	{"a take with an `id` is settled, and said no `ttl`", func(p *player) {
		l, more := p.limit("less", 500), p.limit("more", 500)
		p.take(true, fromRedis, withID(l, 30), withID(more, 30))
		p.settle(l, 10)
		p.settle(more, 40)
		p.settle(more, 40)
	}, counted{"allowed.less": 30, "returned.less": 20, "allowed.more": 40}},
	{"a take with a `ttl` is allowed, or never settled", func(p *player) {
		l := p.limit("", 50)
		p.take(true, fromRedis, withTTL(l, 30))
		p.take(true, fromRedis, withTTL(l, 30))
	}, counted{}},
	{"a take with a `ttl` is settled", func(p *player) {
		l, cancelled := p.limit("", 50), p.limit("cancelled", 50)
		p.take(true, fromRedis, withTTL(l, 30), withTTL(cancelled, 30))
		p.settle(l, 70)
		p.settle(cancelled, 0)
	}, counted{"allowed": 70}},
	{"it is settled again", func(p *player) {
		l, less := p.limit("more", 50), p.limit("less", 50)
		p.take(true, fromRedis, withTTL(l, 30), withTTL(less, 30))
		for _, n := range []int64{10, 25, 25} {
			p.settle(l, n)
			p.settle(less, 50-n)
		}
		p.take(true, fromRedis, withTTL(l, 30))
	}, counted{"allowed.more": 25, "allowed.less": 40, "returned.less": 15}},
	{"hits are given back", func(p *player) {
		l, more := p.limit("", 5), p.limit("more", 5)
		p.take(true, fromRedis, take(l, 3), take(more, 3))
		p.take(true, fromRedis, withID(l, -2), take(more, -5))
		p.take(true, fromRedis, withID(l, -2), take(more, -5))
	}, counted{"allowed": 3, "returned": 2, "allowed.more": 3, "returned.more": 3}},
	{"one of several limits refuses", func(p *player) {
		l, full := p.limit("", 5), p.limit("full", 2)
		p.take(true, fromRedis, take(full, 2))
		p.take(false, fromRedis, take(l, 3), take(full, 1))
		p.take(false, fromMemory, take(l, 3), take(full, 1))
		p.take(false, fromMemory, take(p.limit("all", 0, unlimited), 3), take(full, 1))
	}, counted{"allowed.full": 2, "refused.full": 3}},
	{"it refuses after others have counted, on a cluster", func(p *player) {
		p.limiter = p.connect(stack.Cluster(p.t, 0).URL())
		l, full := p.limit("", 5), p.limit("full", 2)
		p.take(true, fromRedis, limit.Take{Limit: full, Key: "other", N: 2})
		p.take(false, fromRedis, take(l, 3), limit.Take{Limit: full, Key: "other", N: 1})
	}, counted{"allowed.full": 2, "refused.full": 1}},
	{"a limit in shadow mode", func(p *player) {
		l, full := p.limit("", 2, shadow), p.limit("full", 1)
		p.take(true, fromRedis, take(l, 2))
		p.take(true, fromRedis, take(l, 1))
		p.take(true, fromMemory, take(l, 2))
		p.take(true, fromRedis, take(full, 1), take(l, 1))
		p.take(false, fromRedis, take(full, 1), take(l, 1))
	}, counted{"allowed": 2, "would_refuse": 5, "allowed.full": 1, "refused.full": 1}},
	{"a limit with a `share`", func(p *player) {
		l := p.limit("", 1000, func(l *limit.Limit) { l.Share = limit.Share{Hits: 100, For: time.Minute} })
		p.take(true, fromRedis, take(l, 1))
		p.take(true, fromRedis, take(l, 1)) // acquires a share
		p.take(true, limit.SourceShare, take(l, 1))
	}, counted{"allowed": 3}},
	{"more than `at` of `max` is used after a take", func(p *player) {
		l, waiting, settled := p.limit("", 10, nearly), p.limit("waiting", 10, nearly), p.limit("settled", 10, nearly)
		p.take(true, fromRedis, take(l, 8))
		p.take(true, fromRedis, take(l, 1))
		p.take(false, fromRedis, take(l, 2))
		p.take(false, fromMemory, take(l, 2))
		p.take(true, fromRedis, take(l, -1), take(waiting, 0))
		p.take(true, fromRedis, withTTL(waiting, 9), withID(settled, 5))
		p.settle(settled, 9)
		p.settle(settled, 3)
	}, counted{"allowed": 9, "refused": 4, "returned": 1, "nearly": 3, "nearly.waiting": 1, "allowed.settled": 9,
		"returned.settled": 6, "nearly.settled": 1}},
	{"`max: 0` and `unlimited`", func(p *player) {
		zero, all := p.limit("zero", 0), p.limit("all", 0, unlimited)
		p.take(false, fromMemory, take(zero, 4))
		p.take(true, fromMemory, take(all, 7))
		p.take(true, fromMemory, take(all, -2))
		p.take(true, fromMemory, withTTL(all, 30))
		p.settle(all, 3)
		p.settle(all, 3)
	}, counted{"refused.zero": 4, "allowed.all": 13, "returned.all": 2}},
	{"slots of `concurrent`", func(p *player) {
		l := p.limit("", 1, func(l *limit.Limit) { l.Policy = limit.Concurrent })
		p.take(true, fromRedis, limit.Take{Limit: l, N: 1, Lease: "a"})
		p.take(true, fromRedis, limit.Take{Limit: l, N: 1, Lease: "a"})
		p.take(false, fromRedis, limit.Take{Limit: l, N: 1, Lease: "b"})
		held, err := p.limiter.Release(context.Background(), limit.Take{Limit: l, Caller: "k", Key: "k", Lease: "a"})
		require.True(p.t, held && err == nil)
	}, counted{"allowed": 1, "refused": 1}},
	{"the client has gone before the answer", func(p *player) {
		client := stack.ProgramClient(p.t, p.redis.URL())
		var asked atomic.Int64
		client.AddHook(asking{&asked})
		p.limiter = limit.New(client, "counts", stack.Hung)
		p.limiter.Counted = p.counts.Add
		l := p.limit("", 100)
		p.take(true, fromRedis, withID(l, 1)) // Redis has the script
		asked.Store(0)
		p.redis.Pause()
		ctx, leave := context.WithCancel(context.Background())
		var gone sync.WaitGroup
		for i := range 20 { // of which most share a round trip
			gone.Go(func() {
				_, _ = p.limiter.Take(ctx, []limit.Take{{Limit: l, Caller: "k", Key: "k", N: 1, ID: fmt.Sprint(i)}})
			})
		}
		stack.Eventually(p.t, "Redis to be asked", func() (bool, string) { return asked.Load() >= 20, fmt.Sprint(asked.Load()) })
		leave()
		p.redis.Resume()
		gone.Wait()
		for i := range 20 {
			p.take(true, fromRedis, limit.Take{Limit: l, N: 1, ID: fmt.Sprint(i)})
		}
	}, counted{"allowed": 21}},
	{"without Redis", func(p *player) {
		p.limiter = p.connect("redis://127.0.0.1:1/0")
		local, open := p.limit("local", 3), p.limit("open", 3, failing(limit.FailOpen))
		p.take(true, withoutOne, take(local, 2))
		p.take(false, withoutOne, take(local, 2))
		p.take(true, withoutOne, take(local, -1))
		p.take(true, withoutOne, take(open, 2))
		p.take(true, withoutOne, withTTL(open, 2))
		_, err := p.limiter.Take(context.Background(), []limit.Take{{Limit: p.limit("closed", 3, failing(limit.FailClosed)), Key: "k", N: 1}})
		require.Error(p.t, err)
	}, counted{"allowed.local": 2, "refused.local": 2, "returned.local": 1, "allowed.open": 2}},
}
