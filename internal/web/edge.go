package web

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/rs/zerolog"
)

// UnderV1 reports whether a path is part of the API, and not about the process.
func UnderV1(path string) bool { return path == "/v1" || strings.HasPrefix(path, "/v1/") }

// NoRoute answers 405 if the mux has the path for other methods, else 404.
// plain is the mux's own answer in plain text, of which the status and headers are used.
func NoRoute(w http.ResponseWriter, r *http.Request, plain http.Handler) {
	answer := &discard{header: make(http.Header)}
	plain.ServeHTTP(answer, r)
	if allow := answer.header.Get("Allow"); answer.status == http.StatusMethodNotAllowed && allow != "" {
		w.Header().Set("Allow", allow)
		NewProblem(http.StatusMethodNotAllowed, fmt.Sprintf("%s is not allowed for %s: allowed is %s", Excerpt(r.Method), Excerpt(r.URL.Path), allow)).Write(w)
		return
	}
	NewProblem(http.StatusNotFound, fmt.Sprintf("there is nothing at %s: /docs lists what there is", Excerpt(r.URL.Path))).Write(w)
}

// Recovered ends a request whose handler panicked. The process lives.
func Recovered(log zerolog.Logger, w *Response, r *http.Request, v any) {
	if v == http.ErrAbortHandler {
		panic(v) // a handler breaks off the connection in this way; the server knows it
	}
	log.Error().Str("method", r.Method).Str("path", r.URL.Path).Interface("panic", fmt.Sprint(v)).Str("stack", string(debug.Stack())).Msg("request failed")
	if w.status == 0 {
		NewProblem(http.StatusInternalServerError, "a fault of this service, which is in its log").Write(w)
	}
}

// discard keeps the status and the headers of an answer.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
