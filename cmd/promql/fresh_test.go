package main

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A query with Tallyroll-After waits until its cells contain the message, even while as many queries wait as
// may run at a time. Otherwise it has an error of Prometheus's kind.
func TestQueriesWaitForAMessage(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	began, stored := time.Now().Add(-time.Hour), time.Now().Truncate(time.Second).Add(-5*time.Second)
	cursor := newCursor(began, stored.Add(-5*time.Second))
	seedFrom(t, redis.Client(), cursor, counted{"a", stored.Add(-20 * time.Second), 3})
	s := start(t, redis, "PROMQL_CONCURRENCY=1")
	ask := func(headers ...string) (int, apiAnswer) {
		query := url.Values{"query": {`sum_over_time(tallyroll_hits{key="a"}[1m])`}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/api/v1/query?"+query.Encode(), nil)
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		return send(t, req)
	}
	for _, c := range []struct {
		headers []string
		status  int
		kind    string
		message string
	}{
		{[]string{"Tallyroll-After", "HITS:1, HITS:2", "Tallyroll-Wait", "0s"}, 503, "unavailable", "Tallyroll-After: stream HITS is counted up to 1 of 2"},
		{[]string{"Tallyroll-Max-Age", "1s", "Tallyroll-Wait", "0s"}, 503, "unavailable", "Tallyroll-Max-Age: as_of is "},
		{[]string{"Tallyroll-After", "HITS"}, 400, "bad_data", `Tallyroll-After: "HITS" is not STREAM:SEQUENCE`},
		{[]string{"Tallyroll-After", "OTHER:1"}, 400, "bad_data", `Tallyroll-After: stream "OTHER" is not counted here: counted are HITS`},
		{[]string{"Tallyroll-Wait", "1s"}, 400, "bad_data", "Tallyroll-Wait: only with Tallyroll-After or Tallyroll-Max-Age"},
	} {
		status, answer := ask(c.headers...)
		require.Equal(t, []any{c.status, c.kind}, []any{status, answer.ErrorType}, answer.Error)
		require.Contains(t, answer.Error, c.message)
	}

	answered := make(chan apiAnswer, 3)
	for range cap(answered) {
		go func() {
			status, answer := ask("Tallyroll-After", "HITS:2", "Tallyroll-Wait", "10s")
			for status == http.StatusServiceUnavailable { // this machine takes very long
				status, answer = ask("Tallyroll-After", "HITS:2", "Tallyroll-Wait", "10s")
			}
			answered <- answer
		}()
	}
	stack.Eventually(t, "all to wait", func() (bool, string) {
		n := metric(t, s, "tallyroll_promql_waiting_requests")
		return n == cap(answered), strconv.Itoa(n)
	})
	status, plain := ask()
	require.Equal(t, http.StatusOK, status, plain.Error)
	cursor.Seq, cursor.Stored, cursor.AsOf = 2, stored.UnixNano(), stored.UnixMilli()+500
	seedFrom(t, redis.Client(), cursor, counted{"a", stored, 4})
	reads := metric(t, s, "tallyroll_promql_wait_reads_total")
	stack.Eventually(t, "two reads", func() (bool, string) {
		n := metric(t, s, "tallyroll_promql_wait_reads_total")
		return n > reads+2, strconv.Itoa(n)
	})
	require.Empty(t, answered, "the cell of the message is not complete")
	cursor.AsOf += 500
	seedFrom(t, redis.Client(), cursor)
	for range cap(answered) {
		require.Contains(t, string((<-answered).Data), `"7"]`)
	}
}

// metric is the value of a metric without labels.
func metric(t testing.TB, s *stack.Service, name string) int {
	t.Helper()
	_, text, err := stack.Do(http.MethodGet, s.URL()+"/metrics", nil)
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindSubmatch(text)
	require.NotNil(t, found, name)
	n, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return n
}
