package query

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// requireUnavailable asks questions of every kind while Redis cannot answer; each refusal has the reason.
func requireUnavailable(t *testing.T, h http.Handler, why string) {
	t.Helper()
	for _, target := range []string{
		"/v1/total?key=a&window=10m", "/v1/series?key=a", "/v1/top?window=10m", "/v1/counters",
		"/probe?window=1h&key=a", "/probe?window=1h&top=3", "/probe?window=1h&prefix=a",
	} {
		resp := apitest.Send(h, http.MethodGet, target, "")
		p := apitest.RequireProblem(t, resp, http.StatusServiceUnavailable)
		require.Equal(t, "1", resp.Header.Get("Retry-After"), target)
		require.Contains(t, p.Detail, why, target)
		require.NotContains(t, p.Detail, "127.0.0.1", target) // where Redis is concerns nobody
	}
}

// awaitReady waits for a status of /readyz/answers.
func awaitReady(t *testing.T, h http.Handler, status int) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("the status %d of /readyz/answers", status), func() (bool, string) {
		resp := apitest.Send(h, http.MethodGet, "/readyz/answers", "")
		return resp.StatusCode == status, fmt.Sprintf("%d %s", resp.StatusCode, apitest.ReadBody(t, resp))
	})
}

func TestQuestionsAreRefusedWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), apitest.Now()
	s := serveRedis(t, server.URL(), now)
	shortenTimeouts(s)
	runHealth(t, s)
	h := s.handler()
	awaitReady(t, h, http.StatusServiceUnavailable)
	requireUnavailable(t, h, "start ingest")
	apitest.Seed(t, server.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 3))
	for _, c := range []struct {
		why         string
		leave, back func()
	}{
		{"ask again in a second", func() { server.Stop() }, func() { server.Start() }},
		{"did not answer within", server.Pause, server.Resume},
	} {
		awaitReady(t, h, http.StatusOK)
		stack.Eventually(t, "an answer", func() (bool, string) {
			text := get(t, h, "/v1/total?key=a&window=10m")
			return strings.Contains(text, `"total":3,`), text
		})
		c.leave()
		requireUnavailable(t, h, c.why)
		awaitReady(t, h, http.StatusServiceUnavailable)
		require.Equal(t, http.StatusOK, apitest.Send(h, http.MethodGet, "/healthz", "").StatusCode)
		c.back()
	}
	awaitReady(t, h, http.StatusOK)
}

// countingReader counts the questions that are being asked.
type countingReader struct {
	scope.Counters
	asked atomic.Int32
}

func (r *countingReader) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	r.asked.Add(1)
	defer r.asked.Add(-1)
	return r.Counters.Answer(ctx, questions)
}

// While Redis hangs, none of many who ask waits for another.
func TestManyAskersOfAHangingRedisWaitTogether(t *testing.T) {
	t.Parallel()
	const askers = 60
	server := stack.Redis(t)
	s := serveRedis(t, server.URL(), apitest.Now())
	apitest.Seed(t, server.Client(), apitest.Now())
	reader := &countingReader{Counters: s.questions.Reader}
	setReader(s, reader)
	h := s.handler()
	server.Pause()
	codes := make(chan int, askers)
	for range askers {
		go func() { codes <- apitest.Send(h, http.MethodGet, goodTarget, "").StatusCode }()
	}
	stack.Eventually(t, "all to be asking at once", func() (bool, string) {
		n := reader.asked.Load()
		return n == askers, fmt.Sprint(n)
	})
	server.Resume()
	for range askers {
		require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable}, <-codes)
	}
}

// Run starts without Redis, logs each of its losses once, and serves the metrics at their own address alone.
// On a busy machine Redis can be lost for a moment more often than this test stops it.
func TestServiceRunsWhetherOrNotThereIsRedis(t *testing.T) {
	t.Parallel()
	server, broker := stack.Redis(t), stack.NATS(t)
	server.Stop()
	limits := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(limits, []byte("limits: [{name: closed, window: 1h, max: 2, fail: closed}]"),
		0o600))
	var settings Settings
	require.NoError(t, setting.Parse(&settings, "REDIS_URL="+server.URL(), "NATS_URL="+broker.URL(),
		"TALLYROLL_NAMESPACE="+apitest.Namespace, "QUERY_LIMITS_FILE="+limits,
		fmt.Sprintf("QUERY_ADDR=127.0.0.1:%d", stack.FreePort(t)),
		fmt.Sprintf("QUERY_METRICS_ADDR=127.0.0.1:%d", stack.FreePort(t)), "QUERY_TOKENS=secret"))
	var log apitest.Log
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, settings, zerolog.New(&log), nil) }()
	ask := func(address string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode, string(apitest.ReadBody(t, resp))
	}
	await := func(path string, want int, text string) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("%s to answer %d", path, want), func() (bool, string) {
			status, body := ask(settings.Addr.String() + path)
			return status == want && strings.Contains(body, text), body
		})
	}
	changes := func() []string { return regexp.MustCompile("Redis (lost|back)").FindAllString(log.String(), -1) }
	// Redis may come back only when its loss has been seen, or there is none to log.
	awaitLast := func(message string) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("%q to be logged last", message), func() (bool, string) {
			seen := changes()
			return len(seen) > 0 && seen[len(seen)-1] == message, log.String()
		})
	}
	const total, limit = "/v1/total?key=a&window=1m", "/v1/limit?limit=closed&key=a"
	await("/healthz", 200, "")
	for address, want := range map[string]int{
		settings.MetricsAddr.String() + "/metrics": 200, settings.Addr.String() + "/metrics": 404, settings.MetricsAddr.String() + "/readyz": 503, settings.MetricsAddr.String() + "/v1/counters": 404,
	} {
		status, body := ask(address)
		require.Equal(t, want, status, "%s: %s", address, body)
	}
	_, document := ask(settings.Addr.String() + "/openapi.json")
	require.NotContains(t, document, `"/metrics"`)
	await(total, 503, "")
	await(limit, 503, "Redis cannot decide now")
	awaitLast("Redis lost")
	server.Start()
	apitest.Seed(t, server.Client(), time.Now(), apitest.NewSample("a", time.Now(), 1))
	await("/readyz/answers", 200, "")
	await(total, 200, `"total":`)
	await(limit, 200, `"source":"redis"`)
	awaitServices(t, broker.Conn(), 1)
	require.Empty(t, request(t, broker.Conn(), "total", `{"keys":["a"],"windows":["1m"]}`).Header)
	server.Stop()
	await("/readyz/answers", 503, "")
	awaitLast("Redis lost")
	server.Start()
	await("/readyz/answers", 200, "")
	awaitLast("Redis back")
	stop()
	require.NoError(t, <-ended)
	seen := changes()
	require.GreaterOrEqual(t, len(seen), 4)
	for i, message := range seen {
		require.Equal(t, []string{"Redis lost", "Redis back"}[i%2], message, "change %d in the log:\n%s", i, log.String())
	}
	for _, message := range []string{"started", "stopped"} {
		require.Equal(t, 1, log.Count(message), "%q in the log:\n%s", message, log.String())
	}
}

