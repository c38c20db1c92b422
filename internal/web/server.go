package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/systemd"
	"tallyroll/internal/platform/trace"
)

// Server is what query, collect and promql have in common.
type Server struct {
	Metrics *Metrics
	Files   *setting.Files // that the service reads again: its caller follows them
	Log     zerolog.Logger
	Leaving Leaving // the zero value never leaves
	Apart   bool    // /metrics has an address of its own, where /debug/pprof/ is, too

	why func(context.Context) string // why the service is not ready; set by RouteStatus
}

// Serve answers on the listeners until ctx ends. Requests under way then have five seconds. While the service
// is leaving, clients are asked to close their connections.
func (s *Server) Serve(ctx context.Context, at *Listeners, handler http.Handler, options ...func(*http.Server)) error {
	group, ctx := errgroup.WithContext(ctx)
	if at.metrics != nil {
		mux := http.NewServeMux()
		buildinfo.RouteMetrics(mux, s.Metrics.Registry)
		buildinfo.RouteProfiles(mux)
		s.routeHealth(mux)
		group.Go(func() error { return Serve(ctx, at.metrics, mux, nil, LogErrors(s.Log)) })
	}
	options = append([]func(*http.Server){LogErrors(s.Log), s.Leaving.Release}, options...)
	group.Go(func() error { return Serve(ctx, at.Main, handler, at.Certificate, options...) })
	if s.why != nil {
		group.Go(func() error {
			systemd.Announce(ctx, s.whyNotReady)
			return nil
		})
	}
	return group.Wait()
}

// RouteStatus adds the plain-text pages: /healthz, /metrics unless it has its own address, and /readyz. why
// returns why the service is not ready, or ""; Serve notifies the service manager of it, too.
func (s *Server) RouteStatus(mux *http.ServeMux, why func(context.Context) string) {
	s.why = why
	s.routeHealth(mux)
	if !s.Apart {
		buildinfo.RouteMetrics(mux, s.Metrics.Registry)
	}
}

func (s *Server) routeHealth(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.Leaving.HandleReady(mux, "/readyz", s.why)
}

func (s *Server) whyNotReady(ctx context.Context) string {
	return cmp.Or(s.Leaving.Why(), s.why(ctx))
}

// Wrap is the first middleware of every request. It measures it, and recovers from a panic. next gets the
// mux's handler and its pattern; without a route, "" and the mux's own answer.
func (s *Server) Wrap(mux *http.ServeMux, next func(w *Response, r *http.Request, pattern string,
	handler http.Handler)) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		if ctx := trace.With(r.Context(), r.Header); ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		w := &Response{ResponseWriter: rw, request: r}
		handler, pattern := mux.Handler(r)
		defer func() {
			if v := recover(); v != nil {
				s.recovered(w, r, v)
			}
			s.measure(w, r, pattern, time.Since(start))
		}()
		next(w, r, pattern, handler)
	})
}

func (s *Server) recovered(w *Response, r *http.Request, v any) {
	if v == http.ErrAbortHandler {
		panic(v) // a handler cuts the connection in this way, which net/http does not log
	}
	s.Log.Error().Ctx(r.Context()).Str("method", r.Method).Str("path", r.URL.Path).Interface("panic",
		fmt.Sprint(v)).Str("stack", string(debug.Stack())).Msg("request failed")
	if w.status == 0 {
		NewProblem(http.StatusInternalServerError, "a fault of this service, which is in its log").Write(w)
	}
}

// otherRoute is the metrics' label for requests without a route, because clients choose any number of paths.
const otherRoute = "other"

func (s *Server) measure(w *Response, r *http.Request, pattern string, took time.Duration) {
	if pattern == "" {
		pattern = otherRoute
	}
	code := w.Status()
	s.Metrics.Observe(pattern, code, took)
	s.Log.Debug().Ctx(r.Context()).Str("method", r.Method).Str("path", r.URL.Path).Int("code", code).Dur("took",
		took).AnErr("undelivered", w.err).Msg("request")
}

// Metrics are those that every service has, described in docs/metrics.md.
type Metrics struct {
	Registry       *prometheus.Registry
	requestSeconds *prometheus.HistogramVec // by route and code
}

// NewMetrics returns the metrics of a program. Requests are measured in this many buckets, from half a
// millisecond on, each twice as long as the previous one.
func NewMetrics(program string, buckets int) *Metrics {
	m := &Metrics{Registry: buildinfo.NewRegistry(),
		requestSeconds: prometheus.NewHistogramVec(buildinfo.Native(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: program, Name: "request_seconds",
			Help:    "Seconds from a request's header to the end of its answer, by route and status.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, buckets),
		}), []string{"route", "code"})}
	m.Registry.MustRegister(m.requestSeconds)
	return m
}

func (m *Metrics) Observe(route string, code int, took time.Duration) {
	m.requestSeconds.WithLabelValues(route, strconv.Itoa(code)).Observe(took.Seconds())
}

// UnderV1 reports whether a path is part of the API, and not about the process.
func UnderV1(path string) bool { return path == "/v1" || strings.HasPrefix(path, "/v1/") }

// NoRoute answers 405 if the mux has the path for other methods, else 404. plain is the mux's own answer, of
// which only the status and headers are used.
func NoRoute(w http.ResponseWriter, r *http.Request, plain http.Handler) {
	answer := &discard{header: make(http.Header)}
	plain.ServeHTTP(answer, r)
	if allow := answer.header.Get("Allow"); answer.status == http.StatusMethodNotAllowed && allow != "" {
		w.Header().Set("Allow", allow)
		NewProblem(http.StatusMethodNotAllowed, fmt.Sprintf("%s is not allowed for %s: must be one of %s",
			Excerpt(r.Method), Excerpt(r.URL.Path), allow)).Write(w)
		return
	}
	NewProblem(http.StatusNotFound, fmt.Sprintf("there is nothing at %s: /docs lists what there is",
		Excerpt(r.URL.Path))).Write(w)
}

type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header { return d.header }

func (d *discard) WriteHeader(status int) { d.status = status }

func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// Response remembers what has been sent, and sends 304 in place of an answer that the client already has.
type Response struct {
	http.ResponseWriter
	request *http.Request
	status  int
	err     error // of the last write that failed: mostly the client is gone
}

// Status is what has been sent, or will be if no other is set.
func (w *Response) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

func (w *Response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.status == http.StatusNotModified {
		return len(b), nil // the client has the body
	}
	n, err := w.ResponseWriter.Write(b)
	if err != nil {
		w.err = err
	}
	return n, err
}

// WriteHeader sends the first status and ignores others.
func (w *Response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status == http.StatusOK && isUnchanged(w.request, w.Header().Get("ETag")) {
		status = http.StatusNotModified
		for _, name := range []string{"Content-Type", "Content-Length", "Content-Encoding"} {
			w.Header().Del(name)
		}
	}
	if status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// isUnchanged reports whether the client already has the answer (RFC 9110, 13.1.2).
func isUnchanged(r *http.Request, etag string) bool {
	if etag == "" || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	for given := range strings.SplitSeq(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		given = strings.TrimSpace(given)
		if given == "*" || strings.TrimPrefix(given, "W/") == strings.TrimPrefix(etag, "W/") {
			return true
		}
	}
	return false
}
