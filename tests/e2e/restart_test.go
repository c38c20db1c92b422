package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestRestartsLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	hits, restarts := 40_000, 4
	if stack.All() {
		hits, restarts = 200_000, 20
	}
	var keys []string
	for i := range 50 {
		keys = append(keys, fmt.Sprintf("api-%d", i+1))
	}
	_, published := s.begin("publish", nil, "--count", fmt.Sprint(hits), "--counters", fmt.Sprint(len(keys)), "--zipf", "0", "--rate", "50000", "--batch", "20")
	for range restarts {
		require.Zero(t, s.ingest.Stop())
		s.ingest.Start()
	}
	require.Contains(t, published(), fmt.Sprintf("published %d hits", hits))
	s.send("hits.after", "")
	s.awaitTotal("after", 1)
	s.awaitAllCounted()
	answer, err := stack.FetchTotals(s.query.URL(), url.Values{"key": keys, "window": {"24h"}})
	require.NoError(t, err)
	var sum int64
	for _, total := range answer.Totals {
		sum += total.Total
	}
	require.EqualValues(t, hits, sum)
}

// A worker recreates its stream if NATS has lost its store, and counts on. It does not if an operator deletes
// the stream.
func TestCountsGoOnIfNATSComesBackEmpty(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.send("hits.a", "")
	s.awaitTotal("a", 1)
	s.nats.Stop()
	s.nats.Empty()
	s.nats.Start()
	stack.Eventually(t, "the stream to be made again", func() (bool, string) {
		_, err := s.js.Publish(t.Context(), "hits.a", nil)
		return err == nil, fmt.Sprint(err)
	})
	s.awaitTotal("a", 2)

	require.NoError(t, s.js.DeleteStream(t.Context(), "HITS"))
	looks, err := s.nats.Conn().SubscribeSync("$JS.API.STREAM.NAMES")
	require.NoError(t, err)
	for range 8 { // the worker looks once per second, and would make it again after five
		_, err := looks.NextMsg(stack.Hung)
		require.NoError(t, err)
	}
	_, err = s.js.Stream(t.Context(), "HITS")
	require.Error(t, err, "a stream that was deleted is there again")
	eventuallySays(t, s.query.URL()+"/v1/total?key=a&window=24h", http.StatusOK, `"total":2,`)
}
