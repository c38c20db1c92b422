package query

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/common/expfmt"

	"tallyroll/internal/access"
	"tallyroll/internal/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

func (s *service) registerAnswers(a *api.API) {
	s.registerTotal(a)
	s.registerUniques(a)
	s.registerSeries(a)
	s.registerTop(a)
	s.registerCounters(a)
	s.registerErase(a)
	s.registerAbout(a)
	s.registerProbe(a)
	s.registerExport(a)
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

// windowsAbout describes two operations about counters in windows: GET for a few counters, POST for many.
type windowsAbout struct {
	id, path     string
	what, about  string
	answers      string
	body, answer any // examples
}

func (is *windowsAbout) get() huma.Operation {
	return huma.Operation{
		OperationID: "get-" + is.id, Method: http.MethodGet, Path: is.path,
		Summary: is.what + " of a few counters", Description: is.about,
		Responses: api.SuccessOnly(is.answers, is.answer),
	}
}

func (is *windowsAbout) post() huma.Operation {
	return huma.Operation{
		OperationID: "post-" + is.id, Method: http.MethodPost, Path: is.path,
		Summary: is.what + " of many counters", Description: is.about + " The counters are in the body, as many as QUERY_MAX_KEYS allows.",
		RequestBody: &huma.RequestBody{
			Description: "Counters, and windows or a range.",
			Content:     map[string]*huma.MediaType{"application/json": {Example: is.body}},
		},
		Responses: api.SuccessOnly(is.answers, is.answer),
	}
}

func (s *service) registerTotal(a *api.API) {
	is := windowsAbout{
		id: "total", path: totalPath, what: "Totals", answers: "The totals, as of now.", answer: answer.TotalExample(),
		about: "The hits of counters in rolling windows, or in any range of time that a tier still holds. " +
			"Only the cell that the start of a window cuts is in doubt; lower and upper say by how much. A counter that was never hit has total 0. " +
			"If nobody has counted lately, later hits are in doubt, too: upper is null then, and complete is false.",
		body: answer.TotalBody{Keys: []string{"api-1", "/cart"}, Windows: []string{"1h", "24h"}},
	}
	api.AnswerQuery(a, a.Operation(is.get()), func(ctx context.Context, p *answer.TotalParams) (*windowsOutput[answer.TotalAnswer], error) {
		return s.getTotals(ctx, p.Input())
	})
	api.AnswerBody(a, a.Operation(is.post()), func(ctx context.Context, b *answer.TotalBody) (*windowsOutput[answer.TotalAnswer], error) {
		return s.getTotals(ctx, b.Input())
	})
}

func (s *service) getTotals(ctx context.Context, in *answer.Input) (*windowsOutput[answer.TotalAnswer], error) {
	found, err := s.answers.Totals(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &windowsOutput[answer.TotalAnswer]{Body: found.Answer}
	if found.Past {
		out.CacheControl, out.ETag = api.CacheHeaders(found.Answer.Totals)
	}
	return out, nil
}

func (s *service) registerUniques(a *api.API) {
	is := windowsAbout{
		id: "uniques", path: uniquesPath, what: "Uniques", answers: "The estimates, as of now.", answer: answer.UniquesExample(),
		about: "How many different values of unique the hits of counters had in rolling windows, or in any range of time that a tier of uniques still holds. " +
			"lower and upper hold with the confidence that the answer names, unlike those of a total: they have two standard errors of the estimate (1.6 %), and the cells that the window cuts. " +
			"A counter whose hits carry no unique has 0. If nobody has counted lately, upper is null, and complete is false.",
		body: answer.UniquesBody{Keys: []string{"visitors", "shop.visitors"}, Windows: []string{"1h", "24h"}},
	}
	api.AnswerQuery(a, a.Operation(is.get()), func(ctx context.Context, p *answer.WindowsParams) (*windowsOutput[answer.UniquesAnswer], error) {
		return s.getUniques(ctx, p.Input())
	})
	api.AnswerBody(a, a.Operation(is.post()), func(ctx context.Context, b *answer.UniquesBody) (*windowsOutput[answer.UniquesAnswer], error) {
		return s.getUniques(ctx, b.Input())
	})
}

func (s *service) getUniques(ctx context.Context, in *answer.Input) (*windowsOutput[answer.UniquesAnswer], error) {
	found, err := s.answers.Uniques(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &windowsOutput[answer.UniquesAnswer]{Body: found.Answer}
	if found.Past {
		out.CacheControl, out.ETag = api.CacheHeaders(found.Answer.Uniques)
	}
	return out, nil
}

const seriesAbout = "The hits of a counter in each step of a range. From, to and step are widened to whole cells of the finest tier for ranges of that length that " +
	"still has all of it, so every number is exact. With the steps 1d, 1w, 1mo and 1y, from and to are widened to whole days, weeks, months or years of the zone tz instead; " +
	"a number whose step begins or ends inside a cell has bounds. One counter, or a prefix for the sum of all counters that begin with it, gives the object below; if key " +
	"repeats, or with group, the answer is {\"step\":…,\"as_of\":…,\"series\":[…]} with such an object per counter or group, and others for the groups that are not listed. " +
	"As CSV it is a table with a row per step and a column per line. With of=uniques the numbers are how many different values of unique the hits of " +
	"each step had, in whole cells of the tiers of uniques, and every number has bounds; those of several steps or counters cannot be added up."

func (s *service) registerSeries(a *api.API) {
	one, many := api.SchemaOf[answer.Series](a), api.SchemaOf[answer.SeriesList](a)
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-series", Method: http.MethodGet, Path: "/v1/series",
		Summary: "Hits step by step: numbers, or a table", Description: seriesAbout,
		Responses: map[string]*huma.Response{"200": {
			Description: "The points, as of now.",
			Content: map[string]*huma.MediaType{
				formatTypes["json"]: {Schema: &huma.Schema{OneOf: []*huma.Schema{one, many}}, Example: answer.SeriesExample()},
				formatTypes["csv"]:  {Schema: &huma.Schema{Type: huma.TypeString}, Example: "time,api-1,complete\n2026-11-21T09:58:00Z,118,true\n2026-11-21T09:59:00Z,121,true\n"},
			},
		}},
	}), s.getSeries)
}

