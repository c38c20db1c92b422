package bench_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// mastersRow is how a stream of hits on evenly drawn counters was counted into one Redis, or into the masters
// of a Redis Cluster. The busiest one's figures are compared with an even share.
type mastersRow struct {
	sample
	masters, threads int // threads of each that read and write its connections
}

// mastersShards are enough for the slots of a cluster to be even.
const mastersShards = 64

// measureMasters counts the same hits into one Redis and into three masters. On a machine with few processors
// that is not faster: it shows that the work is spread evenly, and that neither side has more of it.
func measureMasters(t *testing.T, r *rig, o options) []*mastersRow {
	var all []*mastersRow
	for _, m := range []mastersRow{{sample{name: "1"}, 1, 1}, {sample{name: "1, with 2 I/O threads"}, 1, 2}, {sample{name: "3"}, stack.Masters, 1}} {
		m.part = "masters"
		all = append(all, &m)
	}
	all = chosen(o, all...)
	inTurns(t, o, all, func(t *testing.T, m *mastersRow, _ int) { m.count(t, r, o) })
	return all
}

func (m *mastersRow) count(t *testing.T, r *rig, o options) {
	w := workloads[len(workloads)-1]
	s := r.fill(t, "BATCHES", w, o.size(w.batched), batchSize)
	var nodes []*stack.RedisServer
	var to stack.Endpoint
	if m.masters > 1 {
		cluster := stack.Cluster(t, 0)
		nodes, to = cluster.Nodes, cluster
	} else {
		one := stack.Redis(t, stack.RedisArgs("--io-threads", fmt.Sprint(m.threads)))
		nodes, to = []*stack.RedisServer{one}, one
	}
	worker := stack.Ingest(t, r.nats, to, "TALLYROLL_NAMESPACE="+namespace, "INGEST_STREAMS="+s.stream,
		fmt.Sprintf("SHARDS=%d", mastersShards), "LOG_LEVEL=warn", stack.NoWait)
	began, workerCPU := time.Now(), cpuSince(t, worker.PID())
	var clocks []clock
	for _, node := range nodes {
		clocks = append(clocks, cpuSince(t, node.PID()))
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
		cpu = append(cpu, clocks[i]())
		calls := callsOf(t, node.Client())
		commands = append(commands, float64(calls["hincrby"]+calls["expireat"]+calls["zadd"]))
	}
	m.add("masters", sumOf(cpu)*1e6/hits)
	m.add("busiest CPU", slices.Max(cpu)*float64(len(cpu))/sumOf(cpu))
	m.add("busiest commands", slices.Max(commands)*float64(len(commands))/sumOf(commands))
	worker.Stop()
}

func sumOf(values []float64) (sum float64) {
	for _, v := range values {
		sum += v
	}
	return sum
}

// Work spreads evenly over the masters.
func checkMasters(t *testing.T, r *rig) {
	m := &mastersRow{masters: stack.Masters}
	m.count(t, r, options{runs: 1, scale: 0.02})
	if got := m.last("busiest commands"); !(got <= 1.15) {
		t.Errorf("the busiest master has %.2f of an even share", got)
	}
}
