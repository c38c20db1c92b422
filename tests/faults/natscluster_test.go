package faults_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const workerName = "the-worker"

// startNATSCluster starts everything on a cluster of NATS, with one worker, and looks
// at the answers all the time.
func startNATSCluster(t *testing.T) (*system, *load, *witness) {
	t.Helper()
	s := startServersOnNATSCluster(t)
	s.startWorker(s.redis, "INGEST_WORKER="+workerName)
	l := startLoad(s, "c", true, 500)
	s.awaitProgress(l)
	return s, l, s.watch(l.names)
}

// breakUnderLoad breaks something, waits until hits that were stored afterwards are
// counted, and says how long that took.
func (s *system) breakUnderLoad(l *load, what string, breakIt func()) {
	s.t.Helper()
	sleepUpTo(400 * time.Millisecond)
	began := time.Now()
	breakIt()
	s.awaitProgress(l)
	s.t.Logf("%s: counting again after %s", what, time.Since(began).Round(10*time.Millisecond))
}

// killUnderLoad kills a server, sees counting go on without it, and starts it again.
func (s *system) killUnderLoad(l *load, what string, server int) {
	s.t.Helper()
	s.breakUnderLoad(l, what+" killed", s.natsCluster.Servers[server].Kill)
	s.natsCluster.Servers[server].Start()
	s.natsCluster.WaitCurrent()
	s.awaitProgress(l)
}

func TestCountsAreExactIfTheLeaderOfNATSIsKilled(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	s, l, w := startNATSCluster(t)
	n := rounds(1, 1, 8)
	for range n {
		s.killUnderLoad(l, "the stream's leader", s.natsCluster.Leader(s.js, "HITS"))
	}
	s.requireExactCounts(l, n)
	w.requireHonest("HITS")
}

func TestCountsAreExactIfTheLeaderOfNATSStepsDown(t *testing.T) {
	t.Parallel()
	s, l, w := startNATSCluster(t)
	n := rounds(2, 5, 40)
	conn := s.broker.Conn()
	for range n {
		s.breakUnderLoad(l, "the leader stepped down", func() {
			if err := s.natsCluster.StepDown(conn, "HITS"); err != nil {
				t.Log(err) // no leader yet
			}
		})
	}
	s.requireExactCounts(l, n)
	w.requireHonest("HITS")
}

// A leader that was paused wakes and does not know that another was elected. The
// startWorker may be connected to it; then it has to leave it, which nothing tells it.
func TestCountsAreExactIfTheLeaderOfNATSIsPaused(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	s, l, w := startNATSCluster(t)
	n := rounds(1, 1, 6)
	for i := range n {
		paused := s.natsCluster.Leader(s.js, "HITS")
		if i%2 == 1 {
			paused = s.natsCluster.Of(workerName)
		}
		t.Logf("the worker is connected to server %d, %d leads", s.natsCluster.Of(workerName), s.natsCluster.Leader(s.js, "HITS"))
		s.breakUnderLoad(l, fmt.Sprintf("server %d paused", paused), s.natsCluster.Servers[paused].Pause)
		s.breakUnderLoad(l, "woken", s.natsCluster.Servers[paused].Resume)
		s.natsCluster.WaitCurrent()
		s.awaitProgress(l)
	}
	s.requireExactCounts(l, n)
	w.requireHonest("HITS")
}

// The server that the worker is connected to, and the one that delivers to it.
func TestCountsAreExactIfTheWorkersNATSServerIsKilled(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("takes long: FAULTS=full")
	}
	s, l, w := startNATSCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
	defer cancel()
	const n = 4
	for range n {
		connected := -1
		stack.Eventually(t, "the worker to be connected", func() (bool, string) {
			connected = s.natsCluster.Of(workerName)
			return connected >= 0, "it is not"
		})
		s.killUnderLoad(l, "the worker's server", connected)

		delivers := -1
		stack.Eventually(t, "the worker's consumer", func() (bool, string) {
			consumers := s.stream(ctx).ListConsumers(ctx)
			for info := range consumers.Info() {
				if info.Cluster != nil && info.NumWaiting > 0 {
					delivers = s.natsCluster.Index(info.Cluster.Leader)
				}
			}
			return delivers >= 0, "there is none"
		})
		t.Logf("the worker is connected to server %d, %d delivers, %d leads", s.natsCluster.Of(workerName), delivers, s.natsCluster.Leader(s.js, "HITS"))
		s.killUnderLoad(l, "the delivering server", delivers)
	}
	s.requireExactCounts(l, 2*n)
	w.requireHonest("HITS")
}

