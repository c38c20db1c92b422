package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// On a managed Redis, which lacks the commands of its operator, everything works, and ingest logs what it
// could not check.
func TestManagedRedisIsEnough(t *testing.T) {
	t.Parallel()
	var missing []string
	for _, command := range []string{"CONFIG", "BGREWRITEAOF", "BGSAVE", "SAVE", "ACL", "DEBUG", "SHUTDOWN", "REPLICAOF", "FLUSHALL", "MODULE", "LATENCY", "SLOWLOG", "MONITOR"} {
		missing = append(missing, "--rename-command", command, "")
	}
	nats, redis := stack.NATS(t), stack.Redis(t, stack.RedisArgs(missing...))
	ingest := stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis, "NATS_URL="+nats.URL(), "QUERY_TAKE=any", "QUERY_ERASE=on")
	js := nats.JetStream()
	ack, err := js.Publish(t.Context(), "hits.a", []byte(`{"n":7,"unique":"ann"}`))
	require.NoError(t, err)
	for _, c := range []struct {
		method, path string
		body         any
		want         string
	}{
		{http.MethodGet, fmt.Sprintf("/v1/total?key=a&window=1h&after=HITS:%d&wait=10s", ack.Sequence), nil, `"total":7,`},
		{http.MethodGet, "/v1/uniques?key=a&window=1h", nil, `"estimate":1,`},
		{http.MethodPost, "/v1/take", map[string]any{"key": "k", "window": "1m", "max": 10, "policy": "log"}, `"remaining":9,`},
	} {
		status, answer, err := stack.Do(c.method, query.URL()+c.path, c.body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, "%s", answer)
		require.Contains(t, string(answer), c.want)
	}
	code, out := runToEnd(t, "audit", nil, "NATS_URL="+nats.URL(), "REDIS_URL="+redis.URL())
	require.Zero(t, code, out)
	require.Contains(t, out, "0 differences")
	require.Contains(t, ingest.Logs(), "does not reveal its settings")
}
