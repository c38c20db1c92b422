package faults_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// A master that is gone, or that stands still and then goes on where it was, as
// a machine cut off from the others does: what it applies then is thrown away.
func TestCountsAreExactIfAClusterLosesItsMaster(t *testing.T) {
	overEachWire(t, func(t *testing.T, w wire) {
		cluster := stack.Cluster(t, 1, w.options...)
		loseMasters(t, w.to(cluster), rounds(1, 2, 20), func(i int) *stack.RedisServer { return cluster.MasterOf(shardKey(i)) })
	})
}

func TestCountsAreExactIfSentinelsLoseTheirMaster(t *testing.T) {
	overEachWire(t, func(t *testing.T, w wire) {
		sentinels := stack.Sentinels(t, 1, w.options...)
		loseMasters(t, w.to(sentinels), rounds(1, 1, 20), func(int) *stack.RedisServer { return sentinels.Master() })
	})
}

// loseMasters takes n masters away, one after the other, while hits are counted.
func loseMasters(t *testing.T, redis stack.Endpoint, n int, master func(round int) *stack.RedisServer) {
	t.Helper()
	s := startServersOn(t, redis)
	s.startWorker(redis)
	l := startLoad(s, "c", false, 500)
	for i := range n {
		s.awaitProgress(l)
		sleepUpTo(400 * time.Millisecond)
		s.lose(l, i, master(i))
	}
	s.requireExactCounts(l, n)
}

// lose takes a master away until all is counted without it, and lets it come
// back: killed in the even rounds, paused in the odd ones.
func (s *system) lose(l *load, round int, master *stack.RedisServer) {
	s.t.Helper()
	stalled := s.stall(l)
	how, back := "killed", master.Start
	if round%2 == 0 {
		master.Kill()
	} else {
		how, back = "paused", master.Resume
		master.Pause()
	}
	s.awaitProgress(l)
	s.t.Logf("a master %s: as_of stood for at most %v", how, stalled().Round(10*time.Millisecond))
	back()
}

// A master is cut off from its replica and goes on acknowledging commits. Then it
// dies, and the replica that lacks them is made master: they are counted again.
func TestCountsAreExactIfAReplicaThatIsBehindIsPromoted(t *testing.T) {
	onlyInAll(t)
	overEachWire(t, testReplicaBehindIsPromoted)
}

func testReplicaBehindIsPromoted(t *testing.T, wire wire) {
	cluster := stack.Cluster(t, 1, wire.options...)
	s := startServersOn(t, wire.to(cluster))
	w := s.startWorker(s.counts)
	l := startLoad(s, "c", false, 500)
	n := rounds(1, 1, 10)
	for i := range n {
		s.awaitProgress(l)
		master := cluster.MasterOf(shardKey(i))
		master.CutReplicas()
		sleepUpTo(400 * time.Millisecond)
		s.awaitProgress(l)
		before, rewound := s.sumCounted(l), strings.Count(w.Logs(), "rewound")
		stalled := s.stall(l)
		master.Kill()
		s.awaitProgress(l)
		t.Logf("went back from %d hits; as_of stood for at most %v", before, stalled().Round(10*time.Millisecond))
		if strings.Count(w.Logs(), "rewound") == rewound {
			t.Error("the worker went on as if nothing had been lost: the replica was not behind")
		}
		master.Start()
	}
	s.requireExactCounts(l, n)
}

// A name leads to another master, in every second round to one that lacks commits, and nothing ends the
// connections to the old one, which has no link to the new one: it answers reads, and refuses transactions.
func TestCountsAreExactIfAFailOverIsByName(t *testing.T) { overEachWire(t, testFailOverByName) }

func testFailOverByName(t *testing.T, wire wire) {
	named := stack.RedisByName(t, wire.options...)
	redis := wire.to(named)
	s := startServersOn(t, redis)
	s.startWorker(redis)
	eraser := stack.Query(t, redis, "QUERY_ERASE=on")
	l := startLoad(s, "c", false, 500)
	n := rounds(1, 2, 20)
	for i := range n {
		erased := fmt.Sprint("erased", i)
		l.publish(t.Context(), message{subject: l.subject(erased), id: erased})
		s.awaitProgress(l)
		if i%2 == 1 {
			named.Master.CutReplicas()
			s.awaitProgress(l)
		}
		sleepUpTo(400 * time.Millisecond)
		stalled := s.stall(l)
		named.Demote()
		named.Promote()
		s.awaitProgress(l)
		t.Logf("as_of stood for at most %v", stalled().Round(10*time.Millisecond))
		stack.Eventually(t, "an erasure", func() (bool, string) {
			status, body, err := stack.Do(http.MethodDelete, eraser.URL()+"/v1/counters?key="+erased, nil)
			return status == http.StatusOK, fmt.Sprintf("%d %s %v", status, body, err)
		})
		named.Follow()
	}
	s.requireExactCounts(l, n)
}

// Slots move to other masters while their shards are counted on: key by key, and at once if the server can.
func TestCountsAreExactWhileSlotsMove(t *testing.T) {
	t.Parallel()
	cluster := stack.Cluster(t, 0)
	s := startServersOn(t, cluster)
	s.startWorker(cluster)
	l := startLoad(s, "c", false, 500)
	n := rounds(1, 4, 64)
	var worst time.Duration
	keys, atOnce := 0, 0
	for i := range n {
		s.awaitProgress(l)
		stalled := s.stall(l)
		if cluster.MoveSlotAtOnce(shardKey(i), cluster.Other(shardKey(i))) {
			atOnce++
			s.awaitProgress(l)
			worst = max(worst, stalled())
			stalled = s.stall(l)
		}
		move := cluster.MoveSlot(shardKey(i), cluster.Other(shardKey(i)))
		for moved := 1; moved > 0; keys += moved {
			sleepUpTo(30 * time.Millisecond)
			moved = move.Some(10)
		}
		move.Finish()
		s.awaitProgress(l)
		worst = max(worst, stalled())
	}
	t.Logf("%d slots with %d keys moved, each in steps of 10, and %d at once: as_of stood for at most %v", n, keys, atOnce, worst.Round(10*time.Millisecond))
	s.requireExactCounts(l, n)
}

// shardKey is a key in the slot of one of the 16 shards.
func shardKey(i int) string { return fmt.Sprintf("{%d}", i%16) }

// stall watches how old the answers' as_of becomes, while there are answers and
// while there are none; the function that it returns ends that and says the oldest.
func (s *system) stall(l *load) func() time.Duration {
	ctx, cancel := context.WithCancel(s.t.Context())
	last, oldest := time.Now(), time.Duration(0)
	keys := l.names()[:few]
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			answer, err := s.ask(keys)
			oldest = max(oldest, time.Since(last))
			if err == nil {
				last = answer.AsOf
				oldest = max(oldest, time.Since(last))
			}
		}
	})
	return func() time.Duration {
		cancel()
		watching.Wait()
		return oldest
	}
}
