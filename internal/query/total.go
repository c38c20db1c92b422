package query

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

// totalParams is what GET /v1/total takes.
type totalParams struct {
	Keys    []string    `query:"key,explode" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	Windows []string    `query:"window,explode" doc:"How far to look back: a whole number and a unit (s, m, h, d, w); or today, yesterday, week (since Monday) or month, in the zone tz. May repeat, at most 8 times." example:"[\"24h\"]"`
	At      api.Moment  `query:"at" doc:"The end of the windows: an RFC 3339 time or Unix milliseconds. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	From    api.Moment  `query:"from" doc:"In place of window: the start of a range." example:"\"2026-11-21T09:00:00Z\""`
	To      api.Moment  `query:"to" doc:"Beside from: the end of the range, not included. Default: now." example:"\"2026-11-21T09:30:00Z\""`
	Prefix  string      `query:"prefix" doc:"In place of key: the sum over all counters whose names begin like this." example:"shop."`
	Group   api.Number  `query:"group" doc:"Beside prefix: also the sums over the counters whose names have so many first parts in common, parted by . or /. 1 to 16." example:"2"`
	Explain explainText `query:"explain" doc:"1: each total says which cells it was made of, and where they are in Redis." example:"1"`
	TZ      string      `query:"tz" doc:"Beside today, yesterday, week and month: the IANA time zone whose midnight counts. Default: UTC." example:"Europe/Berlin"`
}

func (p *totalParams) Read(g api.Given) error {
	p.Keys, p.Windows = g.Query["key"], g.Query["window"]
	return g.Singles(
		api.Single{"at", api.MomentHint, (*string)(&p.At)},
		api.Single{"from", api.MomentHint, (*string)(&p.From)},
		api.Single{"to", api.MomentHint, (*string)(&p.To)},
		api.Single{"tz", zoneHint, &p.TZ},
		api.Single{"prefix", api.NameHint, &p.Prefix},
		api.Single{"group", api.NumberHint(1, maxGroup), (*string)(&p.Group)},
		api.Single{"explain", explainHint, (*string)(&p.Explain)},
	)
}

func (p *totalParams) input() *input {
	return &input{
		part: web.InQuery, keyParam: "key", windowsParam: "window", keys: p.Keys, windows: p.Windows, at: p.At, from: p.From, to: p.To,
		calendars: true, tz: p.TZ, prefix: p.Prefix, group: p.Group, explain: p.Explain,
	}
}

// totalBody is what POST /v1/total takes.
type totalBody struct {
	Keys    []string    `json:"keys,omitempty" minItems:"1" doc:"Counters, each of 1 to 512 bytes of UTF-8 without control characters." example:"[\"api-1\",\"/cart\"]"`
	Windows []string    `json:"windows,omitempty" maxItems:"8" doc:"How far to look back: whole numbers and units (s, m, h, d, w); or today, yesterday, week (since Monday) or month, in the zone tz." example:"[\"1h\",\"24h\"]"`
	At      api.Moment  `json:"at,omitempty" doc:"The end of the windows: an RFC 3339 time or Unix milliseconds. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	From    api.Moment  `json:"from,omitempty" doc:"In place of windows: the start of a range." example:"\"2026-11-21T09:00:00Z\""`
	To      api.Moment  `json:"to,omitempty" doc:"Beside from: the end of the range, not included. Default: now." example:"1795255200000"`
	Prefix  string      `json:"prefix,omitempty" doc:"In place of keys: the sum over all counters whose names begin like this." example:"shop."`
	Group   api.Number  `json:"group,omitempty" doc:"Beside prefix: also the sums over the counters whose names have so many first parts in common, parted by . or /. 1 to 16." example:"2"`
	Explain explainText `json:"explain,omitempty" doc:"\"1\" or true: each total says which cells it was made of, and where they are in Redis." example:"1"`
	TZ      string      `json:"tz,omitempty" doc:"Beside today, yesterday, week and month: the IANA time zone whose midnight counts. Default: UTC." example:"Europe/Berlin"`
}

func (b *totalBody) input() *input {
	return &input{
		part: web.InBody, keyParam: "keys", windowsParam: "windows", keys: b.Keys, windows: b.Windows, at: b.At, from: b.From, to: b.To,
		calendars: true, tz: b.TZ, prefix: b.Prefix, group: b.Group, explain: b.Explain,
	}
}

// totalAnswer is the answer of both.
type totalAnswer struct {
	AsOf   time.Time `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Totals []total   `json:"totals" doc:"A total for every counter and window: the first counter with each of the windows, then the next one."`
}

