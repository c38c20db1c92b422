package query

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

const goodTarget = "/v1/total?key=a&window=1h"

// Pages of named origins may ask, and read what is answered: also that their token is wrong. internal/web has all cases.
func TestPagesOfNamedOriginsMayAsk(t *testing.T) {
	t.Parallel()
	s := serveFake(t)
	require.NoError(t, s.origins.UnmarshalText([]byte("https://a.example")))
	setTokens(t, s.service, "secret")
	h := s.handler()
	for origin, allowed := range map[string]string{"https://a.example": "https://a.example", "https://b.example": ""} {
		for token, status := range map[string]int{"secret": http.StatusOK, "wrong": http.StatusUnauthorized} {
			resp := asking.Ask(h, http.MethodGet, goodTarget, "", "Origin", origin, "Authorization", "Bearer "+token)
			require.Equal(t, status, resp.StatusCode)
			require.Equal(t, allowed, resp.Header.Get("Access-Control-Allow-Origin"), origin)
			require.Contains(t, resp.Header.Values("Vary"), "Origin")
		}
		preflight := asking.Ask(h, http.MethodOptions, goodTarget, "", "Origin", origin, "Access-Control-Request-Method", "POST")
		require.Equal(t, allowed != "", preflight.StatusCode == http.StatusNoContent, origin)
		for name, want := range map[string]string{
			"Expose-Headers": "ETag, RateLimit, RateLimit-Policy, Retry-After", "Allow-Methods": "GET, HEAD, POST, DELETE",
			"Allow-Headers": "Authorization, Content-Type, If-None-Match, Last-Event-ID",
		} {
			require.Equal(t, allowed != "", preflight.Header.Get("Access-Control-"+name) == want, name)
		}
	}
}

// Large answers are compressed where the client can read that, streams never, and a tag holds whether an answer was
// compressed or not.
func TestLargeAnswersAreCompressed(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	s := serveRedis(t, redis.URL(), now)
	runHealth(t, s)
	server := startServer(t, s.handler())
	for target, want := range map[string]string{
		"/v1/series?key=a": "gzip", "/openapi.json": "gzip", "/v1/total?key=a&window=10m": "", "/v1/live?key=a&window=10m": "",
	} {
		resp := send(t, server, http.MethodGet, target, "", "Accept-Encoding", "gzip")
		require.Equal(t, http.StatusOK, resp.StatusCode, target)
		require.Equal(t, want, resp.Header.Get("Content-Encoding"), target)
		if want == "gzip" {
			r, err := gzip.NewReader(resp.Body)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, r)
			require.NoError(t, err)
		}
		plain := send(t, server, http.MethodGet, target, "", "Accept-Encoding", "identity")
		require.Empty(t, plain.Header.Get("Content-Encoding"), target)
	}
	past := "/v1/series?key=a&to=" + strconv.FormatInt(now.Add(-time.Second).UnixMilli(), 10)
	tag := send(t, server, http.MethodGet, past, "").Header.Get("ETag")
	require.NotEmpty(t, tag)
	require.Equal(t, tag, send(t, server, http.MethodGet, past, "", "Accept-Encoding", "gzip").Header.Get("ETag"))
	resp := send(t, server, http.MethodGet, past, "", "Accept-Encoding", "gzip", "If-None-Match", tag)
	require.Equal(t, http.StatusNotModified, resp.StatusCode)
	require.Empty(t, resp.Header.Get("Content-Encoding"))
	require.Empty(t, asking.ReadAll(t, resp))
	// HEAD says what GET would, without a body.
	for _, target := range []string{past, goodTarget, "/v1/live?key=a&window=10m", "/healthz", "/docs", "/openapi.json", "/metrics"} {
		resp := send(t, server, http.MethodHead, target, "")
		require.Equal(t, http.StatusOK, resp.StatusCode, target)
		require.Empty(t, asking.ReadAll(t, resp), target)
	}
}

// Buffers serve one answer after another. Nothing of one request may reach another.
func TestAnswersAtTheSameTimeAreTheirOwn(t *testing.T) {
	t.Parallel()
	h := serveFake(t).handler()
	ask := func(key string) string {
		data, err := io.ReadAll(asking.Ask(h, http.MethodGet, "/v1/total?window=1h&key="+key, "").Body)
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			key := strings.Repeat(string(rune('a'+i)), 1+100*i%500)
			want := ask(key)
			for range 20 {
				if got := ask(key); got != want || !strings.Contains(got, key) {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	all.Wait()
}
