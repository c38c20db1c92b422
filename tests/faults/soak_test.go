package faults_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// fault is what happens to a worker, to the servers or to the network between them, and how it is mended.
type fault struct {
	name   string
	rounds [3]int // in make test, in make test-all, with FAULTS=full
	do     func(s *system, l *load, round int)
}

// allFaults begin with one that hides what went wrong before: an empty Redis is filled from the stream.
var allFaults = []fault{
	{"Redis emptied", [3]int{2, 5, 100}, func(s *system, _ *load, _ int) { s.flushAll() }},
	{"worker killed", [3]int{3, 10, 100}, func(s *system, _ *load, round int) {
		w := s.workers[round%len(s.workers)]
		w.Kill()
		w.Start()
	}},
	{"connections killed", [3]int{1, 3, 30}, func(s *system, _ *load, _ int) { s.killConnections(time.Second) }},
	{"bad network", [3]int{1, 2, 30}, func(s *system, _ *load, _ int) { s.spoil(2 * time.Second) }},
	{"Redis rolled back", [3]int{1, 2, 15}, (*system).rollBack},
	{"NATS killed", [3]int{1, 3, 30}, func(s *system, _ *load, _ int) {
		s.nats.Kill()
		s.nats.Start()
	}},
	{"NATS away", [3]int{1, 1, 1}, func(s *system, _ *load, _ int) {
		outage := 2 * time.Second
		if full() {
			outage = 30 * time.Second
		}
		s.nats.Kill()
		time.Sleep(outage)
		s.nats.Start()
	}},
	{"both servers killed", [3]int{1, 2, 12}, func(s *system, _ *load, round int) {
		servers := []interface{ Start() }{s.redis, s.nats}
		s.redis.Kill()
		s.nats.Kill()
		servers[round%2].Start()
		sleepUpTo(time.Second)
		servers[(round+1)%2].Start()
	}},
	{"Redis killed", [3]int{1, 4, 50}, func(s *system, _ *load, _ int) {
		s.redis.Kill()
		s.redis.Start()
	}},
	// A paused worker is missed after three seconds, and another takes its stream. When it
	// wakes, it has a batch in hand, and is fenced.
	{"worker paused", [3]int{1, 4, 40}, func(s *system, l *load, round int) {
		if len(s.workers) == 1 {
			s.startWorker(s.network)
			s.workers[1].WaitReady()
		}
		zombie := s.workers[round%2]
		zombie.Pause()
		s.awaitProgress(l)
		zombie.Resume()
	}},
}

// rollBack starts Redis with the append-only file of a moment ago.
func (s *system) rollBack(l *load, _ int) {
	s.t.Helper()
	live, copied := filepath.Join(s.redis.Dir(), "appendonlydir"), filepath.Join(s.t.TempDir(), "copy")
	require.NoError(s.t, os.CopyFS(copied, os.DirFS(live)))
	s.awaitProgress(l) // what is counted now is not in the copy
	sleepUpTo(time.Second)
	before := s.sumCounted(l)
	s.redis.Stop()
	require.NoError(s.t, os.RemoveAll(live))
	require.NoError(s.t, os.Rename(copied, live))
	s.redis.Start()
	s.t.Logf("went back from %d hits", before)
}

// startBehindNetwork starts everything, with one worker that reaches Redis over a network that can be spoilt.
func startBehindNetwork(t *testing.T) *system {
	t.Helper()
	s := startServers(t)
	s.network = startProxy(t, s.redis.Addr(), nil)
	s.startWorker(s.network, stack.NoWait) // a fault can come while it starts
	return s
}

// repeat makes a fault n times, every second time while the one before is still being mended.
func (s *system) repeat(l *load, f fault, n int) {
	s.t.Helper()
	for i := range n {
		if i%2 == 0 {
			s.awaitProgress(l)
		}
		sleepUpTo(500 * time.Millisecond)
		f.do(s, l, i)
	}
}

func TestExactAfterAllFaultsInTurn(t *testing.T) {
	t.Parallel()
	s := startBehindNetwork(t)
	l := startLoad(s, "c", false, 400)
	total := 0
	for _, f := range allFaults {
		s.repeat(l, f, f.rounds[0])
		t.Logf("%s, after %v", f.name, time.Since(s.began).Round(10*time.Millisecond))
		total += f.rounds[0]
	}
	s.requireExactCounts(l, total)
}

func TestExactAfterEachFault(t *testing.T) {
	onlyInAll(t)
	for _, f := range allFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := startBehindNetwork(t)
			l := startLoad(s, "c", false, 1000)
			n := rounds(f.rounds[1], f.rounds[1], f.rounds[2])
			s.repeat(l, f, n)
			s.requireExactCounts(l, n)
		})
	}
}

// TestSoak mixes the faults for SOAK (such as 30m).
func TestSoak(t *testing.T) {
	if os.Getenv("SOAK") == "" {
		t.Skip("with SOAK=30m only: `make soak`")
	}
	lasts, err := time.ParseDuration(os.Getenv("SOAK"))
	require.NoError(t, err, "SOAK")
	// go test's own limit does not know how long SOAK is.
	hung := time.AfterFunc(lasts+15*time.Minute, func() { panic("the soak hangs") })
	defer hung.Stop()
	s := startBehindNetwork(t)
	s.startWorker(s.network, stack.NoWait)
	l := startLoad(s, "c", false, 500)
	// A replay reads all there is: Redis is emptied rarely, so that a long soak is not all replay.
	marks := []time.Duration{lasts / 6, lasts / 2, lasts}
	made, emptied := make([]int, len(allFaults)), s.began
	total := 0
	for time.Since(s.began) < lasts {
		i := rand.IntN(len(allFaults))
		if allFaults[i].name == "Redis emptied" {
			if time.Since(emptied) < lasts/10 {
				continue
			}
			emptied = time.Now()
		}
		if rand.IntN(3) > 0 { // else the fault comes while the one before is being mended
			s.awaitProgress(l)
		}
		sleepUpTo(time.Second)
		allFaults[i].do(s, l, total)
		made[i]++
		total++
		for len(marks) > 0 && time.Since(s.began) > marks[0] {
			s.logMemory()
			marks = marks[1:]
		}
	}
	if len(marks) > 0 {
		s.logMemory()
	}
	for i, f := range allFaults {
		t.Logf("%s: %d times", f.name, made[i])
	}
	s.requireExactCounts(l, total)
}

func (s *system) logMemory() {
	s.t.Helper()
	for i, w := range s.workers {
		s.t.Logf("after %v worker %d holds %d MiB", time.Since(s.began).Round(time.Second), i, w.RSS()>>20)
	}
}
