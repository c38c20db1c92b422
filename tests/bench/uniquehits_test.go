package bench_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// visits is hits that say whom they are of, drawn evenly from so many visitors; 0: they do not say.
type visits struct {
	workload
	visitors int
}

const (
	visitsPerSecond = 20_000
	visitsWarm      = 4  // seconds in which Redis makes its hashes
	visitsMeasured  = 10 // seconds
)

// visited is what a hit of some visits took in each run, by the name of the figure.
type visited struct {
	name string
	runs map[string][]float64
}

var visitedFigures = []string{"commands", "bytes", "worker µs", "Redis µs"}

// measureUniqueHits counts the same hits with and without unique values, live and in turns: what is known to be in
// Redis is left out, so a backlog would show less.
func measureUniqueHits(t *testing.T, r *rig, o options) (out []visited) {
	var all []visits
	for _, counters := range []int{1, 1_000} {
		for _, visitors := range []int{0, 1_000, 1_000_000} {
			w := workload{counters: counters, zipf: 1.1, name: fmt.Sprintf("%d counters, %d visitors", counters, visitors)}
			if o.wants("unique hits/" + w.name) {
				all = append(all, visits{w, visitors})
				out = append(out, visited{w.name, map[string][]float64{}})
			}
		}
	}
	for run := range o.runs {
		for i := range all {
			k := (i + run) % len(all)
			t.Run(fmt.Sprintf("unique hits/%s/run=%d", all[k].name, run), func(t *testing.T) { r.visit(t, o, all[k], out[k]) })
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	for _, v := range out {
		fmt.Printf("unique hits/%s, per hit:", v.name)
		for _, figure := range visitedFigures {
			fmt.Printf(" %.2f %s", median(v.runs[figure]), figure)
		}
		fmt.Println()
	}
	return out
}

func (r *rig) visit(t *testing.T, o options, v visits, out visited) {
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
	for i, value := range []float64{
		float64(f.commands) / float64(n), float64(infoField(info, "total_net_input_bytes")) / float64(n), f.perHit(f.workerCPU), f.perHit(f.redisCPU),
	} {
		out.runs[visitedFigures[i]] = append(out.runs[visitedFigures[i]], value)
	}
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

// What is measured counts right, and says what unique values add.
func TestUniqueHitsAreMeasured(t *testing.T) {
	r := newRig(t)
	all := measureUniqueHits(t, r, options{runs: 1, scale: 1.0 / 50, only: everything})
	for i, v := range all {
		// With one counter, a commit has a few commands of its own for its one hash, and how many commits there are
		// depends on the machine.
		many := !strings.HasPrefix(v.name, "1 counters")
		if got, without := v.runs["commands"][0], all[i/3*3].runs["commands"][0]; got <= 0 || many && i%3 > 0 && got <= without {
			t.Errorf("%s: %v commands per hit, %v without unique values", v.name, got, without)
		}
	}
	if bytes := measureUniqueCells(t, r, options{only: everything}); bytes[0] > 200 || bytes[len(bytes)-1] < 12<<10 {
		t.Errorf("cells take %v bytes", bytes)
	}
}
