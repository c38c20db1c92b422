package query

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// seriesParams is what GET /v1/series takes.
type seriesParams struct {
	Keys   []string `query:"key,explode" required:"true" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	From   moment   `query:"from" doc:"The start: an RFC 3339 time or Unix milliseconds. Default: an hour before to." example:"\"2026-11-21T09:00:00Z\""`
	To     moment   `query:"to" doc:"The end, not included. Default: now." example:"\"2026-11-21T09:30:00Z\""`
	Step   string   `query:"step" doc:"The time from one point to the next: a whole number and a unit (s, m, h, d, w), rounded up to whole cells. Default: a cell." example:"1m"`
	Format string   `query:"format" doc:"json, csv or svg; it takes precedence over the header Accept. Default: json." example:"svg"`
	Width  string   `query:"width" doc:"Of a chart, in pixels: 200 to 2000. Default: 800." example:"800"`
	Height string   `query:"height" doc:"Of a chart, in pixels: 100 to 1200. Default: 300." example:"300"`

	accept string
}

func (p *seriesParams) read(g given) error {
	p.Keys, p.accept = g.query["key"], g.header.Get("Accept")
	return g.singles(
		singleParam{"from", momentHint, (*string)(&p.From)},
		singleParam{"to", momentHint, (*string)(&p.To)},
		singleParam{"step", durationHint, &p.Step},
		singleParam{"format", formatNames, &p.Format},
		singleParam{"width", pixelsHint, &p.Width},
		singleParam{"height", pixelsHint, &p.Height},
	)
}

func (p *seriesParams) input() *input {
	return &input{part: inQuery, keyParam: "key", keys: p.Keys, from: p.From, to: p.To, step: p.Step}
}

// seriesBody is what the endpoint series takes over NATS: the same names.
type seriesBody struct {
	Key  oneOrMany `json:"key"`
	From moment    `json:"from"`
	To   moment    `json:"to"`
	Step string    `json:"step"`
}

func (b *seriesBody) input() *input {
	return &input{part: inBody, keyParam: "key", keys: b.Key, from: b.From, to: b.To, step: b.Step}
}

// oneOrMany is a string or a list of them.
type oneOrMany []string

// UnmarshalJSON reads either.
func (o *oneOrMany) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil && string(data) != "null" {
		*o = oneOrMany{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(o))
}

// series is the hits of one counter step by step.
type series struct {
	Key            string     `json:"key" doc:"The counter." example:"api-1"`
	Step           string     `json:"step" doc:"The time from one point to the next: the step asked for, rounded up to whole cells." example:"1m"`
	AsOf           time.Time  `json:"as_of" doc:"Every hit stored before this moment is in the points. Later hits are still being counted, and so is the last point while its step reaches beyond this moment." example:"2026-11-21T10:00:00.2Z"`
	Complete       bool       `json:"complete" doc:"False if hits of the range are known to be missing: counting began, or hits were discarded unread, after it began." example:"true"`
	CountingSince  time.Time  `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known. Steps that had ended by then have no point." example:"2026-10-01T08:00:00Z"`
	UnfinishedFrom int64      `json:"unfinished_from,omitempty" doc:"The beginning, in Unix milliseconds, of the first step that as_of has not passed: from there on points are still being counted. Absent if all steps are finished." example:"1795255200000"`
	Points         [][2]int64 `json:"points" doc:"For every step since counting began, the moment at which the step begins, in Unix milliseconds, and its hits; zeros included. The last step ends with the range and may be shorter." example:"[[1795255080000,118],[1795255140000,121]]"`
}

// seriesList is the answer about several counters.
type seriesList struct {
	Series []series `json:"series" doc:"One for each counter, in the order asked for, with the same moments."`
}

const seriesAbout = "The hits of a counter in each step of a range. From, to and step are widened to whole cells of the finest tier for ranges of that length that " +
	"still has all of it, so every number is exact. One counter gives the object below; if key repeats, the answer is {\"series\":[…]} with such an object " +
	"per counter. As CSV it is a table with a row per step and a column per counter; as SVG it is a chart with a line per counter."

