package main

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

// maxBody bounds the form of a POST. Grafana's are a few hundred bytes.
const maxBody = 1 << 20

// otherRoute is the metrics' label for requests that no route takes.
const otherRoute = "other"

// edge is what every request passes through: it measures, checks the token and compresses.
func (s *service) edge(mux *http.ServeMux) http.Handler {
	compressed := gzhttp.GzipHandler(mux)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w := &statusWriter{ResponseWriter: rw, status: http.StatusOK}
		_, route := mux.Handler(r)
		if route == "" {
			route = otherRoute
		}
		defer func() {
			s.metrics.requestSeconds.WithLabelValues(route, strconv.Itoa(w.status)).Observe(time.Since(start).Seconds())
		}()
		if strings.HasPrefix(r.URL.Path, "/api/") {
			w.Header().Set("Cache-Control", "no-store")
			if !s.settings.Tokens.Admit(r) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				writeError(w, &apiError{http.StatusUnauthorized, "unauthorized", "this call needs the header Authorization: Bearer with one of the tokens of PROMQL_TOKENS"})
				return
			}
			r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
		}
		compressed.ServeHTTP(w, r)
	})
}

// statusWriter remembers the status that was sent.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
