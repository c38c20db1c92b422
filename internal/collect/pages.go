package collect

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// pages answers what web pages have their visitors' browsers send.
type pages struct {
	settings PageSettings
	storage  *storage
}

func (s *pages) route(mux *http.ServeMux) {
	mux.HandleFunc("POST "+beaconPath, s.admit(s.serveBeacon))
	mux.HandleFunc("OPTIONS "+beaconPath, s.admit(servePreflight))
	mux.HandleFunc("GET "+gifPath, s.admit(s.serveGIF))
	mux.HandleFunc("OPTIONS "+gifPath, s.admit(servePreflight))
}

// admit passes on requests from pages of the allowed origins, without a token: a page could not keep one
// secret.
func (s *pages) admit(next http.HandlerFunc) http.HandlerFunc {
	cors := web.CORS{
		Origins: s.settings.Origins.Origins, Methods: "GET, POST", Headers: "Content-Type", Expose: "Retry-After",
		Credentials: true, // sendBeacon sends cookies, and asks whether it may; nothing here reads them
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.settings.on() {
			web.NewProblem(http.StatusNotFound, pagesOffDetail(r.URL.Path)).Write(w)
			return
		}
		if cors.Apply(w, r) {
			return
		}
		p := s.settings.checkPage(r)
		if p != nil {
			p.Write(w)
			return
		}
		next(w, r)
	}
}

func pagesOffDetail(path string) string {
	return path + " is off: set COLLECT_ORIGINS and COLLECT_BEACON_PREFIX to let web pages count"
}

// checkPage refuses a request that names no page of an allowed origin. Only browsers are truthful about that.
func (s PageSettings) checkPage(r *http.Request) *web.Problem {
	origin, named := pageOrigin(r)
	switch {
	case !named:
		return web.NewProblem(http.StatusForbidden, "the request does not say which page it comes from: browsers send "+
			"Origin or, unless the page's referrer policy forbids it, Referer")
	case !s.Origins.Allow(origin):
		return web.NewProblem(http.StatusForbidden, fmt.Sprintf("pages of the origin %s may not count here: the "+
			"origin must be one of COLLECT_ORIGINS", web.Excerpt(origin)))
	}
	return nil
}

// pageOrigin is the origin of the page that causes a browser's request. An image's request has no Origin.
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

