package e2e_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// SIGTERM ends a worker, whatever hangs: both servers accept what is sent to them and answer nothing. The
// promise is ten seconds; the order of the steps and their limits are tested in virtual time
// (internal/worker); here only that it ends.
func TestAStopWhileBothServersHang(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATSProcess(t), stack.Redis(t)
	ingest, query := stack.Ingest(t, nats, redis), stack.Query(t, redis)
	js := nats.JetStream()
	publish := func() {
		t.Helper()
		for range 10 {
			_, err := js.Publish(t.Context(), "hits.c", nil)
			require.NoError(t, err)
		}
	}
	publish()
	// The whole commit, not only that of the shard that has the counter.
	eventuallySays(t, ingest.URL()+"/metrics", http.StatusOK, `tallyroll_ingest_messages_total{stream="HITS"} 10`)
	redis.Pause() // first, so that hits are read that cannot be committed
	publish()
	eventuallySays(t, ingest.URL()+"/readyz", http.StatusServiceUnavailable, "commit")
	require.Contains(t, metrics(t, ingest), `tallyroll_ingest_lag_messages{stream="HITS"} 10`)
	nats.Pause()
	require.Zero(t, ingest.Stop(), "what is not committed is read again")
	require.Contains(t, ingest.Logs(), "the next worker reads these hits again")

	redis.Resume()
	nats.Resume()
	ingest.Start()
	stack.EventuallyTotal(t, query.URL(), "c", "24h", 20)
}
