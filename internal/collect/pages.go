package collect

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/setting"
	"tallyroll/internal/web"
)

const beaconPath, gifPath = "/v1/beacon", "/v1/hit.gif"

func (s *service) routePages(mux *http.ServeMux) {
	mux.HandleFunc("POST "+beaconPath, s.forPages(s.serveBeacon))
	mux.HandleFunc("OPTIONS "+beaconPath, s.forPages(servePreflight))
	mux.HandleFunc("GET "+gifPath, s.forPages(s.serveGIF))
	mux.HandleFunc("OPTIONS "+gifPath, s.forPages(servePreflight))
}

// forPages admits requests from pages of the allowed origins, without a token: a page could not keep one
// secret.
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

// checkPage refuses a request that names no page of an allowed origin. Only browsers are truthful about that.
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

// serveBeacon counts what a page sends with navigator.sendBeacon or fetch. The answer says only that all of
// it is stored: the rest of the stream is none of a visitor's business.
func (s *service) serveBeacon(w http.ResponseWriter, r *http.Request) {
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
	hits, p := s.settings.Pages.beaconHits(space.parser, space.body)
	if p != nil {
		p.Write(w)
		return
	}
	_, err := s.accept(r.Context(), hits, "")
	if err != nil {
		problemOf(err).Write(w)
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
			return web.NewProblem(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %s is not taken: allowed are text/plain, application/json and none", web.Excerpt(given)))
		}
	}
	if given := r.Header.Get("Content-Encoding"); given != "" {
		return web.NewProblem(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %s is not taken: a beacon is not packed", web.Excerpt(given)))
	}
	return nil
}

func (s *service) readBeacon(w http.ResponseWriter, r *http.Request, space *workspace) *web.Problem {
	held := hold{gate: &s.gate}
	defer held.resize(0)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWithin)) // not every writer has deadlines: those of tests do not
	body, err := fill(r.Body, space.body[:0], maxBeacon, &held)
	space.body = body
	if err == nil {
		return nil
	}
	w.Header().Set("Connection", "close") // what is left of the body is not read
	if errors.Is(err, errLarge) {
		return web.NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("body: it has more than %d bytes, which is what browsers allow a beacon: send several", maxBeacon))
	}
	return s.bodyProblem(err)
}

func (s PageSettings) beaconHits(parser *hit.Parser, body []byte) ([]hit.Hit, *web.Problem) {
	hits, p := parseUpTo(parser, body, s.MaxHits, "COLLECT_BEACON_MAX_HITS")
	if p != nil {
		return nil, p
	}
	if len(hits) == 0 {
		return nil, web.NewProblem(http.StatusBadRequest, "body: the array is empty: allowed are a hit such as {\"key\":\"/cart\"}, or an array of hits")
	}
	var bad []web.ProblemDetail
	n := 0
	for i, h := range hits {
		ours, err := s.pageHit(h)
		hits[i] = ours
		if err == nil {
			continue
		}
		n++
		if n <= maxErrors {
			bad = append(bad, web.ProblemDetail{Location: item(i), Message: err.Error()})
		}
	}
	if n > 0 {
		return nil, itemsProblem(http.StatusBadRequest, bad, n)
	}
	return hits, nil
}

// pixel is a transparent GIF of one pixel: header, two colours, "colour 0 is transparent", image, end.
const pixel = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff" +
	"!\xf9\x04\x01\x00\x00\x00\x00" + ",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"

// serveGIF counts a hit for a page that can only load an image. The image means that the hit is stored.
// Otherwise it is a problem with its status: the image fails to load, and the page can see that.
func (s *service) serveGIF(w http.ResponseWriter, r *http.Request) {
	h, param, err := gifHit(r.URL.RawQuery)
	if err != nil {
		gifProblem(param, err).Write(w)
		return
	}
	h, err = s.settings.Pages.pageHit(h)
	if err != nil {
		gifProblem("", err).Write(w)
		return
	}
	_, err = s.accept(r.Context(), []hit.Hit{h}, "")
	if err != nil {
		problemOf(err).Write(w)
		return
	}
	w.Header().Set("Content-Type", "image/gif")
	w.Header().Set("Content-Length", strconv.Itoa(len(pixel)))
	w.Header().Set("Cross-Origin-Resource-Policy", "cross-origin") // pages that isolate themselves show no image without it
	_, _ = w.Write([]byte(pixel))                                  // the client may be gone; the hit is stored
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
			return hit.Hit{}, "", errors.New("allowed are key, n and r, which is ignored")
		}
		if len(values) > 1 {
			return hit.Hit{}, name, errors.New("it is there more than once: one hit per request")
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
			return hit.Hit{}, "n", errors.New("allowed is a whole number")
		}
	}
	return h, "", nil
}

