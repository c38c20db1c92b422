package query

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/window"
)

const momentHint = "an RFC 3339 time or Unix milliseconds"

// totalParams is what GET /v1/total takes.
type totalParams struct {
	Keys    []string `query:"key,explode" required:"true" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	Windows []string `query:"window,explode" doc:"How far to look back: a whole number and a unit (s, m, h, d, w). May repeat, at most 8 times." example:"[\"24h\"]"`
	At      moment   `query:"at" doc:"The end of the windows: an RFC 3339 time or Unix milliseconds. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	From    moment   `query:"from" doc:"In place of window: the start of a range." example:"\"2026-11-21T09:00:00Z\""`
	To      moment   `query:"to" doc:"Beside from: the end of the range, not included. Default: now." example:"\"2026-11-21T09:30:00Z\""`
}

// Resolve reads the parameters again: see repeated and single.
func (p *totalParams) Resolve(ctx huma.Context) []error {
	p.Keys, p.Windows = repeated(ctx, "key"), repeated(ctx, "window")
	for name, into := range map[string]*moment{"at": &p.At, "from": &p.From, "to": &p.To} {
		text, err := single(ctx, name, momentHint)
		if err != nil {
			return []error{err}
		}
		*into = moment(text)
	}
	return nil
}

func (p *totalParams) ask() *ask {
	return &ask{in: "query", key: "key", window: "window", keys: p.Keys, windows: p.Windows, at: p.At, from: p.From, to: p.To}
}

// totalBody is what POST /v1/total takes.
type totalBody struct {
	Keys    []string `json:"keys" minItems:"1" doc:"Counters, each of 1 to 512 bytes of UTF-8 without control characters." example:"[\"api-1\",\"/cart\"]"`
	Windows []string `json:"windows,omitempty" maxItems:"8" doc:"How far to look back: whole numbers and units (s, m, h, d, w)." example:"[\"1h\",\"24h\"]"`
	At      moment   `json:"at,omitempty" doc:"The end of the windows: an RFC 3339 time or Unix milliseconds. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	From    moment   `json:"from,omitempty" doc:"In place of windows: the start of a range." example:"\"2026-11-21T09:00:00Z\""`
	To      moment   `json:"to,omitempty" doc:"Beside from: the end of the range, not included. Default: now." example:"1795255200000"`
}

func (b *totalBody) ask() *ask {
	return &ask{in: "body", key: "keys", window: "windows", keys: b.Keys, windows: b.Windows, at: b.At, from: b.From, to: b.To}
}

// totalAnswer is the answer of both.
type totalAnswer struct {
	AsOf   time.Time `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z where some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Totals []total   `json:"totals" doc:"A total for every counter and window: the first counter with each of the windows, then the next one."`
}

// total is the hits of one counter in one range, and how exact that is.
type total struct {
	Key           string    `json:"key" doc:"The counter." example:"api-1"`
	Window        string    `json:"window,omitempty" doc:"The window as it was asked for; not there for a range." example:"24h"`
	From          time.Time `json:"from" doc:"The start of the window." example:"2026-11-20T10:00:00Z"`
	To            time.Time `json:"to" doc:"The end of the window, not included." example:"2026-11-21T10:00:00Z"`
	Total         int64     `json:"total" doc:"The hits in the window. Of a cell that its start cuts, the part inside in proportion to time, rounded." example:"1234"`
	Lower         int64     `json:"lower" doc:"At least so many: without the cell that is cut. The truth is between lower and upper." example:"1229"`
	Upper         int64     `json:"upper" doc:"At most so many: with the whole of the cell that is cut." example:"1241"`
	Cell          string    `json:"cell" doc:"The length of the cells that were added up." example:"15m"`
	Complete      bool      `json:"complete" doc:"False where hits of the window are known to be missing: counting began, or hits were discarded unread, after from." example:"true"`
	CountingSince time.Time `json:"counting_since,omitzero" doc:"When counting of these streams began; not there where that is not known. Where complete is false and from is later than this, hits were lost." example:"2026-10-01T08:00:00Z"`
}

type totalOutput struct {
	CacheControl string `header:"Cache-Control"`
	ETag         string `header:"ETag"`
	Body         totalAnswer
}

