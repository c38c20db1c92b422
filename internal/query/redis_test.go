package query

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// impatient sets the default timeouts: the service then refuses questions while a server hangs.
func impatient(s *service) *service {
	s.answers.Redis.Timeout, s.health.Timeout = 2*time.Second, 2*time.Second
	return s
}

// resources are questions of every kind.
var resources = []string{"/v1/total?key=a&window=10m", "/v1/series?key=a", "/v1/top?window=10m", "/v1/counters"}

// refusedInTime asks for every resource while Redis cannot answer; each refusal
// says why.
func refusedInTime(t *testing.T, h http.Handler, why string) {
	t.Helper()
	for _, target := range resources {
		resp := asking.Ask(h, http.MethodGet, target, "")
		p := asking.Refused(t, resp, http.StatusServiceUnavailable)
		if got := resp.Header.Get("Retry-After"); got != "1" {
			t.Errorf("%s: Retry-After %q", target, got)
		}
		if !strings.Contains(p.Detail, why) {
			t.Errorf("%s: %q, want %q", target, p.Detail, why)
		}
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

func TestRedisGoesAndComes(t *testing.T) {
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
	if want.Total != 3 {
		t.Fatalf("total %+v", want)
	}
	back := func(t *testing.T) {
		t.Helper()
		eventuallyReady(t, h, http.StatusOK)
		var resp *http.Response
		stack.Eventually(t, "an answer", func() (bool, string) {
			resp = asking.Ask(h, http.MethodGet, "/v1/total?key=a&window=10m", "")
			return resp.StatusCode == http.StatusOK, resp.Status
		})
		if got := answered(t, resp).Totals[0]; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
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
	if resp := asking.Ask(h, http.MethodGet, "/healthz", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %d", resp.StatusCode)
	}
}

// With a Redis that hangs from the start, many who ask at once are all refused, and
// none waits for another: one after the other they would take two minutes.
func TestManyAskersOfAHangingRedis(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	h := impatient(onRedis(t, redis.URL(), asking.Now())).handler()
	redis.Pause()
	defer redis.Resume()
	var wg sync.WaitGroup
	began := time.Now()
	for range 60 {
		wg.Go(func() {
			if resp := asking.Ask(h, http.MethodGet, goodTarget, ""); resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("they were refused after %v", took)
	}
}

func TestNoRedis(t *testing.T) {
	t.Parallel()
	s := onRedis(t, fmt.Sprintf("redis://127.0.0.1:%d/0", stack.FreePort(t)), asking.Now())
	watched(t, s)
	h := s.handler()
	refusedInTime(t, h, "ask again in a second")
	eventuallyReady(t, h, http.StatusServiceUnavailable)
}

func TestRun(t *testing.T) {
	t.Parallel()
	redis, broker := stack.Redis(t), stack.NATS(t)
	redis.Stop()
	port := stack.FreePort(t)
	var settings Settings
	err := boot.Parse(&settings, "REDIS_URL="+redis.URL(), "NATS_URL="+broker.URL(), "TALLYROLL_NAMESPACE="+asking.Namespace,
		fmt.Sprintf("QUERY_ADDR=127.0.0.1:%d", port), "QUERY_TOKENS=secret")
	require.NoError(t, err)
	var log asking.Log
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, settings, zerolog.New(&log), nil) }()
	base := "http://" + settings.Addr
	status := func(path string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Status
	}
	wait := func(path, want string) {
		t.Helper()
		stack.Eventually(t, path+" to answer "+want, func() (bool, string) {
			got := status(path)
			return got == want, got
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
	wait("/healthz", "200 OK")
	wait("/v1/total?key=a&window=1m", "503 Service Unavailable")
	logged("Redis lost", 1)
	redis.Start()
	asking.Seed(t, redis.Client(), time.Now(), asking.Hits("a", time.Now(), 1))
	wait("/readyz/answers", "200 OK")
	wait("/v1/total?key=a&window=1m", "200 OK")
	conn := broker.Conn()
	services(t, conn, 1)
	if msg := request(t, conn, "total", `{"keys":["a"],"windows":["1m"]}`); len(msg.Header) > 0 {
		t.Errorf("over NATS: %v %s", msg.Header, msg.Data)
	}
	redis.Stop()
	wait("/readyz/answers", "503 Service Unavailable")
	logged("Redis lost", 2)
	redis.Start()
	wait("/readyz/answers", "200 OK")
	logged("Redis back", 2)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	for message, want := range map[string]int{"started": 1, "Redis lost": 2, "Redis back": 2, "stopped": 1} {
		if got := log.Count(message); got != want {
			t.Errorf("%q is in the log %d times, want %d:\n%s", message, got, want, log.String())
		}
	}
}
