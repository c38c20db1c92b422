package collect

import (
	"net/http"
	"strconv"
	"time"

	"tallyroll/internal/web"
)

// otherRoute is the metrics' label for requests that no route takes: clients choose their
// paths, so there can be any number of them.
const otherRoute = "other"

// edge is what every request passes through. It measures, catches panics, and bounds how many requests of
// the API there are at a time. Requests that no route takes end here.
func (s *service) edge(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w := web.NewResponse(rw, r)
		handler, route := mux.Handler(r)
		defer func() {
			if v := recover(); v != nil {
				web.Recovered(s.log, w, r, v)
			}
			s.measure(w, r, route, time.Since(start))
		}()
		if route == "" {
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

func (s *service) measure(w *web.Response, r *http.Request, route string, took time.Duration) {
	if route == "" {
		route = otherRoute
	}
	s.metrics.requestSeconds.WithLabelValues(route, strconv.Itoa(w.Status())).Observe(took.Seconds())
	s.log.Debug().Str("method", r.Method).Str("path", r.URL.Path).Int("code", w.Status()).Dur("took", took).Msg("request")
}