const totalAbout = "The hits of counters in rolling windows, or in any range of time that a tier still holds. " +
	"Only the cell that the start of a window cuts is in doubt; lower and upper say by how much. A counter never seen has total 0."

func (s *service) registerTotal(api huma.API) {
	huma.Register(api, s.operation(api, huma.Operation{
		OperationID: "get-total", Method: http.MethodGet, Path: "/v1/total",
		Summary: "Totals of a few counters", Description: totalAbout,
		Responses: answers("The totals, as of now.", totalExample()),
		Metadata: tryoutAt(func(now time.Time) []string {
			ago := func(d time.Duration) string { return now.Add(-d).UTC().Format(time.RFC3339) }
			return []string{
				"/v1/total?key=api-1&window=24h",
				"/v1/total?key=api-1&key=/cart&window=1m&window=1h",
				"/v1/total?key=api-1&window=15m&at=" + ago(5*time.Minute),
				"/v1/total?key=api-1&from=" + ago(time.Hour) + "&to=" + ago(30*time.Minute),
			}
		}),
	}), func(ctx context.Context, in *totalParams) (*totalOutput, error) { return s.total(ctx, in.ask()) })

	huma.Register(api, s.operation(api, huma.Operation{
		OperationID: "post-total", Method: http.MethodPost, Path: "/v1/total",
		Summary: "Totals of many counters", Description: totalAbout + " The counters are in the body, as many as QUERY_MAX_KEYS allows.",
		RequestBody: &huma.RequestBody{
			Description: "Counters, and windows or a range.",
			Content: map[string]*huma.MediaType{"application/json": {Example: totalBody{
				Keys: []string{"api-1", "/cart"}, Windows: []string{"1h", "24h"},
			}}},
		},
		Responses: answers("The totals, as of now.", totalExample()),
		Metadata:  tryout("/v1/total"),
	}), func(ctx context.Context, in *struct{ Body totalBody }) (*totalOutput, error) {
		return s.total(ctx, in.Body.ask())
	})
}

func (s *service) total(ctx context.Context, a *ask) (*totalOutput, error) {
	spans, err := a.spans(s.maxKeys)
	if err != nil {
		return nil, inputProblem(err, a.in)
	}
	asked := questions(a.keys, spans)
	found, err := bounded(ctx, s, func(ctx context.Context) (window.Answers, error) { return s.reader.Answer(ctx, asked) })
	if err != nil {
		if bad := mendable(err); bad != nil {
			return nil, a.refused(spans[bad.Index%len(spans)].window, bad)
		}
		return nil, err
	}
	out := &totalOutput{Body: totalAnswer{AsOf: timeOf(found.AsOf), Totals: make([]total, len(asked))}}
	for i, q := range asked {
		out.Body.Totals[i] = totalOf(q.Counter, spans[i%len(spans)].window, found.Answers[i])
	}
	if found.Answers[0].Range.To < found.Now { // all of them end at the same moment
		out.CacheControl, out.ETag = validated(out.Body.Totals)
	}
	return out, nil
}

func totalOf(key, asked string, a window.Answer) total {
	return total{
		Key: key, Window: asked, From: timeOf(a.Range.From), To: timeOf(a.Range.To),
		Total: a.Total.Total, Lower: a.Lower, Upper: a.Upper,
		Cell: window.FormatDuration(a.Tier.Cell), Complete: a.Complete, CountingSince: sinceOf(a.CountingSince),
	}
}

// refused says which parameter asked what cannot be answered; asked is the window, if there is one.
func (a *ask) refused(asked string, err error) *problem {
	var ahead *window.AheadError
	switch {
	case errors.As(err, &ahead) && asked == "":
		return badInput("to", "%v", err).problem(a.in)
	case errors.As(err, &ahead):
		return badInput("at", "%v", err).problem(a.in)
	case asked == "":
		return badInput("from", "%v", err).problem(a.in)
	}
	return badInput(a.window, "%s: %v", asked, err).problem(a.in)
}

func totalExample() totalAnswer {
	return totalAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC),
		Totals: []total{{
			Key: "api-1", Window: "24h", From: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC), To: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC),
			Total: 1234, Lower: 1229, Upper: 1241, Cell: "15m", Complete: true, CountingSince: sinceExample,
		}},
	}
}
