package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// askAfter asks a question whose answer contains a message, and again while it is 503: the machine may be
// slow, but no answer may lack the message.
func askAfter(question, stream string, sequence uint64) (answer []byte, err error) {
	for {
		target := fmt.Sprintf("%s&after=%s:%d&wait=10s", question, stream, sequence)
		status, body, err := stack.Do(http.MethodGet, target, nil)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusOK:
			return body, nil
		case status != http.StatusServiceUnavailable:
			return nil, fmt.Errorf("%s: status %d: %s", target, status, body)
		}
	}
}

// A producer that names its message reads its write, at once and exactly: over HTTP and NATS, in totals and
// in a list. While the worker stands still, the problem says how far counting is.
func TestAnAnswerContainsItsWrite(t *testing.T) {
	t.Parallel()
	s := start(t, "INGEST_FLUSH_INTERVAL=50ms")
	collect := stack.Collect(t, s.nats)
	js := s.nats.JetStream()
	requireTotal := func(key, stream string, sequence uint64, want int64) {
		t.Helper()
		body, err := askAfter(s.query.URL()+"/v1/total?window=1h&key="+key, stream, sequence)
		require.NoError(t, err)
		require.Contains(t, string(body), fmt.Sprintf(`"total":%d,"lower":%d,`, want, want), key)
	}
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
		requireTotal(key, stored.Stream, stored.Sequence, 3+i/10*4)

		ack, err := js.Publish(t.Context(), "hits.x", fmt.Appendf(nil, `{"key":%q}`, key))
		require.NoError(t, err)
		requireTotal(key, ack.Stream, ack.Sequence, 4+i/10*4)
	}
	body, err := askAfter(s.query.URL()+"/v1/top?window=1h", "HITS", 40) // all shards
	require.NoError(t, err)
	require.Equal(t, 10, strings.Count(string(body), `"total":8,"lower":8,`), "%s", body)

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
	require.Contains(t, state, "stream HITS is counted up to 40 of 41")
	stack.Eventually(t, "as_of to be too old", func() (bool, string) { return refused("max_age=1s", "/docs#problem-too-old") })

	answered := make(chan struct{})
	go func() {
		defer close(answered)
		body, err := askAfter(s.query.URL()+"/v1/total?window=1h&key=mine.0", "HITS", ack.Sequence)
		if err != nil || !strings.Contains(string(body), `"total":9,"lower":9,`) {
			t.Errorf("%s, %v", body, err)
		}
	}()
	eventuallySays(t, s.query.URL()+"/metrics", http.StatusOK, "tallyroll_query_waiting_requests 1")
	s.ingest.Resume()
	<-answered
}
