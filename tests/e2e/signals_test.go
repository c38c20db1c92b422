package e2e_test

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// GNU timeout signals its child and then the child's whole group, so two signals
// come at once: that is one request, and the worker ends as at one signal.
func TestTwoSignalsAtOnceAreOne(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.send("hits.a", "")
	for range 3 {
		s.ingest.Signal(syscall.SIGTERM)
		s.ingest.Signal(syscall.SIGINT)
	}
	if code := s.ingest.Wait(); code != 0 {
		t.Fatalf("ingest ends with code %d; want 0", code)
	}
	s.ingest.Start() // the hit may have been on its way to the worker
	s.awaitTotal("a", 1)
}

// Another signal, more than a second later, says that the first took too long.
func TestALaterSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.redis.Pause() // the last commit cannot end
	s.send("hits.a", "")
	eventuallySays(t, s.ingest.URL()+"/metrics", http.StatusOK, `tallyroll_ingest_uncommitted_messages{stream="HITS"} 1`)
	began := time.Now()
	s.ingest.Signal(syscall.SIGINT)
	s.ingest.WaitForLog("stopping")
	stack.Eventually(t, "another signal to end it", func() (bool, string) {
		if s.ingest.Running() {
			s.ingest.Signal(syscall.SIGINT)
		}
		return !s.ingest.Running(), s.ingest.Logs()
	})
	if code := s.ingest.Wait(); code != 130 || time.Since(began) < time.Second {
		t.Errorf("ingest ends with code %d after %v; want 130, after a second", code, time.Since(began))
	}
	s.redis.Resume()
}