func (s *service) getSeries(ctx context.Context, p *answer.SeriesParams) (*api.RawOutput, error) {
	format := p.Format
	if format == "" {
		format = wantedFormat(p.Accept)
	}
	if _, ok := formatTypes[format]; !ok {
		return nil, web.BadInput("format", "%s is not a format: allowed are %s", web.Excerpt(format), answer.FormatNames).Problem(web.InQuery)
	}
	lines, err := s.answers.Series(ctx, p.Input())
	if err != nil {
		return nil, err
	}
	out := &api.RawOutput{ContentType: formatTypes[format], Vary: []string{"Accept"}}
	if format == "csv" {
		out.Body = lines.CSV()
	} else {
		out.Body = append(api.Encode(lines.JSON()), '\n')
	}
	if first := lines.Found[0]; first.Asked.To < first.Now {
		out.CacheControl, out.ETag = api.CacheHeaders(format, lines.Keys, p.Step, p.TZ, lines.WithoutReadTime())
	}
	return out, nil
}

var formatTypes = map[string]string{
	"json": "application/json",
	"csv":  "text/csv; charset=utf-8",
}

// wantedFormat is the format that an Accept header prefers, the first of equals; else JSON.
func wantedFormat(header string) string {
	best, bestQ := "json", 0.0
	for part := range strings.SplitSeq(header, ",") {
		wanted, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			q, err = strconv.ParseFloat(text, 64)
			if err != nil {
				continue
			}
		}
		format := ""
		switch wanted {
		case "application/json", "application/*", "*/*":
			format = "json"
		case "text/csv":
			format = "csv"
		}
		if format != "" && q > bestQ {
			best, bestQ = format, q
		}
	}
	return best
}

func (s *service) registerTop(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-top", Method: http.MethodGet, Path: "/v1/top",
		Summary: "The counters with most hits",
		Description: "The counters with most hits in a rolling window. Totals are those of /v1/total; floor is the most hits that a counter outside the list can have. " +
			"Even a list with fewer counters than limit can lack counters with at most floor hits. With group it lists groups of counters, whose totals are sums; " +
			"with a prefix alone, the counters that begin with it.",
		Responses: api.SuccessOnly("The list, as of now.", answer.TopExample()),
	}), api.OverHTTP(s.answers.Top))
}

