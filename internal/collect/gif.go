package collect

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// pixel is a transparent GIF of one pixel: header, two colours, "colour 0 is transparent", the image, the end.
const pixel = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff" +
	"!\xf9\x04\x01\x00\x00\x00\x00" + ",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"

// serveGIF counts a hit for a page that can only load an image. The image means that the hit is stored. Anything
// else is a problem with its status: the image fails to load, and the page can see that.
func (s *service) serveGIF(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Allow", "GET, OPTIONS")
		web.NewProblem(http.StatusMethodNotAllowed, "HEAD counts nothing: use GET").Write(w)
		return
	}
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

// gifParams are the parameters of /v1/hit.gif. What r holds is ignored: it only makes an address that no browser
// has loaded before.
var gifParams = []string{"key", "n", "r"}

// gifHit reads a query string. The error is about a parameter.
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

// gifProblem is about a parameter of the query string, or about all of it.
func gifProblem(param string, err error) *web.Problem {
	if param == "" {
		return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: "query", Message: err.Error()})
	}
	return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: "query." + param, Message: err.Error()})
}
