package web_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// startServer serves what every service does until the test ends, and returns its address.
func startServer(t *testing.T, metricsAddr string, log io.Writer) string {
	t.Helper()
	var level boot.LogLevel
	require.NoError(t, level.UnmarshalText([]byte("debug")))
	s := &web.Server{Metrics: web.NewMetrics("test", 3), Log: boot.Log{Format: "json", Level: level}.New(log), Apart: metricsAddr != ""}
	at, err := web.Addresses{Program: "TEST", Main: "127.0.0.1:0", Metrics: metricsAddr}.Listen(s.Files)
	require.NoError(t, err)
	mux := http.NewServeMux()
	s.RouteStatus(mux, func(context.Context) string { return "" })
	handler := s.Edge(mux, func(w *web.Response, r *http.Request, _ string, handler http.Handler) { handler.ServeHTTP(w, r) })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, at, handler) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return at.URL()
}

// statusOf is the status of an answer.
func statusOf(t *testing.T, address string, header http.Header) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	r.Header = header
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// Profiles are at the metrics' own address alone, and nowhere if there is none.
func TestProfiles(t *testing.T) {
	t.Parallel()
	addr := fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t))
	together, public, metrics := startServer(t, "", io.Discard), startServer(t, addr, io.Discard), "http://"+addr
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/trace?seconds=0.01"} {
		for address, want := range map[string]int{together: 404, public: 404, metrics: 200} {
			if got := statusOf(t, address+path, nil); got != want {
				t.Errorf("%s%s answers %d, want %d (the public addresses are %s and %s)", address, path, got, want, together, public)
			}
		}
	}
	for address, want := range map[string]int{together: 200, public: 404, metrics: 200} {
		if got := statusOf(t, address+"/metrics", nil); got != want {
			t.Errorf("%s/metrics answers %d, want %d", address, got, want)
		}
	}
}

// The line about a request names its trace, if the header makes sense.
func TestRequestLineNamesTheTrace(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	var log asking.Log
	public := startServer(t, "", &log)
	for path, parent := range map[string]string{"/healthz": "00-" + id + "-00f067aa0ba902b7-01", "/readyz": "00-" + id + "-01"} {
		if got := statusOf(t, public+path, http.Header{"Traceparent": {parent}}); got != http.StatusOK {
			t.Errorf("%s answers %d", path, got)
		}
	}
	lineOf := func(path string) (line string) {
		stack.Eventually(t, "the line of "+path, func() (bool, string) {
			for line = range strings.Lines(log.String()) {
				if strings.Contains(line, `"path":"`+path+`"`) {
					return true, ""
				}
			}
			return false, log.String()
		})
		return line
	}
	if line := lineOf("/healthz"); !strings.Contains(line, `"trace_id":"`+id+`"`) {
		t.Errorf("with a header: %s", line)
	}
	if line := lineOf("/readyz"); strings.Contains(line, "trace_id") {
		t.Errorf("with a malformed one: %s", line)
	}
}
