package collect

import (
	"fmt"
	"net/http"

	"tallyroll/internal/web"
)

const beaconPath, gifPath = "/v1/beacon", "/v1/hit.gif"

// routePages adds what pages call from their visitors' browsers.
func (s *service) routePages(mux *http.ServeMux) {
	mux.HandleFunc("POST "+beaconPath, s.forPages(s.serveBeacon))
	mux.HandleFunc("OPTIONS "+beaconPath, s.forPages(servePreflight))
	mux.HandleFunc("GET "+gifPath, s.forPages(s.serveGIF))
	mux.HandleFunc("OPTIONS "+gifPath, s.forPages(servePreflight))
}

// forPages lets requests through that come from a page of the allowed origins. They need no token: a page
// could not keep one secret.
func (s *service) forPages(next http.HandlerFunc) http.HandlerFunc {
	cors := web.CORS{
		Origins: s.settings.Pages.Origins.Origins, Methods: "GET, POST", Headers: "Content-Type", Expose: "Retry-After",
		Credentials: true, // sendBeacon sends cookies, and asks whether it may; nothing here reads them
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.settings.Pages.on() {
			web.NewProblem(http.StatusNotFound, pagesOff(r.URL.Path)).Write(w)
			return
		}
		if cors.Apply(w, r) {
			return
		}
		p := s.checkPage(r)
		if p != nil {
			p.Write(w)
			return
		}
		next(w, r)
	}
}

func pagesOff(path string) string {
	return path + " is off: set COLLECT_ORIGINS and COLLECT_BEACON_PREFIX to let web pages count"
}

// checkPage refuses a request that names no page, or a page of another origin. A browser tells the truth about
// that; other programs need not.
func (s *service) checkPage(r *http.Request) *web.Problem {
	origin, named := pageOrigin(r)
	switch {
	case !named:
		return web.NewProblem(http.StatusForbidden, "the request does not say which page it comes from: browsers send Origin or, unless the page's referrer policy forbids it, Referer")
	case !s.settings.Pages.Origins.Allow(origin):
		return web.NewProblem(http.StatusForbidden, fmt.Sprintf("pages of the origin %s may not count here: allowed are those of COLLECT_ORIGINS", web.Excerpt(origin)))
	}
	return nil
}

// pageOrigin is the origin of the page that a browser sends a request from. An image's request has no Origin.
func pageOrigin(r *http.Request) (origin string, named bool) {
	if given := r.Header.Values("Origin"); len(given) > 0 {
		return given[0], true
	}
	referer := r.Header.Get("Referer")
	if r.Method != http.MethodGet || referer == "" {
		return "", false
	}
	return web.OriginOf(referer), true
}

// servePreflight answers OPTIONS that is no question about CORS.
func servePreflight(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
