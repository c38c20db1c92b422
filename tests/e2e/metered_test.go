package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const plans = `
limits:
  - {name: free, window: 1h, max: 20, policy: log, count: {allowed: ["sum.usage.{limit}", "usage.{limit}.{key}"], refused: "refused.{limit}.{key}"}}
  - {name: pro, window: 30d, max: 1000, count: {allowed: "usage.{limit}.{key}", refused: "refused.{limit}.{key}", returned: "back.{limit}.{key}"}}
  - {name: all.you.can, window: 30d, unlimited: true, count: {allowed: "usage.{limit}.{key}"}}
`

type topList struct {
	AsOf time.Time `json:"as_of"`
	Top  []stack.Total
}

// A metered API: what limits decide, in two processes, is the usage of each customer, and the refusals of
// each key. Of a process that is killed, at most what it decided in its last second is in no counter.
func TestMeteredAPI(t *testing.T) {
	t.Parallel()
	s := start(t)
	limits := limitsFile(t, plans)
	a, b := s.startQuery(limits), s.startQuery(limits)
	take := func(q *stack.Service, plan, customer string, more string) int {
		t.Helper()
		body := json.RawMessage(fmt.Sprintf(`{"limit":%q,"key":%q%s}`, plan, customer, more))
		status, _ := decide(t, http.MethodPost, q.URL()+"/v1/take", body)
		return status
	}
	allowed := func(q *stack.Service, n int, plan, customer, more string) {
		t.Helper()
		for range n {
			require.Equal(t, http.StatusOK, take(q, plan, customer, more))
		}
	}
	for i := range 25 {
		want := http.StatusOK
		if i >= 20 {
			want = http.StatusTooManyRequests
		}
		require.Equal(t, want, take([]*stack.Service{a, b}[i%2], "free", "anna", ""), "take %d", i)
	}
	require.Equal(t, http.StatusTooManyRequests, take(a, "free", "anna", `,"n":3`))
	allowed(b, 1, "free", "bert", `,"n":7`)
	allowed(b, 3, "all.you.can", "carl", `,"n":1000`)
	// A call of a language model takes the most that it can cost, and settles what it did cost.
	allowed(b, 1, "pro", "dora", `,"n":400,"id":"call-1","ttl":"1h"`)
	for _, n := range []int{90, 73, 73} {
		status, answer, err := stack.Do(http.MethodPost, b.URL()+"/v1/settle", map[string]any{"limit": "pro", "key": "dora", "id": "call-1", "n": n})
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, string(answer))
	}
	status, _ := decide(t, http.MethodPost, b.URL()+"/v1/return", map[string]any{"limit": "pro", "key": "dora", "n": 4})
	require.Equal(t, http.StatusOK, status)
	s.awaitTotals(map[string]int64{
		"usage.free.anna": 20, "refused.free.anna": 8, "usage.free.bert": 7, "sum.usage.free": 27, "usage.all:you:can.carl": 3000,
		"usage.pro.dora": 90, "back.pro.dora": 21,
	})
	month, _, err := stack.FetchTotal(s.query.URL(), "usage.free.anna", "month")
	require.NoError(t, err)
	require.Equal(t, int64(20), month.Total)
	top := ask[topList](s, "/v1/top", url.Values{"prefix": {"refused.free."}, "window": {"5m"}})
	require.Len(t, top.Top, 1)
	require.Equal(t, "refused.free.anna", top.Top[0].Key)

	allowed(a, 30, "pro", "emil", "")
	s.awaitTotal("usage.pro.emil", 30)
	allowed(a, 5, "pro", "emil", "")
	a.Kill()
	allowed(b, 7, "pro", "emil", "")
	require.Zero(t, b.Stop(), "the end sends what is added up")
	s.awaitAllCounted()
	emil, _, err := stack.FetchTotal(s.query.URL(), "usage.pro.emil", "24h")
	require.NoError(t, err)
	require.LessOrEqual(t, emil.Total, int64(42))
	require.GreaterOrEqual(t, emil.Total, int64(37))
	s.send("hits.page", `[{"key":"/home","n":3},{"key":"/home","n":4,"all":false}]`)
	s.awaitTotal("/home", 7)
	all, err := stack.FetchTotals(s.query.URL(), url.Values{"prefix": {""}, "window": {"24h"}})
	require.NoError(t, err)
	require.EqualValues(t, 3, all.Totals[0].Total, "what limits decide is not in the sum of all hits")
	s.requireAudit(0, ", 0 differences\n")
}

// A process whose limits have no count dials no NATS for them, and one that has no NATS decides all the same.
func TestDecisionsNeedNoNATS(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	for _, nats := range []string{"", "nats://127.0.0.1:1"} {
		q := stack.Query(t, redis, limitsFile(t, plans), "NATS_URL="+nats)
		for range 3 {
			status, d := decide(t, http.MethodPost, q.URL()+"/v1/take", map[string]any{"limit": "pro", "key": "a" + nats})
			require.Equal(t, http.StatusOK, status)
			require.Equal(t, "redis", d.Source)
		}
		require.Zero(t, q.Stop())
		require.Contains(t, q.Logs(), `"hits":3,`, "what is dropped is in the log")
	}
}
