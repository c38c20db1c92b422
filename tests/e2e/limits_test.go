package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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

// limitsFile is a file of named limits, and the setting that names it.
func limitsFile(t *testing.T, text string) (path, setting string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "limits.yml")
	write(t, path, text)
	return path, "QUERY_LIMITS_FILE=" + path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestTakeDenyRetryGiveBackReset(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"cells", "log", "stream"} {
		t.Run(policy, func(t *testing.T) {
			_, setting := limitsFile(t, "limits:\n- {name: short, window: 2s, max: 2, policy: "+policy+"}\n- {name: long, window: 1h, max: 2, policy: "+policy+"}\n")
			q := stack.Query(t, stack.Redis(t), setting, stack.NoWait) // takes need no worker
			take := func(limit string, n int) (int, decision) {
				return decide(t, http.MethodPost, q.URL()+"/v1/take", map[string]any{"limit": limit, "key": "alice", "n": n})
			}
			stack.Eventually(t, "a take", func() (bool, string) {
				status, body, err := stack.Do(http.MethodPost, q.URL()+"/v1/take", map[string]any{"limit": "short", "key": "alice", "n": 2})
				return err == nil && status == http.StatusOK, string(body)
			})
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
				t.Errorf("allowed after %v s, before the %v s that it was told", took, refused.RetryAfter)
			}

			take("long", 2)
			if status, _ := take("long", 1); status != http.StatusTooManyRequests {
				t.Errorf("status %d", status)
			}
			if status, d := take("long", -1); status != http.StatusOK || d.Remaining != 1 {
				t.Errorf("a give-back: %d %+v", status, d)
			}
			if status, _ := take("long", 1); status != http.StatusOK {
				t.Errorf("after a give-back: status %d", status)
			}
			if status, d := decide(t, http.MethodGet, q.URL()+"/v1/limit?limit=long&key=alice", nil); status != http.StatusOK || d.Allowed {
				t.Errorf("a look: %d %+v", status, d)
			}
			if status, _ := decide(t, http.MethodDelete, q.URL()+"/v1/limit?limit=long&key=alice", nil); status != http.StatusNoContent {
				t.Errorf("a reset: status %d", status)
			}
			if status, d := take("long", 1); status != http.StatusOK || d.Remaining != 1 {
				t.Errorf("after a reset: %d %+v", status, d)
			}
		})
	}
}

func TestLimitsAreReloaded(t *testing.T) {
	t.Parallel()
	file, setting := limitsFile(t, "limits:\n- {name: a, window: 1h, max: 5}\n")
	q := stack.Query(t, stack.Redis(t), setting, stack.NoWait)
	remaining := func() int64 {
		_, d := decide(t, http.MethodGet, q.URL()+"/v1/limit?limit=a&key=k", nil)
		return d.Remaining
	}
	stack.Eventually(t, "an answer", func() (bool, string) {
		_, _, err := stack.Do(http.MethodGet, q.URL()+"/healthz", nil)
		return err == nil, ""
	})
	if got := remaining(); got != 5 {
		t.Fatalf("%d remain", got)
	}
	write(t, file, "limits:\n- {name: a, window: 1h, max: 7}\n- {name: b, window: 1h, max: 1}\n")
	q.Signal(syscall.SIGHUP)
	q.WaitForLog(`"message":"limits reloaded"`)
	if got := remaining(); got != 7 {
		t.Errorf("%d remain after a reload", got)
	}
	write(t, file, "limits:\n- {name: a, window: 1h, max: 9}\n- {name: b, window: 1x, max: 1}\n")
	q.Signal(syscall.SIGHUP)
	q.WaitForLog("limits not reloaded")
	if _, text, err := stack.Do(http.MethodGet, q.URL()+"/metrics", nil); err != nil || !hasAll(string(text), []string{`tallyroll_last_reload_successful{what="limits"} 0`, `tallyroll_reloads_total{result="failed",what="limits"} 1`, `tallyroll_reloads_total{result="ok",what="limits"} 1`}) {
		t.Errorf("after a bad file, metrics say %s %v", linesWith(string(text), "reload"), err)
	}
	if logs := q.Logs(); !strings.Contains(logs, file+": line 3: window: ") || strings.Count(logs, `"level":"error"`) != 1 {
		t.Errorf("the log says %s", logs)
	}
	if got := remaining(); got != 7 {
		t.Errorf("%d remain after a bad file", got)
	}

	without := stack.Query(t, stack.Redis(t), stack.NoWait)
	without.WaitForLog(`"message":"started"`)
	without.Signal(syscall.SIGHUP)
	without.WaitForLog("nothing to reload")
	if code := without.Stop(); code != 0 {
		t.Errorf("without a file, query ends with code %d", code)
	}
}

