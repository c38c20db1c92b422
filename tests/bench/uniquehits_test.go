package bench_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// visits is hits that say whom they are of, drawn evenly from so many visitors; 0: they do not say. Figures are per hit.
type visits struct {
	sample
	workload
	visitors int
}

func (v *visits) path() string { return "unique hits/" + v.sample.name }

const (
	visitsPerSecond = 20_000
	visitsWarm      = 4  // seconds in which Redis makes its hashes
	visitsMeasured  = 10 // seconds
)

// measureUniqueHits counts the same hits with and without unique values, live and in turns: what is known to be in
// Redis is left out, so a backlog would show less.
func measureUniqueHits(t *testing.T, r *rig, o options) []*visits {
	var all []*visits
	for _, counters := range []int{1, 1_000} {
		for _, visitors := range []int{0, 1_000, 1_000_000} {
			name := fmt.Sprintf("%d counters, %d visitors", counters, visitors)
			all = append(all, &visits{sample{name: name}, workload{counters: counters, zipf: 1.1}, visitors})
		}
	}
	all = chosen(o, (*visits).path, all...)
	inTurns(t, o, all, (*visits).path, func(t *testing.T, v *visits, _ int) { r.visit(t, o, v) })
	for _, v := range all {
		fmt.Printf("%s, per hit: %.2f commands %.2f bytes %.2f worker µs %.2f Redis µs\n", v.path(),
			v.median("commands"), v.median("bytes"), v.median("worker"), v.median("redis"))
	}
	return all
}

func (r *rig) visit(t *testing.T, o options, v *visits) {
	r.empty(t)
	fill(t, r.js, "LIVE", "live", v.workload, 1, 1)
	w := stack.Ingest(t, r.nats, r.redis, "TALLYROLL_NAMESPACE="+namespace, "INGEST_STREAMS=LIVE", "LOG_LEVEL=warn")
	draw, random := v.draw(), rand.New(rand.NewPCG(3, 4))
	hits := 1
	publish := func(n int) {
		pace := time.NewTicker(time.Second * batchSize / visitsPerSecond)
		defer pace.Stop()
		for end := hits + n; hits < end; hits += batchSize {
			<-pace.C
			var body []byte
			for range batchSize {
				if v.visitors == 0 {
					body = fmt.Appendf(body, "{\"key\":%q}\n", counterName(draw()))
				} else {
					body = fmt.Appendf(body, "{\"key\":%q,\"unique\":\"visitor-%d\"}\n", counterName(draw()), random.IntN(v.visitors))
				}
			}
			if _, err := r.js.PublishAsync("live.visits", body, jetstream.WithStallWait(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		stack.Eventually(t, "all visits counted", func() (bool, string) {
			n, err := hitsCounted(w)
			return err == nil && n == hits, fmt.Sprint(n, " of ", hits, err)
		})
	}
	publish(o.size(visitsWarm*visitsPerSecond/batchSize) * batchSize)
	span := r.begin(t, 0, w.PID())
	n := o.size(visitsMeasured*visitsPerSecond/batchSize) * batchSize
	publish(n)
	f := span.end(n, 0, observers)
	info, err := r.rdb.Info(t.Context(), "stats").Result()
	require.NoError(t, err)
	v.add("commands", float64(f.commands)/float64(n))
	v.add("bytes", float64(infoField(info, "total_net_input_bytes"))/float64(n))
	v.add("worker", f.worker())
	v.add("redis", f.redis())
}

// measureUniqueCells is what a unique cell takes in Redis.
func measureUniqueCells(t *testing.T, r *rig, o options) (bytes []int64) {
	if !o.wants("unique cells") {
		return nil
	}
	r.empty(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 10, 100, 1_000, 2_000, 10_000, 1_000_000} {
		key := fmt.Sprintf("%s:{12}:u:5m:5887424:shop.checkout.eu:%d", namespace, n)
		addUniques(t, t.Context(), r.rdb, key, n, random)
		used, err := r.rdb.MemoryUsage(t.Context(), key, 0).Result()
		require.NoError(t, err)
		fmt.Printf("unique cells/%d different ones: %d bytes\n", n, used)
		bytes = append(bytes, used)
	}
	return bytes
}

// What is measured counts right, and shows what unique values add.
func checkUniqueHits(t *testing.T, r *rig) {
	all := measureUniqueHits(t, r, options{runs: 1, scale: 1.0 / 50, only: everything})
	for i, v := range all {
		// With one counter, a commit has a few commands of its own for its one hash, and how many commits there are
		// depends on the machine.
		got, without := v.median("commands"), all[i/3*3].median("commands")
		if got <= 0 || v.counters > 1 && i%3 > 0 && got <= without {
			t.Errorf("%s: %v commands per hit, %v without unique values", v.path(), got, without)
		}
	}
	if bytes := measureUniqueCells(t, r, options{only: everything}); bytes[0] > 200 || bytes[len(bytes)-1] < 12<<10 {
		t.Errorf("cells take %v bytes", bytes)
	}
}