// total is the hits of one counter in one range, and how exact that is.
type total struct {
	Key           string    `json:"key" doc:"The counter, or the prefix of a sum." example:"api-1"`
	Window        string    `json:"window,omitempty" doc:"The window as it was asked for, such as 24h or today; absent for a range." example:"24h"`
	From          time.Time `json:"from" doc:"The start of the window." example:"2026-11-20T10:00:00Z"`
	To            time.Time `json:"to" doc:"The end of the window, not included." example:"2026-11-21T10:00:00Z"`
	Total         int64     `json:"total" doc:"The hits in the window. If its start cuts a cell, that cell counts in proportion to the time inside, rounded." example:"1234"`
	Lower         int64     `json:"lower" doc:"There were at least this many hits: without the cell that is cut. The truth is between lower and upper." example:"1229"`
	Upper         bound     `json:"upper" doc:"There were at most this many hits: with the whole of the cell that is cut. Null if nobody knows: the window ends more than 5 seconds after as_of, so nobody has counted lately." example:"1241"`
	Cell          string    `json:"cell" doc:"The length of the cells that were added up." example:"15m"`
	Complete      bool      `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after from; or upper is null." example:"true"`
	CountingSince time.Time `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known. If complete is false, upper is a number and from is later than this, hits were lost." example:"2026-10-01T08:00:00Z"`
	*SumOver
	*Explained
}

// bound is the most hits that there can have been, or unknown, which is null in JSON.
type bound int64

// unknown is where sums stop, too: they never wrap round.
const unknown bound = math.MaxInt64

// atMost is the bound on the hits of a range, if there were at most n among those that were applied at asOf. Whatever
// shows a bound has it from here.
func atMost(n int64, r window.Range, asOf int64) bound {
	if r.Outruns(asOf) {
		return unknown
	}
	return bound(n)
}

func (b bound) String() string {
	if b == unknown {
		return "null"
	}
	return strconv.FormatInt(int64(b), 10)
}

// float is the number as Prometheus takes it.
func (b bound) float() float64 {
	if b == unknown {
		return math.Inf(1)
	}
	return float64(b)
}

// MarshalJSON writes the number, or null.
func (b bound) MarshalJSON() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalJSON reads what MarshalJSON writes.
func (b *bound) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*b = unknown
		return nil
	}
	return json.Unmarshal(data, (*int64)(b))
}

// Schema describes the number, or null.
func (bound) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeInteger, Format: "int64", Nullable: true}
}

type totalOutput struct {
	CacheControl string `header:"Cache-Control"`
	ETag         string `header:"ETag"`
	Body         totalAnswer
}

func (o *totalOutput) Write(w http.ResponseWriter) {
	api.SetHeader(w, "Cache-Control", o.CacheControl)
	api.SetHeader(w, "ETag", o.ETag)
	api.WriteJSON(w, http.StatusOK, api.JSONType, &o.Body)
}

const totalAbout = "The hits of counters in rolling windows, or in any range of time that a tier still holds. " +
	"Only the cell that the start of a window cuts is in doubt; lower and upper say by how much. A counter that was never hit has total 0. " +
	"If nobody has counted lately, later hits are in doubt, too: upper is null then, and complete is false."

