package answer

import (
	"context"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const defaultTop, maxTop = 20, 1000

// topParams is what GET /v1/top takes, and as JSON the endpoint top over NATS.
type topParams struct {
	Window string     `query:"window" json:"window" required:"true" doc:"How far to look back: a whole number and a unit (s, m, h, d, w)." example:"1h"`
	Limit  api.Number `query:"limit" json:"limit" doc:"The most counters to list: 1 to 1000. Default: 20." example:"20"`
	At     api.Moment `query:"at" json:"at" doc:"The end of the window: an RFC 3339 time or Unix milliseconds. Default: now." example:"\"2026-11-21T10:00:00Z\""`
}

func (p *topParams) Read(g api.Given) error {
	return g.Singles(
		api.Single{"window", api.WindowHint, &p.Window},
		api.Single{"limit", api.NumberHint(1, maxTop), (*string)(&p.Limit)},
		api.Single{"at", api.MomentHint, (*string)(&p.At)},
	)
}

// topAnswer is the answer.
type topAnswer struct {
	AsOf          time.Time  `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Window        string     `json:"window" doc:"The window as it was asked for." example:"1h"`
	Complete      bool       `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or floor is null." example:"true"`
	CountingSince time.Time  `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known." example:"2026-10-01T08:00:00Z"`
	Floor         Bound      `json:"floor" doc:"No counter with more hits in the window is missing from the list. Null if nobody knows, because nobody has counted lately: the window ends more than 5 seconds after as_of." example:"37"`
	Top           []topTotal `json:"top" doc:"The counters by total, the largest first; those with the same total by name."`
}

// topTotal is a counter of the list.
type topTotal struct {
	Key   string `json:"key" doc:"The counter." example:"api-1"`
	Total int64  `json:"total" doc:"The hits in the window, as /v1/total gives them." example:"1234"`
	Lower int64  `json:"lower" doc:"There were at least this many hits." example:"1229"`
	Upper Bound  `json:"upper" doc:"There were at most this many hits; null if floor is." example:"1241"`
}

// Top checks parameters and answers them. Its errors are for the client.
func (d *Desk) Top(ctx context.Context, part string, p *topParams) (topAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultTop, 1, maxTop)
	if err != nil {
		return topAnswer{}, web.InputProblem(err, part)
	}
	if p.Window == "" {
		return topAnswer{}, web.BadInput("window", "it is missing: allowed is %s", api.WindowHint).In(part)
	}
	in := &Input{Part: part, WindowsParam: "window", Windows: []string{p.Window}, at: p.At}
	periods, err := in.Periods()
	if err != nil {
		return topAnswer{}, web.InputProblem(err, part)
	}
	found, err := Ask(ctx, d.Redis, func(ctx context.Context) (window.Top, error) {
		return d.Reader.Top(ctx, periods[0].Span, int(limit))
	})
	if err != nil {
		if bad := Mendable(err); bad != nil {
			return topAnswer{}, in.unanswerable(periods[0], bad)
		}
		return topAnswer{}, err
	}
	out := topAnswer{
		AsOf: Time(found.AsOf), Window: p.Window, CountingSince: Since(found.CountingSince),
		Complete: found.Complete && !found.Range.Outruns(found.AsOf),
		Floor:    atMost(found.Floor, found.Range, found.AsOf), Top: make([]topTotal, len(found.Counters)),
	}
	for i, c := range found.Counters {
		out.Top[i] = topTotal{Key: c.Counter, Total: c.Total, Lower: c.Lower, Upper: atMost(c.Upper, found.Range, found.AsOf)}
	}
	return out, nil
}

func TopExample() topAnswer {
	return topAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Window: "1h", Complete: true, CountingSince: SinceExample, Floor: 37,
		Top: []topTotal{{Key: "api-1", Total: 1234, Lower: 1229, Upper: 1241}, {Key: "/cart", Total: 311, Lower: 309, Upper: 312}},
	}
}
