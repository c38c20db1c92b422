package api

import (
	"context"
	"maps"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

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
type Group struct{ Name, About string }

// New returns an API whose operations go to the mux.
func New(mux *http.ServeMux, title Title) *API {
	described := make(operations)
	config := configOf(title)
	for _, g := range title.Groups {
		config.Tags = append(config.Tags, &huma.Tag{Name: g.Name, Description: g.About})
	}
	return &API{
		API: huma.NewAPI(config, described), mux: mux, operations: described, tokens: title.Tokens != "", every: title.Every,
		title: title,
	}
}

// Within puts the operations that are described next into a group.
func (a *API) Within(group string) { a.within = group }

func (a *API) place(op *huma.Operation) {
	if a.within != "" {
		op.Tags = []string{a.within}
	}
}

// Operation adds what all operations have in common.
func (a *API) Operation(op huma.Operation) huma.Operation {
	a.every(a, &op)
	a.place(&op)
	return op
}

// RoutePages adds the document, for programs and for people. All operations must have been described.
func (a *API) RoutePages() {
	a.mux.Handle("GET /openapi.json", serveOpenAPI(a.OpenAPI()))
	a.routeDocs()
}

// Params are the parameters of an operation. Read takes them from a request.
type Params[P any] interface {
	*P
	Read(Given) error
}

// AnswerQuery routes an operation whose parameters are in the query string.
func AnswerQuery[P, O any, PP Params[P], PO Output[O]](a *API, op huma.Operation, find func(context.Context, *P) (*O, error)) {
	HandleQuery[P, O, PP](a, op, func(w http.ResponseWriter, r *http.Request, p *P) error {
		out, err := find(r.Context(), p)
		if err != nil {
			return err
		}
		PO(out).Write(w)
		return nil
	})
}

// HandleQuery is AnswerQuery for an operation that writes its answer itself.
func HandleQuery[P, O any, PP Params[P]](a *API, op huma.Operation, answer func(http.ResponseWriter, *http.Request, *P) error) {
	huma.Register[P, O](a, op, nil)
	known := KnownParamsOf(a.operations[patternOf(&op)])
	a.mux.Handle(patternOf(&op), Handler(func(w http.ResponseWriter, r *http.Request) error {
		query, err := known.Parse(r.URL.RawQuery)
		if err != nil {
			return err
		}
		p := new(P)
		err = PP(p).Read(Given{query, r.Header})
		if err != nil {
			return err
		}
		return answer(w, r, p)
	}))
}

// AnswerBody routes an operation whose parameters are JSON in a body, which the edge has read.
func AnswerBody[B, O any, PO Output[O]](a *API, op huma.Operation, find func(context.Context, *B) (*O, error)) {
	huma.Register[struct{ Body B }, O](a, op, nil)
	known := KnownParamsOf(a.operations[patternOf(&op)])
	a.mux.Handle(patternOf(&op), Handler(func(w http.ResponseWriter, r *http.Request) error {
		_, err := known.Parse(r.URL.RawQuery)
		if err != nil {
			return err
		}
		b := new(B)
		err = DecodeBody(r.Body.(*wholeBody).Bytes(), b)
		if err != nil {
			return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: web.InBody, Message: err.Error()})
		}
		out, err := find(r.Context(), b)
		if err != nil {
			return err
		}
		PO(out).Write(w)
		return nil
	}))
}

// operations are what huma has described, by the mux's patterns. They take the place of huma's router.
type operations map[string]*huma.Operation

// Handle keeps the operation. The handler that huma has made for it is never called.
func (o operations) Handle(op *huma.Operation, _ func(huma.Context)) { o[patternOf(op)] = op }

// ServeHTTP does nothing: huma requires it of a router.
func (operations) ServeHTTP(http.ResponseWriter, *http.Request) {}

func patternOf(op *huma.Operation) string { return op.Method + " " + op.Path }

// Handler answers a request. Its errors are for the client.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP answers a request, if only with a problem.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		writeError(w, err)
	}
}

// Output is the answer of an operation, with its headers. huma describes them, and Write sends them.
type Output[O any] interface {
	*O
	Write(w http.ResponseWriter)
}

// JSONType is the content type of most answers.
const JSONType = "application/json"

// JSONOutput is an answer that is only a JSON body.
type JSONOutput[A any] struct{ Body A }

func (o *JSONOutput[A]) Write(w http.ResponseWriter) {
	WriteJSON(w, http.StatusOK, JSONType, &o.Body)
}

// NoOutput is the answer of an operation without a body.
type NoOutput struct{}

func (*NoOutput) Write(w http.ResponseWriter) {
	w.WriteHeader(http.StatusNoContent)
}

// OverHTTP turns find into one for a query string whose answer is only a body.
func OverHTTP[P, A any](find func(ctx context.Context, part string, p *P) (A, error)) func(context.Context, *P) (*JSONOutput[A], error) {
	return func(ctx context.Context, p *P) (*JSONOutput[A], error) {
		out, err := find(ctx, web.InQuery, p)
		return &JSONOutput[A]{out}, err
	}
}

// RawOutput is an answer that need not be JSON.
type RawOutput struct {
	ContentType  string   `header:"Content-Type"`
	CacheControl string   `header:"Cache-Control"`
	ETag         string   `header:"ETag"`
	Vary         []string `header:"Vary"` // a list is added to what is there
	Body         []byte
}

func (o *RawOutput) Write(w http.ResponseWriter) {
	SetHeader(w, "Content-Type", o.ContentType)
	SetHeader(w, "Cache-Control", o.CacheControl)
	SetHeader(w, "ETag", o.ETag)
	for _, name := range o.Vary {
		w.Header().Add("Vary", name)
	}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(o.Body) // the client may be gone; the edge logs it
}

// SetHeader sets a header unless value is empty.
func SetHeader(w http.ResponseWriter, name, value string) {
	if value != "" {
		w.Header().Set(name, value)
	}
}

func writeError(w http.ResponseWriter, err error) {
	p := web.ProblemOf(err)
	maps.Copy(w.Header(), p.Headers())
	WriteJSON(w, p.Status, web.ProblemType, p)
}
