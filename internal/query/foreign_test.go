package query

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// A key that something else has written fails the requests that need it, which name it, and no others. Listeners at /v1/live
// hear of it or go on. If it is one that every answer needs, the service is not ready, and says why.
func TestSpoiltKeyFailsOnlyWhatNeedsIt(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	client := server.Client()
	asking.Seed(t, client, now, asking.Hits("a", now.Add(-time.Minute), 3), asking.Hits("b", now.Add(-time.Minute), 4))
	for _, key := range stack.Scan(t, client, "test:*:h:1m:*:a") {
		require.NoError(t, client.Set(t.Context(), key, "mine", redis.KeepTTL).Err())
	}
	s := onRedis(t, server.URL(), now)
	watched(t, s)
	h := s.handler()
	beside := make(chan *http.Response, 1)
	go func() { beside <- asking.Ask(h, http.MethodGet, "/v1/live?key=a&window=10m", "") }()
	require.Contains(t, firstEvent(t, h, "key=b&window=10m"), `"total":4`)
	for target, resp := range map[string]*http.Response{
		"/v1/live": <-beside, "/v1/total": asking.Ask(h, http.MethodGet, "/v1/total?key=b&key=a&window=10m", ""),
	} {
		p := asking.Refused(t, resp, http.StatusInternalServerError)
		key, _, _ := strings.Cut(p.Detail, " is not Tallyroll's")
		if !strings.Contains(key, ":h:1m:") || !strings.HasSuffix(key, ":a") || resp.Header.Get("Retry-After") != "" {
			t.Errorf("%s: %q, Retry-After %q", target, p.Detail, resp.Header.Get("Retry-After"))
		}
	}
	eventuallyReady(t, h, http.StatusOK)
	layout := client.Get(t.Context(), "test:layout").Val()
	for _, key := range []string{"test:layout", "test:streams"} {
		require.NoError(t, client.Set(t.Context(), key, "mine", 0).Err())
		asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/total?key=b&window=10m", ""), http.StatusInternalServerError)
		eventuallyReady(t, h, http.StatusServiceUnavailable)
		stack.Eventually(t, "/readyz to name the key", func() (bool, string) {
			text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/readyz/answers", "")))
			return strings.Contains(text, key), text
		})
		require.NoError(t, client.Set(t.Context(), "test:layout", layout, 0).Err())
	}
}

// The clock of this machine is four minutes behind: answers are right, and a metric says by how much.
func TestAnswersGoByTheClockOfRedis(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	asking.Seed(t, server.Client(), now, asking.Hits("a", now.Add(-time.Minute), 3))
	s := onRedis(t, server.URL(), now)
	local := now.Add(-4 * time.Minute)
	s.answers.Reader.(access.Reader).Namespace.(*window.Reader).Local = func() time.Time { return local }
	holdClock(s, local)
	h := s.handler()
	got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=a&window=10m", "")).Totals[0]
	if got.Total != 3 || got.Lower != 3 || !got.To.Equal(now) {
		t.Errorf("%+v", got)
	}
	if text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/metrics", ""))); !strings.Contains(text, "\ntallyroll_query_clock_difference_seconds{clock=\"redis\"} 240\n") {
		t.Errorf("no clock is 240 s ahead in\n%s", text)
	}
}
