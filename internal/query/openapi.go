package query

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

const bearerScheme = "bearer"

func apiConfig(tokens bool) huma.Config {
	config := web.APIConfig("Tallyroll", "Rolling totals of counters: how many hits in the last minute, hour, day or month, with bounds. "+
		"Windows are durations (90s, 15m, 24h, 7d, 1w); times are RFC 3339 or Unix milliseconds. "+
		"Errors are RFC 9457 problems whose detail says what was wrong and what is allowed.")
	if tokens {
		config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
			bearerScheme: {Type: "http", Scheme: "bearer", Description: "One of the tokens of QUERY_TOKENS."},
		}
	}
	return config
}

// problemExamples are the problems that every operation can answer with.
var problemExamples = []struct {
	status  int
	about   string
	example *problem
}{
	{http.StatusBadRequest, "The request is wrong; detail says what is allowed.",
		badInput("window", `"24" is not a duration: write a whole number and a unit (s, m, h, d, w), such as 90s, 15m or 7d`).problem(inQuery)},
	{http.StatusUnauthorized, "The token is missing or wrong.",
		newProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of QUERY_TOKENS")},
	{http.StatusForbidden, "The request names a host that is none of the service's.", unknownHostExample()},
	{http.StatusRequestEntityTooLarge, "Too many counters, or too large a body.",
		(&inputError{http.StatusRequestEntityTooLarge, "keys", "1200 counters in one request: at most 1000 are allowed (QUERY_MAX_KEYS)"}).problem(inBody)},
	{http.StatusInternalServerError, "Another program has written to a key of the namespace, which detail names; or this service has a fault.",
		spoiltProblem(&window.ForeignError{Key: "tallyroll:{3}:h:1m:247:api-1", Err: errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")})},
	{http.StatusServiceUnavailable, "Redis cannot answer now: ask again after the seconds in Retry-After.",
		newProblem(http.StatusServiceUnavailable, "Redis cannot answer now: ask again in a second")},
}

func unknownHostExample() *problem {
	r := &http.Request{Host: "pages.example:8080"}
	return newProblem(http.StatusForbidden, boot.Hosts{}.Refuse(r, "QUERY_HOSTS")).Of(web.UnknownHost)
}

// describeProblems adds the problems, and the token if one is needed.
func describeProblems(registry huma.Registry, op *huma.Operation, tokens bool) {
	schema := web.SchemaOf[problem](registry)
	for _, p := range problemExamples {
		if p.status == http.StatusUnauthorized && !tokens || p.status == http.StatusForbidden && tokens {
			continue
		}
		r := &huma.Response{
			Description: p.about,
			Content:     map[string]*huma.MediaType{problemType: {Schema: schema, Example: p.example}},
		}
		switch p.status {
		case http.StatusServiceUnavailable:
			r.Headers = map[string]*huma.Header{"Retry-After": {
				Description: "Seconds to wait.", Schema: &huma.Schema{Type: huma.TypeInteger, Examples: []any{1}},
			}}
		case http.StatusUnauthorized:
			r.Headers = map[string]*huma.Header{"WWW-Authenticate": {
				Description: "The required scheme.", Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"Bearer"}},
			}}
		}
		op.Responses[strconv.Itoa(p.status)] = r
	}
	if op.Method == http.MethodPost && changes(op.Method, op.Path) && !tokens {
		r := &http.Request{Header: http.Header{"Content-Type": {"text/plain"}}}
		op.Responses[strconv.Itoa(http.StatusUnsupportedMediaType)] = &huma.Response{
			Description: "A browser sends a body of a type that a form can have.",
			Content:     map[string]*huma.MediaType{problemType: {Schema: schema, Example: checkType(r)}},
		}
	}
	if tokens {
		op.Security = []map[string][]string{{bearerScheme: {}}}
	}
}

// describeStatus adds what is answered in plain text and needs no token.
func describeStatus(api *huma.OpenAPI) {
	text := func(about, example string) *huma.Response {
		return &huma.Response{Description: about, Content: map[string]*huma.MediaType{
			"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}, Example: example},
		}}
	}
	for _, o := range []struct {
		id, path, summary, about string
		responses                map[string]*huma.Response
	}{
		{"get-health", "/healthz", "Whether the process is alive", "It answers as long as the process runs, whatever the state of Redis.",
			map[string]*huma.Response{"200": text("It is alive.", "ok\n")}},
		{"get-ready", "/readyz", "Whether anything can be served", "Questions can be answered, or takes can be decided; otherwise, and once the process has been asked to stop, a line says why not.",
			map[string]*huma.Response{"200": text("It can.", "ready\n"), "503": text("It cannot.", "Redis does not answer\n")}},
		{"get-ready-answers", "/readyz/answers", "Whether questions can be answered", "Redis answers and the layout is known; otherwise a line says why not.",
			map[string]*huma.Response{"200": text("They can.", "ready\n"), "503": text("They cannot.", "Redis does not answer\n")}},
		{"get-ready-takes", "/readyz/takes", "Whether takes can be decided", "Redis answers, or the fail mode of a limit is open or local; otherwise a line says why not.",
			map[string]*huma.Response{"200": text("They can.", "ready\n"), "503": text("They cannot.", "Redis does not answer, and every limit is closed then\n")}},
		{"get-metrics", "/metrics", "Metrics", "Metrics of the service for Prometheus.",
			map[string]*huma.Response{"200": text("The metrics in Prometheus' text format.", "tallyroll_query_request_seconds_count{code=\"200\",route=\"GET /v1/total\"} 3\n")}},
	} {
		api.AddOperation(&huma.Operation{
			OperationID: o.id, Method: http.MethodGet, Path: o.path, Summary: o.summary, Description: o.about, Responses: o.responses,
			Metadata: web.Tryout(o.path),
		})
	}
}
