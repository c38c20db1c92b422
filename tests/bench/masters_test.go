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
// Redis Cluster. The busiest one's figures are beside an even share.
type mastersRow struct {
	sample
	masters int
}

func (m *mastersRow) path() string { return fmt.Sprint("masters/", m.masters) }

// mastersShards are enough for the slots of a cluster to be even.
const mastersShards = 64

// measureMasters counts the same hits into one Redis and into three masters. On a machine with few processors that is
// not faster: it shows that the work is spread evenly, and that neither side has more of it.
func measureMasters(t *testing.T, r *rig, o options) []*mastersRow {
	wanted := chosen(o, (*mastersRow).path, &mastersRow{masters: 1}, &mastersRow{masters: stack.Masters})
	inTurns(t, o, wanted, (*mastersRow).path, func(t *testing.T, m *mastersRow, run int) {
		m.count(t, r, o)
		fmt.Printf("%s run %d: %.0f hits/s, the busiest has %.2f of the commands\n", m.path(), run+1, m.last("rate"), m.last("busiest commands"))
	})
	return wanted
}

func (m *mastersRow) count(t *testing.T, r *rig, o options) {
	w := workloads[len(workloads)-1]
	s := fill(t, r.js, "BATCHES", "BATCHES", w, o.size(w.batched), batchSize)
	var nodes []*stack.RedisServer
	var to stack.Endpoint
	if m.masters > 1 {
		cluster := stack.Cluster(t, 0)
		nodes, to = cluster.Nodes, cluster
	} else {
		one := stack.Redis(t)
		nodes, to = []*stack.RedisServer{one}, one
	}
	worker := stack.Ingest(t, r.nats, to, "TALLYROLL_NAMESPACE="+namespace, "INGEST_STREAMS="+s.stream,
		fmt.Sprintf("SHARDS=%d", mastersShards), "LOG_LEVEL=warn", stack.NoWait)
	began, workerCPU := time.Now(), cpuSince(t, worker.PID())
	var redisCPU []func() float64
	for _, node := range nodes {
		redisCPU = append(redisCPU, cpuSince(t, node.PID()))
	}
	awaitCounted(t, 5*time.Millisecond, "all hits", func() (bool, error) {
		n, err := hitsCounted(worker)
		if err != nil { // it does not listen yet
			return false, nil
		}
		return allOf(s.hits, n, nil)
	}, worker)
	hits := float64(s.hits)
	m.add("rate", hits/time.Since(began).Seconds())
	m.add("worker", workerCPU()*1e6/hits)
	var cpu, commands []float64
	for i, node := range nodes {
		cpu = append(cpu, redisCPU[i]())
		info, err := node.Client().Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		calls := callsIn(info)
		commands = append(commands, float64(calls["hincrby"]+calls["expireat"]+calls["zadd"]))
	}
	all := 0.0
	for _, seconds := range cpu {
		all += seconds
	}
	m.add("masters", all*1e6/hits)
	m.add("busiest CPU", busiest(cpu))
	m.add("busiest commands", busiest(commands))
	worker.Stop()
}

// mastersRows are the lines of the table: what each master did, the busiest beside an even share.
func mastersRows(all []*mastersRow) (out []string) {
	for _, m := range all {
		cells := []string{fmt.Sprint(m.masters), boot.Thousands(m.median("rate"))}
		for _, figure := range []string{"worker", "masters", "busiest CPU", "busiest commands"} {
			cells = append(cells, short(m.median(figure)))
		}
		out = append(out, cellsOf(cells...))
	}
	return out
}

// busiest is the largest value beside the mean.
func busiest(values []float64) float64 {
	most, sum := 0.0, 0.0
	for _, v := range values {
		most, sum = max(most, v), sum+v
	}
	return most * float64(len(values)) / sum
}

// Work spreads evenly over the masters.
func checkMasters(t *testing.T, r *rig) {
	m := &mastersRow{masters: stack.Masters}
	m.count(t, r, options{runs: 1, scale: 0.02})
	if got := m.last("busiest commands"); !(got <= 1.15) {
		t.Errorf("the busiest master has %.2f of an even share", got)
	}
}
