package web_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// startServer serves what every service does until the test ends, and returns its address.
func startServer(t *testing.T, metricsAddr string, log io.Writer) string {
	t.Helper()
	var level program.LogLevel
	require.NoError(t, level.UnmarshalText([]byte("debug")))
	s := &web.Server{Metrics: web.NewMetrics("test", 3), Log: program.Log{Format: "json", Level: level}.New(log), Apart: metricsAddr != ""}
	var settings struct {
		web.Addresses `envPrefix:"TEST_" ADDR.default:"127.0.0.1:0"`
	}
	require.NoError(t, setting.Parse(&settings, "TEST_METRICS_ADDR="+metricsAddr))
	at, err := settings.Listen(s.Files)
	require.NoError(t, err)
	mux := http.NewServeMux()
	s.RouteStatus(mux, func(context.Context) string { return "" })
	handler := s.Wrap(mux, func(w *web.Response, r *http.Request, _ string, handler http.Handler) { handler.ServeHTTP(w, r) })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, at, handler) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
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
func TestProfilesAreAtTheAddressOfTheMetricsAlone(t *testing.T) {
	t.Parallel()
	addr := fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t))
	together, public, metrics := startServer(t, "", io.Discard), startServer(t, addr, io.Discard), "http://"+addr
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/trace?seconds=0.01"} {
		for address, want := range map[string]int{together: 404, public: 404, metrics: 200} {
			require.Equal(t, want, statusOf(t, address+path, nil), "%s%s (the public addresses are %s and %s)", address, path, together, public)
		}
	}
	for address, want := range map[string]int{together: 200, public: 404, metrics: 200} {
		require.Equal(t, want, statusOf(t, address+"/metrics", nil), address)
		require.Equal(t, 200, statusOf(t, address+"/healthz", nil), address)
	}
}

// The line about a request names its trace, if the header makes sense.
func TestRequestLineNamesTheTrace(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	var log apitest.Log
	public := startServer(t, "", &log)
	for path, parent := range map[string]string{"/healthz": "00-" + id + "-00f067aa0ba902b7-01", "/readyz": "00-" + id + "-01"} {
		require.Equal(t, http.StatusOK, statusOf(t, public+path, http.Header{"Traceparent": {parent}}))
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
	require.Contains(t, lineOf("/healthz"), `"trace_id":"`+id+`"`)
	require.NotContains(t, lineOf("/readyz"), "trace_id", "a malformed one")
}

// deafWriter is a client that is gone.
type deafWriter struct{ *httptest.ResponseRecorder }

func (deafWriter) Write([]byte) (int, error) { return 0, errors.New("gone") }

// newEdge is the edge around a few routes, with what it logs and measures.
func newEdge(t *testing.T) (http.Handler, *apitest.Log) {
	t.Helper()
	log := new(apitest.Log)
	s := &web.Server{Metrics: web.NewMetrics("test", 3), Log: zerolog.New(log)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tagged", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `W/"1"`)
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "text")
	})
	mux.HandleFunc("/panics", func(http.ResponseWriter, *http.Request) { panic("broken") })
	mux.HandleFunc("/aborts", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/late", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "begun")
		panic("late")
	})
	s.RouteStatus(mux, func(context.Context) string { return "not yet" })
	return s.Wrap(mux, func(w *web.Response, r *http.Request, pattern string, handler http.Handler) {
		if pattern == "" {
			web.NoRoute(w, r, handler)
			return
		}
		handler.ServeHTTP(w, r)
	}), log
}

// A panic ends one request, with a problem that has no secrets, and the log has why.
func TestPanicEndsOneRequest(t *testing.T) {
	t.Parallel()
	h, log := newEdge(t)
	p := apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, "/panics", ""), http.StatusInternalServerError)
	require.NotContains(t, p.Detail, "broken")
	require.Contains(t, log.String(), `"panic":"broken"`)
	require.Contains(t, log.String(), "server_test.go", "where it was")
	require.Equal(t, "begun", string(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/late", ""))))
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { apitest.Send(h, http.MethodGet, "/aborts", "") })
	require.Equal(t, http.StatusOK, apitest.Send(h, http.MethodGet, "/healthz", "").StatusCode)
}

