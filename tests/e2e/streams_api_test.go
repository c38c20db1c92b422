package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// streamsAnswer and rejectsAnswer are what /v1/streams and /v1/rejects answer.
type streamsAnswer struct {
	Streams []struct {
		Stream, Worker string
		Exists         bool
		Last           uint64    `json:"last_sequence"`
		Applied        uint64    `json:"applied_sequence"`
		LagMessages    uint64    `json:"lag_messages"`
		LagSeconds     float64   `json:"lag_seconds"`
		AsOf           time.Time `json:"as_of"`
		Rejects        uint64
	}
	Workers []struct {
		Worker, Status string
		Streams        []string
	}
}

type rejectsAnswer struct {
	Stored  uint64
	Reasons []struct {
		Reason string
		Count  int
	}
	Rejects []struct {
		Reason, Detail, Stream, Body string
		Sequence, Position           uint64
		Item, Bytes                  int
	}
}

// /v1/streams names the worker of a stream, its lag, and that it has none when the worker is dead. Then no
// answer has an upper bound or is complete, because what is stored meanwhile is unknown.
func TestADeadWorkerShowsInStreamsAndAnswers(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_WORKER=first")
	s.query = s.startQuery()
	for range 3 {
		s.send("hits.a", "")
	}
	address := s.query.URL() + "/v1/streams"
	got := eventuallyAnswers(t, address, "three messages to be applied", func(a streamsAnswer) bool {
		return len(a.Streams) == 1 && a.Streams[0].Applied == 3 && a.Streams[0].Worker != "" && len(a.Workers) == 1
	})
	first := got.Streams[0]
	if first.Stream != "HITS" || first.Worker != "first" || !first.Exists || first.Last != 3 || first.LagMessages != 0 || first.LagSeconds != 0 || time.Since(first.AsOf) > time.Minute {
		t.Errorf("%+v", first)
	}
	if w := got.Workers[0]; w.Worker != "first" || w.Status != s.ingest.Addr() || len(w.Streams) != 1 || w.Streams[0] != "HITS" {
		t.Errorf("%+v", w)
	}

	s.ingest.Kill()
	s.send("hits.a", "")
	s.send("hits.a", "")
	dead := eventuallyAnswers(t, address, "no worker", func(a streamsAnswer) bool {
		return len(a.Workers) == 0 && a.Streams[0].Worker == "" && a.Streams[0].LagMessages == 2 && a.Streams[0].LagSeconds > 0
	}).Streams[0]
	later := eventuallyAnswers(t, address, "the lag to grow", func(a streamsAnswer) bool { return a.Streams[0].LagSeconds > dead.LagSeconds }).Streams[0]
	if !later.AsOf.Equal(dead.AsOf) || later.Applied != 3 {
		t.Errorf("without a worker it goes from %+v to %+v", dead, later)
	}
	eventuallySays(t, s.query.URL()+"/v1/total?key=a&window=1h", http.StatusOK, `"total":3,"lower":3,"upper":null,`)
	eventuallySays(t, s.query.URL()+"/v1/limit?key=a&window=1h&max=5", http.StatusOK, `"allowed":true,"certain":false`)

	stack.Ingest(t, s.nats, s.redis, "INGEST_WORKER=second")
	eventuallyAnswers(t, address, "the second worker to catch up", func(a streamsAnswer) bool {
		return len(a.Workers) == 1 && a.Streams[0].Worker == "second" && a.Streams[0].LagMessages == 0 && a.Streams[0].AsOf.After(later.AsOf)
	})
	eventuallySays(t, s.query.URL()+"/v1/total?key=a&window=1h", http.StatusOK, `"total":5,"lower":5,"upper":5,`)
}

// A query that starts before any worker answers what to start. It answers everything that needs no NATS while
// that is away, logs once that it waits, and connects later.
func TestQueryIsStartedBeforeEverythingElse(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	s.nats.Stop()
	const namespace = "TALLYROLL_NAMESPACE=shop"
	query := s.startQuery(namespace, "QUERY_LIMIT_FILE=limits.yml", "INGEST_FLUSH=1s", "QUERY_TIMEOUT=2s", stack.NoWait)
	query.WaitForLog(`"variable":"QUERY_LIMIT_FILE","nearest":"QUERY_LIMITS_FILE"`) // a mistyped variable has no effect
	require.NotContains(t, query.Logs(), "INGEST_FLUSH", "it is of another program")
	const want = "no worker has counted in the namespace shop yet: start ingest with the same REDIS_URL and TALLYROLL_NAMESPACE"
	for _, path := range []string{"/readyz", "/v1/total?key=a&window=1h", "/v1/counters", "/v1/live?key=a&window=1m", "/probe?key=a&window=1h"} {
		eventuallySays(t, query.URL()+path, http.StatusServiceUnavailable, want)
	}
	needNATS := []string{"/v1/streams", "/v1/rejects"}
	for _, path := range needNATS {
		eventuallySays(t, query.URL()+path, http.StatusServiceUnavailable, "NATS does not answer, and this needs it: start it")
	}
	query.WaitForLog("waiting for NATS at " + strings.TrimPrefix(s.nats.URL(), "nats://"))
	s.nats.Start()
	stack.Ingest(t, s.nats, s.redis, namespace)
	query.WaitReady()
	query.WaitForLog("answering on NATS")
	for _, path := range needNATS {
		eventuallySays(t, query.URL()+path, http.StatusOK, "")
	}
	require.Equal(t, 1, strings.Count(query.Logs(), "waiting for NATS"))
	s.nats.Stop()
	for _, path := range needNATS {
		eventuallySays(t, query.URL()+path, http.StatusServiceUnavailable, "NATS cannot answer")
	}
}
