package query

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/window"
)

const defaultCounters, maxCounters = 100, 1000

// countersParams is what GET /v1/counters takes, and as JSON the endpoint
// counters over NATS.
type countersParams struct {
	Prefix string `query:"prefix" json:"prefix" doc:"What the names begin with. Default: all names." example:"shop."`
	Limit  count  `query:"limit" json:"limit" doc:"The most names in a page: 1 to 1000. Default: 100." example:"100"`
	After  string `query:"after" json:"after" doc:"The page begins after this name: next of the page before." example:"shop.checkout.eu"`
}

// Resolve reads the parameters again: see single.
func (p *countersParams) Resolve(ctx huma.Context) []error {
	return readSingles(ctx,
		singleParam{"prefix", nameHint, &p.Prefix},
		singleParam{"limit", countHint(maxCounters), (*string)(&p.Limit)},
		singleParam{"after", nameHint, &p.After},
	)
}

const nameHint = "the name of a counter, or the beginning of one"

// countersAnswer is a page of names.
type countersAnswer struct {
	AsOf          time.Time `json:"as_of" doc:"Every counter with a hit stored before this moment is listed. 1970-01-01T00:00:00Z where some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Complete      bool      `json:"complete" doc:"False where hits of the longest window are known to be missing: counting began, or hits were discarded unread, after it began." example:"true"`
	CountingSince time.Time `json:"counting_since,omitzero" doc:"When counting of these streams began; not there where that is not known." example:"2026-10-01T08:00:00Z"`
	Counters      []string  `json:"counters" doc:"The names, in the order of their bytes. A page can be shorter than limit, even empty, and have a next one." example:"[\"shop.cart\",\"shop.checkout.eu\"]"`
	Next          string    `json:"next,omitempty" doc:"What to ask for as after; not there at the end." example:"shop.checkout.eu"`
}

type countersOutput struct{ Body countersAnswer }

func (s *service) registerCounters(api huma.API) {
	huma.Register(api, s.operation(api, huma.Operation{
		OperationID: "get-counters", Method: http.MethodGet, Path: "/v1/counters",
		Summary:     "The names of counters",
		Description: "The counters with hits in the longest window, in the order of their names, in pages.",
		Responses: answers("A page of names.", countersAnswer{
			AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Complete: true, CountingSince: sinceExample, Counters: []string{"shop.cart", "shop.checkout.eu"}, Next: "shop.checkout.eu",
		}),
		Metadata: tryout("/v1/counters?prefix=shop.&limit=100", "/v1/counters?prefix=shop.&after=shop.checkout.eu"),
	}), s.counters)
}

func (s *service) counters(ctx context.Context, in *countersParams) (*countersOutput, error) {
	out, err := s.findCounters(ctx, "query", in)
	return &countersOutput{out}, err
}

// findCounters is as findTop.
func (s *service) findCounters(ctx context.Context, where string, in *countersParams) (countersAnswer, error) {
	limit, err := in.Limit.read("limit", defaultCounters, maxCounters)
	if err != nil {
		return countersAnswer{}, inputProblem(err, where)
	}
	for _, p := range []struct{ name, text string }{{"prefix", in.Prefix}, {"after", in.After}} {
		if p.text == "" {
			continue
		}
		if err := checkKey(p.name, p.text); err != nil {
			return countersAnswer{}, inputProblem(err, where)
		}
	}
	found, err := bounded(ctx, s, func(ctx context.Context) (window.Names, error) {
		return s.reader.Names(ctx, window.NamesQuestion{Prefix: in.Prefix, After: in.After, Limit: limit})
	})
	if err != nil {
		return countersAnswer{}, err
	}
	if found.Counters == nil {
		found.Counters = []string{} // not null
	}
	return countersAnswer{
		AsOf: timeOf(found.AsOf), Complete: found.Complete, CountingSince: sinceOf(found.CountingSince), Counters: found.Counters, Next: found.Next,
	}, nil
}
