package query

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const (
	groupAsk, groupLimit, groupOperate = "Ask", "Limit", "Operate"
)

// groups are in the order in which a user needs them.
var groups = []api.Group{
	{Name: groupAsk, About: "How many there were, of one counter or of many: totals, steps, lists, and all of them " +
		"as rows."},
	{Name: groupLimit, About: "Whether a key may have more, decided and counted in one step, and what was decided."},
	{Name: groupOperate, About: "Whether the streams are counted, what was refused, what rules say, and how the " +
		"process is."},
}

func newAPI(mux *http.ServeMux, tokens *access.Tokens) *api.API {
	title := api.Title{Name: "Tallyroll", About: "Rolling totals of counters: how many hits in the last minute, " +
		"hour, day or month, with bounds. " +
		"Windows are durations (90s, 15m, 24h, 7d, 1w); times are RFC 3339, dates or Unix milliseconds. " +
		"Errors are RFC 9457 problems whose detail says what was wrong and what is allowed.", Every: describeProblems,
		Home: "/", Groups: groups}
	if tokens.Required() {
		title.Tokens = "One of the tokens of " + tokens.Settings() + "."
	}
	return api.New(mux, title)
}

// describeProblems depends on whether tokens are needed, so that the document has only answers that this
// service can give.
func describeProblems(a *api.API, op *huma.Operation) {
	for _, p := range problemExamples {
		switch {
		case p.status == http.StatusUnauthorized && !a.NeedsToken():
			continue
		case p.status == http.StatusForbidden && a.NeedsToken():
			p.about = "The token lacks the right that this call needs, or is not about what is asked."
			p.example = outsideExample
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
	if op.Method == http.MethodPost && mayChange(op.Method, op.Path) && !limitapi.IsAuthz(op.Path) && !a.NeedsToken() {
		r := &http.Request{Header: http.Header{"Content-Type": {"text/plain"}}}
		op.Responses[strconv.Itoa(http.StatusUnsupportedMediaType)] = a.ProblemResponse("A browser sends a body of a "+
			"type that a form can have.", checkType(r), nil)
	}
	a.NeedToken(op)
}

var problemExamples = []struct {
	status  int
	about   string
	example *web.Problem
}{
	{http.StatusBadRequest, "The request is wrong; detail says what is allowed.",
		web.BadInput("window", `"24" is not a duration: write a whole number and a unit (s, m, h, d, w, y), such as `+
			"90s, 15m or 7d").Problem(web.InQuery)},
	{http.StatusUnauthorized, "The token is missing or wrong.",
		web.NewProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the "+
			"tokens of QUERY_TOKENS")},
	{http.StatusForbidden, "The request names a host that is not one of the service's.", unknownHostExample()},
	{http.StatusRequestEntityTooLarge, "Too many counters, or too large a body.",
		web.TooMuchInput("keys", "1200 counters in one request: at most 1000 are allowed "+
			"(QUERY_MAX_KEYS)").Problem(web.InBody)},
	{http.StatusInternalServerError, "Another program has written to a key of the namespace, which detail names; or " +
		"this service has a fault.",
		answer.CorruptProblem(&window.ForeignError{Key: "tallyroll:{3}:h:1m:247:api-1",
			Err: errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")})},
	{http.StatusServiceUnavailable, "Redis cannot answer now, or counting is not as far as after or max_age ask: ask " +
		"again after the seconds in Retry-After.",
		web.NewProblem(http.StatusServiceUnavailable, "Redis cannot answer now: ask again in a second")},
}

var outsideExample = web.NewProblem(http.StatusForbidden, `the counter "/cart" is outside of the token shop, which `+
	`is about names that begin with "shop."`).OfKind(web.KeyOutsidePrefix)

func unknownHostExample() *web.Problem {
	r := &http.Request{Host: "pages.example:8080"}
	return web.NewProblem(http.StatusForbidden, web.Hosts{}.Refuse(r, "QUERY_HOSTS")).OfKind(web.UnknownHost)
}

func statusPages(withMetrics bool) []api.StatusPage {
	out := []api.StatusPage{
		{ID: "get-health", Path: "/healthz", Summary: "Whether the process is alive", About: "It answers as long as " +
			"the process runs, whatever the state of Redis.",
			Answer: "It is alive.", Example: "ok\n"},
		{ID: "get-ready", Path: "/readyz", Summary: "Whether anything can be served",
			About: "Questions can be answered, or takes can be decided; otherwise, and once the process has been " +
				"asked to stop, a line says why not.",
			Answer: "It can.", Example: "ready\n", Not: "It cannot.", NotExample: "Redis does not answer\n"},
		{ID: "get-ready-answers", Path: "/readyz/answers", Summary: "Whether questions can be answered",
			About:  "Redis answers and the layout is known; otherwise a line says why not.",
			Answer: "They can.", Example: "ready\n", Not: "They cannot.", NotExample: "Redis does not answer\n"},
		{ID: "get-ready-takes", Path: "/readyz/takes", Summary: "Whether takes can be decided",
			About:  "Redis answers, or the fail mode of a limit is open or local; otherwise a line says why not.",
			Answer: "They can.", Example: "ready\n", Not: "They cannot.", NotExample: "Redis does not answer, and " +
				"every limit is closed then\n"},
	}
	if withMetrics {
		const count = `tallyroll_query_request_seconds_count{code="200",route="GET /v1/total"} 3`
		out = append(out, api.MetricsPage(count+"\n"))
	}
	return out
}