// Routes, and not paths, are measured: clients choose any number of paths. A client that is gone is nobody's
// trouble.
func TestRequestsAreMeasuredByRoute(t *testing.T) {
	t.Parallel()
	h, log := newEdge(t)
	for _, target := range []string{"/tagged", "/tagged", "/readyz", "/secret-1", "/secret-2", "/panics"} {
		apitest.Send(h, http.MethodGet, target, "")
	}
	h.ServeHTTP(deafWriter{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	require.Equal(t, 7, log.Count("request"))
	require.Contains(t, log.String(), `"undelivered":"gone"`)
	require.Equal(t, 7, strings.Count(log.String(), `"level":"debug"`))
	metrics := string(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/metrics", "")))
	for _, want := range []string{
		`request_seconds_count{code="200",route="GET /tagged"} 2`, `request_seconds_count{code="404",route="other"} 2`,
		`request_seconds_count{code="500",route="/panics"} 1`, `request_seconds_count{code="503",route="GET /readyz"} 1`, "go_goroutines", "process_start_time_seconds",
	} {
		require.Contains(t, metrics, want)
	}
	require.NotContains(t, metrics, "secret")
}

func TestUnknownRoutesAreProblems(t *testing.T) {
	t.Parallel()
	h, _ := newEdge(t)
	p := apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, "/nothing", ""), http.StatusNotFound)
	require.Contains(t, p.Detail, `"/nothing"`)
	resp := apitest.Send(h, http.MethodPost, "/tagged", "{}")
	require.Contains(t, apitest.RequireProblem(t, resp, http.StatusMethodNotAllowed).Detail, `"POST" is not allowed for "/tagged": must be one of GET, HEAD`)
	require.Equal(t, "GET, HEAD", resp.Header.Get("Allow"))
}

// A client that has an answer already is not sent it again (RFC 9110, 13.1.2).
func TestAnswerThatTheClientHasIsNotSentAgain(t *testing.T) {
	t.Parallel()
	h, _ := newEdge(t)
	for given, want := range map[string]int{"": 200, `W/"1"`: 304, `"1"`: 304, `"0", W/"1"`: 304, "*": 304, `W/"2"`: 200, "1": 200} {
		resp := apitest.Send(h, http.MethodGet, "/tagged", "", "If-None-Match", given)
		body := string(apitest.ReadBody(t, resp))
		require.Equal(t, want, resp.StatusCode, given)
		require.Equal(t, want == 200, body == "text", given)
		require.Equal(t, want == 200, resp.Header.Get("Content-Type") != "", given)
		require.Equal(t, `W/"1"`, resp.Header.Get("ETag"))
	}
}

// The fields of a problem say where the request was wrong.
func TestProblemsNameTheParameter(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("wrapped: %w", web.BadInput("window", "%q is not a duration", "24"))
	web.AddHint(err, "a range")
	p := web.ProblemOf(web.InputProblem(err, web.InQuery))
	require.Equal(t, 400, p.Status)
	require.Equal(t, `window: "24" is not a duration; or a range`, p.Error())
	require.Equal(t, []web.ProblemDetail{{Location: "query.window", Message: `"24" is not a duration; or a range`}}, p.Errors)
	require.Equal(t, http.StatusRequestEntityTooLarge, web.TooMuchInput("keys", "4").Problem(web.InBody).Status)
	other := errors.New("disk full")
	require.Equal(t, other, web.InputProblem(other, web.InQuery))
	require.Equal(t, http.StatusInternalServerError, web.ProblemOf(other).Status)
	require.Equal(t, `"`+strings.Repeat("a", 64)+`"…`, web.Excerpt(strings.Repeat("a", 65)))
}