func gifProblem(param string, err error) *web.Problem {
	if param == "" {
		return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: "query", Message: err.Error()})
	}
	return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: "query." + param, Message: err.Error()})
}

// pageHit puts the prefix before a page's key, so that the page cannot count outside of it.
func (s PageSettings) pageHit(h hit.Hit) (hit.Hit, error) {
	if h.At != hit.NoTime {
		return hit.Hit{}, errors.New("ts: the clocks of visitors are not believed: leave ts out, and the hit counts when it is stored")
	}
	if h.N < 1 || h.N > s.MaxN {
		return hit.Hit{}, fmt.Errorf("n must be an integer from 1 to %d (COLLECT_BEACON_MAX_N)", s.MaxN)
	}
	h.Counter = append([]byte(s.Prefix), h.Counter...)
	err := hit.CheckName(h.Counter)
	if err != nil {
		return hit.Hit{}, fmt.Errorf("key: with the %d bytes of COLLECT_BEACON_PREFIX before it, %w", len(s.Prefix), err)
	}
	return h, nil
}

// PageSettings are about hits that web pages send from their visitors' browsers.
type PageSettings struct {
	Origins PageOrigins `env:"COLLECT_ORIGINS" help:"web origins whose pages may use /v1/beacon and /v1/hit.gif, comma-separated, such as https://shop.example.com; needs COLLECT_BEACON_PREFIX"`
	Prefix  string      `env:"COLLECT_BEACON_PREFIX" help:"put before every key that a page sends, such as web.; needs COLLECT_ORIGINS"`
	MaxHits int         `env:"COLLECT_BEACON_MAX_HITS" envDefault:"100" help:"most hits of one beacon"`
	MaxN    int64       `env:"COLLECT_BEACON_MAX_N" envDefault:"100" help:"largest n of one hit of a page"`
}

// maxPrefix leaves room for the pages' keys within hit.MaxName bytes.
const maxPrefix = 128

func (s PageSettings) on() bool { return !s.Origins.None() && s.Prefix != "" }

func (s *PageSettings) Validate() error {
	if s.Prefix != "" && (len(s.Prefix) > maxPrefix || hit.CheckName([]byte(s.Prefix)) != nil) {
		return &setting.Error{Key: "COLLECT_BEACON_PREFIX", Value: s.Prefix, Allowed: fmt.Sprintf("the beginning of a counter's name, such as web.: up to %d bytes of UTF-8 without control characters", maxPrefix)}
	}
	if s.MaxN < 1 || s.MaxN > hit.MaxN {
		return &setting.Error{Key: "COLLECT_BEACON_MAX_N", Value: strconv.FormatInt(s.MaxN, 10), Allowed: fmt.Sprintf("a whole number from 1 to %d", int64(hit.MaxN))}
	}
	return setting.CheckMost(setting.Most{Key: "COLLECT_BEACON_MAX_HITS", N: int64(s.MaxHits)})
}

func (s PageSettings) warn(log zerolog.Logger) {
	switch {
	case !s.Origins.None() && s.Prefix == "":
		log.Warn().Msg("COLLECT_ORIGINS has no effect: set COLLECT_BEACON_PREFIX, too, if pages shall count")
	case s.Origins.None() && s.Prefix != "":
		log.Warn().Msg("COLLECT_BEACON_PREFIX has no effect: set COLLECT_ORIGINS, too, if pages shall count")
	}
}

// PageOrigins are named origins: never all.
type PageOrigins struct{ web.Origins }

// UnmarshalText reads comma-separated origins.
func (o *PageOrigins) UnmarshalText(text []byte) error {
	if string(text) == "*" {
		return errors.New("comma-separated origins such as https://shop.example.com, each named: with * any page of the web could count here")
	}
	return o.Name(string(text))
}
