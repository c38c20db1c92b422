package query

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
)

const goodTarget = "/v1/total?key=a&window=1h"

func TestTokens(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	useTokens(t, s, "first, second")
	h := s.handler()
	answered(t, asking.Ask(h, http.MethodGet, goodTarget, "", "Authorization", "Bearer second"))
	for _, target := range []string{goodTarget, "/v1/total", "/v1/nothing", "/v1/", "/v1"} {
		asking.Refused(t, asking.Ask(h, http.MethodGet, target, "", "Authorization", "Bearer third"), http.StatusUnauthorized)
	}
	for _, target := range []string{"/healthz", "/metrics", "/openapi.json", "/docs"} {
		if resp := asking.Ask(h, http.MethodGet, target, ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", target, resp.StatusCode)
		}
	}
	// Other ways to write the path lead nowhere without a token.
	server := httptest.NewServer(h)
	defer server.Close()
	for _, path := range []string{"//v1/total", "/x/../v1/total", "/./v1/total", "/%76%31/total", "/v1%2Ftotal"} {
		resp, err := server.Client().Get(server.URL + path + "?key=a&window=1h")
		require.NoError(t, err)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Errorf("%s: answered without a token", path)
		}
	}
}

type panicReader struct{ access.Counters }

func (panicReader) Answer(context.Context, []window.Question) (window.Answers, error) {
	panic("broken")
}

func TestPanic(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, _ := onFake(t)
	readFrom(s, panicReader{})
	s.server.Log = zerolog.New(&log)
	h := s.handler()
	asking.Refused(t, asking.Ask(h, http.MethodGet, goodTarget, ""), http.StatusInternalServerError)
	if text := log.String(); !strings.Contains(text, `"panic":"broken"`) || !strings.Contains(text, "panicReader") {
		t.Errorf("log %s", text)
	}
	if resp := asking.Ask(h, http.MethodGet, "/healthz", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards: status %d", resp.StatusCode)
	}
}

// deafWriter is a client that is gone.
type deafWriter struct{ *httptest.ResponseRecorder }

func (deafWriter) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestClientGone(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, _ := onFake(t)
	s.log = zerolog.New(&log).Level(zerolog.InfoLevel)
	s.handler().ServeHTTP(deafWriter{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "http://query.test"+goodTarget, nil))
	if log.Len() > 0 {
		t.Errorf("log %s", &log)
	}
}

func TestErrorsOfReading(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		detail string
	}{
		{window.ErrNoLayout, "start ingest"},
		{context.DeadlineExceeded, "did not answer within 2s"},
		{errors.New("dial tcp 10.1.2.3:6379: refused"), "Redis cannot answer now"},
	} {
		s, f := onFake(t)
		f.Err = c.err
		resp := asking.Ask(s.handler(), http.MethodGet, goodTarget, "")
		p := asking.Refused(t, resp, http.StatusServiceUnavailable)
		if resp.Header.Get("Retry-After") != "1" || !strings.Contains(p.Detail, c.detail) || strings.Contains(p.Detail, "10.1.2.3") {
			t.Errorf("%v: Retry-After %q, detail %q", c.err, resp.Header.Get("Retry-After"), p.Detail)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	h := s.handler()
	for _, target := range []string{goodTarget, goodTarget, "/v1/total", "/secret-1", "/secret-2"} {
		asking.Ask(h, http.MethodGet, target, "")
	}
	text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/metrics", "")))
	for _, want := range []string{
		`tallyroll_query_request_seconds_count{code="200",route="GET /v1/total"} 2`,
		`tallyroll_query_request_seconds_count{code="400",route="GET /v1/total"} 1`,
		`tallyroll_query_request_seconds_count{code="404",route="other"} 2`,
		"go_goroutines", "process_start_time_seconds",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	if strings.Contains(text, "secret") {
		t.Error("metrics have a raw path")
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	server := httptest.NewServer(s.handler())
	defer server.Close()
	resp, err := server.Client().Head(server.URL + goodTarget)
	require.NoError(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}
