package bench_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// figures are what one run measured: hits and counters, hits per second (rate), microseconds of processor per
// hit (worker, redis, broker), commands of Redis per hit, bytes per counter, and the workers' memory (MiB).
// In the comparison with Postgres, what is Redis's is the database's.
type figures map[string]float64

// begin starts the clocks, and returns what ends them. database is the clock of the server that is counted
// into, and leaveOut are commands that are not the candidate's.
func (r *rig) begin(t testing.TB, database clock, workers ...int) (end func(hits int, leaveOut ...string) figures) {
	t.Helper()
	r.resetStats(t)
	clocks := map[string]clock{
		"worker": cpuSince(t, workers...), "redis": database.start(), "broker": cpuSince(t, r.nats.PID()),
	}
	began := time.Now()
	return func(hits int, leaveOut ...string) figures {
		t.Helper()
		n := float64(hits)
		f := figures{"hits": n, "rate": n / time.Since(began).Seconds()}
		for name, seconds := range clocks {
			f[name] = seconds() * 1e6 / n
		}
		f["commands"] = float64(r.commands(t, leaveOut)) / n
		f["MiB"] = peakMiB(t, workers...)
		return f
	}
}

// addCounters adds what each takes, if there are enough of them.
func (f figures) addCounters(counters int, bytes int64) figures {
	f["counters"] = float64(counters)
	if counters >= 1000 {
		f["bytes"] = float64(bytes) / float64(counters)
	}
	return f
}

func (r *rig) redisCPU(t testing.TB) clock { return cpuOf(t, r.redis.PID()) }

// ceiling reads a stream and only counts messages: nothing that reads every
// message can be faster.
func (r *rig) ceiling(t testing.TB, s *stored) figures {
	t.Helper()
	end := r.begin(t, r.redisCPU(t), os.Getpid())
	messages, err := r.readAll(t.Context(), s, func(jetstream.Msg) (bool, error) { return true, nil })
	if err != nil || messages != int(s.last) {
		t.Fatalf("%d of %d messages: %v", messages, s.last, err)
	}
	return end(s.hits, observers...)
}

// technique counts a stream of one-hit messages by a technique, for box at the
// most. batch is how many hits share a round trip; 0 is the technique as written.
func (r *rig) technique(t testing.TB, s *stored, tech *technique, batch int, box time.Duration) figures {
	t.Helper()
	r.empty(t)
	ctx := t.Context()
	tech.load(t, r.rdb)
	count := func(h aHit) error { return tech.asWritten(ctx, r.rdb, h) }
	pipe := newPipeline(r.rdb, batch)
	if batch > 0 {
		count = func(h aHit) error { return pipe.count(ctx, tech, h) }
	}
	counters := map[string]struct{}{}
	bytes := r.dataBytes(t)
	began, end := time.Now(), r.begin(t, r.redisCPU(t), os.Getpid())
	n := 0
	_, err := r.readAll(ctx, s, func(m jetstream.Msg) (bool, error) {
		meta, err := m.Metadata()
		if err != nil {
			return false, err
		}
		_, counter, _ := strings.Cut(m.Subject(), ".")
		counters[counter] = struct{}{}
		if err := count(aHit{counter, meta.Timestamp.UnixMilli(), 1}); err != nil {
			return false, err
		}
		n++
		return n%64 != 0 || time.Since(began) < box, nil
	})
	require.NoErrorf(t, errors.Join(err, pipe.flush(ctx)), "%s", tech.name)
	return end(n, "info").addCounters(len(counters), r.dataBytes(t)-bytes)
}

const namespace = "bench"

// hung is longer than any run takes.
const hung = 10 * time.Minute

// awaitCounted checks every so often until all is counted. A check must not cost much, because it shares the
// machine with what it waits for. The workers must not end meanwhile.
func awaitCounted(
	t testing.TB, every time.Duration, what string, done func() (bool, error), workers ...*stack.Service,
) {
	t.Helper()
	for deadline := time.Now().Add(hung); ; time.Sleep(every) {
		ok, err := done()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		if ok {
			return
		}
		for _, w := range workers {
			if !w.Running() {
				t.Fatalf("waiting for %s: a worker has ended", what)
			}
		}
	}
}

