package query

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

// otherRoute is the metrics' label of requests that no route takes: their paths
// are the asker's to choose, and there is no end of them.
const otherRoute = "other"

// edge is what every request passes: it measures, catches panics, answers
// browsers' questions about origins, asks for a token, and compresses; what no
// route takes ends here.
func (s *service) edge(mux *http.ServeMux) http.Handler {
	compressed := gzhttp.GzipHandler(mux)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w := &responseWriter{ResponseWriter: rw, request: r}
		refuse, route := mux.Handler(r)
		defer func() {
			if v := recover(); v != nil {
				s.recovered(w, r, v)
			}
			s.measure(w, r, route, time.Since(start))
		}()

		if underV1(r.URL.Path) {
			w.Header().Set("Cache-Control", "no-store")
			if s.origins.allow(w, r) {
				return
			}
			if !s.tokens.allow(r) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				newProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of QUERY_TOKENS").write(w)
				return
			}
		}
		if route == "" {
			noRoute(w, r, refuse)
			return
		}
		if r.Method == http.MethodPost {
			if p := bufferBody(rw, r); p != nil {
				p.write(w)
				return
			}
		}
		if r.URL.Path == livePath {
			mux.ServeHTTP(w, r) // each event is sent at once
			return
		}
		compressed.ServeHTTP(w, r)
	})
}

func underV1(path string) bool { return path == "/v1" || strings.HasPrefix(path, "/v1/") }

// noRoute answers 405 where the mux has the path for other methods, else 404.
// refuse is the mux's own answer in plain text; its status and headers are of use.
func noRoute(w http.ResponseWriter, r *http.Request, refuse http.Handler) {
	answer := &discard{header: make(http.Header)}
	refuse.ServeHTTP(answer, r)
	if allow := answer.header.Get("Allow"); answer.status == http.StatusMethodNotAllowed && allow != "" {
		w.Header().Set("Allow", allow)
		newProblem(http.StatusMethodNotAllowed, fmt.Sprintf("%s is not allowed for %s: allowed is %s", excerpt(r.Method), excerpt(r.URL.Path), allow)).write(w)
		return
	}
	newProblem(http.StatusNotFound, fmt.Sprintf("there is nothing at %s: /docs lists what there is", excerpt(r.URL.Path))).write(w)
}

// recovered ends a request whose handler panicked. The process lives.
func (s *service) recovered(w *responseWriter, r *http.Request, v any) {
	if v == http.ErrAbortHandler {
		panic(v) // a handler's way to break the connection off; the server knows it
	}
	if w.failed != nil {
		// huma panics where it cannot write: the client is gone.
		s.log.Debug().Err(w.failed).Str("path", r.URL.Path).Msg("answer not delivered")
		return
	}
	s.log.Error().Str("method", r.Method).Str("path", r.URL.Path).Interface("panic", fmt.Sprint(v)).Str("stack", string(debug.Stack())).Msg("request failed")
	if w.status == 0 {
		newProblem(http.StatusInternalServerError, "a fault of this service, which is in its log").write(w)
	}
}

func (s *service) measure(w *responseWriter, r *http.Request, route string, took time.Duration) {
	if route == "" {
		route = otherRoute
	}
	code := w.status
	if code == 0 {
		code = http.StatusOK
	}
	s.metrics.requestSeconds.WithLabelValues(route, strconv.Itoa(code)).Observe(took.Seconds())
	s.log.Debug().Str("method", r.Method).Str("path", r.URL.Path).Int("code", code).Dur("took", took).Msg("request")
}

// responseWriter remembers what has been sent, and sends 304 in place of an
// answer that the client has already.
type responseWriter struct {
	http.ResponseWriter
	request *http.Request
	status  int
	failed  error
}

// WriteHeader sends the first status and passes over others: huma sets one more
// where it could not write.
func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status == http.StatusOK && unchanged(w.request, w.Header().Get("ETag")) {
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

func (w *responseWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.status == http.StatusNotModified {
		return len(b), nil // the client has the body
	}
	n, err := w.ResponseWriter.Write(b)
	if err != nil {
		w.failed = err
	}
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// discard keeps the status and the headers of an answer.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
