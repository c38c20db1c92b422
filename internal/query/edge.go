package query

import (
	"net/http"

	"github.com/klauspost/compress/gzhttp"

	"tallyroll/internal/gate"
	"tallyroll/internal/live"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// edge is what every request passes through. It checks the host, answers
// browsers' questions about origins, checks the token, refuses what other sites have browsers send, and
// compresses. Requests that no route takes end here.
func (s *service) edge(mux *http.ServeMux) http.Handler {
	compressed := gzhttp.GzipHandler(mux)
	edge := s.server.Edge(mux, func(w *web.Response, r *http.Request, pattern string, handler http.Handler) {
		authz := gate.IsAuthz(r.URL.Path)
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
				web.NewProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of QUERY_TOKENS").Write(w)
				return
			}
		}
		if pattern == "" {
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
			if p := api.BufferBody(w.ResponseWriter, r); p != nil {
				p.Write(w)
				return
			}
		}
		if r.URL.Path == live.Path {
			mux.ServeHTTP(w, r) // each event is sent at once
			return
		}
		compressed.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { edge.ServeHTTP(w, gate.WithoutOriginal(r)) })
}

// answersFromRedis reports whether a path is about counters, so that it needs a token and is never kept.
func answersFromRedis(path string) bool { return web.UnderV1(path) || path == probePath }

// cors is what browsers are told about calls from the pages of these origins.
func cors(origins web.Origins) web.CORS {
	return web.CORS{
		Origins: origins,
		Methods: "GET, HEAD, POST, DELETE",
		Headers: "Authorization, Content-Type, If-None-Match, Last-Event-ID",
		Expose:  "ETag, RateLimit, RateLimit-Policy, Retry-After",
	}
}
