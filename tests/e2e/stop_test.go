package e2e_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// A worker ends when it is told to, whatever hangs: both servers accept what is
// sent to them and answer nothing. The promise is ten seconds; the order of the steps and
// their limits are tested in virtual time (internal/worker); here only that it ends.
func TestAStopWhileBothServersHang(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATSProcess(t), stack.Redis(t)
	ingest := stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis)
	js := nats.JetStream()
	publish := func(n int) {
		for range n {
			if _, err := js.Publish(t.Context(), "hits.c", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(10)
	// The whole commit, not only that of the shard that has the counter.
	stack.Eventually(t, "all to be committed", func() (bool, string) {
		_, body, _ := get(t, ingest.URL()+"/metrics")
		return strings.Contains(string(body), `tallyroll_ingest_messages_total{stream="HITS"} 10`), linesWith(string(body), "ingest_messages_total")
	})
	// Redis first, so that hits are read that cannot be committed.
	redis.Pause()
	publish(10)
	stack.Eventually(t, "a worker that says what it waits for", func() (bool, string) {
		code, text, _ := get(t, ingest.URL()+"/readyz")
		body := string(text)
		return code == 503 && strings.Contains(body, "HITS") && strings.Contains(body, "commit"), body
	})
	if _, body, _ := get(t, ingest.URL()+"/metrics"); !strings.Contains(string(body), `tallyroll_ingest_lag_messages{stream="HITS"} 10`) {
		t.Errorf("lag is not told: %s", linesWith(string(body), "ingest_lag", "uncommitted"))
	}
	nats.Pause()
	began := time.Now()
	ingest.Signal(syscall.SIGTERM)
	code := ingest.Wait()
	t.Logf("ended after %s", time.Since(began).Round(10*time.Millisecond))
	if code != 0 {
		t.Errorf("exit code %d, want 0: what is not committed is read again", code)
	}
	if !strings.Contains(ingest.Logs(), "the next worker reads these hits again") {
		t.Error("the log does not say what was not committed")
	}

	redis.Resume()
	nats.Resume()
	ingest.Start()
	stack.EventuallyTotal(t, query.URL(), "c", "24h", 20)
}

func linesWith(text string, parts ...string) string {
	var out []string
	for line := range strings.Lines(text) {
		for _, part := range parts {
			if strings.Contains(line, part) && !strings.HasPrefix(line, "#") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return fmt.Sprint(out)
}
