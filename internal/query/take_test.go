package query

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/gate"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// decided decodes an answer that must have the given status.
func decided(t *testing.T, resp *http.Response, status int) gate.TakeAnswer {
	t.Helper()
	data := asking.ReadAll(t, resp)
	var out gate.TakeAnswer
	if err := json.Unmarshal(data, &out); err != nil || resp.StatusCode != status {
		t.Fatalf("status %d, want %d: %s: %v", resp.StatusCode, status, data, err)
	}
	return out
}

// Takes, looks and resets are decided by Redis, by the fail mode while it is away, and by Redis again. All their forms and
// mistakes are tested in internal/gate.
func TestTakesAreDecidedByRedisOrTheFailMode(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	h := onRedis(t, redis.URL(), asking.Now()).handler()
	take := func(name string) *http.Response {
		return asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"`+name+`","key":"a","n":2}`)
	}
	const login = "/v1/limit?limit=login&key=a"
	resp := take("login")
	require.Equal(t, gate.TakeAnswer{Allowed: true, Certain: true, Remaining: 3, Limit: "login", Source: "redis"}, decided(t, resp, 200))
	require.Equal(t, `"login";r=3;t=60`, resp.Header.Get("RateLimit"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	decided(t, take("login"), 200)
	require.Equal(t, "redis", decided(t, take("login"), 429).Source)
	require.EqualValues(t, 1, decided(t, asking.Ask(h, http.MethodGet, login, ""), 200).Remaining)
	require.Equal(t, http.StatusNoContent, asking.Ask(h, http.MethodDelete, login, "").StatusCode)

	redis.Stop()
	require.Equal(t, "local", decided(t, take("login"), 200).Source)
	asking.Refused(t, take("closed"), 503)
	asking.Refused(t, asking.Ask(h, http.MethodDelete, login, ""), 503)
	page := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/metrics", "")))
	require.Contains(t, page, `tallyroll_limit_decisions_total{limit="closed",result="error",source=""} 1`+"\n")

	redis.Start()
	stack.Eventually(t, "Redis to decide", func() (bool, string) {
		resp := take("closed")
		return resp.StatusCode == 200, resp.Status
	})
	require.Equal(t, "redis", decided(t, take("login"), 200).Source)
}