func (s *service) registerCounters(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-counters", Method: http.MethodGet, Path: "/v1/counters",
		Summary:     "The names of counters",
		Description: "The counters with hits in the longest window, in the order of their names, in pages; with totals=1, each with its total in the last 24 hours.",
		Responses: api.SuccessOnly("A page of names.", answer.CountersAnswer{
			AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Complete: true, CountingSince: answer.SinceExample, Counters: []string{"shop.cart", "shop.checkout.eu"}, Next: "shop.checkout.eu",
		}),
	}), api.OverHTTP(s.answers.Counters))
}

func (s *service) registerAbout(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-about", Method: http.MethodGet, Path: "/v1/about",
		Summary: "What can be asked here: tiers, windows, steps and features",
		Description: "The tiers of the namespace, the windows and steps to offer to people, and which features are on. " +
			"The tiers seldom change: a client needs to ask once, and again if a window is refused.",
		Responses: api.SuccessOnly("What can be asked, as of now.", answer.AboutExample()),
	}), api.OverHTTP(func(ctx context.Context, _ string, _ *api.NoParams) (answer.AboutAnswer, error) {
		return s.findAbout(ctx)
	}))
}

// probePath answers a scrape about the counters in its parameters, as a multi-target exporter does.
const probePath = "/probe"

func (s *service) findAbout(ctx context.Context) (answer.AboutAnswer, error) {
	return s.answers.About(ctx, answer.Features{NATS: s.status.AsksNATS, Limits: s.gate.Counts(), Watch: s.status.AsksNATS})
}

func (s *service) registerProbe(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-probe", Method: http.MethodGet, Path: probePath,
		Summary: "Totals for Prometheus to scrape",
		Description: "The rolling totals of counters as gauges in Prometheus' text format: those that key names, the largest (top), or those with " +
			"a prefix. QUERY_MAX_PROBE bounds their number. Any error has a status of its own, so that the scrape fails.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The totals, as of now.",
			Content: map[string]*huma.MediaType{"text/plain": {
				Schema:  &huma.Schema{Type: huma.TypeString},
				Example: "# TYPE tallyroll_window_hits gauge\ntallyroll_window_hits{key=\"api-1\",window=\"1h\"} 1234\n",
			}},
		}},
	}), s.getProbe)
}

func (s *service) getProbe(ctx context.Context, p *answer.ProbeParams) (*api.RawOutput, error) {
	text, err := s.answers.Probe(ctx, p)
	return &api.RawOutput{ContentType: string(expfmt.NewFormat(expfmt.TypeTextPlain)), Body: text}, err
}

const (
	groupAsk, groupLimit, groupOperate = "Ask", "Limit", "Operate"
)

// groups are in the order in which a user needs them.
var groups = []api.Group{
	{Name: groupAsk, About: "How many there were, of one counter or of many: totals, steps, lists, and all of them as rows."},
	{Name: groupLimit, About: "Whether a key may have more, decided and counted in one step, and what was decided."},
	{Name: groupOperate, About: "Whether the streams are counted, what was refused, what rules say, and how the process is."},
}

func newAPI(mux *http.ServeMux, tokens *access.Tokens) *api.API {
	title := api.Title{Name: "Tallyroll", About: "Rolling totals of counters: how many hits in the last minute, hour, day or month, with bounds. " +
		"Windows are durations (90s, 15m, 24h, 7d, 1w); times are RFC 3339 or Unix milliseconds. " +
		"Errors are RFC 9457 problems whose detail says what was wrong and what is allowed.", Every: describeProblems,
		Home: "/", Groups: groups}
	if tokens.Required() {
		title.Tokens = "One of the tokens of " + tokens.Settings() + "."
	}
	return api.New(mux, title)
}

