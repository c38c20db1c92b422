package answer

import (
	"context"
	"strings"
	"time"
	"unicode"

	"tallyroll/internal/query/fresh"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

const countersWindow = "24h"

var countersSpan = window.Last(24 * time.Hour)

// countersParams is what GET /v1/counters takes, and as JSON the NATS endpoint counters.
type countersParams struct {
	Prefix string     `query:"prefix" hint:"name" json:"prefix" doc:"What the names begin with. Default: all names." example:"shop."`
	Limit  api.Number `query:"limit" hint:"a whole number from 1 to 1000" json:"limit" doc:"The most names in a page: 1 to 1000. Default: 100." example:"100"`
	After  string     `query:"after" hint:"name" json:"after" doc:"The page begins after this name: next of the page before." example:"shop.checkout.eu"`
	Match  string     `query:"match" hint:"a part of the name of a counter" json:"match" doc:"What the names contain anywhere, upper or lower case (Unicode simple case folding). Default: all names." example:"Cart"`
	Totals choice     `query:"totals" json:"totals" doc:"1: the page also has the total of each counter in the last 24 hours." example:"1"`
	// After is the name of a counter here, so the messages have another name.
	AfterMessage []string `query:"after_message,explode" json:"after_message,omitempty" doc:"The answer contains this message, as with after in other questions: the name of a stream, a colon and a sequence. May repeat, at most 100 times." example:"[\"HITS:812\"]"`
	AgeParams
}

func (p *countersParams) Condition() (fresh.Condition, error) {
	return p.condition("after_message", p.AfterMessage)
}

type CountersAnswer struct {
	AsOf          time.Time `json:"as_of" doc:"Every counter with a hit stored before this moment is listed. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Complete      bool      `json:"complete" doc:"False if hits of the longest window are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or as_of is more than 5 seconds ago, because no worker has counted lately." example:"true"`
	CountingSince time.Time `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown." example:"2026-10-01T08:00:00Z"`
	Counters      []string  `json:"counters" doc:"The names, in the order of their bytes. A page can be shorter than limit, even empty, and have a next one." example:"[\"shop.cart\",\"shop.checkout.eu\"]"`
	Totals        []Total   `json:"totals,omitzero" doc:"If they were asked for: the total of each counter in the last 24 hours, as /v1/total gives it, in the same order."`
	Next          string    `json:"next,omitempty" doc:"The value of after for the next page; absent at the end." example:"shop.checkout.eu"`
}

// Counters checks parameters and answers. Its errors are for the client.
func (d *Service) Counters(ctx context.Context, part string, p *countersParams) (CountersAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultCounters, 1, maxCounters)
	if err != nil {
		return CountersAnswer{}, web.InputProblem(err, part)
	}
	for _, name := range []struct{ param, text string }{{"prefix", p.Prefix}, {"after", p.After}, {"match", p.Match}} {
		if name.text == "" {
			continue
		}
		if err := api.CheckKey(name.param, name.text); err != nil {
			return CountersAnswer{}, web.InputProblem(err, part)
		}
	}
	question := read.NamesQuestion{Prefix: p.Prefix, After: p.After, Limit: int(limit)}
	if p.Match != "" {
		question.Match = containing(p.Match)
	}
	totals, err := p.Totals.parse("totals")
	if err != nil {
		return CountersAnswer{}, web.InputProblem(err, part)
	}
	if totals {
		question.Totals = &countersSpan
	}
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (read.Names, error) {
		return d.Reader.Names(ctx, question)
	})
	if bad := ClientError(err); bad != nil {
		return CountersAnswer{}, web.BadInput("totals", "%s: %v", countersWindow, bad).Problem(part)
	}
	if err != nil {
		return CountersAnswer{}, err
	}
	if found.Counters == nil {
		found.Counters = []string{} // not null
	}
	out := CountersAnswer{
		AsOf: Time(found.AsOf), Complete: found.Complete && !window.Range{To: found.Now}.Outruns(found.AsOf),
		CountingSince: Since(found.CountingSince), Counters: found.Counters, Next: found.Next,
	}
	if totals {
		out.Totals = make([]Total, len(found.Answers))
		for i, a := range found.Answers {
			out.Totals[i] = TotalOf(found.Counters[i], countersWindow, a, found.AsOf)
		}
	}
	return out, nil
}

// containing returns a function that reports whether a name contains a text, by Unicode's simple case
// folding: the Kelvin sign equals k, but ß is not ss.
func containing(text string) func(name string) bool {
	text = folded(text)
	return func(name string) bool { return strings.Contains(folded(name), text) }
}

// folded replaces each letter with the first of those that fold to the same.
func folded(text string) string {
	return strings.Map(func(r rune) rune {
		first := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			first = min(first, next)
		}
		return first
	}, text)
}