func TestABadLimitsFileAtStart(t *testing.T) {
	t.Parallel()
	file, setting := limitsFile(t, "limits:\n- name: a\n  window: 1h\n  max: none\n")
	code, out := ends(t, "query", nil, setting)
	if want := "query: QUERY_LIMITS_FILE: " + file + ": line 4: max: "; code != 2 || !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 {
		t.Errorf("query ends with %d and %q; want code 2 and %q", code, out, want)
	}
	if code, out := ends(t, "query", nil, setting+".none"); code != 2 || !strings.Contains(out, "QUERY_LIMITS_FILE: ") {
		t.Errorf("without the file, query ends with %d and %q", code, out)
	}
}

// A Redis user who may only read answers all questions but the ones that count.
func TestAUserWhoMayOnlyRead(t *testing.T) {
	t.Parallel()
	s := start(t)
	var user []any
	for word := range strings.FieldsSeq("acl setuser reader on >s3cret ~tallyroll:* resetchannels -@all +@read +@connection +@transaction -@dangerous +time +info") {
		user = append(user, word)
	}
	require.NoError(t, s.redis.Client().Do(t.Context(), user...).Err())
	s.send("hits.a", "")
	q := stack.Query(t, redisAt("redis://reader:s3cret@"+s.redis.Addr()+"/0"), "QUERY_TAKE=any")
	stack.EventuallyTotal(t, q.URL(), "a", "1h", 1)
	if status, d := decide(t, http.MethodGet, q.URL()+"/v1/limit?key=a&window=1h&max=1", nil); status != http.StatusOK || d.Allowed {
		t.Errorf("a look at a counter: %d %+v", status, d)
	}
	for range 5 { // it stays as clear, whatever was refused before
		status, d := decide(t, http.MethodPost, q.URL()+"/v1/take", map[string]any{"key": "a", "window": "1h", "max": 5})
		if status != http.StatusServiceUnavailable || !strings.Contains(d.Detail, "needs the rights in docs/limits.md") || !strings.Contains(d.Detail, "eval") {
			t.Errorf("a take: %d %+v", status, d)
		}
	}
	if logs := q.Logs(); strings.Contains(logs, "s3cret") {
		t.Errorf("the password is in the log: %s", logs)
	}
}

func TestFailModes(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	_, setting := limitsFile(t, `limits:
- {name: open, window: 1h, max: 3, fail: open}
- {name: closed, window: 1h, max: 3, fail: closed}
- {name: local, window: 1h, max: 3, fail: local}
`)
	q := stack.Query(t, redis, setting, stack.NoWait)
	key := "before" // one for each outage: what was counted in an earlier one still counts
	take := func(limit string) (int, decision) {
		return decide(t, http.MethodPost, q.URL()+"/v1/take", map[string]any{"limit": limit, "key": key})
	}
	q.WaitForLog(`"message":"started"`)
	stack.Eventually(t, "a take", func() (bool, string) { status, d := take("closed"); return status == http.StatusOK, d.Detail })
	for name, away := range map[string]func(){"killed": redis.Kill, "hanging": redis.Pause} {
		key = name
		away()
		for i := range 5 {
			if status, d := take("open"); status != http.StatusOK || !d.Allowed || d.Certain || d.Source != "local" {
				t.Errorf("%s, open: %d %+v", name, status, d)
			}
			if status, d := take("closed"); status != http.StatusServiceUnavailable || d.Detail == "" {
				t.Errorf("%s, closed: %d %+v", name, status, d)
			}
			if status, d := take("local"); d.Source != "local" || d.Allowed != (i < 3) || (status == http.StatusOK) != (i < 3) {
				t.Errorf("%s, local, take %d: %d %+v", name, i, status, d)
			}
		}
		if name == "killed" {
			redis.Start()
		} else {
			redis.Resume()
		}
		stack.Eventually(t, "Redis to decide again", func() (bool, string) {
			status, d := decide(t, http.MethodGet, q.URL()+"/v1/limit?limit=closed&key=k", nil)
			return status == http.StatusOK && d.Source == "redis", d.Detail
		})
	}
}