// allOf reports whether all hits are counted. More is a mistake.
func allOf(hits, counted int, err error) (bool, error) {
	if err == nil && counted > hits {
		err = fmt.Errorf("%d hits counted, %d stored", counted, hits)
	}
	return counted == hits, err
}

// startIngest starts a worker that counts streams.
func (r *rig) startIngest(t testing.TB, streams string, env ...string) *stack.Service {
	t.Helper()
	env = append([]string{"TALLYROLL_NAMESPACE=" + namespace, "INGEST_STREAMS=" + streams, "LOG_LEVEL=warn"}, env...)
	return stack.Ingest(t, r.nats, r.redis, env...)
}

func (r *rig) startQuery(t testing.TB, env ...string) *stack.Service {
	t.Helper()
	env = append([]string{"TALLYROLL_NAMESPACE=" + namespace, "LOG_LEVEL=warn"}, env...)
	return stack.Query(t, r.redis, env...)
}

const shards = 16 // SHARDS's default, as the tiers are those of TIERS

func cursorKey(stream string, shard int) string {
	return fmt.Sprintf("%s:{%d}:cursor:%s", namespace, shard, stream)
}

// shardOf is the shard of a counter.
func shardOf(counter string) int {
	return window.Layout{Shards: shards}.ShardOf(window.HashCounter([]byte(counter)))
}

// committed is the last message that a shard's cursor has passed, 0 if there is no cursor yet.
func (r *rig) committed(t testing.TB, stream string, shard int) (uint64, error) {
	seq, err := r.rdb.HGet(t.Context(), cursorKey(stream, shard), "seq").Uint64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return seq, err
}

// tallyroll counts streams into an empty Redis.
func (r *rig) tallyroll(t testing.TB, streams []*stored, named string, workers int, env ...string) figures {
	t.Helper()
	r.empty(t)
	return r.backlog(t, streams, named, workers, env...)
}

// backlog counts streams without cursors with worker processes, from the moment that the first
// of them begins to read until the last hit is committed. The beginning is the
// cursors' first appearance. The end is seen by the cursor of the last hit's
// shard, asked every 5 ms, and then by the workers' count of committed hits.
// So the wait for the last flush is inside.
func (r *rig) backlog(t testing.TB, streams []*stored, named string, workers int, env ...string) figures {
	t.Helper()
	bytes := r.dataBytes(t)
	var services []*stack.Service
	var pids []int
	for range workers {
		w := r.startIngest(t, named, append(env, stack.NoWait)...)
		services, pids = append(services, w), append(pids, w.PID())
	}
	await := func(every time.Duration, what string, done func() (bool, error)) {
		t.Helper()
		awaitCounted(t, every, what, done, services...)
	}
	first := make([]string, len(streams))
	for i, s := range streams {
		first[i] = cursorKey(s.stream, 0)
	}
	await(time.Millisecond, "a cursor", func() (bool, error) {
		n, err := r.rdb.Exists(t.Context(), first...).Result()
		return n > 0, err
	})
	end := r.begin(t, r.redisCPU(t), pids...)
	hits, counters, late := 0, map[int]struct{}{}, 0.0
	for _, s := range streams {
		hits += s.hits
		for i := range s.truth {
			counters[i] = struct{}{}
		}
		await(5*time.Millisecond, "the last hit of "+s.stream, func() (bool, error) {
			seq, err := r.committed(t, s.stream, shardOf(s.lastCounter))
			return seq == s.last, err
		})
		if time.Since(s.began) > heldFor {
			late = 1
		}
	}
	await(2*time.Millisecond, "the last commits", func() (bool, error) {
		sum := 0
		for _, w := range services {
			n, err := hitsCounted(w)
			if err != nil {
				return false, err
			}
			sum += n
		}
		return allOf(hits, sum, nil)
	})
	f := end(hits, observers...).addCounters(len(counters), r.dataBytes(t)-bytes)
	f["late"] = late
	for _, w := range services {
		require.Equal(t, 0, w.Stop(), "how the worker ended")
	}
	return f
}