// A key that something else has written fails the requests that need it, and no others. Listeners at /v1/live
// receive that, or go on. If it is one that every answer needs, the service is not ready, and names it.
// internal/query/answer has all such keys.
func TestSpoiltKeyFailsOnlyWhatNeedsIt(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), apitest.Now()
	client, asOf := server.Client(), now.Add(-5001*time.Millisecond)
	apitest.Seed(t, client, asOf, apitest.NewSample("a", now.Add(-time.Minute), 3), apitest.NewSample("b", now.Add(-time.Minute), 4))
	for _, key := range stack.Scan(t, client, "test:*:s:*:a") {
		require.NoError(t, client.Set(t.Context(), key, "mine", redis.KeepTTL).Err())
	}
	s := serveRedis(t, server.URL(), now)
	runHealth(t, s)
	h := s.handler()
	other := make(chan *http.Response, 1)
	go func() { other <- apitest.Send(h, http.MethodGet, "/v1/live?key=a&window=10m", "") }()
	event := firstEvent(t, h, "key=b&window=10m")
	require.Contains(t, event, `"total":4`)
	require.Contains(t, event, `"upper":null`) // nobody has counted lately
	p := apitest.RequireProblem(t, <-other, http.StatusInternalServerError)
	require.Regexp(t, `:s:\d+:a is not Tallyroll's`, p.Detail)
	awaitReady(t, h, http.StatusOK)
	layout := client.Get(t.Context(), "test:layout").Val()
	for _, key := range []string{"test:layout", "test:streams"} {
		require.NoError(t, client.Set(t.Context(), key, "mine", 0).Err())
		apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, "/v1/total?key=b&window=10m", ""), http.StatusInternalServerError)
		stack.Eventually(t, "/readyz/answers to name "+key, func() (bool, string) {
			text := get(t, h, "/readyz/answers")
			return strings.Contains(text, key), text
		})
		require.NoError(t, client.Set(t.Context(), "test:layout", layout, 0).Err())
	}
}

// A Redis user who may only read gets an error that names the missing right. The rights of query-erase are
// enough.
func TestErasingNeedsTheRightsOfQueryErase(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 3))
	erase := func(user string) *http.Response {
		rights := stack.RightsOf(t, user)
		for i, word := range rights {
			rights[i] = strings.Replace(word, "~tallyroll:", "~"+apitest.Namespace+":", 1)
		}
		stack.NewUser(t, server, user, "s3cret", rights...)
		s := serveRedis(t, strings.Replace(server.URL(), "redis://", "redis://"+user+":s3cret@", 1), now)
		return apitest.Send(s.handler(), http.MethodDelete, "/v1/counters?key=a", "")
	}
	p := apitest.RequireProblem(t, erase("query"), http.StatusServiceUnavailable)
	require.Equal(t, web.RightsMissing.Type(), p.Type)
	require.Contains(t, p.Detail, "rights of query-erase")
	require.NotEmpty(t, stack.Scan(t, server.Client(), apitest.Namespace+":*:[hs]:*:a"))
	require.Equal(t, `{"erased":1}`, strings.TrimSpace(string(apitest.ReadBody(t, erase("query-erase")))))
	require.Empty(t, stack.Scan(t, server.Client(), apitest.Namespace+":*:[hs]:*:a"))
}

// confirm is the most counters that an erasure may remove, so names that still arrive need not be guessed.
func TestConfirmIsTheMostCountersToErase(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), apitest.Now()
	s := serveRedis(t, server.URL(), now)
	for confirm := range 5 {
		require.NoError(t, server.Client().FlushDB(t.Context()).Err())
		apitest.Seed(t, server.Client(), now, apitest.NewSample("a.1", now, 1), apitest.NewSample("a.2", now, 1), apitest.NewSample("a.3", now, 1))
		resp := apitest.Send(s.handler(), http.MethodDelete, fmt.Sprint("/v1/counters?prefix=a.&confirm=", confirm), "")
		if confirm < 3 {
			require.Contains(t, apitest.RequireProblem(t, resp, http.StatusConflict).Detail, `3 counters begin with "a."`)
			continue
		}
		require.JSONEq(t, `{"erased":3}`, string(apitest.ReadBody(t, resp)), "confirm=%d", confirm)
	}
}