// Without Redis, a process stays ready as long as one of its limits can be decided: nobody takes it out of service then,
// and its fail modes can answer.
func TestReadyWithoutRedis(t *testing.T) {
	t.Parallel()
	nats := stack.NATS(t)
	for name, c := range map[string]struct {
		limits, env string
		takes       bool // can be decided without Redis
	}{
		"open":              {"{name: a, window: 1h, max: 3, fail: open}", "QUERY_TAKE=named", true},
		"local, by default": {"{name: a, window: 1h, max: 3}", "QUERY_TAKE=named", true},
		"closed":            {"{name: a, window: 1h, max: 3, fail: closed}", "QUERY_TAKE=named", false},
		"open and closed":   {"{name: a, window: 1h, max: 3, fail: open}\n- {name: b, window: 1h, max: 3, fail: closed}", "QUERY_TAKE=named", true},
		"any":               {"{name: a, window: 1h, max: 3, fail: closed}", "QUERY_TAKE=any", true},
		"off":               {"{name: a, window: 1h, max: 3, fail: open}", "QUERY_TAKE=off", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A Redis of its own, with a layout: the process is ready for all it does.
			redis := stack.Redis(t)
			namespace := "TALLYROLL_NAMESPACE=" + strings.NewReplacer(" ", "-", ",", "").Replace(name)
			stack.Ingest(t, nats, redis, namespace)
			_, setting := limitsFile(t, "limits:\n- "+c.limits+"\n")
			q := stack.Query(t, redis, setting, c.env, namespace)
			ready := func(path string, want bool, says string) {
				t.Helper()
				stack.Eventually(t, fmt.Sprintf("%s: ready %v", path, want), func() (bool, string) {
					status, text, err := stack.Do(http.MethodGet, q.URL()+path, nil)
					if err != nil {
						return false, err.Error()
					}
					return (status == http.StatusOK) == want && strings.Contains(string(text), says), fmt.Sprintf("%d %s", status, text)
				})
			}
			ready("/readyz", true, "ready")
			ready("/readyz/answers", true, "ready")
			ready("/readyz/takes", c.env != "QUERY_TAKE=off", "")
			redis.Kill()
			ready("/readyz/answers", false, "Redis does not answer")
			ready("/readyz", c.takes, "")
			ready("/readyz/takes", c.takes, "")
			if c.takes && strings.HasPrefix(c.limits, "{name: a, window: 1h, max: 3, fail: open}") {
				if status, d := decide(t, http.MethodPost, q.URL()+"/v1/take", map[string]any{"limit": "a", "key": "k"}); status != http.StatusOK || d.Source != "local" {
					t.Errorf("a take: %d %+v", status, d)
				}
			}
			if status, _, err := stack.Do(http.MethodGet, q.URL()+"/healthz", nil); err != nil || status != http.StatusOK {
				t.Errorf("/healthz: %d %v", status, err)
			}
			redis.Start()
			ready("/readyz", true, "ready")
			ready("/readyz/answers", true, "ready")
		})
	}
}

// What a proxy's limit has counted can be looked at and reset, though its key is not the caller's to choose.
func TestLookAtWhatAProxyCounts(t *testing.T) {
	t.Parallel()
	_, setting := limitsFile(t, "limits:\n- {name: route, window: 1h, max: 5, policy: log, key: \"{ip} {method} {path} {header.X-Plan}\"}\n")
	q := stack.Query(t, stack.Redis(t), setting, "QUERY_TRUSTED_PROXIES=127.0.0.0/8,::1", stack.NoWait)
	q.WaitForLog(`"message":"started"`)
	asked := func() (int, error) {
		r, err := http.NewRequest(http.MethodGet, q.URL()+"/v1/authz?limit=route", nil)
		if err != nil {
			return 0, err
		}
		for name, value := range map[string]string{"X-Forwarded-For": "2001:db8::7", "X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/a%20b/../c%20d?e=1", "X-Plan": "gold"} {
			r.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	stack.Eventually(t, "a decision for a proxy", func() (bool, string) {
		status, err := asked()
		return status == http.StatusOK, fmt.Sprint(status, err)
	})
	if status, err := asked(); status != http.StatusOK || err != nil {
		t.Fatal(status, err)
	}
	const of = "/v1/limit?limit=route&ip=2001:db8::99&method=POST&path=/c%2520d&header.x-plan=gold"
	if status, d := decide(t, http.MethodGet, q.URL()+of, nil); status != http.StatusOK || d.Remaining != 3 {
		t.Errorf("a look: %d %+v", status, d)
	}
	body := map[string]any{"limit": "route", "ip": "2001:db8::1", "method": "POST", "path": "/c d", "header": map[string]string{"X-Plan": "gold"}, "n": 2}
	if status, d := decide(t, http.MethodPost, q.URL()+"/v1/take", body); status != http.StatusOK || d.Remaining != 1 {
		t.Errorf("a take: %d %+v", status, d)
	}
	if status, d := decide(t, http.MethodDelete, q.URL()+of, nil); status != http.StatusNoContent {
		t.Errorf("a reset: %d %+v", status, d)
	}
	if status, d := decide(t, http.MethodGet, q.URL()+of, nil); status != http.StatusOK || d.Remaining != 5 {
		t.Errorf("a look after the reset: %d %+v", status, d)
	}
}

func TestTakesOverNATS(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t)
	_, setting := limitsFile(t, "limits:\n- {name: a, window: 1h, max: 1, policy: log}\n")
	q := stack.Query(t, redis, setting, "NATS_URL="+nats.URL(), stack.NoWait)
	q.WaitForLog("answering on NATS")
	conn := nats.Conn()
	for _, c := range []struct {
		subject string
		allowed bool
	}{{"limit", true}, {"take", true}, {"limit", false}, {"take", false}} {
		msg, err := conn.Request("tallyroll."+c.subject, []byte(`{"limit":"a","key":"k"}`), stack.Hung)
		require.NoError(t, err)
		var d decision
		if err := json.Unmarshal(msg.Data, &d); err != nil || d.Allowed != c.allowed || len(msg.Header) > 0 {
			t.Errorf("%s: %v %s: %v", c.subject, msg.Header, msg.Data, err)
		}
	}
}
