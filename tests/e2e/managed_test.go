package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// withheld are commands that managed services take away from their customers.
var withheld = strings.Fields("acl bgrewriteaof bgsave config debug failover lastsave latency migrate module monitor psync replicaof save shutdown slaveof slowlog sync")

// Without them hits, unique values and takes count, counters are erased, and audit finds no difference. ingest
// logs what it could not check.
func TestAManagedServiceWithoutAdministrationCountsExactly(t *testing.T) {
	t.Parallel()
	var args []string
	for _, command := range withheld {
		args = append(args, "--rename-command", command, "")
	}
	s := &system{t: t, redis: stack.Redis(t, stack.RedisArgs(args...)), nats: stack.NATS(t)}
	for _, command := range withheld {
		require.ErrorContains(t, s.redis.Client().Do(t.Context(), command, "get", "save").Err(), "unknown command")
	}
	s.js = s.nats.JetStream()
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.query = s.startQuery("QUERY_ERASE=on", limitsFile(t, "limits:\n- {name: a, window: 1h, max: 1}\n"))
	s.send("hits.x", `[{"key":"a","n":4,"unique":"ann"},{"key":"a","unique":"bob"},{"key":"gone","n":7}]`)
	s.awaitTotals(map[string]int64{"a": 5, "gone": 7})
	s.eventuallyUnique("two", "a", func(u unique) bool { return u.Upper != nil && u.Estimate == 2 })
	s.ingest.Kill()
	s.send("hits.x", `{"key":"a"}`)
	s.ingest.Start()
	s.awaitTotal("a", 6)
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		status, d := decide(t, http.MethodPost, s.query.URL()+"/v1/take", map[string]any{"limit": "a", "key": "k", "n": 1})
		require.Equal(t, want, status, d.Detail)
	}
	require.Equal(t, 1, erase(t, s.query, "gone"))
	_, audited := s.begin("audit", nil)
	require.Contains(t, audited(), "0 differences")
	for _, line := range []string{"does not reveal its settings", "cannot be asked to rewrite its append-only file"} {
		require.Contains(t, s.ingest.Logs(), line)
	}
}
