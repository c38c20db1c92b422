package collect

import (
	"net/http"

	"tallyroll/internal/web"
)

// edge is what every request passes through. It bounds how many requests of the API there are at a time. Requests that no
// route takes end here.
func (s *service) edge(mux *http.ServeMux) http.Handler {
	return s.server.Edge(mux, func(w *web.Response, r *http.Request, pattern string, handler http.Handler) {
		if pattern == "" {
			web.NoRoute(w, r, handler)
			return
		}
		if web.UnderV1(r.URL.Path) {
			w.Header()["Cache-Control"] = noStore
			if !s.gate.enter() {
				noRoom("COLLECT_MAX_REQUESTS").Write(w)
				return
			}
			defer s.gate.leave()
		}
		handler.ServeHTTP(w, r) // no route has a wildcard, which mux.ServeHTTP would look up again
	})
}

var noStore = []string{"no-store"}
