package api

import (
	"context"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/platform/release"
	"tallyroll/internal/web"
)

// API describes operations with huma, which makes schemas from Go types, but routes requests from the mux
// straight to their handlers: huma's reflection would cost more than the rest of such a handler.
type API struct {
	huma.API
	mux        *http.ServeMux
	operations operations
	tokens     bool
	every      func(*API, *huma.Operation)
	title      Title
	within     string // the group of what is described next

	// Hold is called with each request's parameters, in InQuery or InBody, before it is answered. Its errors
	// are for the client.
	Hold func(ctx context.Context, part string, params any) (context.Context, error)
}

// Title describes the whole API in the document.
type Title struct {
	Name, About string
	Tokens      string // which tokens open it; empty if it needs none
	// Every describes what all operations have in common; it may be nil.
	Every  func(*API, *huma.Operation)
	Home   string  // the address of the service's own page; empty if it has none
	Groups []Group // of operations, in the order in which one needs them; they are tags of the document
}

// Group is a set of operations with one purpose.
type Group struct{ Name, About string } // the name is one word

// Page is the path of the page that shows the group.
func (g Group) Page() string { return "/docs/" + strings.ToLower(g.Name) }

// New returns an API whose operations go to the mux.
func New(mux *http.ServeMux, title Title) *API {
	described := make(operations)
	config := configOf(title)
	for _, g := range title.Groups {
		config.Tags = append(config.Tags, &huma.Tag{Name: g.Name, Description: g.About})
	}
	return &API{
		API: huma.NewAPI(config, described), mux: mux, operations: described, tokens: title.Tokens != "",
		every: title.Every,
		title: title, Hold: func(ctx context.Context, _ string, _ any) (context.Context, error) { return ctx, nil },
	}
}

// Within puts the operations that are described next into a group.
func (a *API) Within(group string) { a.within = group }

func (a *API) setGroup(op *huma.Operation) {
	if a.within != "" {
		op.Tags = []string{a.within}
	}
}

// Operation adds what all operations have in common.
func (a *API) Operation(op huma.Operation) huma.Operation {
	a.every(a, &op)
	a.setGroup(&op)
	return op
}

// operations are what huma has described, by the mux's patterns. They take the place of huma's router.
type operations map[string]*huma.Operation

// Handle keeps the operation. The handler that huma has made for it is never called.
func (o operations) Handle(op *huma.Operation, _ func(huma.Context)) { o[patternOf(op)] = op }

// ServeHTTP does nothing: huma requires it of a router.
func (operations) ServeHTTP(http.ResponseWriter, *http.Request) {}

func patternOf(op *huma.Operation) string { return op.Method + " " + op.Path }

// Answers have empty lists and never null, so schemas must not allow null: generated clients would have to
// check for it. huma keeps this choice in a package variable.
func init() { huma.DefaultArrayNullable = false }

// huma describes errors by this package variable. It is set once for every service of the process.
func init() {
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		var details []web.ProblemDetail
		for _, err := range errs {
			details = append(details, web.ProblemDetail{Message: err.Error()})
		}
		return web.NewProblem(status, message, details...)
	}
}

const bearerScheme = "bearer"

// configOf is huma's configuration without its own pages, which load scripts from elsewhere, and without
// schema links, which would add a field to every answer.
func configOf(title Title) huma.Config {
	config := huma.DefaultConfig(title.Name, release.Version())
	config.Info.Description = title.About
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil
	if title.Tokens != "" {
		config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
			bearerScheme: {Type: "http", Scheme: "bearer", Description: title.Tokens},
		}
	}
	return config
}

// NeedToken describes that an operation needs a token, if the API needs any.
func (a *API) NeedToken(op *huma.Operation) {
	if a.tokens {
		op.Security = []map[string][]string{{bearerScheme: {}}}
	}
}

func (a *API) NeedsToken() bool { return a.tokens }

// ProblemResponse describes an answer that is a problem, with headers if there are any.
func (a *API) ProblemResponse(about string, example any, headers map[string]*huma.Header) *huma.Response {
	return &huma.Response{Description: about, Headers: headers,
		Content: map[string]*huma.MediaType{web.ProblemType: {Schema: SchemaOf[web.Problem](a), Example: example}}}
}

// SchemaOf is the schema of a type that is no operation's parameters or answer.
func SchemaOf[T any](a huma.API) *huma.Schema {
	return a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
}

// HeaderOf describes a header of an answer, for ProblemResponse.
func HeaderOf(name, about string, example any) map[string]*huma.Header {
	schema := &huma.Schema{Type: huma.TypeString, Examples: []any{example}}
	if _, ok := example.(int); ok {
		schema.Type = huma.TypeInteger
	}
	return map[string]*huma.Header{name: {Description: about, Schema: schema}}
}

// StatusPage is a plain-text page about the process, which needs no token.
type StatusPage struct {
	ID, Path, Summary, About string
	Answer, Example          string // with 200
	Not, NotExample          string // with 503; empty if the page has no 503
}

// DescribeStatus adds such pages.
func (a *API) DescribeStatus(pages ...StatusPage) {
	text := func(about, example string) *huma.Response {
		return &huma.Response{Description: about, Content: map[string]*huma.MediaType{
			"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}, Example: example},
		}}
	}
	for _, p := range pages {
		responses := map[string]*huma.Response{"200": text(p.Answer, p.Example)}
		if p.Not != "" {
			responses["503"] = text(p.Not, p.NotExample)
		}
		op := &huma.Operation{
			OperationID: p.ID, Method: http.MethodGet, Path: p.Path, Summary: p.Summary, Description: p.About,
			Responses: responses,
		}
		a.setGroup(op)
		a.OpenAPI().AddOperation(op)
	}
}

// MetricsPage describes /metrics. The example is one of its lines.
func MetricsPage(example string) StatusPage {
	return StatusPage{"get-metrics", "/metrics", "Metrics", "Metrics of the service for Prometheus.",
		"The metrics in Prometheus' text format.", example, "", ""}
}

// SuccessOnly describes the answer of an operation that succeeds.
func SuccessOnly(about string, example any) map[string]*huma.Response {
	return map[string]*huma.Response{"200": {
		Description: about,
		Content:     map[string]*huma.MediaType{"application/json": {Example: example}},
	}}
}
