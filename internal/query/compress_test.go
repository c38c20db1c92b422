package query

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// Large answers are compressed where the client can read that, streams
// never, and a tag holds whether an answer was compressed or not.
func TestCompression(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	s := onRedis(t, redis.URL(), now)
	watched(t, s)
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	ask := func(method, target string, headers ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+target, nil)
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for target, want := range map[string]string{
		"/v1/series?key=a": "gzip", "/openapi.json": "gzip",
		"/v1/total?key=a&window=10m": "", "/v1/live?key=a&window=10m": "",
	} {
		resp := ask(http.MethodGet, target, "Accept-Encoding", "gzip")
		if got := resp.Header.Get("Content-Encoding"); resp.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s: status %d, encoding %q, want %q", target, resp.StatusCode, got, want)
		}
		if want == "gzip" {
			r, err := gzip.NewReader(resp.Body)
			require.NoError(t, err)
			if _, err := io.Copy(io.Discard, r); err != nil {
				t.Errorf("%s: %v", target, err)
			}
		}
		if resp := ask(http.MethodGet, target, "Accept-Encoding", "identity"); resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: compressed for a client that cannot read it", target)
		}
	}
	past := "/v1/series?key=a&to=" + strconv.FormatInt(now.Add(-time.Second).UnixMilli(), 10)
	plain, packed := ask(http.MethodGet, past), ask(http.MethodGet, past, "Accept-Encoding", "gzip")
	tag := plain.Header.Get("ETag")
	if tag == "" || packed.Header.Get("ETag") != tag {
		t.Errorf("tags %q and %q", tag, packed.Header.Get("ETag"))
	}
	resp := ask(http.MethodGet, past, "Accept-Encoding", "gzip", "If-None-Match", tag)
	if body, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusNotModified || len(body) > 0 || err != nil || resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("status %d, %v, %d bytes: %v", resp.StatusCode, resp.Header, len(body), err)
	}
	// HEAD says what GET would, without a body.
	for _, target := range []string{"/v1/series?key=a", past, "/v1/total?key=a&window=10m", "/v1/live?key=a&window=10m", "/healthz", "/docs", "/openapi.json", "/metrics"} {
		resp := ask(http.MethodHead, target)
		if body, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || len(body) > 0 || err != nil {
			t.Errorf("HEAD %s: status %d, %d bytes: %v", target, resp.StatusCode, len(body), err)
		}
	}
}
