package query

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/answer"
	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

// newAPI describes the API. Tokens are needed or not.
func newAPI(mux *http.ServeMux, tokens bool) *api.API {
	title := api.Title{Name: "Tallyroll", About: "Rolling totals of counters: how many hits in the last minute, hour, day or month, with bounds. " +
		"Windows are durations (90s, 15m, 24h, 7d, 1w); times are RFC 3339 or Unix milliseconds. " +
		"Errors are RFC 9457 problems whose detail says what was wrong and what is allowed.", Every: describeProblems}
	if tokens {
		title.Tokens = "One of the tokens of QUERY_TOKENS."
	}
	return api.New(mux, title)
}

// problemExamples are the problems that every operation can answer with.
var problemExamples = []struct {
	status  int
	about   string
	example *web.Problem
}{
	{http.StatusBadRequest, "The request is wrong; detail says what is allowed.",
		web.BadInput("window", `"24" is not a duration: write a whole number and a unit (s, m, h, d, w), such as 90s, 15m or 7d`).Problem(web.InQuery)},
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

func unknownHostExample() *web.Problem {
	r := &http.Request{Host: "pages.example:8080"}
	return web.NewProblem(http.StatusForbidden, boot.Hosts{}.Refuse(r, "QUERY_HOSTS")).OfKind(web.UnknownHost)
}

// describeProblems adds the problems, and the token if one is needed.
func describeProblems(a *api.API, op *huma.Operation) {
	for _, p := range problemExamples {
		if p.status == http.StatusUnauthorized && !a.Tokens() || p.status == http.StatusForbidden && a.Tokens() {
			continue
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

// statusPages are answered in plain text.
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