func TestCountsAreExactIfAllOfNATSIsKilled(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("takes long: FAULTS=full")
	}
	s, l, w := startNATSCluster(t)
	const n = 4
	for range n {
		s.breakUnderLoad(l, "all servers killed", func() {
			for _, server := range s.natsCluster.Servers {
				server.Kill()
			}
			for _, server := range s.natsCluster.Servers {
				server.Start()
			}
			s.natsCluster.WaitCurrent()
		})
	}
	s.requireExactCounts(l, n)
	w.requireHonest("HITS")
}

// A backup that is restored in a cluster has another creation and the same messages. (Servers before 2.15 can
// restore a stream of several replicas with its creation: docs/servers.md.)
func TestARestoredStreamOfAClusterIsCountedExactly(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	for _, replicas := range []int{1, stack.NATSServers} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			t.Parallel()
			s := &system{t: t, redis: stack.Redis(t), natsCluster: stack.NATSCluster(t)}
			s.broker = s.natsCluster
			s.startQuery(s.redis, replicas)
			s.createStream("HITS", "hits.>")
			worker := s.startWorker(s.redis)
			conn := s.broker.Conn()
			ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
			defer cancel()
			first := startLoad(s, "first", false, 500)
			s.awaitProgress(first)
			sleepUpTo(time.Second)
			s.requireExactCounts(first, 0)
			n, replaced := rounds(1, 1, 3), false
			for i := range n {
				backup := stack.BackUp(t, conn, "HITS")
				before, err := s.stream(ctx).Info(ctx)
				require.NoError(t, err)
				require.NoError(t, s.js.DeleteStream(ctx, "HITS"))
				backup.Restore(t, conn, "HITS")
				after, err := s.stream(ctx).Info(ctx)
				require.NoError(t, err)
				require.Equal(t, before.State.LastSeq, after.State.LastSeq, "the last message")
				replaced = !after.Created.Equal(before.Created)
				t.Logf("the creation is another one: %v", replaced)
				l := startLoad(s, fmt.Sprintf("later%d", i), false, 500)
				s.awaitProgress(l)
				s.requireExactCounts(l, 1)
				s.compare(first, "after the restoring")
			}
			if !replaced {
				require.Equal(t, stack.NATSServers, replicas, "replicas of a stream that is restored with its creation")
				require.Regexp(t, `^2\.1[0-4]\.`, conn.ConnectedServerVersion())
				return
			}
			require.Contains(t, worker.Logs(), "the stream was replaced by a copy with the same messages")

			// An older backup: its messages were counted, and more than it holds.
			backup := stack.BackUp(t, conn, "HITS")
			last := startLoad(s, "last", false, 500)
			s.awaitProgress(last)
			s.requireExactCounts(last, 0)
			deleted := time.Now()
			require.NoError(t, s.js.DeleteStream(ctx, "HITS"))
			backup.Restore(t, conn, "HITS")
			stack.Eventually(t, "the worker to say that it stands still", func() (bool, string) {
				return strings.Contains(worker.Logs(), "it may be an older backup or a copy of another stream"), ""
			})
			s.compare(first, "while the stream stands still")
			state, err := s.stream(ctx).Info(ctx)
			require.NoError(t, err)
			if state.Created.Before(deleted) {
				require.Regexp(t, `^2\.1[0-4]\.`, conn.ConnectedServerVersion())
				t.Log("the backup's creation is restored: a purge does not let the worker go on")
				return
			}
			require.NoError(t, s.stream(ctx).Purge(ctx, jetstream.WithPurgeSequence(state.State.LastSeq+1)))
			l := startLoad(s, "end", false, 500)
			s.awaitProgress(l)
			s.requireExactCounts(l, 1)
			for _, l := range []*load{first, last} {
				s.compare(l, "after the purge")
			}
		})
	}
}
