package limit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit/cells"
	"tallyroll/tests/stack"
)

// BenchmarkDecision decides about one hit, and compares that with a bare INCR of the same client (tests/bench
// compares it with other limiters). p50-µs and p99-µs are what a caller waits, and redis-µs is the time
// inside Redis, by Redis's own account.
//
// On a small virtual machine a round trip can take three times as long as a minute before. So each client
// sends an INCR after every decision. ×INCR is the ratio of the medians, if there is but one client. ns/op is
// the decision's mean, without that INCR; B/op and allocs/op are with it.
//
//	new      every hit has a key of its own
//	hot      all hits have the same key, with a window of a second, and are allowed
//	holds    the window of a minute holds as many hits, spread over it, and more are allowed
//	refused  the same, and Redis refuses
//	memory   the same, and memory refuses
//	local    Redis is away, and the ring in this process decides
//	named    the limit has a name; 1,000 keys
//	id       the same, and every take has an id, which takes 200 to 250 bytes of Redis for ten minutes
//	twice    two takes under it
//	settle   a take with an id, which is settled with another number
func BenchmarkDecision(b *testing.B) {
	client := stack.ProgramClient(b, stack.Redis(b).URL())
	for _, clients := range []int{1, 50} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			r := benchRun{client: client, clients: clients}
			r.reference(b)
			for _, policy := range Policies() {
				r.policy(b, policy)
			}
			r.named(b)
			r.withoutServer(b)
		})
	}
}

// benchRun is what benchmarks of so many clients share.
type benchRun struct {
	client  redis.UniversalClient
	clients int
}

// reference is what a decision is compared with.
func (r benchRun) reference(b *testing.B) {
	b.Run("INCR/new", func(b *testing.B) {
		r.loop(b, "incr", func(i int64) error {
			return r.client.Incr(b.Context(), "bench:"+strconv.FormatInt(i, 10)).Err()
		})
	})
}

// policy measures the decisions of a policy that Redis takes, and those that memory does.
func (r benchRun) policy(b *testing.B, policy Policy) {
	l := New(r.client, "bench", time.Minute)
	name := string(policy)
	b.Run(name+"/new", func(b *testing.B) {
		limit := adhoc(b, time.Minute, 100, policy)
		r.loop(b, "evalsha", func(i int64) error { return l.benchTake(limit, strconv.FormatInt(i, 10), true) })
	})
	b.Run(name+"/hot", func(b *testing.B) {
		limit := adhoc(b, time.Second, MaxExactHits, policy)
		r.loop(b, "evalsha", func(int64) error { return l.benchTake(limit, "hot", true) })
	})
	for _, hits := range []int64{100, 10_000} {
		// The hits of the benchmark itself are spread over many keys, so that a window still holds about as many.
		keys := max(16, 100_000/hits)
		b.Run(fmt.Sprintf("%s/holds=%d", name, hits), func(b *testing.B) {
			limit := adhoc(b, time.Minute, MaxExactHits, policy)
			r.fill(b, l, limit, keys, hits)
			r.loop(b, "evalsha", func(i int64) error { return l.benchTake(limit, strconv.FormatInt(i%keys, 10), true) })
		})
		full := adhoc(b, time.Minute, hits/2, policy)
		b.Run(fmt.Sprintf("%s/refused=%d", name, hits), func(b *testing.B) {
			r.fill(b, l, full, 1, hits)
			key := l.key(&Take{Limit: full, Caller: "0", Key: "0", N: 1})
			r.loop(b, "evalsha", func(int64) error {
				l.refusals.forget(key)
				return l.benchTake(full, "0", false)
			})
		})
	}
	b.Run(name+"/memory", func(b *testing.B) {
		full := adhoc(b, time.Minute, 50, policy)
		r.fill(b, l, full, 1, 100)
		r.loop(b, "evalsha", func(int64) error { return l.benchTake(full, "0", false) })
	})
}

// named measures takes under named limits, with ids and without, and settlements.
func (r benchRun) named(b *testing.B) {
	l := New(r.client, "bench", time.Minute)
	for _, policy := range Policies() {
		limit := &Limit{Name: "named", Window: time.Minute, Max: MaxExactHits, Policy: policy}
		take := func(i int64, id string) error {
			t := takeOf(limit, strconv.FormatInt(i%1000, 10), 1)
			t.ID = id
			answer, err := l.Take(context.Background(), []Take{t})
			if err == nil && !answer.Allowed {
				err = errors.New("refused")
			}
			return err
		}
		name := string(policy)
		b.Run(name+"/named", func(b *testing.B) { r.loop(b, "evalsha", func(i int64) error { return take(i, "") }) })
		b.Run(name+"/id", func(b *testing.B) {
			r.loop(b, "evalsha", func(i int64) error { return take(i, strconv.FormatInt(i, 36)) })
		})
		b.Run(name+"/twice", func(b *testing.B) {
			r.loop(b, "evalsha", func(i int64) error { return errors.Join(take(i, ""), take(i, "")) })
		})
		if policy == Stream {
			continue // cannot be settled
		}
		b.Run(name+"/settle", func(b *testing.B) {
			r.loop(b, "evalsha", func(i int64) error {
				id := strconv.FormatInt(i, 36)
				t := takeOf(limit, strconv.FormatInt(i%1000, 10), 1)
				t.ID, t.N = id, 0
				return errors.Join(take(i, id), errOf(l.Settle(context.Background(), []Take{t})))
			})
		})
	}
}

