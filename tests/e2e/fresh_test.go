package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// askAfter asks for the total of a counter in an answer that contains a message, and again while the answer is
// 503: the machine may be slow, but no answer may lack the message.
func askAfter(queryURL, key, stream string, sequence uint64) (stack.Total, error) {
	for {
		target := queryURL + "/v1/total?" + url.Values{"key": {key}, "window": {"1h"}, "after": {fmt.Sprintf("%s:%d", stream, sequence)}, "wait": {"10s"}}.Encode()
		status, body, err := stack.Do(http.MethodGet, target, nil)
		if err == nil && status == http.StatusServiceUnavailable {
			continue
		}
		var answer stack.Answer
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		if err != nil || status != http.StatusOK {
			return stack.Total{}, fmt.Errorf("%s: status %d: %s: %w", target, status, body, err)
		}
		return answer.Totals[0], nil
	}
}

// A producer that names its message reads its write, at once and exactly, whatever else is counted: over HTTP
// and NATS, with a counter on each shard. While the worker stands still, it is told how far counting is.
func TestAnAnswerContainsItsWrite(t *testing.T) {
	t.Parallel()
	s := start(t, "INGEST_FLUSH_INTERVAL=50ms")
	collect := stack.Collect(t, s.nats)
	js := s.nats.JetStream()
	for i := range int64(20) {
		key := fmt.Sprintf("mine.%d", i%10) // of several shards
		var stored struct {
			Stream   string
			Sequence uint64
		}
		status, body, err := stack.Do(http.MethodPost, collect.URL()+"/v1/hits", map[string]any{"key": key, "n": 3})
		require.NoError(t, err)
		require.Equal(t, http.StatusAccepted, status)
		require.NoError(t, json.Unmarshal(body, &stored))
		total, err := askAfter(s.query.URL(), key, stored.Stream, stored.Sequence)
		require.NoError(t, err)
		require.Equal(t, 3+i/10*4, total.Total, "after collect, %s", body)

		ack, err := js.Publish(t.Context(), "hits.x", fmt.Appendf(nil, `{"key":%q}`, key))
		require.NoError(t, err)
		total, err = askAfter(s.query.URL(), key, ack.Stream, ack.Sequence)
		require.NoError(t, err)
		require.Equal(t, 4+i/10*4, total.Total, "after NATS")
	}

	s.ingest.Pause()
	ack, err := js.Publish(t.Context(), "hits.x", []byte(`{"key":"mine.0"}`))
	require.NoError(t, err)
	refused := func(params, want string) (bool, string) {
		status, body, err := stack.Do(http.MethodGet, s.query.URL()+"/v1/total?key=mine.0&window=1h&wait=0s&"+params, nil)
		require.NoError(t, err)
		var p struct{ Type, Detail string }
		return status == http.StatusServiceUnavailable && json.Unmarshal(body, &p) == nil && p.Type == want, fmt.Sprintf("%d %s", status, body)
	}
	ok, state := refused(fmt.Sprintf("after=HITS:%d", ack.Sequence), "/docs#problem-not-yet")
	require.True(t, ok, state)
	require.Contains(t, state, fmt.Sprintf("stream HITS is counted up to %d of %d", ack.Sequence-1, ack.Sequence))
	stack.Eventually(t, "as_of to be too old", func() (bool, string) { return refused("max_age=1s", "/docs#problem-too-old") })

	answered := make(chan error, 1)
	go func() {
		total, err := askAfter(s.query.URL(), "mine.0", "HITS", ack.Sequence)
		if err == nil && total.Total != 9 {
			err = fmt.Errorf("%+v, want 9", total)
		}
		answered <- err
	}()
	eventuallySays(t, s.query.URL()+"/metrics", http.StatusOK, "tallyroll_query_waiting_requests 1")
	s.ingest.Resume()
	require.NoError(t, <-answered)
}
