package bench_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

// mastersRow is how a stream of hits on evenly drawn counters was counted into one Redis, or into the masters of a
// Redis Cluster.
type mastersRow struct {
	masters int
	figures []mastersFigures
}

type mastersFigures struct {
	hits               int
	seconds, workerCPU float64
	redisCPU           []float64 // of each master
	commands           []int64   // of each master
}

func (f mastersFigures) rate() float64 { return float64(f.hits) / f.seconds }

// mastersShards are enough for the slots of a cluster to be even.
const mastersShards = 64

// measureMasters counts the same hits into one Redis and into three masters. On a machine with few processors that is
// not faster: it shows that the work is spread evenly, and that neither side has more of it.
func measureMasters(t *testing.T, r *rig, o options) (out []mastersRow) {
	for _, masters := range []int{1, stack.Masters} {
		if o.wants(fmt.Sprintf("masters/%d", masters)) {
			out = append(out, mastersRow{masters: masters})
		}
	}
	for run := range o.runs {
		for i := range out {
			row := &out[(i+run)%len(out)]
			t.Run(fmt.Sprintf("masters/%d/run=%d", row.masters, run), func(t *testing.T) {
				f := r.intoMasters(t, o, row.masters)
				row.figures = append(row.figures, f)
				fmt.Printf("masters/%d run %d: %.0f hits/s, commands %d\n", row.masters, run+1, f.rate(), f.commands)
			})
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	return out
}

func (r *rig) intoMasters(t *testing.T, o options, masters int) (f mastersFigures) {
	w := workloads[len(workloads)-1]
	s := fill(t, r.js, "BATCHES", "BATCHES", w, o.size(w.batched), batchSize)
	one := stack.Redis(t)
	nodes, to := []*stack.RedisServer{one}, stack.Endpoint(one)
	if masters > 1 {
		cluster := stack.Cluster(t, 0)
		nodes, to = cluster.Nodes, cluster
	}
	worker := stack.Ingest(t, r.nats, to, "TALLYROLL_NAMESPACE="+namespace, "INGEST_STREAMS="+s.stream,
		fmt.Sprintf("SHARDS=%d", mastersShards), "LOG_LEVEL=warn", stack.NoWait)
	began, workerCPU := time.Now(), cpuSeconds(t, worker.PID())
	redisCPU := make([]float64, len(nodes))
	for i, node := range nodes {
		redisCPU[i] = cpuSeconds(t, node.PID())
	}
	for deadline := began.Add(10 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		n, err := hitsCounted(worker)
		if err == nil && n == s.hits {
			break
		}
		if n > s.hits || time.Now().After(deadline) {
			t.Fatalf("%d hits counted, %d stored: %v", n, s.hits, err)
		}
	}
	f = mastersFigures{hits: s.hits, seconds: time.Since(began).Seconds(), workerCPU: cpuSeconds(t, worker.PID()) - workerCPU}
	for i, node := range nodes {
		f.redisCPU = append(f.redisCPU, cpuSeconds(t, node.PID())-redisCPU[i])
		info, err := node.Client().Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		calls := callsIn(info)
		f.commands = append(f.commands, calls["hincrby"]+calls["expireat"]+calls["zadd"])
	}
	worker.Stop()
	return f
}

// mastersRows are the lines of the table: what each master did, the busiest beside an even share.
func mastersRows(rows []mastersRow) (out []string) {
	for _, row := range rows {
		of := func(value func(mastersFigures) float64) float64 {
			values := make([]float64, len(row.figures))
			for i, f := range row.figures {
				values[i] = value(f)
			}
			return median(values)
		}
		sum := func(f mastersFigures) (cpu float64) {
			for _, s := range f.redisCPU {
				cpu += s
			}
			return cpu
		}
		out = append(out, cellsOf(fmt.Sprint(row.masters), boot.Thousands(of(mastersFigures.rate)),
			short(of(func(f mastersFigures) float64 { return f.workerCPU * 1e6 / float64(f.hits) })),
			short(of(func(f mastersFigures) float64 { return sum(f) * 1e6 / float64(f.hits) })),
			short(of(func(f mastersFigures) float64 { return busiest(f.redisCPU) })),
			short(of(func(f mastersFigures) float64 { return busiest(f.commands) }))))
	}
	return out
}

// busiest is the largest value beside the mean.
func busiest[N int64 | float64](values []N) float64 {
	var most, sum N
	for _, v := range values {
		most, sum = max(most, v), sum+v
	}
	return float64(most) * float64(len(values)) / float64(sum)
}

// Work spreads evenly over the masters.
func TestMastersShareTheWork(t *testing.T) {
	f := newRig(t).intoMasters(t, options{runs: 1, scale: 0.02}, stack.Masters)
	if got := busiest(f.commands); f.hits != 20_000 || len(f.commands) != stack.Masters || got > 1.15 {
		t.Errorf("%+v: the busiest master has %.2f of an even share", f, got)
	}
}
