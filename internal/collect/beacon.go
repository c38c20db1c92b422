package collect

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// maxBeacon bounds a beacon's body. Browsers send no larger one.
const maxBeacon = 64 << 10

// serveBeacon counts what a page sends with navigator.sendBeacon or fetch. The answer says nothing but that all of it
// is stored: what else is in the stream is none of a visitor's business.
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

// beaconTypes are the content types of beacons. Browsers send the first one without asking before.
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

// readBeacon reads the body into the workspace.
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

// beaconHits reads all hits of a beacon, or says what is wrong with each that cannot count.
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