var problemExamples = []struct {
	status  int
	about   string
	example *web.Problem
}{
	{http.StatusBadRequest, "The request is wrong; detail says what is allowed.",
		web.BadInput("window", `"24" is not a duration: write a whole number and a unit (s, m, h, d, w, y), such as 90s, 15m or 7d`).Problem(web.InQuery)},
	{http.StatusUnauthorized, "The token is missing or wrong.",
		web.NewProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of QUERY_TOKENS")},
	{http.StatusForbidden, "The request names a host that is none of the service's.", unknownHostExample()},
	{http.StatusRequestEntityTooLarge, "Too many counters, or too large a body.",
		web.TooMuchInput("keys", "1200 counters in one request: at most 1000 are allowed (QUERY_MAX_KEYS)").Problem(web.InBody)},
	{http.StatusInternalServerError, "Another program has written to a key of the namespace, which detail names; or this service has a fault.",
		answer.SpoiltProblem(&window.ForeignError{Key: "tallyroll:{3}:h:1m:247:api-1", Err: errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")})},
	{http.StatusServiceUnavailable, "Redis cannot answer now: ask again after the seconds in Retry-After.",
		web.NewProblem(http.StatusServiceUnavailable, "Redis cannot answer now: ask again in a second")},
}

var outsideExample = web.NewProblem(http.StatusForbidden, `the counter "/cart" is outside of the token shop, which is about names that begin with "shop."`).OfKind(web.KeyOutsidePrefix)

func unknownHostExample() *web.Problem {
	r := &http.Request{Host: "pages.example:8080"}
	return web.NewProblem(http.StatusForbidden, web.Hosts{}.Refuse(r, "QUERY_HOSTS")).OfKind(web.UnknownHost)
}

func describeProblems(a *api.API, op *huma.Operation) {
	for _, p := range problemExamples {
		switch {
		case p.status == http.StatusUnauthorized && !a.Tokens():
			continue
		case p.status == http.StatusForbidden && a.Tokens():
			p.about, p.example = "The token lacks the right that this call needs, or is not about what is asked.", outsideExample
		}
		var headers map[string]*huma.Header
		switch p.status {
		case http.StatusServiceUnavailable:
			headers = api.HeaderOf("Retry-After", "Seconds to wait.", 1)
		case http.StatusUnauthorized:
			headers = api.HeaderOf("WWW-Authenticate", "The required scheme.", "Bearer")
		}
		op.Responses[strconv.Itoa(p.status)] = a.ProblemResponse(p.about, p.example, headers)
	}
	if op.Method == http.MethodPost && changes(op.Method, op.Path) && !a.Tokens() {
		r := &http.Request{Header: http.Header{"Content-Type": {"text/plain"}}}
		op.Responses[strconv.Itoa(http.StatusUnsupportedMediaType)] = a.ProblemResponse("A browser sends a body of a type that a form can have.", checkType(r), nil)
	}
	a.NeedToken(op)
}

func statusPages(withMetrics bool) []api.StatusPage {
	out := []api.StatusPage{
		{ID: "get-health", Path: "/healthz", Summary: "Whether the process is alive", About: "It answers as long as the process runs, whatever the state of Redis.",
			Answer: "It is alive.", Example: "ok\n"},
		{ID: "get-ready", Path: "/readyz", Summary: "Whether anything can be served", About: "Questions can be answered, or takes can be decided; otherwise, and once the process has been asked to stop, a line says why not.",
			Answer: "It can.", Example: "ready\n", Not: "It cannot.", NotExample: "Redis does not answer\n"},
		{ID: "get-ready-answers", Path: "/readyz/answers", Summary: "Whether questions can be answered", About: "Redis answers and the layout is known; otherwise a line says why not.",
			Answer: "They can.", Example: "ready\n", Not: "They cannot.", NotExample: "Redis does not answer\n"},
		{ID: "get-ready-takes", Path: "/readyz/takes", Summary: "Whether takes can be decided", About: "Redis answers, or the fail mode of a limit is open or local; otherwise a line says why not.",
			Answer: "They can.", Example: "ready\n", Not: "They cannot.", NotExample: "Redis does not answer, and every limit is closed then\n"},
	}
	if withMetrics {
		out = append(out, api.MetricsPage("tallyroll_query_request_seconds_count{code=\"200\",route=\"GET /v1/total\"} 3\n"))
	}
	return out
}
