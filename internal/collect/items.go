package collect

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// maxErrors is how many bad items an answer names.
const maxErrors = 100

// parse reads the hits of a body by the rules of the workers, so that they count what is taken here. One bad
// item refuses the whole body.
func parse(p *hit.Parser, body []byte, maxHits int) ([]hit.Hit, *web.Problem) {
	return parseUpTo(p, body, maxHits, "COLLECT_MAX_HITS")
}

// parseUpTo is parse for another bound than usual.
func parseUpTo(p *hit.Parser, body []byte, maxHits int, bound string) ([]hit.Hit, *web.Problem) {
	if hit.Blank(body) {
		return nil, web.NewProblem(http.StatusBadRequest, "body: it is empty: allowed are a hit such as {\"key\":\"/cart\"}, an array of hits, or one hit per line")
	}
	hits, rejects := p.ParseBody(body, maxHits)
	if len(rejects) == 0 && len(hits) == 0 {
		return nil, web.NewProblem(http.StatusBadRequest, "body: the array is empty and has no hit: send nothing if nothing happened")
	}
	if len(rejects) == 0 {
		return hits, nil
	}
	if rejects[0].Reason == hit.TooLarge {
		return nil, web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("body: it has more than %d hits, the most allowed (%s): send them in several requests", maxHits, bound))
	}
	bad := make([]web.ProblemDetail, 0, min(len(rejects), maxErrors))
	for _, r := range rejects[:min(len(rejects), maxErrors)] {
		bad = append(bad, web.ProblemDetail{Location: item(r.Item), Message: sentence(r.Detail)})
	}
	return nil, itemsProblem(http.StatusBadRequest, bad, len(rejects))
}

// outside is the problem of hits whose keys do not begin with the caller's prefix.
func outside(hits []hit.Hit, prefix string) *web.Problem {
	if prefix == "" {
		return nil
	}
	var bad []web.ProblemDetail
	n := 0
	for i, h := range hits {
		if bytes.HasPrefix(h.Counter, []byte(prefix)) {
			continue
		}
		n++
		if n <= maxErrors {
			bad = append(bad, web.ProblemDetail{Location: item(i), Message: fmt.Sprintf("key %s does not begin with %q, as all keys of this token must", web.Excerpt(string(h.Counter)), prefix)})
		}
	}
	if n == 0 {
		return nil
	}
	return itemsProblem(http.StatusForbidden, bad, n).Of(web.KeyOutsidePrefix)
}

func item(i int) string { return fmt.Sprintf("body[%d]", i) }

// maxDetail bounds in bytes what is said about an item: it repeats names that are as long as the client likes.
const maxDetail = 500

// sentence is a detail as an answer can have it.
func sentence(detail string) string {
	if len(detail) > maxDetail {
		detail = detail[:maxDetail] + "…"
	}
	return strings.ToValidUTF8(detail, "\ufffd")
}

// itemsProblem names the bad items; total is how many there are.
func itemsProblem(status int, bad []web.ProblemDetail, total int) *web.Problem {
	p := web.NewProblem(status, fmt.Sprintf("%s: %s", bad[0].Location, bad[0].Message))
	p.Errors = bad
	switch {
	case total > len(bad):
		p.Detail += fmt.Sprintf("; and %d more items are bad, of which errors names the first %d; nothing of this request is stored", total-1, len(bad)-1)
	case total > 1:
		p.Detail += fmt.Sprintf("; and %d more items are bad (errors names them); nothing of this request is stored", total-1)
	default:
		p.Detail += "; nothing of this request is stored"
	}
	return p
}
