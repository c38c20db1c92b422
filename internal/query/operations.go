package query

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/common/expfmt"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/query/status"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

const totalPath, uniquesPath = "/v1/total", "/v1/uniques"

// probePath answers a scrape about the counters in its parameters, as a multi-target exporter does.
const probePath = "/probe"

// questions has the operations about counters.
type questions struct {
	*answer.Service
	status *status.Status
	limits *limitapi.Service
}

func (q *questions) register(a *api.API) {
	q.registerTotal(a)
	q.registerUniques(a)
	q.registerSeries(a)
	q.registerTop(a)
	q.registerCounters(a)
	q.registerAbout(a)
	q.registerProbe(a)
}

type windowsOutput[A any] struct {
	CacheControl string `header:"Cache-Control"`
	ETag         string `header:"ETag"`
	Body         A
}

func (o *windowsOutput[A]) Write(w http.ResponseWriter) {
	api.SetHeader(w, "Cache-Control", o.CacheControl)
	api.SetHeader(w, "ETag", o.ETag)
	api.WriteJSON(w, http.StatusOK, api.JSONType, &o.Body)
}

// windowsOperation describes two operations about counters in windows: GET for a few counters, POST for many.
type windowsOperation struct {
	id, path     string
	what, about  string
	answers      string
	body, answer any // examples
}

func (o *windowsOperation) get() huma.Operation {
	return huma.Operation{
		OperationID: "get-" + o.id, Method: http.MethodGet, Path: o.path,
		Summary: o.what + " of a few counters", Description: o.about,
		Responses: api.SuccessOnly(o.answers, o.answer),
	}
}

func (o *windowsOperation) post() huma.Operation {
	return huma.Operation{
		OperationID: "post-" + o.id, Method: http.MethodPost, Path: o.path,
		Summary: o.what + " of many counters", Description: o.about + " The counters are in the body, as many as " +
			"QUERY_MAX_KEYS allows.",
		RequestBody: &huma.RequestBody{
			Description: "Counters, and windows or a range.",
			Content:     map[string]*huma.MediaType{"application/json": {Example: o.body}},
		},
		Responses: api.SuccessOnly(o.answers, o.answer),
	}
}

func (q *questions) registerTotal(a *api.API) {
	o := windowsOperation{
		id: "total", path: totalPath, what: "Totals", answers: "The totals, as of now.", answer: answer.TotalExample(),
		about: "The hits of counters in rolling windows, or in any range of time that a tier still holds. " +
			"Only the cell that the start of a window cuts is uncertain; lower and upper bound it. A counter that " +
			"was never hit has total 0. An empty prefix asks for the sum of all hits. " +
			"If no worker has counted lately, later hits are uncertain, too: upper is null then, and complete " +
			"is false.",
		body: answer.TotalBody{Keys: []string{"api-1", "/cart"}, Windows: []string{"1h", "24h"}},
	}
	api.AnswerQuery(a, a.Operation(o.get()), func(ctx context.Context,
		p *answer.TotalParams) (*windowsOutput[answer.TotalAnswer], error) {
		return q.getTotals(ctx, p.Input())
	})
	api.AnswerBody(a, a.Operation(o.post()), func(ctx context.Context,
		b *answer.TotalBody) (*windowsOutput[answer.TotalAnswer], error) {
		return q.getTotals(ctx, b.Input())
	})
}

func (q *questions) getTotals(ctx context.Context, in *answer.Input) (*windowsOutput[answer.TotalAnswer], error) {
	found, past, err := q.Totals(ctx, in)
	return newWindowsOutput(found, past, found.Totals), err
}

