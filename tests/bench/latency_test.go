package bench_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"tallyroll/tests/stack"
)

// latencies is one run under live load: the times are how long a hit took to be in the totals.
type latencies struct {
	sample
	load       float64 // of the rate at which a consumer that does nothing reads one-hit messages
	rate       float64 // hits per second, if load is 0; those that are followed are a part of them
	size       int     // hits of a message
	programs   programs
	Before     *sample // the same, by the programs that BEFORE names
	Ping, Idle sample  // of the Redis that is written to, and of one that does nothing
}

// measureLatency publishes at a steady rate, and meanwhile measures how long an
// acknowledged hit takes to be in the totals, and a PING of another client.
func measureLatency(t *testing.T, r *rig, o options) []*latencies {
	var all []*latencies
	for _, of := range []latencies{
		{sample: sample{name: "no load"}, size: 1},
		{sample: sample{name: "20 hits per second"}, rate: 20, size: 1},
		{sample: sample{name: "2,000 hits per second"}, rate: 2000, size: 1},
		{sample: sample{name: "one hit a message, 10 % of the ceiling"}, load: 0.1, size: 1},
		{sample: sample{name: "100 hits a message, 50 % of the ceiling"}, load: 0.5, size: batchSize},
	} {
		of.part = "latency"
		all = append(all, byPrograms(func(p programs, before *sample) *latencies {
			l := of
			l.programs, l.Before = p, before
			return &l
		})...)
	}
	all = chosen(o, all...)
	var limit float64 // hits a second
	for _, l := range all {
		subtest(t, l.path(), func(t *testing.T) {
			l.programs.use(t)
			w := workloads[2]
			if l.load > 0 && limit == 0 {
				limit = r.ceiling(t, r.fill(t, "ONE", w, o.size(w.single), 1))["rate"]
			}
			r.live(t, w, l, l.rate+l.load*limit, max(o.seconds(20), 2*time.Second))
			l.print(0, l.took)
		})
	}
	return all
}

// probeEvery is how often a hit is followed from its acknowledgement to the
// totals, or less often if the load is lower; lookEvery is how exactly.
const (
	probeEvery = 10 * time.Millisecond
	lookEvery  = time.Millisecond
)

func (r *rig) live(t *testing.T, w workload, l *latencies, rate float64, length time.Duration) {
	t.Helper()
	r.empty(t)
	r.fill(t, "LIVE", w, 1, 1)
	worker := r.startIngest(t, "LIVE")
	idle := stack.Redis(t).Client()

	// In the first seconds all counters are new, and Redis makes their hashes.
	warm := length / 2
	ctx, cancel := context.WithTimeout(t.Context(), warm+length)
	defer cancel()
	var wg sync.WaitGroup
	published := 0
	began := time.Now()
	probes := probeEvery
	if l.rate > 0 {
		probes = max(probes, time.Duration(float64(time.Second)/l.rate))
		rate -= float64(time.Second / probes)
	}
	if rate > 0 {
		wg.Go(func() { published = r.publishAt(t, ctx, w, rate, l.size) })
		time.Sleep(warm / 2)
		cpu := []clock{cpuSince(t, worker.PID()), r.redisCPU(t).start()}
		time.Sleep(warm / 2)
		for i, of := range []string{"worker", "redis"} {
			l.add(of, cpu[i]()/(warm/2).Seconds()*100)
		}
	}
	wg.Go(func() { l.Ping.took = pings(t, ctx, r.rdb) })
	wg.Go(func() { l.Idle.took = pings(t, ctx, idle) })
	wg.Go(func() { l.took = r.probe(t, ctx, probes) })
	wg.Wait()
	l.add("asked", rate)
	l.add("reached", float64(published)/time.Since(began).Seconds())
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
// returns how many. If the stream is slower than the rate, fewer are published.
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
func (r *rig) probe(t *testing.T, ctx context.Context, every time.Duration) (visible []time.Duration) {
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
		tick := time.NewTicker(every)
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
	for s := range waiting {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(lookEvery) {
			seq, err := r.committed(t, "LIVE", shardOf("probe"))
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