// withoutServer measures the ring that decides while Redis is away. After three failures in a row the limiter
// asks Redis four times a second; a refused connection is what it then waits for.
func (r benchRun) withoutServer(b *testing.B) {
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer away.Close()
	l := New(away, "bench", time.Minute)
	b.Run("local/hot", func(b *testing.B) {
		limit := adhoc(b, time.Second, MaxHits, Cells)
		r.loop(b, "", func(int64) error { return l.benchTake(limit, "hot", true) })
	})
}

// loop calls do from all clients and reports what they waited, and what the command took inside Redis.
func (r benchRun) loop(b *testing.B, command string, do func(i int64) error) {
	ctx := context.Background()
	require.NoError(b, r.client.(*redis.Client).ConfigResetStat(ctx).Err())
	var mu sync.Mutex
	var decisions, increments []time.Duration
	client := func(next func() bool) {
		var mine, beside []time.Duration
		for next() {
			began := time.Now()
			err := do(benchCount.Add(1))
			decided := time.Now()
			if err := errors.Join(err, r.client.Incr(ctx, "bench:beside").Err()); err != nil {
				b.Error(err)
				return
			}
			mine, beside = append(mine, decided.Sub(began)), append(beside, time.Since(decided))
		}
		mu.Lock()
		defer mu.Unlock()
		decisions, increments = append(decisions, mine...), append(increments, beside...)
	}
	b.ReportAllocs()
	if r.clients == 1 {
		client(b.Loop)
	} else {
		b.SetParallelism(max(1, r.clients/runtime.GOMAXPROCS(0)))
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) { client(pb.Next) })
	}
	b.StopTimer()
	if b.Failed() {
		return
	}
	sum := time.Duration(0)
	for _, d := range decisions {
		sum += d
	}
	slices.Sort(decisions)
	slices.Sort(increments)
	at := func(all []time.Duration, percent int) float64 {
		return float64(all[len(all)*percent/100].Nanoseconds()) / 1000
	}
	b.ReportMetric(float64(sum.Nanoseconds())/float64(len(decisions)), "ns/op")
	b.ReportMetric(at(decisions, 50), "p50-µs")
	b.ReportMetric(at(decisions, 99), "p99-µs")
	if r.clients == 1 { // otherwise both wait in the same queue
		b.ReportMetric(at(decisions, 50)/at(increments, 50), "×INCR")
	}
	if micros := benchUsec(b, r.client, command); micros > 0 {
		b.ReportMetric(micros, "redis-µs")
	}
}

// benchCount numbers all decisions, so that no key of a benchmark is one of an earlier round's.
var benchCount atomic.Int64

// benchUsec is how long a call of the command takes inside Redis, on average.
func benchUsec(b *testing.B, client redis.UniversalClient, command string) float64 {
	info, err := client.Info(context.Background(), "commandstats").Result()
	require.NoError(b, err)
	_, rest, found := strings.Cut(info, "cmdstat_"+command+":")
	if !found {
		return 0
	}
	_, rest, _ = strings.Cut(rest, "usec_per_call=")
	text, _, _ := strings.Cut(rest, ",")
	micros, err := strconv.ParseFloat(text, 64)
	require.NoError(b, err)
	return micros
}

func (l *Limiter) benchTake(limit *Limit, key string, want bool) error {
	answer, err := l.Take(context.Background(), []Take{takeOf(limit, key, 1)})
	if err == nil && answer.Allowed != want {
		err = fmt.Errorf("allowed: %v", answer.Allowed)
	}
	return err
}

// fill writes keys whose windows hold hits, the newest now and the oldest at the window's beginning. The
// takes of a benchmark would all be of one moment.
func (r benchRun) fill(b *testing.B, l *Limiter, limit *Limit, keys, hits int64) {
	ctx := context.Background()
	now := time.Now().UnixMilli()
	length := limit.Window.Milliseconds()
	for k := range keys {
		take := takeOf(limit, strconv.FormatInt(k, 10), 1)
		key := l.key(&take)
		pipe := r.client.Pipeline()
		pipe.Del(ctx, key)
		size := (length + cells.PerWindow - 1) / cells.PerWindow
		for i := range hits {
			at := now - length + (i+1)*length/hits
			switch limit.Policy {
			case Cells:
				pipe.HIncrBy(ctx, key, strconv.FormatInt(at/size%cells.Count, 10), 1)
			case Log:
				pipe.ZAdd(ctx, key, redis.Z{Score: float64(at), Member: 1_000_000_000_000_000 + i})
			case Stream:
				pipe.XAdd(ctx, &redis.XAddArgs{Stream: key, ID: fmt.Sprintf("%d-%d", at, i), Values: []any{"n", 1, "c", i + 1}})
			}
		}
		switch limit.Policy {
		case Cells:
			pipe.HSet(ctx, key, "t", now, "s", hits)
		case Fixed:
			number, _ := limit.turn(time.UnixMilli(now))
			pipe.HSet(ctx, key, "p", number, "n", hits)
		}
		pipe.PExpire(ctx, key, limit.Window)
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		answer, err := l.Look(ctx, []Take{take})
		require.NoError(b, err)
		if upper := answer.Decisions[0].Upper; upper < hits*9/10 || upper > hits {
			b.Fatalf("the window of %s holds %d hits, not %d", key, upper, hits)
		}
	}
}
