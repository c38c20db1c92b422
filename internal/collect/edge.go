package collect

import (
	"fmt"
	"net/http"
	"sync/atomic"

	"tallyroll/internal/access"
	"tallyroll/internal/web"
)

// edge is the middleware of every request. It bounds concurrent API requests, and answers unknown routes.
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

// caller returns the request's token, nil if none is needed, or why the request is refused. Without the first
// check, any web page could count on a service in its visitor's network; without the second, a page could do
// so by pointing its own name at our address.
func (s *service) caller(r *http.Request) (*access.Token, *web.Problem) {
	if r.Method != http.MethodOptions && (web.Origins{}).Foreign(r) {
		return nil, web.NewProblem(http.StatusForbidden, fmt.Sprintf("%s is not for pages of other origins: they use %s or %s", r.URL.Path, beaconPath, gifPath))
	}
	if !s.tokens.Required() {
		if why := s.settings.Hosts.Refuse(r, "COLLECT_HOSTS"); why != "" {
			return nil, web.NewProblem(http.StatusForbidden, why).OfKind(web.UnknownHost)
		}
		return nil, nil
	}
	token, p := s.tokens.Find(r)
	if p != nil {
		return nil, p
	}
	if err := token.Need(access.Count, "POST "+hitsPath); err != nil {
		return nil, web.ProblemOf(err)
	}
	return token, nil
}

// freeBytes of each request are covered by the bound on requests, so that large bodies do not keep small ones
// out.
const freeBytes = 4 << 10

// gate bounds what requests hold in memory, whatever clients send.
type gate struct {
	maxRequests, maxBytes int64
	requests, bytes       atomic.Int64
}

// enter admits a request, which must then leave, or returns false.
func (g *gate) enter() bool {
	if g.requests.Add(1) > g.maxRequests {
		g.requests.Add(-1)
		return false
	}
	return true
}

func (g *gate) leave() { g.requests.Add(-1) }

// hold is one request's share of the gate's bytes.
type hold struct {
	gate *gate
	n    int64
}

// resize makes the hold fit this many bytes of a request. It changes nothing if that exceeds the bound.
func (h *hold) resize(bytes int) bool {
	n := max(0, int64(bytes)-freeBytes)
	more := n - h.n
	if more > 0 && h.gate.bytes.Add(more) > h.gate.maxBytes {
		h.gate.bytes.Add(-more)
		return false
	}
	if more < 0 {
		h.gate.bytes.Add(more)
	}
	h.n = n
	return true
}