// servePreflight answers an OPTIONS request that is no CORS preflight.
func servePreflight(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

// maxBeacon bounds a beacon's body in bytes. Browsers send no larger one.
const maxBeacon = 64 << 10

// serveBeacon counts what a page sends with navigator.sendBeacon or fetch. The answer has no body,
// because a visitor need not know where it is stored.
func (s *pages) serveBeacon(w http.ResponseWriter, r *http.Request) {
	p := checkBeacon(r)
	if p != nil {
		p.Write(w)
		return
	}
	space := workspaces.Get().(*workspace)
	defer space.free()
	p = s.readBeacon(w, r, space)
	if p != nil {
		p.Write(w)
		return
	}
	hits, p := s.settings.beaconHits(space.parser, space.body)
	if p != nil {
		p.Write(w)
		return
	}
	_, p = s.storage.storeHits(r.Context(), hits)
	if p != nil {
		p.Write(w)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// beaconTypes are the content types of beacons. Browsers send the first without a preflight.
var beaconTypes = map[string]bool{"text/plain": true, "application/json": true}

func checkBeacon(r *http.Request) *web.Problem {
	if given := r.Header.Get("Content-Type"); given != "" {
		kind, _, err := mime.ParseMediaType(given)
		if err != nil || !beaconTypes[kind] {
			return web.NewProblem(http.StatusUnsupportedMediaType,
				fmt.Sprintf("Content-Type %s is not supported: must be text/plain, application/json or none",
					web.Excerpt(given)))
		}
	}
	if given := r.Header.Get("Content-Encoding"); given != "" {
		return web.NewProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("Content-Encoding %s is not supported: a beacon must not be packed", web.Excerpt(given)))
	}
	return nil
}

func (s *pages) readBeacon(w http.ResponseWriter, r *http.Request, space *workspace) *web.Problem {
	held := s.storage.budget.Hold()
	defer held.Resize(0)
	boundArrival(w)
	var err error
	space.body, err = held.ReadBody(w, r, space.body, maxBeacon)
	if errors.Is(err, web.ErrLarge) {
		return web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("body: more than %d bytes, which is what browsers allow a beacon: send several", maxBeacon))
	}
	return bodyProblem(err)
}

func (s PageSettings) beaconHits(parser *hit.Parser, body []byte) ([]hit.Hit, *web.Problem) {
	hits, p := parseUpTo(parser, body, s.MaxHits, "COLLECT_BEACON_MAX_HITS")
	if p != nil {
		return nil, p
	}
	if len(hits) == 0 {
		return nil, web.NewProblem(http.StatusBadRequest, "body: the array is empty: must be a hit such as "+
			"{\"key\":\"/cart\"}, or an array of hits")
	}
	var bad badItems
	for i, h := range hits {
		var err error
		if hits[i], err = s.pageHit(h); err != nil {
			bad.add(i, err.Error())
		}
	}
	if p := bad.problem(http.StatusBadRequest); p != nil {
		return nil, p
	}
	return hits, nil
}

// pixel is a transparent GIF of one pixel: header, two colours, "colour 0 is transparent", image, end.
const pixel = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff" +
	"!\xf9\x04\x01\x00\x00\x00\x00" + ",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"

// serveGIF counts a hit for a page that can only load an image. The image means that the hit is stored.
// Otherwise it is a problem with its status: the image fails to load, and the page can see that.
func (s *pages) serveGIF(w http.ResponseWriter, r *http.Request) {
	h, param, err := gifHit(r.URL.RawQuery)
	if err != nil {
		gifProblem(param, err).Write(w)
		return
	}
	h, err = s.settings.pageHit(h)
	if err != nil {
		gifProblem("", err).Write(w)
		return
	}
	_, p := s.storage.storeHits(r.Context(), []hit.Hit{h})
	if p != nil {
		p.Write(w)
		return
	}
	w.Header().Set("Content-Type", "image/gif")
	w.Header().Set("Content-Length", strconv.Itoa(len(pixel)))
	w.Header().Set("Cross-Origin-Resource-Policy",
		"cross-origin") // pages that isolate themselves show no image without it
	_, _ = w.Write([]byte(pixel)) // the client may be gone; the hit is stored
}

// gifParams are the parameters of /v1/hit.gif. r is ignored: it only makes an address that no browser has.
var gifParams = []string{"key", "n", "r"}

func gifHit(query string) (h hit.Hit, param string, err error) {
	params, err := url.ParseQuery(query)
	if err != nil {
		return hit.Hit{}, "", fmt.Errorf("the query string: %w", err)
	}
	for name, values := range params {
		if !slices.Contains(gifParams, name) {
			return hit.Hit{}, "", errors.New("must be key, n or r, which is ignored")
		}
		if len(values) > 1 {
			return hit.Hit{}, name, errors.New("given more than once: one hit per request")
		}
	}
	h = hit.Hit{Counter: []byte(params.Get("key")), N: 1, At: hit.NoTime}
	err = hit.CheckName(h.Counter)
	if err != nil {
		return hit.Hit{}, "key", err
	}
	if params.Has("n") {
		h.N, err = strconv.ParseInt(params.Get("n"), 10, 64)
		if err != nil {
			return hit.Hit{}, "n", errors.New("must be a whole number")
		}
	}
	return h, "", nil
}

func gifProblem(param string, err error) *web.Problem {
	if param == "" {
		return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: "query", Message: err.Error()})
	}
	return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: "query." + param,
		Message: err.Error()})
}

// pageHit puts the prefix before a page's key, so that the page cannot count outside of it.
func (s PageSettings) pageHit(h hit.Hit) (hit.Hit, error) {
	if h.At != hit.NoTime {
		return hit.Hit{}, errors.New("ts: the clocks of visitors are not trusted: leave ts out, and the hit counts " +
			"when it is stored")
	}
	if h.N < 1 || h.N > s.MaxN {
		return hit.Hit{}, fmt.Errorf("n must be an integer from 1 to %d (COLLECT_BEACON_MAX_N)", s.MaxN)
	}
	h.Counter = append([]byte(s.Prefix), h.Counter...)
	err := hit.CheckName(h.Counter)
	if err != nil {
		return hit.Hit{}, fmt.Errorf("key: with the %d bytes of COLLECT_BEACON_PREFIX before it, %w", len(s.Prefix),
			err)
	}
	return h, nil
}
