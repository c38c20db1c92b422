package bench_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// latencies is one run under live load.
type latencies struct {
	name           string
	asked, reached float64 // hits a second
	visible        []time.Duration
	ping, idle     []time.Duration // of the Redis that is written to, and of one that does nothing
}

// liveLoads are hits per second, or, up to 1, fractions of the rate at which a consumer that does nothing
// reads one-hit messages, which the same run measures.
var liveLoads = []struct {
	name string
	rate float64
	size int
}{
	{"no load", 0, 1},
	{"one hit a message, 10 % of the ceiling", 0.1, 1},
	{"100 hits a message, 50 % of the ceiling", 0.5, 100},
	{"100 hits a message, 500,000 hits/s", 500_000, 100},
	{"100 hits a message, 700,000 hits/s", 700_000, 100},
	{"100 hits a message, 900,000 hits/s", 900_000, 100},
}

// measureLatency publishes at a steady rate, and meanwhile measures how long an
// acknowledged hit takes to be in the totals, and a PING of another client.
func measureLatency(t *testing.T, r *rig, o options) (out []latencies) {
	var limit float64 // hits a second
	for _, load := range liveLoads {
		if !o.wants("latency/" + load.name) {
			continue
		}
		subtest(t, "latency/"+load.name, func(t *testing.T) {
			w := workloads[2]
			rate := load.rate
			if rate <= 1 && limit == 0 {
				limit = r.ceiling(t, fill(t, r.js, "ONE", "ONE", w, o.size(w.single), 1)).rate()
			}
			if rate <= 1 {
				rate *= limit
			}
			l := r.live(t, w, rate, load.size, max(o.seconds(20), 2*time.Second))
			l.name = load.name
			out = append(out, l)
			fmt.Printf("latency/%s: %.0f of %.0f hits/s, visible after %v (p99 %v), PING %v\n", l.name, l.reached, l.asked, percentile(l.visible, 50), percentile(l.visible, 99), percentile(l.ping, 50))
		})
	}
	return out
}

func latencyRows(all []latencies) (rows []string) {
	for _, l := range all {
		cells := []string{l.name, boot.Thousands(l.asked), boot.Thousands(l.reached)}
		for _, took := range [][]time.Duration{l.visible, l.ping, l.idle} {
			cells = append(cells, percentile(took, 50).String(), percentile(took, 99).String())
		}
		rows = append(rows, cellsOf(cells...))
	}
	return rows
}

// probeEvery is how often a hit is followed from its acknowledgement to the
// totals; lookEvery is how exactly.
const (
	probeEvery = 10 * time.Millisecond
	lookEvery  = time.Millisecond
)

func (r *rig) live(t *testing.T, w workload, rate float64, size int, length time.Duration) latencies {
	r.empty(t)
	fill(t, r.js, "LIVE", "live", w, 1, 1)
	stack.Ingest(t, r.nats, r.redis, "TALLYROLL_NAMESPACE="+namespace, "INGEST_STREAMS=LIVE", "LOG_LEVEL=warn")
	idle := stack.Redis(t).Client()
	l := latencies{asked: rate}

	// In the first seconds all counters are new, and Redis makes their hashes.
	warm := length / 2
	ctx, cancel := context.WithTimeout(t.Context(), warm+length)
	defer cancel()
	var wg sync.WaitGroup
	published := 0
	began := time.Now()
	if rate > 0 {
		wg.Go(func() { published = r.publishAt(t, ctx, w, rate, size) })
		time.Sleep(warm)
	}
	wg.Go(func() { l.ping = pings(t, ctx, r.rdb) })
	wg.Go(func() { l.idle = pings(t, ctx, idle) })
	wg.Go(func() { l.visible = r.probe(t, ctx) })
	wg.Wait()
	l.reached = float64(published) / time.Since(began).Seconds()
	return l
}

// pings is how long a server takes to answer another client, asked again and again.
func pings(t *testing.T, ctx context.Context, server *redis.Client) (took []time.Duration) {
	for ; ctx.Err() == nil; time.Sleep(lookEvery) {
		asked := time.Now()
		if err := server.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
			return nil
		}
		took = append(took, time.Since(asked))
	}
	return took
}

// publishAt publishes hits at a rate, a little group every few milliseconds, and
// says how many. Where the stream is slower than the rate, fewer are published.
func (r *rig) publishAt(t *testing.T, ctx context.Context, w workload, rate float64, size int) (published int) {
	draw := w.draw()
	began := time.Now()
	for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
		for due := int(rate * time.Since(began).Seconds()); published < due && ctx.Err() == nil; published += size {
			subject, body := "live."+counterName(draw()), []byte(nil)
			if size > 1 {
				for range size {
					body = fmt.Appendf(body, "{\"key\":%q}\n", counterName(draw()))
				}
			}
			if _, err := r.js.PublishAsync(subject, body, jetstream.WithStallWait(time.Minute)); err != nil {
				t.Error(err)
				return published
			}
		}
	}
	return published
}

// probe publishes hits of one counter and waits for each to be in the totals:
// counts and cursor move in one transaction, so that is when the cursor of its
// shard has passed it.
func (r *rig) probe(t *testing.T, ctx context.Context) (visible []time.Duration) {
	type sent struct {
		seq   uint64
		acked time.Time
	}
	waiting := make(chan sent, 1<<16)
	js, err := jetstream.New(r.nats.Conn())
	if err != nil {
		t.Error(err)
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(waiting)
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			ack, err := js.Publish(t.Context(), "live.probe", nil)
			if err != nil {
				t.Error(err)
				return
			}
			waiting <- sent{ack.Sequence, time.Now()}
			<-tick.C
		}
	})
	defer wg.Wait()
	key := fmt.Sprintf("%s:{%d}:cursor:LIVE", namespace, window.Layout{Shards: 16}.ShardOf(window.HashCounter([]byte("probe"))))
	for s := range waiting {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(lookEvery) {
			seq, err := r.rdb.HGet(t.Context(), key, "seq").Uint64()
			if err != nil || time.Now().After(deadline) {
				t.Errorf("probe %d is not counted: %v", s.seq, err)
				return visible
			}
			if seq >= s.seq {
				visible = append(visible, time.Since(s.acked))
				break
			}
		}
	}
	return visible
}

// percentile of durations, 0 where there are none.
func percentile(d []time.Duration, p float64) time.Duration {
	return exactPercentile(d, p).Round(10 * time.Microsecond)
}

func exactPercentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p/100))]
}