func (s *service) registerSeries(a *api) {
	schemas := a.OpenAPI().Components.Schemas
	one, many := web.SchemaOf[series](schemas), web.SchemaOf[seriesList](schemas)
	text := &huma.Schema{Type: huma.TypeString}
	answerQuery(a, s.operation(a, huma.Operation{
		OperationID: "get-series", Method: http.MethodGet, Path: "/v1/series",
		Summary: "Hits step by step: numbers, a table or a chart", Description: seriesAbout,
		Responses: map[string]*huma.Response{"200": {
			Description: "The points, as of now.",
			Content: map[string]*huma.MediaType{
				formatTypes["json"]: {Schema: &huma.Schema{OneOf: []*huma.Schema{one, many}}, Example: seriesExample()},
				formatTypes["csv"]:  {Schema: text, Example: "time,api-1\n2026-11-21T09:58:00Z,118\n2026-11-21T09:59:00Z,121\n"},
				formatTypes["svg"]:  {Schema: text, Example: "<svg …>"},
			},
		}},
		Metadata: web.TryoutAt(func(now time.Time) []string {
			ago := func(d time.Duration) string { return now.Add(-d).UTC().Format(time.RFC3339) }
			return []string{
				"/v1/series?key=api-1",
				"/v1/series?key=api-1&key=/cart&step=5m&format=csv",
				"/v1/series?key=api-1&key=/cart&format=svg&width=800&height=300",
				"/v1/series?key=api-1&format=svg&from=" + ago(20*time.Hour) + "&to=" + ago(time.Hour),
			}
		}),
	}), s.getSeries)
}

func (s *service) getSeries(ctx context.Context, p *seriesParams) (*rawOutput, error) {
	view, err := p.parseView()
	if err != nil {
		return nil, inputProblem(err, inQuery)
	}
	found, err := s.findSeries(ctx, p.input())
	if err != nil {
		return nil, err
	}
	if view.chart() && len(p.Keys) > maxLines {
		return nil, badInput("key", "%d counters in a chart: at most %d lines can be told apart", len(p.Keys), maxLines).problem(inQuery)
	}
	out := &rawOutput{ContentType: formatTypes[view.Format], Vary: []string{"Accept"}}
	switch view.Format {
	case "csv":
		out.Body = seriesCSV(p.Keys, found)
	case "svg":
		out.Body = seriesChart(p.Keys, found, view)
	default:
		out.Body = append(jsonOf(seriesJSON(p.Keys, found)), '\n')
	}
	if found[0].Asked.To < found[0].Now {
		out.CacheControl, out.ETag = cacheHeaders(view, p.Keys, withoutReadTime(found))
	}
	return out, nil
}

// findSeries checks an input and answers it. Its errors are for the client.
func (s *service) findSeries(ctx context.Context, in *input) ([]window.Series, error) {
	questions, err := in.seriesQuestions(s.maxKeys)
	if err != nil {
		return nil, inputProblem(err, in.part)
	}
	found, err := askRedis(ctx, s, func(ctx context.Context) ([]window.Series, error) { return s.reader.Series(ctx, questions) })
	if bad := mendable(err); bad != nil {
		return nil, in.unanswerable(period{}, bad)
	}
	return found, err
}

// seriesJSON is one series, or a list if several were asked for.
func seriesJSON(keys []string, found []window.Series) any {
	out := seriesList{Series: make([]series, len(keys))}
	for i, f := range found {
		out.Series[i] = series{
			Key: keys[i], Step: window.FormatDuration(f.Step), AsOf: timeOf(f.AsOf), Complete: f.Complete,
			CountingSince: sinceOf(f.CountingSince), Points: points(f),
		}
		if n := f.Finished(); n < len(f.Counts) {
			out.Series[i].UnfinishedFrom = f.Start(max(n, f.Begun()))
		}
	}
	if len(keys) == 1 {
		return out.Series[0]
	}
	return out
}

// points returns the points since counting began.
func points(f window.Series) [][2]int64 {
	begun := f.Begun()
	out := make([][2]int64, 0, len(f.Counts)-begun)
	for i, n := range f.Counts[begun:] {
		out = append(out, [2]int64{f.Start(begun + i), n})
	}
	return out
}

// withoutReadTime returns the contents of an answer without the moment at which it was read. Of
// as_of, only the number of steps that it has passed remains.
func withoutReadTime(found []window.Series) []window.Series {
	out := slices.Clone(found)
	for i := range out {
		out[i].Now, out[i].AsOf = 0, int64(out[i].Finished())
	}
	return out
}

func seriesExample() series {
	return series{
		Key: "api-1", Step: "1m", AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Complete: true, CountingSince: sinceExample,
		UnfinishedFrom: 1795255200000, Points: [][2]int64{{1795255080000, 118}, {1795255140000, 121}, {1795255200000, 1}},
	}
}
