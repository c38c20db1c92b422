package faults_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/tests/stack"
)

const workerName = "the-worker"

// startNATSCluster starts everything on a cluster of NATS, with one worker, and looks
// at the answers all the time.
func startNATSCluster(t *testing.T) (*system, *load, *witness) {
	t.Helper()
	s := natsClusterServers(t)
	s.worker(s.redis, "INGEST_WORKER="+workerName)
	l := startLoad(s, "c", true, 500)
	s.progress(l)
	return s, l, s.watch(l)
}

// witness keeps answers that were given while something was broken.
type witness struct {
	*system
	load    *load
	stop    func()
	answers []stack.Answer
}

func (s *system) watch(l *load) *witness {
	w := &witness{system: s, load: l}
	ctx, cancel := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	w.stop = func() { cancel(); running.Wait() }
	s.t.Cleanup(w.stop)
	running.Go(func() {
		for ctx.Err() == nil {
			if answer, err := s.ask(l.names()); err == nil {
				w.answers = append(w.answers, answer)
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return w
}

// honest fails the test where an answer claimed more than it had: by as_of a hit
// that was stored before it is in the total.
func (w *witness) honest() {
	w.t.Helper()
	w.stop()
	type hit struct {
		counter string
		stored  int64 // Unix milliseconds
	}
	var hits []hit
	ctx, cancel := context.WithTimeout(w.t.Context(), recovery)
	defer cancel()
	consumer, err := w.stream(ctx).OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		w.t.Fatal(err)
	}
	defer messages.Stop()
	for left := uint64(1); left > 0; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			w.t.Fatal(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			w.t.Fatal(err)
		}
		left = meta.NumPending
		hits = append(hits, hit{strings.TrimPrefix(m.Subject(), "hits."), meta.Timestamp.UnixMilli()})
	}
	wrong, longest := 0, time.Duration(0)
	for i, answer := range w.answers {
		due, asOf := map[string]int64{}, answer.AsOf.UnixMilli()
		for _, h := range hits {
			if h.stored < asOf {
				due[h.counter]++
			}
		}
		for _, total := range answer.Totals {
			if total.Total < due[total.Key] {
				if wrong++; wrong <= 10 {
					w.t.Errorf("answer %d has %d hits of %s, and as_of %s claims %d", i, total.Total, total.Key, answer.AsOf, due[total.Key])
				}
			}
		}
		if i > 0 {
			longest = max(longest, answer.AsOf.Sub(w.answers[i-1].AsOf))
		}
	}
	w.t.Logf("%d answers, %d of their totals claim too much; as_of moved by %s at once at most", len(w.answers), wrong, longest.Round(time.Millisecond))
}

// broken breaks something, waits until hits that were stored afterwards are
// counted, and says how long that took.
func (s *system) broken(l *load, what string, breakIt func()) {
	s.t.Helper()
	moment(400 * time.Millisecond)
	began := time.Now()
	breakIt()
	s.progress(l)
	s.t.Logf("%s: counting again after %s", what, time.Since(began).Round(10*time.Millisecond))
}

// killed kills a server, sees counting go on without it, and starts it again.
func (s *system) killed(l *load, what string, server int) {
	s.t.Helper()
	s.broken(l, what+" killed", s.natsCluster.Servers[server].Kill)
	s.natsCluster.Servers[server].Start()
	s.natsCluster.WaitCurrent()
	s.progress(l)
}

func TestNATSClusterLeaderKilled(t *testing.T) {
	t.Parallel()
	s, l, w := startNATSCluster(t)
	n := rounds(1, 8)
	for range n {
		s.killed(l, "the stream's leader", s.natsCluster.Leader(s.js, "HITS"))
	}
	s.settled(l, n)
	w.honest()
}

func TestNATSClusterStepDown(t *testing.T) {
	t.Parallel()
	s, l, w := startNATSCluster(t)
	n := rounds(5, 40)
	conn := s.broker.Conn()
	for range n {
		s.broken(l, "the leader stepped down", func() {
			if err := s.natsCluster.StepDown(conn, "HITS"); err != nil {
				t.Log(err) // no leader yet
			}
		})
	}
	s.settled(l, n)
	w.honest()
}

// A leader that was paused wakes and does not know that another was elected. The
// worker may be connected to it; then it has to leave it, which nothing tells it.
func TestNATSClusterLeaderPaused(t *testing.T) {
	t.Parallel()
	s, l, w := startNATSCluster(t)
	n := rounds(1, 6)
	for i := range n {
		paused := s.natsCluster.Leader(s.js, "HITS")
		if i%2 == 1 {
			paused = s.natsCluster.Of(workerName)
		}
		t.Logf("the worker is connected to server %d, %d leads", s.natsCluster.Of(workerName), s.natsCluster.Leader(s.js, "HITS"))
		s.broken(l, fmt.Sprintf("server %d paused", paused), s.natsCluster.Servers[paused].Pause)
		s.broken(l, "woken", s.natsCluster.Servers[paused].Resume)
		s.natsCluster.WaitCurrent()
		s.progress(l)
	}
	s.settled(l, n)
	w.honest()
}

// The server that the worker is connected to, and the one that delivers to it.
func TestNATSClusterServerOfTheWorkerKilled(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("takes long: FAULTS=full")
	}
	s, l, w := startNATSCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*recovery)
	defer cancel()
	const n = 4
	for range n {
		connected := -1
		stack.Eventually(t, recovery, "the worker to be connected", func() (bool, string) {
			connected = s.natsCluster.Of(workerName)
			return connected >= 0, "it is not"
		})
		s.killed(l, "the worker's server", connected)

		delivers := -1
		stack.Eventually(t, recovery, "the worker's consumer", func() (bool, string) {
			consumers := s.stream(ctx).ListConsumers(ctx)
			for info := range consumers.Info() {
				if info.Cluster != nil && info.NumWaiting > 0 {
					delivers = s.natsCluster.Index(info.Cluster.Leader)
				}
			}
			return delivers >= 0, "there is none"
		})
		t.Logf("the worker is connected to server %d, %d delivers, %d leads", s.natsCluster.Of(workerName), delivers, s.natsCluster.Leader(s.js, "HITS"))
		s.killed(l, "the delivering server", delivers)
	}
	s.settled(l, 2*n)
	w.honest()
}

func TestNATSClusterKilled(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("takes long: FAULTS=full")
	}
	s, l, w := startNATSCluster(t)
	const n = 4
	for range n {
		s.broken(l, "all servers killed", func() {
			for _, server := range s.natsCluster.Servers {
				server.Kill()
			}
			for _, server := range s.natsCluster.Servers {
				server.Start()
			}
			s.natsCluster.WaitCurrent()
		})
	}
	s.settled(l, n)
	w.honest()
}
