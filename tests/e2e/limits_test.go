package e2e_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

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

// Takes need no worker, and are the same over HTTP and NATS. What is refused is allowed when the answer said
// so. A file that changes holds after SIGHUP, and a bad one changes nothing.
func TestTakesAreDecidedByAFileThatCanChange(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	limits := file(t, "limits.yml", "limits:\n- {name: short, window: 2s, max: 2}\n- {name: long, window: 1h, max: 2}\n")
	q := s.startQuery("QUERY_LIMITS_FILE="+limits, stack.NoWait)
	q.WaitForLog("answering on NATS")
	take := func(limit string, n int) (int, decision) {
		return decide(t, http.MethodPost, q.URL()+"/v1/take", map[string]any{"limit": limit, "key": "alice", "n": n})
	}
	check := func(what string, wantStatus int, wantRemaining int64, status int, d decision) {
		t.Helper()
		if status != wantStatus || d.Remaining != wantRemaining {
			t.Errorf("%s: %d %+v, want %d and %d that remain", what, status, d, wantStatus, wantRemaining)
		}
	}
	stack.Eventually(t, "a take", func() (bool, string) { status, d := take("short", 2); return status == http.StatusOK, d.Detail })
	status, refused := take("short", 1)
	began := time.Now()
	if status != http.StatusTooManyRequests || refused.Allowed || refused.RetryAfter <= 0 || refused.RetryAfter > 2.1 {
		t.Fatalf("status %d: %+v", status, refused)
	}
	stack.Eventually(t, "what was refused to be allowed", func() (bool, string) {
		status, d := take("short", 1)
		return status == http.StatusOK, d.Source
	})
	if took := time.Since(began).Seconds(); took < refused.RetryAfter-0.1 {
		t.Errorf("allowed after %v s, before the %v s that the answer said", took, refused.RetryAfter)
	}

	look := q.URL() + "/v1/limit?limit=long&key=alice"
	do := func(what string, wantStatus int, wantRemaining int64, n int) {
		t.Helper()
		status, d := take("long", n)
		check(what, wantStatus, wantRemaining, status, d)
	}
	do("all", http.StatusOK, 0, 2)
	do("one more", http.StatusTooManyRequests, 0, 1)
	do("a give-back", http.StatusOK, 1, -1)
	status, d := decide(t, http.MethodDelete, look, nil)
	check("a reset", http.StatusNoContent, 0, status, d)
	conn := s.nats.Conn()
	for _, want := range []bool{true, true, false} {
		msg, err := conn.Request("tallyroll.take", []byte(`{"limit":"long","key":"alice"}`), stack.Hung)
		require.NoError(t, err)
		var d decision
		require.NoErrorf(t, json.Unmarshal(msg.Data, &d), "%s", msg.Data)
		require.Equal(t, want, d.Allowed)
	}

	write(t, limits, "limits:\n- {name: long, window: 1h, max: 7}\n")
	q.Signal(syscall.SIGHUP)
	q.WaitForLog(`"message":"limits reloaded"`)
	status, d = decide(t, http.MethodGet, look, nil)
	check("after a reload", http.StatusOK, 5, status, d)
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
	status, d = decide(t, http.MethodGet, look, nil)
	check("after a bad file", http.StatusOK, 5, status, d)
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