func (q *questions) registerUniques(a *api.API) {
	o := windowsOperation{
		id: "uniques", path: uniquesPath, what: "Uniques", answers: "The estimates, as of now.",
		answer: answer.UniquesExample(),
		about: "How many unique values the hits of counters had in rolling windows, or in any range of time that a " +
			"tier of uniques still holds. " +
			"lower and upper hold with the confidence that the answer names, unlike those of a total: they have two " +
			"standard errors of the estimate (1.6 %), and the cells that the window cuts. " +
			"A counter whose hits carry no unique has 0. If no worker has counted lately, upper is null, and " +
			"complete is false.",
		body: answer.UniquesBody{Keys: []string{"visitors", "shop.visitors"}, Windows: []string{"1h", "24h"}},
	}
	api.AnswerQuery(a, a.Operation(o.get()), func(ctx context.Context,
		p *answer.WindowsParams) (*windowsOutput[answer.UniquesAnswer], error) {
		return q.getUniques(ctx, p.Input())
	})
	api.AnswerBody(a, a.Operation(o.post()), func(ctx context.Context,
		b *answer.UniquesBody) (*windowsOutput[answer.UniquesAnswer], error) {
		return q.getUniques(ctx, b.Input())
	})
}

func (q *questions) getUniques(ctx context.Context, in *answer.Input) (*windowsOutput[answer.UniquesAnswer], error) {
	found, past, err := q.Uniques(ctx, in)
	return newWindowsOutput(found, past, found.Uniques), err
}

const seriesAbout = "The hits of a counter in each step of a range. From, to and step are widened to whole cells of " +
	"the finest tier for ranges of that length that still has all of it, so every number is exact. With the steps " +
	"1d, 1w, 1mo and 1y, from and to are widened to whole days, weeks, months or years of the zone tz instead; a " +
	"number whose step begins or ends inside a cell has bounds. One counter, or a prefix for the sum of all counters " +
	"that begin with it, gives the object below; if key repeats, or with group, the answer is " +
	"{\"step\":…,\"as_of\":…,\"series\":[…]} with such an object per counter or group, and others for the groups " +
	"that are not listed. As CSV it is a table with a row per step and a column per line. With of=uniques the " +
	"numbers are how many unique values the hits of each step had, in whole cells of the tiers of uniques, and every " +
	"number has bounds; those of several steps or counters cannot be added up."

func (q *questions) registerSeries(a *api.API) {
	one, many := api.SchemaOf[answer.Series](a), api.SchemaOf[answer.SeriesList](a)
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-series", Method: http.MethodGet, Path: "/v1/series",
		Summary: "Hits step by step: numbers, or a table", Description: seriesAbout,
		Responses: tableResponse("The points, as of now.", &huma.Schema{OneOf: []*huma.Schema{one, many}},
			answer.SeriesExample(),
			"time,api-1,complete\n2026-11-21T09:58:00Z,118,true\n2026-11-21T09:59:00Z,121,true\n"),
	}), q.getSeries)
}

// getSeries lets an answer be cached if its range had ended when it was read: what is over hardly changes.
func (q *questions) getSeries(ctx context.Context, p *answer.SeriesParams) (*api.RawOutput, error) {
	var lines answer.SeriesLines
	out, err := inFormat(p.FormatParams, func() (_ answer.Table, err error) {
		lines, err = q.Series(ctx, p.Input())
		return &lines, err
	})
	if err != nil {
		return nil, err
	}
	if first := lines.Found[0]; first.Asked.To < first.Now {
		out.CacheControl, out.ETag = api.CacheHeaders(out.ContentType, lines.Keys, p.Step, p.TZ,
			lines.WithoutReadTime())
	}
	return out, nil
}

// tableResponse describes an answer that is also a table.
func tableResponse(what string, schema *huma.Schema, example any, table string) map[string]*huma.Response {
	return map[string]*huma.Response{"200": {
		Description: what,
		Content: map[string]*huma.MediaType{
			answer.JSON.ContentType: {Schema: schema, Example: example},
			answer.CSV.ContentType:  {Schema: &huma.Schema{Type: huma.TypeString}, Example: table},
		},
	}}
}

// inFormat returns an answer in the format that its request asks for.
func inFormat(p answer.FormatParams, find func() (answer.Table, error)) (*api.RawOutput, error) {
	format, err := p.Choose()
	if err != nil {
		return nil, web.InputProblem(err, web.InQuery)
	}
	found, err := find()
	if err != nil {
		return nil, err
	}
	out := &api.RawOutput{ContentType: format.ContentType, Vary: []string{"Accept"}}
	if format == answer.CSV {
		out.Body = found.CSV()
	} else {
		out.Body = append(api.Encode(found.JSON()), '\n')
	}
	return out, nil
}

