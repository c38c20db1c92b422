package main

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

// maxBody bounds the form of a POST: a query of which each byte is written as %XX, and other parameters.
func (s *Settings) maxBody() int64 { return 3*int64(s.MaxQuery) + 64<<10 }

// otherRoute is the metrics' label for requests that no route takes.
const otherRoute = "other"

// maxMessage bounds an error's message in bytes: the parser's own repeat parts of a query.
const maxMessage = 1000

// bounded cuts a message off.
func bounded(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

// edge is what every request passes through: it measures, checks the host and the token, and compresses.
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
			if why := s.settings.Hosts.Refuse(r, "PROMQL_HOSTS"); why != "" && !s.settings.Tokens.Required() {
				writeError(w, &apiError{http.StatusForbidden, "forbidden", why})
				return
			}
			if !s.settings.Tokens.Admit(r) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				writeError(w, &apiError{http.StatusUnauthorized, "unauthorized", "this call needs the header Authorization: Bearer with one of the tokens of PROMQL_TOKENS"})
				return
			}
			r.Body = http.MaxBytesReader(rw, r.Body, s.settings.maxBody())
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
