package bench_test

import (
	"context"
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

// figures are what one run measured. In the comparison with Postgres, what is Redis's is the database's.
type figures struct {
	hits                            int
	seconds                         float64
	workerCPU, redisCPU, brokerCPU  float64 // seconds
	commands, redisBytes, workerRSS int64
	counters                        int  // that redisBytes are for
	late                            bool // cells of the finest tier may have expired under it
}

func (f figures) rate() float64 { return float64(f.hits) / f.seconds }

// perHit is microseconds of processor time.
func (f figures) perHit(cpu float64) float64 { return cpu * 1e6 / float64(f.hits) }

// span measures what is used between its beginning and its end.
type span struct {
	t                     testing.TB
	r                     *rig
	workers               []int
	began                 time.Time
	worker, redis, broker float64
	bytes                 int64
}

// begin starts the clock. Redis must have been empty when bytes was taken.
func (r *rig) begin(t testing.TB, bytes int64, workers ...int) *span {
	t.Helper()
	r.resetStats(t)
	s := &span{t: t, r: r, workers: workers, bytes: bytes}
	s.worker, s.redis, s.broker = s.cpu()
	s.began = time.Now()
	return s
}

func (s *span) cpu() (worker, redis, broker float64) {
	return cpuSeconds(s.t, s.workers...), cpuSeconds(s.t, s.r.redis.PID()), cpuSeconds(s.t, s.r.nats.PID())
}

func (s *span) end(hits, counters int, leaveOut []string) figures {
	s.t.Helper()
	f := figures{hits: hits, seconds: time.Since(s.began).Seconds(), counters: counters}
	worker, redis, broker := s.cpu()
	f.workerCPU, f.redisCPU, f.brokerCPU = worker-s.worker, redis-s.redis, broker-s.broker
	f.commands = s.r.commands(s.t, leaveOut)
	f.redisBytes = s.r.dataBytes(s.t) - s.bytes
	for _, pid := range s.workers {
		if pid != os.Getpid() {
			f.workerRSS += peakBytes(s.t, pid)
		}
	}
	return f
}

// ceiling reads a stream and only counts messages: nothing that reads every
// message can be faster.
func (r *rig) ceiling(t testing.TB, s *stored) figures {
	t.Helper()
	span := r.begin(t, 0, os.Getpid())
	messages, err := readAll(t.Context(), r.js, s, func(jetstream.Msg) (bool, error) { return true, nil })
	if err != nil || messages != int(s.last) {
		t.Fatalf("%d of %d messages: %v", messages, s.last, err)
	}
	return span.end(s.hits, 0, observers)
}

// technique counts a stream of one-hit messages by a technique, for box at the
// most. batch is how many hits share a round trip; 0 is the technique as written.
func (r *rig) technique(t testing.TB, s *stored, tech technique, batch int, box time.Duration) figures {
	t.Helper()
	r.empty(t)
	ctx := t.Context()
	require.NoError(t, tech.load(ctx, r.rdb))
	pipeline := newPipelined(r.rdb, tech, batch)
	count := pipeline.count
	if batch == 0 {
		count = func(ctx context.Context, h aHit) error { return tech.asWritten(ctx, r.rdb, h) }
	}
	counters := map[string]struct{}{}
	span := r.begin(t, r.dataBytes(t), os.Getpid())
	n := 0
	_, err := readAll(ctx, r.js, s, func(m jetstream.Msg) (bool, error) {
		meta, err := m.Metadata()
		if err != nil {
			return false, err
		}
		_, counter, _ := strings.Cut(m.Subject(), ".")
		counters[counter] = struct{}{}
		if err := count(ctx, aHit{counter, meta.Timestamp.UnixMilli(), 1}); err != nil {
			return false, err
		}
		n++
		return n%64 != 0 || time.Since(span.began) < box, nil
	})
	if err == nil && batch > 0 && pipeline.hits > 0 {
		err = pipeline.flush(ctx)
	}
	require.NoErrorf(t, err, "%s", tech.name)
	return span.end(n, len(counters), []string{"info"})
}

const namespace = "bench"

// hung is longer than any run takes.
const hung = 10 * time.Minute

// awaitCounted looks every so often until all is counted. A look must not cost much: it shares the machine with what it
// waits for. The workers must not end meanwhile.
func awaitCounted(t testing.TB, every time.Duration, what string, done func() (bool, error), workers ...*stack.Service) {
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

// tallyroll counts streams with worker processes, from the moment that the first
// of them begins to read until the last hit is committed. The beginning is the
// cursors' first appearance. The end is seen by the cursor of the last hit's
// shard, asked every 5 ms, and then by the workers' count of committed hits.
// So the wait for the last flush is inside.
func (r *rig) tallyroll(t testing.TB, streams []*stored, workers int, env ...string) figures {
	t.Helper()
	r.empty(t)
	bytes := r.dataBytes(t)
	ctx := t.Context()
	env = append([]string{"TALLYROLL_NAMESPACE=" + namespace, stack.NoWait, "LOG_LEVEL=warn"}, env...)
	var services []*stack.Service
	var pids []int
	for range workers {
		w := stack.Ingest(t, r.nats, r.redis, env...)
		services, pids = append(services, w), append(pids, w.PID())
	}
	const shards = 16 // SHARDS's default
	layout := window.Layout{Shards: shards}
	cursor := func(s *stored, shard int) string { return fmt.Sprintf("%s:{%d}:cursor:%s", namespace, shard, s.stream) }
	await := func(every time.Duration, what string, done func() (bool, error)) {
		t.Helper()
		awaitCounted(t, every, what, done, services...)
	}
	first := make([]string, len(streams))
	for i, s := range streams {
		first[i] = cursor(s, 0)
	}
	await(time.Millisecond, "a cursor", func() (bool, error) {
		n, err := r.rdb.Exists(ctx, first...).Result()
		return n > 0, err
	})
	span := r.begin(t, bytes, pids...)
	hits, counters, late := 0, map[int]struct{}{}, false
	for _, s := range streams {
		hits += s.hits
		for i := range s.truth {
			counters[i] = struct{}{}
		}
		key := cursor(s, layout.ShardOf(window.HashCounter([]byte(s.lastCounter))))
		await(5*time.Millisecond, key, func() (bool, error) {
			seq, err := r.rdb.HGet(ctx, key, "seq").Uint64()
			if errors.Is(err, redis.Nil) {
				err = nil
			}
			return seq == s.last, err
		})
		late = late || time.Since(s.began) > heldFor
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
	f := span.end(hits, len(counters), observers)
	f.late = late
	for _, w := range services {
		require.Equal(t, 0, w.Stop(), "how the worker ended")
	}
	return f
}
