package query

import (
	"net/http"
	"strconv"
	"time"

	"github.com/klauspost/compress/gzhttp"

	"tallyroll/internal/web"
)

// otherRoute is the metrics' label for requests that no route takes: clients choose their
// paths, so there can be any number of them.
const otherRoute = "other"

// edge is what every request passes through. It measures, catches panics, checks the host, answers
// browsers' questions about origins, checks the token, refuses what other sites have browsers send, and
// compresses. Requests that no route takes end here.
func (s *service) edge(mux *http.ServeMux) http.Handler {
	compressed := gzhttp.GzipHandler(mux)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w := web.NewResponse(rw, r)
		r = withoutOriginal(r)
		authz := isAuthz(r.URL.Path)
		handler, route := mux.Handler(r)
		defer func() {
			if v := recover(); v != nil {
				web.Recovered(s.log, w, r, v)
			}
			s.measure(w, r, route, time.Since(start))
		}()

		if p := s.checkHost(r); p != nil {
			p.Write(w)
			return
		}
		if answersFromRedis(r.URL.Path) {
			w.Header().Set("Cache-Control", "no-store")
			if web.UnderV1(r.URL.Path) && !authz && cors(s.origins).Apply(w, r) {
				return
			}
			if !s.tokens.Admit(r) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				newProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of QUERY_TOKENS").Write(w)
				return
			}
		}
		if route == "" {
			web.NoRoute(w, r, handler)
			return
		}
		if p := s.refuseBrowser(r); p != nil {
			p.Write(w)
			return
		}
		if authz {
			mux.ServeHTTP(w, r) // its body is not read, and its answer is too small to compress
			return
		}
		if r.Method == http.MethodPost {
			if p := bufferBody(rw, r); p != nil {
				p.Write(w)
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

// answersFromRedis reports whether a path is about counters, so that it needs a token and is never kept.
func answersFromRedis(path string) bool { return web.UnderV1(path) || path == probePath }

func (s *service) measure(w *web.Response, r *http.Request, route string, took time.Duration) {
	if route == "" {
		route = otherRoute
	}
	code := w.Status()
	s.metrics.requestSeconds.WithLabelValues(route, strconv.Itoa(code)).Observe(took.Seconds())
	s.log.Debug().Str("method", r.Method).Str("path", r.URL.Path).Int("code", code).Dur("took", took).AnErr("undelivered", w.Err()).Msg("request")
}
