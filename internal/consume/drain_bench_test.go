package consume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// BenchmarkDrain counts a stream from its first message to its last, with the
// default settings: the tool to see where the time of a hit goes.
//
//	go test ./internal/consume -run '^$' -bench Drain/hits=1 -benchtime 10x \
//	  -cpuprofile cpu.out -memprofile mem.out
//
// NATS and Redis are processes of their own, so profiles and allocations are of
// the worker's code and its clients alone. An operation is one drain; the
// figures to look at are hits/s, B/hit and allocs/hit. Filling the stream and
// emptying Redis are not timed.
func BenchmarkDrain(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("hits=%d", size), func(b *testing.B) { benchmarkDrain(b, &drain{size: size}) })
	}
	// The hits of one counter over 30 days, in different orders: see BenchmarkOrder in package commit.
	rising := func(i int) time.Duration { return time.Duration(drainHits-i) * (30 * 24 * time.Hour / drainHits) }
	for _, order := range []struct {
		name string
		age  func(i int) time.Duration
	}{
		{"in-order", rising},
		{"two-logs", func(i int) time.Duration { return rising(i/2 + i%2*drainHits/2) }},
		{"late", func(i int) time.Duration { return rising(i * (1 - i%1000/999)) }},
		{"drawn", func(int) time.Duration { return rising(rand.IntN(drainHits)) }},
	} {
		b.Run("order="+order.name, func(b *testing.B) { benchmarkDrain(b, &drain{size: 1, age: order.age}) })
	}
}

// benchLimits and benchLayout are the defaults of a worker's settings.
var (
	benchLimits = Limits{FlushInterval: 250 * time.Millisecond, MaxCommands: 2000, MaxLoad: 48 << 20, MaxAhead: 10 * time.Second, MaxHits: 10_000}
	benchLayout = window.Layout{Tiers: testLayout.Tiers, Shards: 16}
)

// Hits of one drain, which is long compared with the flush interval of 250 ms, at some hundred thousand a
// second.
const drainHits = 500_000

func benchmarkDrain(b *testing.B, d *drain) {
	// A rewrite of the append-only file in the middle would be in the figures.
	redis := stack.Redis(b, stack.RedisArgs("--auto-aof-rewrite-percentage", "0"))
	d.b, d.js = b, stack.NATSProcess(b).JetStream()
	d.store = schema.NewStore(stack.ProgramClient(b, redis.URL()), "bench")

	var before, after runtime.MemStats
	var bytes, allocs uint64
	hits := 0
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		d.fill()
		require.NoError(b, redis.Client().FlushAll(b.Context()).Err())
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		stop := d.run()
		b.StopTimer()
		runtime.ReadMemStats(&after)
		stop()
		bytes += after.TotalAlloc - before.TotalAlloc
		allocs += after.Mallocs - before.Mallocs
		hits += drainHits
		b.StartTimer()
	}
	b.StopTimer()
	b.ReportMetric(float64(hits)/b.Elapsed().Seconds(), "hits/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(hits), "ns/hit")
	b.ReportMetric(float64(bytes)/float64(hits), "B/hit")
	b.ReportMetric(float64(allocs)/float64(hits), "allocs/hit")
}

type drain struct {
	b      *testing.B
	js     jetstream.JetStream
	store  *schema.Store
	size   int                       // hits of one message
	age    func(i int) time.Duration // of each hit, all of one counter; nil: see fill
	filled time.Time
}

// fill stores the hits, of 100,000 Zipf-distributed counters, and again
// once they are old: cells of the finest tier that have expired are not written,
// and a drain would cost less. They live for 75 seconds at least.
func (d *drain) fill() {
	if time.Since(d.filled) < 30*time.Second {
		return
	}
	d.filled = time.Now()
	ctx := d.b.Context()
	if err := d.js.DeleteStream(ctx, "HITS"); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		d.b.Fatal(err)
	}
	require.NoError(d.b, errOf(d.js.CreateStream(ctx, jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})))
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 100_000-1)
	for published := 0; published < drainHits; published += d.size {
		subject, body := fmt.Sprintf("hits.api-%d", zipf.Uint64()), []byte(nil)
		if d.size > 1 {
			for range d.size {
				body = fmt.Appendf(body, "{\"key\":\"api-%d\"}\n", zipf.Uint64())
			}
		}
		if d.age != nil {
			subject, body = "hits.api-1", fmt.Appendf(nil, "{\"ts\":%d}", d.filled.Add(-d.age(published)).UnixMilli())
		}
		require.NoError(d.b, errOf(d.js.PublishAsync(subject, body, jetstream.WithStallWait(stack.Hung))))
	}
	select {
	case <-d.js.PublishAsyncComplete():
	case <-time.After(stack.Hung):
		d.b.Fatal("published messages are not acknowledged")
	}
}

// run reads the stream in a session until every hit is committed, and returns
// what ends the session.
func (d *drain) run() (stop func()) {
	metrics := NewMetrics(prometheus.NewRegistry())
	counted := prometheus.NewRegistry() // of hits alone: asking it costs little
	counted.MustRegister(metrics.hits)
	s := &session{setup: setup{
		Config: Config{
			Store: d.store, Layout: benchLayout, Limits: benchLimits, Metrics: metrics, Waits: NewWaits(), Log: zerolog.Nop(),
		},
		stream: "HITS", source: source.New(d.js, "tallyroll", "HITS", maxPullBytes), outage: &outage{log: zerolog.Nop()},
		clocks: newClocks(metrics, zerolog.Nop()), rejects: newRejectLog(zerolog.Nop()),
		maxIdle: stalledAfter, enterPhase: func(phase) {},
	}}
	ctx, cancel := context.WithCancel(d.b.Context())
	ended := make(chan outcome, 1)
	go func() { ended <- s.attempt(ctx) }()

	const pollEvery = 5 * time.Millisecond
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for hits := 0; hits < drainHits; {
		select {
		case <-tick.C:
		case o := <-ended:
			d.b.Fatalf("the session ended: %s: %v", o.verdict, o.cause)
		case <-time.After(stack.Hung):
			d.b.Fatal("the stream is not counted to its end")
		}
		families, err := counted.Gather()
		require.NoError(d.b, err)
		hits = 0
		for _, family := range families {
			for _, m := range family.GetMetric() {
				hits += int(m.GetCounter().GetValue())
			}
		}
		if hits > drainHits {
			d.b.Fatalf("%d hits counted, %d stored", hits, drainHits)
		}
	}
	return func() {
		cancel()
		if o := <-ended; o.verdict != drained {
			d.b.Fatalf("the session ended: %s: %v", o.verdict, o.cause)
		}
	}
}
