package collect

import (
	"fmt"
	"net/http"
	"strings"

	"tallyroll/internal/web"
)

func notStored(detail string) *web.Problem {
	return web.NewProblem(http.StatusServiceUnavailable, detail).OfKind(web.NotStored).WithHeader("Retry-After", "1")
}

func noRoom(setting string) *web.Problem {
	return notStored(fmt.Sprintf("too much is waiting to be stored (%s): nothing of this request is stored; send it "+
		"again in a second", setting))
}

func tooLarge(maxBody int64) *web.Problem {
	return web.NewProblem(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("body: more than %d bytes, the most allowed (COLLECT_MAX_BODY): send the hits in several requests",
			maxBody))
}

func tooLargeFor(bound string) *web.Problem {
	return web.NewProblem(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("body: what is in it is larger than one message may be (%s): send less in one request", bound))
}

func noStream(subject string) string {
	return fmt.Sprintf("no stream takes messages on %s (COLLECT_SUBJECT): start ingest, which creates the stream "+
		"HITS, or set COLLECT_SUBJECT to a subject of a stream that it reads; nothing of this request is stored",
		subject)
}

// maxErrors bounds the bad items that an answer names.
const maxErrors = 100

// maxDetail bounds an item's detail in bytes, because it repeats names of any length.
const maxDetail = 500

func item(i int) string { return fmt.Sprintf("body[%d]", i) }

func sentence(detail string) string {
	if len(detail) > maxDetail {
		detail = detail[:maxDetail] + "…"
	}
	return strings.ToValidUTF8(detail, "\ufffd")
}

func itemsProblem(status int, bad []web.ProblemDetail, total int) *web.Problem {
	p := web.NewProblem(status, fmt.Sprintf("%s: %s", bad[0].Location, bad[0].Message))
	p.Errors = bad
	switch {
	case total > len(bad):
		p.Detail += fmt.Sprintf("; and %d more items are bad, of which errors names the first %d; nothing of this "+
			"request is stored", total-1, len(bad)-1)
	case total > 1:
		p.Detail += fmt.Sprintf("; and %d more items are bad (errors names them); nothing of this request is stored",
			total-1)
	default:
		p.Detail += "; nothing of this request is stored"
	}
	return p
}

func stopping() *web.Problem {
	return notStored("the service is stopping: nothing of this request is stored")
}

// badItems are the items of a body that refuse it, of which the problem names the first maxErrors.
type badItems struct {
	named []web.ProblemDetail
	total int
}

func (b *badItems) add(i int, detail string) {
	if b.total++; b.total <= maxErrors {
		b.named = append(b.named, web.ProblemDetail{Location: item(i), Message: sentence(detail)})
	}
}

// problem is nil if no item is bad.
func (b *badItems) problem(status int) *web.Problem {
	if b.total == 0 {
		return nil
	}
	return itemsProblem(status, b.named, b.total)
}
