package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

const bearerScheme = "bearer"

// Answers have empty lists and never null, so no schema says that one may be
// null: clients are generated from them, and would have to look. huma keeps that in a
// variable of the package.
func init() { huma.DefaultArrayNullable = false }

// apiConfig is huma's configuration without its own pages: they load scripts
// from elsewhere, and its schema links would add a field to every answer.
func apiConfig(tokens bool) huma.Config {
	config := huma.DefaultConfig("Tallyroll", boot.Version())
	config.Info.Description = "Rolling totals of counters: how many hits in the last minute, hour, day or month, with bounds. " +
		"Windows are durations (90s, 15m, 24h, 7d, 1w); times are RFC 3339 or Unix milliseconds. " +
		"Errors are RFC 9457 problems whose detail says what was wrong and what is allowed."
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil
	json := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: decodeBody}
	config.Formats = map[string]huma.Format{"application/json": json, "json": json} // "json" stands for every +json
	if tokens {
		config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
			bearerScheme: {Type: "http", Scheme: "bearer", Description: "One of the tokens of QUERY_TOKENS."},
		}
	}
	return config
}

// answers describes the answer of an operation that succeeds.
func answers(about string, example any) map[string]*huma.Response {
	return map[string]*huma.Response{"200": {
		Description: about,
		Content:     map[string]*huma.MediaType{"application/json": {Example: example}},
	}}
}

// schemaOf is the schema of a type that no handler returns as it is.
func schemaOf[T any](registry huma.Registry) *huma.Schema {
	return registry.Schema(reflect.TypeFor[T](), true, "")
}

// tryoutKey is where an operation keeps its tryouts, for the docs page.
const tryoutKey = "tryout"

// tryouts are requests that are answered when they are sent at about now.
type tryouts func(now time.Time) []string

func tryout(paths ...string) map[string]any {
	return tryoutAt(func(time.Time) []string { return paths })
}

func tryoutAt(t tryouts) map[string]any { return map[string]any{tryoutKey: t} }

// problemExamples are the problems that every operation can answer with.
var problemExamples = []struct {
	status  int
	about   string
	example *problem
}{
	{http.StatusBadRequest, "The request is wrong; detail says what is allowed.",
		badInput("window", `"24" is not a duration: write a whole number and a unit (s, m, h, d, w), such as 90s, 15m or 7d`).problem("query")},
	{http.StatusUnauthorized, "The token is missing or wrong.",
		newProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of QUERY_TOKENS")},
	{http.StatusRequestEntityTooLarge, "Too many counters, or too large a body.",
		(&inputError{http.StatusRequestEntityTooLarge, "keys", "1200 counters in one request: at most 1000 are allowed (QUERY_MAX_KEYS)"}).problem("body")},
	{http.StatusInternalServerError, "Something else has written to a key of the namespace, which detail names; or a fault of this service.",
		spoiltProblem(&window.ForeignError{Key: "tallyroll:{3}:h:1m:247:api-1", Err: errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")})},
	{http.StatusServiceUnavailable, "Redis cannot answer now: ask again after the seconds in Retry-After.",
		newProblem(http.StatusServiceUnavailable, "Redis cannot answer now: ask again in a second")},
}

// describeProblems adds the problems, and the token where one is needed.
func describeProblems(registry huma.Registry, op *huma.Operation, tokens bool) {
	schema := schemaOf[problem](registry)
	for _, p := range problemExamples {
		if p.status == http.StatusUnauthorized && !tokens {
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
				Description: "The scheme that is asked for.", Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"Bearer"}},
			}}
		}
		op.Responses[strconv.Itoa(p.status)] = r
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
		{"get-health", "/healthz", "Whether the process lives", "It answers as long as the process does, whatever the state of Redis.",
			map[string]*huma.Response{"200": text("It lives.", "ok\n")}},
		{"get-ready", "/readyz", "Whether questions can be answered", "Redis answers and the layout is known; otherwise a line says why not.",
			map[string]*huma.Response{"200": text("They can.", "ready\n"), "503": text("They cannot.", "Redis does not answer\n")}},
		{"get-metrics", "/metrics", "Metrics", "Metrics of the service for Prometheus.",
			map[string]*huma.Response{"200": text("The metrics in Prometheus' text format.", "tallyroll_query_request_seconds_count{code=\"200\",route=\"GET /v1/total\"} 3\n")}},
	} {
		api.AddOperation(&huma.Operation{
			OperationID: o.id, Method: http.MethodGet, Path: o.path, Summary: o.summary, Description: o.about, Responses: o.responses,
			Metadata: tryout(o.path),
		})
	}
}

// openAPI30 is the document for tools that do not read 3.1. huma leaves in what
// 3.0 does not have: format says there that a text is binary.
func openAPI30(api *huma.OpenAPI) ([]byte, error) {
	text, err := api.Downgrade()
	if err != nil {
		return nil, err
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	var clean func(any)
	clean = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			delete(v, "contentMediaType")
			for _, inner := range v {
				clean(inner)
			}
		case []any:
			for _, inner := range v {
				clean(inner)
			}
		}
	}
	clean(document)
	return json.Marshal(document)
}

func serveOpenAPI(encode func() ([]byte, error)) http.Handler {
	var document bytes.Buffer
	text, err := encode()
	if err == nil {
		err = json.Indent(&document, text, "", "  ")
	}
	if err != nil {
		panic(fmt.Errorf("encode the OpenAPI document: %w", err)) // it is made of our own types
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document.Bytes()) // the client may be gone
	})
}
