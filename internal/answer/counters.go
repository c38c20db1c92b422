package answer

import (
	"context"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const defaultCounters, maxCounters = 100, 1000

// countersParams is what GET /v1/counters takes, and as JSON the endpoint
// counters over NATS.
type countersParams struct {
	Prefix string     `query:"prefix" json:"prefix" doc:"What the names begin with. Default: all names." example:"shop."`
	Limit  api.Number `query:"limit" json:"limit" doc:"The most names in a page: 1 to 1000. Default: 100." example:"100"`
	After  string     `query:"after" json:"after" doc:"The page begins after this name: next of the page before." example:"shop.checkout.eu"`
}

func (p *countersParams) Read(g api.Given) error {
	return g.Singles(
		api.Single{"prefix", api.NameHint, &p.Prefix},
		api.Single{"limit", api.NumberHint(1, maxCounters), (*string)(&p.Limit)},
		api.Single{"after", api.NameHint, &p.After},
	)
}

// CountersAnswer is a page of names.
type CountersAnswer struct {
	AsOf          time.Time `json:"as_of" doc:"Every counter with a hit stored before this moment is listed. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Complete      bool      `json:"complete" doc:"False if hits of the longest window are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or as_of is more than 5 seconds ago, because nobody has counted lately." example:"true"`
	CountingSince time.Time `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known." example:"2026-10-01T08:00:00Z"`
	Counters      []string  `json:"counters" doc:"The names, in the order of their bytes. A page can be shorter than limit, even empty, and have a next one." example:"[\"shop.cart\",\"shop.checkout.eu\"]"`
	Next          string    `json:"next,omitempty" doc:"The value of after for the next page; absent at the end." example:"shop.checkout.eu"`
}

// Counters checks parameters and answers them. Its errors are for the client.
func (d *Desk) Counters(ctx context.Context, part string, p *countersParams) (CountersAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultCounters, 1, maxCounters)
	if err != nil {
		return CountersAnswer{}, web.InputProblem(err, part)
	}
	for _, name := range []struct{ param, text string }{{"prefix", p.Prefix}, {"after", p.After}} {
		if name.text == "" {
			continue
		}
		if err := api.CheckKey(name.param, name.text); err != nil {
			return CountersAnswer{}, web.InputProblem(err, part)
		}
	}
	found, err := Ask(ctx, d.Redis, func(ctx context.Context) (window.Names, error) {
		return d.Reader.Names(ctx, window.NamesQuestion{Prefix: p.Prefix, After: p.After, Limit: int(limit)})
	})
	if err != nil {
		return CountersAnswer{}, err
	}
	if found.Counters == nil {
		found.Counters = []string{} // not null
	}
	return CountersAnswer{
		AsOf: Time(found.AsOf), Complete: found.Complete && !window.Range{To: found.Now}.Outruns(found.AsOf), CountingSince: Since(found.CountingSince), Counters: found.Counters, Next: found.Next,
	}, nil
}
