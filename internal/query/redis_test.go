package query

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// impatient sets the default timeouts: the service then refuses questions while a server hangs.
func impatient(s *service) *service {
	s.answers.Redis.Timeout, s.health.Timeout = 2*time.Second, 2*time.Second
	return s
}

// resources are questions of every kind.
var resources = []string{"/v1/total?key=a&window=10m", "/v1/series?key=a", "/v1/top?window=10m", "/v1/counters", "/probe?window=1h&key=a", "/probe?window=1h&top=3", "/probe?window=1h&prefix=a"}

// refusedInTime asks for every resource while Redis cannot answer; each refusal
// says why.
func refusedInTime(t *testing.T, h http.Handler, why string) {
	t.Helper()
	for _, target := range resources {
		resp := asking.Ask(h, http.MethodGet, target, "")
		p := asking.Refused(t, resp, http.StatusServiceUnavailable)
		require.Equal(t, "1", resp.Header.Get("Retry-After"), target)
		require.Contains(t, p.Detail, why, target)
		require.NotContains(t, p.Detail, "127.0.0.1", target) // where Redis is concerns nobody
	}
}

// eventuallyReady waits for a status of /readyz/answers.
func eventuallyReady(t *testing.T, h http.Handler, status int) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("/readyz/answers to say %d", status), func() (bool, string) {
		resp := asking.Ask(h, http.MethodGet, "/readyz/answers", "")
		return resp.StatusCode == status, fmt.Sprintf("%d %s", resp.StatusCode, asking.ReadAll(t, resp))
	})
}

func TestQuestionsAreRefusedWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	s := impatient(onRedis(t, redis.URL(), now))
	watched(t, s)
	h := s.handler()

	eventuallyReady(t, h, http.StatusServiceUnavailable)
	refusedInTime(t, h, "start ingest")
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now.Add(-time.Minute), 3))
	eventuallyReady(t, h, http.StatusOK)
	want := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=a&window=10m", "")).Totals[0]
	require.EqualValues(t, 3, want.Total)
	back := func(t *testing.T) {
		t.Helper()
		eventuallyReady(t, h, http.StatusOK)
		var resp *http.Response
		stack.Eventually(t, "an answer", func() (bool, string) {
			resp = asking.Ask(h, http.MethodGet, "/v1/total?key=a&window=10m", "")
			return resp.StatusCode == http.StatusOK, resp.Status
		})
		require.Equal(t, want, answered(t, resp).Totals[0])
	}
	t.Run("stopped", func(t *testing.T) {
		redis.Stop()
		refusedInTime(t, h, "ask again in a second")
		eventuallyReady(t, h, http.StatusServiceUnavailable)
		redis.Start()
		back(t)
	})
	t.Run("hanging", func(t *testing.T) {
		redis.Pause()
		refusedInTime(t, h, "did not answer within")
		eventuallyReady(t, h, http.StatusServiceUnavailable)
		redis.Resume()
		back(t)
	})
	require.Equal(t, http.StatusOK, asking.Ask(h, http.MethodGet, "/healthz", "").StatusCode)
}

// countingReader counts the questions that are asked at the moment.
type countingReader struct {
	access.Counters
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
	redis := stack.Redis(t)
	s := onRedis(t, redis.URL(), asking.Now())
	asking.Seed(t, redis.Client(), asking.Now())
	reader := &countingReader{Counters: s.answers.Reader}
	readFrom(s, reader)
	h := s.handler()
	redis.Pause()
	codes := make(chan int, askers)
	for range askers {
		go func() { codes <- asking.Ask(h, http.MethodGet, goodTarget, "").StatusCode }()
	}
	stack.Eventually(t, "all to be asking at once", func() (bool, string) {
		n := reader.asked.Load()
		return n == askers, fmt.Sprint(n)
	})
	redis.Resume()
	for range askers {
		require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable}, <-codes)
	}
}

// Run starts without Redis, logs each of its losses once, and serves the metrics at their own address alone.
func TestServiceRunsWhetherOrNotThereIsRedis(t *testing.T) {
	t.Parallel()
	redis, broker := stack.Redis(t), stack.NATS(t)
	redis.Stop()
	port := stack.FreePort(t)
	var settings Settings
	require.NoError(t, boot.Parse(&settings, "REDIS_URL="+redis.URL(), "NATS_URL="+broker.URL(), "TALLYROLL_NAMESPACE="+asking.Namespace,
		fmt.Sprintf("QUERY_ADDR=127.0.0.1:%d", port), fmt.Sprintf("QUERY_METRICS_ADDR=127.0.0.1:%d", stack.FreePort(t)), "QUERY_TOKENS=secret"))
	var log asking.Log
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, settings, zerolog.New(&log), nil) }()
	get := func(address string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode, string(asking.ReadAll(t, resp))
	}
	wait := func(path string, want int) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("%s to answer %d", path, want), func() (bool, string) {
			status, body := get(settings.Addr + path)
			return status == want, body
		})
	}
	// Redis may come back only when its loss has been seen, or there is none to log.
	logged := func(message string, n int) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("%q to be logged %d times", message, n), func() (bool, string) {
			got := log.Count(message)
			return got == n, fmt.Sprint(got)
		})
	}
	wait("/healthz", 200)
	for address, want := range map[string]int{
		settings.MetricsAddr + "/metrics": 200, settings.Addr + "/metrics": 404, settings.MetricsAddr + "/readyz": 503, settings.MetricsAddr + "/v1/counters": 404,
	} {
		status, body := get(address)
		require.Equal(t, want, status, "%s: %s", address, body)
	}
	_, document := get(settings.Addr + "/openapi.json")
	require.NotContains(t, document, `"/metrics"`)
	wait("/v1/total?key=a&window=1m", 503)
	logged("Redis lost", 1)
	redis.Start()
	asking.Seed(t, redis.Client(), time.Now(), asking.Hits("a", time.Now(), 1))
	wait("/readyz/answers", 200)
	wait("/v1/total?key=a&window=1m", 200)
	conn := broker.Conn()
	services(t, conn, 1)
	require.Empty(t, request(t, conn, "total", `{"keys":["a"],"windows":["1m"]}`).Header)
	redis.Stop()
	wait("/readyz/answers", 503)
	logged("Redis lost", 2)
	redis.Start()
	wait("/readyz/answers", 200)
	logged("Redis back", 2)
	stop()
	require.NoError(t, <-ended)
	for message, want := range map[string]int{"started": 1, "Redis lost": 2, "Redis back": 2, "stopped": 1} {
		require.Equal(t, want, log.Count(message), "%q in the log:\n%s", message, log.String())
	}
}