func (q *questions) registerTop(a *api.API) {
	list := api.SchemaOf[answer.TopAnswer](a)
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-top", Method: http.MethodGet, Path: "/v1/top",
		Summary: "The counters with most hits",
		Description: "The counters with most hits in a rolling window. Totals are those of /v1/total; floor is the " +
			"most hits that a counter outside the list can have. " +
			"Even a list with fewer counters than limit can lack counters with at most floor hits. With group it " +
			"lists groups of counters, whose totals are sums; " +
			"with a prefix alone, the counters that begin with it. Beyond QUERY_MAX_SUM counters, groups are sums of " +
			"the largest ones, and upper and floor are null. " +
			"As CSV it is a table with a row per counter or group.",
		Responses: tableResponse("The list, as of now.", list, answer.TopExample(),
			"key,total,lower,upper\napi-1,1234,1229,1241\n/cart,311,309,312\n"),
	}), q.getTop)
}

func (q *questions) getTop(ctx context.Context, p *answer.TopParams) (*api.RawOutput, error) {
	return inFormat(p.FormatParams, func() (answer.Table, error) {
		found, err := q.Top(ctx, web.InQuery, &p.TopQuestion)
		return &found, err
	})
}

func (q *questions) registerCounters(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-counters", Method: http.MethodGet, Path: "/v1/counters",
		Summary: "The names of counters",
		Description: "The counters with hits in the longest window, in the order of their names, in pages; with " +
			"totals=1, each with its total in the last 24 hours.",
		Responses: api.SuccessOnly("A page of names.", answer.CountersAnswer{
			AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Complete: true, CountingSince: answer.SinceExample,
			Counters: []string{"shop.cart", "shop.checkout.eu"}, Next: "shop.checkout.eu",
		}),
	}), api.OverHTTP(q.Counters))
}

func (q *questions) registerAbout(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-about", Method: http.MethodGet, Path: "/v1/about",
		Summary: "What can be asked here: tiers, windows, steps and features",
		Description: "The tiers of the namespace, the windows and steps to offer to users, and which features are " +
			"on. The tiers seldom change: a client needs to ask once, and again if a window is refused.",
		Responses: api.SuccessOnly("What can be asked, as of now.", answer.AboutExample()),
	}), api.OverHTTP(func(ctx context.Context, _ string, _ *api.NoParams) (answer.AboutAnswer, error) {
		return q.getAbout(ctx)
	}))
}

func (q *questions) getAbout(ctx context.Context) (answer.AboutAnswer, error) {
	return q.About(ctx, answer.Features{NATS: q.status.AsksNATS, Limits: q.limits.Counts(), Watch: q.status.AsksNATS})
}

func (q *questions) registerProbe(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-probe", Method: http.MethodGet, Path: probePath,
		Summary: "Totals for Prometheus to scrape",
		Description: "The rolling totals of counters as gauges in Prometheus' text format: those that key names, the " +
			"largest (top), those with a prefix, or the sum of all hits (all=1). QUERY_MAX_PROBE bounds their " +
			"number. Any error has a status of its own, so that the scrape fails.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The totals, as of now.",
			Content: map[string]*huma.MediaType{"text/plain": {
				Schema: &huma.Schema{Type: huma.TypeString},
				Example: "# TYPE tallyroll_window_hits gauge\n" +
					"tallyroll_window_hits{key=\"api-1\",window=\"1h\"} 1234\n",
			}},
		}},
	}), q.getProbe)
}

func (q *questions) getProbe(ctx context.Context, p *answer.ProbeParams) (*api.RawOutput, error) {
	text, err := q.Probe(ctx, p)
	return &api.RawOutput{ContentType: string(expfmt.NewFormat(expfmt.TypeTextPlain)), Body: text}, err
}

// newWindowsOutput returns an answer, with headers by which it can be cached if all its windows are past.
func newWindowsOutput[A any](body A, past bool, numbers any) *windowsOutput[A] {
	out := &windowsOutput[A]{Body: body}
	if past {
		out.CacheControl, out.ETag = api.CacheHeaders(numbers)
	}
	return out
}
