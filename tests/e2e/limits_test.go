package e2e_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// decision is what /v1/take and /v1/limit answer.
type decision struct {
	Allowed    bool    `json:"allowed"`
	Certain    bool    `json:"certain"`
	Remaining  int64   `json:"remaining"`
	RetryAfter float64 `json:"retry_after"`
	Limit      string  `json:"limit"`
	Source     string  `json:"source"`
	Detail     string  `json:"detail"` // of a problem
}

// decide sends a request about a limit.
func decide(t *testing.T, method, url string, body any) (status int, out decision) {
	t.Helper()
	status, answer, err := stack.Do(method, url, body)
	require.NoError(t, err)
	if err := json.Unmarshal(answer, &out); err != nil && status != http.StatusNoContent {
		t.Fatalf("%s %s answers %d %q: %v", method, url, status, answer, err)
	}
	return status, out
}

// limitsFile is the setting that names a file of limits.
func limitsFile(t *testing.T, text string) (setting string) {
	t.Helper()
	return "QUERY_LIMITS_FILE=" + file(t, "limits.yml", text)
}

// Takes need no worker, and a file that changes holds after SIGHUP. A bad one changes nothing.
func TestTakesAreDecidedByAFileThatCanChange(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	limits := file(t, "limits.yml", "limits:\n- {name: long, window: 1h, max: 2}\n")
	q := s.startQuery("QUERY_LIMITS_FILE="+limits, stack.NoWait)
	check := func(what, method, path string, body any, wantStatus int, wantRemaining int64) {
		t.Helper()
		if status, d := decide(t, method, q.URL()+path, body); status != wantStatus || d.Remaining != wantRemaining {
			t.Errorf("%s: %d %+v, want %d and %d that remain", what, status, d, wantStatus, wantRemaining)
		}
	}
	const look = "/v1/limit?limit=long&key=alice"
	eventuallySays(t, q.URL()+look, http.StatusOK, `"source":"redis"`)
	take := map[string]any{"limit": "long", "key": "alice", "n": 2}
	check("all", http.MethodPost, "/v1/take", take, http.StatusOK, 0)
	check("more", http.MethodPost, "/v1/take", take, http.StatusTooManyRequests, 0)
	write(t, limits, "limits:\n- {name: long, window: 1h, max: 7}\n")
	q.Signal(syscall.SIGHUP)
	q.WaitForLog(`"message":"limits reloaded"`)
	check("after a reload", http.MethodGet, look, nil, http.StatusOK, 5)
	write(t, limits, "limits:\n- {name: long, window: 1h, max: 9}\n- {name: b, window: 1x, max: 1}\n")
	q.Signal(syscall.SIGHUP)
	q.WaitForLog("limits not reloaded")
	for _, line := range []string{
		`tallyroll_last_reload_successful{what="limits"} 0`, `tallyroll_reloads_total{result="failed",what="limits"} 1`, `tallyroll_reloads_total{result="ok",what="limits"} 1`,
	} {
		require.Contains(t, metrics(t, q), line)
	}
	if logs := q.Logs(); !strings.Contains(logs, limits+": line 3: window: ") || strings.Count(logs, `"level":"error"`) != 1 {
		t.Errorf("the log says %s", logs)
	}
	check("after a bad file", http.MethodGet, look, nil, http.StatusOK, 5)
}

// Without Redis, killed or hanging, each limit does what its fail mode says. A process stays ready as long as
// one of its limits can be decided: no load balancer takes it out of service then.
func TestFailModesAndReadinessWithoutRedis(t *testing.T) {
	t.Parallel()
	s := start(t)
	const (
		open   = "- {name: open, window: 1h, max: 3, fail: open}\n"
		closed = "- {name: closed, window: 1h, max: 3, fail: closed}\n"
		local  = "- {name: local, window: 1h, max: 3}\n"
	)
	all := stack.Query(t, s.redis, limitsFile(t, "limits:\n"+open+closed+local))
	none := stack.Query(t, s.redis, limitsFile(t, "limits:\n"+closed))
	unnamed := stack.Query(t, s.redis, limitsFile(t, "limits:\n"+closed), "QUERY_TAKE=any")
	off := stack.Query(t, s.redis, limitsFile(t, "limits:\n"+open), "QUERY_TAKE=off")
	ready := func(q *stack.Service, path string, want int) {
		t.Helper()
		eventuallySays(t, q.URL()+path, want, "")
	}
	take := func(limit, key string) (int, decision) {
		return decide(t, http.MethodPost, all.URL()+"/v1/take", map[string]any{"limit": limit, "key": key})
	}
	failModes := func(key string, takes int) {
		t.Helper()
		for i := range takes {
			if status, d := take("open", key); status != http.StatusOK || !d.Allowed || d.Certain || d.Source != "local" {
				t.Errorf("%s, open: %d %+v", key, status, d)
			}
			if status, d := take("closed", key); status != http.StatusServiceUnavailable || d.Detail == "" {
				t.Errorf("%s, closed: %d %+v", key, status, d)
			}
			if status, d := take("local", key); d.Source != "local" || d.Allowed != (i < 3) || (status == http.StatusOK) != (i < 3) {
				t.Errorf("%s, local, take %d: %d %+v", key, i, status, d)
			}
		}
	}
	decidesAgain := func() {
		t.Helper()
		eventuallySays(t, all.URL()+"/v1/limit?limit=closed&key=k", http.StatusOK, `"source":"redis"`)
	}
	for _, q := range []*stack.Service{all, none, unnamed} {
		ready(q, "/readyz/takes", http.StatusOK)
	}
	ready(off, "/readyz/takes", http.StatusServiceUnavailable)
	s.redis.Kill()
	const yes, no = http.StatusOK, http.StatusServiceUnavailable
	for q, want := range map[*stack.Service]int{all: yes, unnamed: yes, none: no, off: no} {
		eventuallySays(t, q.URL()+"/readyz/answers", http.StatusServiceUnavailable, "Redis does not answer")
		ready(q, "/readyz", want)
		ready(q, "/readyz/takes", want)
		ready(q, "/healthz", http.StatusOK)
	}
	failModes("killed", 5)
	s.redis.Start()
	for _, q := range []*stack.Service{all, none, unnamed, off} {
		ready(q, "/readyz", http.StatusOK)
		ready(q, "/readyz/answers", http.StatusOK)
	}
	decidesAgain()
	s.redis.Pause()
	failModes("hanging", 1)
	s.redis.Resume()
	decidesAgain()
}
