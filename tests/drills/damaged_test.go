package drills_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// repairReplica damages a block of one of three servers, which starts again without some of its messages. A
// worker that reads there misses their hits and says so; one that reads elsewhere misses none.
func (d *drill) repairReplica(t *testing.T) {
	d.size = 2000 // of large messages: a server fetches again what it lacks at its end, but not in an older block
	cluster := stack.NATSCluster(t)
	s := &site{t: t, drill: d, nats: cluster.Servers[0], padding: 100_000}
	stream, err := s.nats.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, Replicas: stack.NATSServers})
	require.NoError(t, err)
	s.startCounts()
	s.publish(d.size)
	if lost, twice := s.settle(); lost+twice > 0 || s.isLossReported() {
		t.Errorf("before the damage, %d hits are lost, %d count twice, and a loss is reported: %v", lost, twice, s.isLossReported())
	}
	s.ingest.Stop()
	damaged := cluster.Servers[1]
	store := filepath.Join(cluster.Stores[1], "jetstream", "$G", "streams", "HITS")
	damaged.Kill()
	block := filepath.Join(store, "msgs", "1.blk")
	data, err := os.ReadFile(block)
	require.NoError(t, err)
	for i := range 64 {
		data[len(data)/2+i] ^= 0xff
	}
	require.NoError(t, os.WriteFile(block, data, 0o600))
	damaged.Start()
	cluster.WaitCurrent()
	began, namespaces := time.Now(), 0
	// count counts the stream in new namespaces, until it was read at the server.
	count := func(wanted string) (lost int64) {
		t.Helper()
		stack.Eventually(t, "a worker to read at "+wanted, func() (bool, string) {
			namespaces++
			namespace := fmt.Sprint("TALLYROLL_NAMESPACE=n", namespaces)
			o := *s
			o.ingest, o.query = stack.Ingest(t, s.nats, s.redis, namespace), stack.Query(t, s.redis, namespace)
			var twice int64
			lost, twice = o.settle()
			at := ""
			for c := range stream.ListConsumers(t.Context()).Info() {
				at = c.Cluster.Leader
			}
			if reported := o.isLossReported(); twice > 0 || (lost > 0) != reported {
				t.Errorf("read at %s, %d hits are lost, %d count twice, and a loss is reported: %v", at, lost, twice, reported)
			}
			o.ingest.Stop()
			o.query.Stop()
			return at == wanted, "at " + at
		})
		return lost
	}
	damagedName := cluster.Name(1)
	d.lost = count(damagedName)
	if d.lost == 0 {
		t.Errorf("what is read at %s is not damaged", damagedName)
	}
	d.step(t, "stop the server, and remove its copy of the stream", func() {
		damaged.Stop()
		require.NoError(t, os.RemoveAll(store))
	})
	d.step(t, "start it, and wait until it is current: it fetches the stream", func() { damaged.Start(); cluster.WaitCurrent() })
	d.step(t, "count the stream beside", func() {
		if lost := count(damagedName); lost > 0 {
			t.Errorf("after the repair, %d hits are lost", lost)
		}
	})
	d.took = time.Since(began)
	d.note = "until the repair, where a worker reads there; reported: true"
}