func (s *service) registerTotal(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-total", Method: http.MethodGet, Path: totalPath,
		Summary: "Totals of a few counters", Description: totalAbout,
		Responses: api.SuccessOnly("The totals, as of now.", totalExample()),
		Metadata: api.TryoutAt(func(now time.Time) []string {
			ago := func(d time.Duration) string { return now.Add(-d).UTC().Format(time.RFC3339) }
			return []string{
				"/v1/total?key=api-1&window=24h",
				"/v1/total?key=api-1&key=/cart&window=1m&window=1h",
				"/v1/total?key=api-1&window=today&tz=Europe/Berlin",
				"/v1/total?prefix=shop.&group=2&window=1h",
				"/v1/total?key=api-1&window=15m&at=" + ago(5*time.Minute),
				"/v1/total?key=api-1&from=" + ago(time.Hour) + "&to=" + ago(30*time.Minute),
			}
		}),
	}), func(ctx context.Context, p *totalParams) (*totalOutput, error) { return s.findTotals(ctx, p.input()) })

	api.AnswerBody(a, a.Operation(huma.Operation{
		OperationID: "post-total", Method: http.MethodPost, Path: totalPath,
		Summary: "Totals of many counters", Description: totalAbout + " The counters are in the body, as many as QUERY_MAX_KEYS allows.",
		RequestBody: &huma.RequestBody{
			Description: "Counters, and windows or a range.",
			Content: map[string]*huma.MediaType{"application/json": {Example: totalBody{
				Keys: []string{"api-1", "/cart"}, Windows: []string{"1h", "24h"},
			}}},
		},
		Responses: api.SuccessOnly("The totals, as of now.", totalExample()),
		Metadata:  api.Tryout("/v1/total"),
	}), func(ctx context.Context, b *totalBody) (*totalOutput, error) { return s.findTotals(ctx, b.input()) })
}

// findTotals checks an input and answers it. Its errors are for the client.
func (s *service) findTotals(ctx context.Context, in *input) (*totalOutput, error) {
	periods, err := in.totalPeriods(s.maxKeys)
	if err != nil {
		return nil, web.InputProblem(err, in.part)
	}
	if in.prefix != "" {
		return s.findSums(ctx, in, periods)
	}
	questions := questionsOf(in.keys, periods)
	found, err := askRedis(ctx, s, func(ctx context.Context) (explained, error) { return s.answer(ctx, in, questions) })
	if err != nil {
		if bad := mendable(err); bad != nil {
			return nil, in.unanswerable(periods[bad.Index%len(periods)], bad)
		}
		return nil, err
	}
	out := &totalOutput{Body: totalAnswer{AsOf: timeOf(found.AsOf), Totals: make([]total, len(questions))}}
	for i, q := range questions {
		out.Body.Totals[i] = totalOf(q.Counter, periods[i%len(periods)].window, found.Answers.Answers[i], found.AsOf)
		out.Body.Totals[i].explain(questions[i:i+1], found.at(i))
	}
	if !found.explains() && endedBefore(found.Answers.Answers, found.Now) {
		out.CacheControl, out.ETag = api.CacheHeaders(totalList(out.Body.Totals))
	}
	return out, nil
}

// endedBefore reports whether all ranges ended before a moment.
func endedBefore(answers []window.Answer, now int64) bool {
	return !slices.ContainsFunc(answers, func(a window.Answer) bool { return a.Range.To >= now })
}

// totalOf turns an answer that is whole up to asOf into its public form. windowText is the window as it was
// asked for, empty for a range.
func totalOf(key, windowText string, a window.Answer, asOf int64) total {
	return total{
		Key: key, Window: windowText, From: timeOf(a.Range.From), To: timeOf(a.Range.To),
		Total: a.Total, Lower: a.Lower, Upper: atMost(a.Upper, a.Range, asOf),
		Cell: window.FormatDuration(a.Tier.Cell), Complete: a.Complete && !a.Range.Outruns(asOf), CountingSince: sinceOf(a.CountingSince),
	}
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

// sinceOf is when counting began; the zero time, which answers leave out, if that is not known.
func sinceOf(milli int64) time.Time {
	if milli == 0 {
		return time.Time{}
	}
	return timeOf(milli)
}

var sinceExample = time.Date(2026, 10, 1, 8, 0, 0, 0, time.UTC)

// timeOf is a moment as answers tell it.
func timeOf(milli int64) time.Time { return time.UnixMilli(milli).UTC() }
