package query

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// handler answers a request. Its errors are for the client.
type handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP answers a request, if only with a problem.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		writeError(w, err)
	}
}

// api has two sides. huma describes operations, whose schemas it makes from Go types. The mux sends requests straight
// to their handlers: huma would read parameters and write answers by reflection, which costs more than the rest of
// such a handler.
type api struct {
	huma.API
	mux        *http.ServeMux
	operations operations
}

func newAPI(mux *http.ServeMux, tokens bool) *api {
	described := make(operations)
	return &api{huma.NewAPI(apiConfig(tokens), described), mux, described}
}

// operations are what huma has described, by the mux's patterns. They stand where huma wants a router.
type operations map[string]*huma.Operation

// Handle keeps the operation. Nobody calls the handler that huma has made for it.
func (o operations) Handle(op *huma.Operation, _ func(huma.Context)) { o[patternOf(op)] = op }

// ServeHTTP is part of a router, and has nothing to serve.
func (operations) ServeHTTP(http.ResponseWriter, *http.Request) {}

func patternOf(op *huma.Operation) string { return op.Method + " " + op.Path }

// params are the parameters of an operation. read takes them from a request.
type params[P any] interface {
	*P
	read(given) error
}

// answerQuery routes an operation whose parameters are in the query string.
func answerQuery[P, O any, PP params[P], PO output[O]](a *api, op huma.Operation, find func(context.Context, *P) (*O, error)) {
	handleQuery[P, O, PP](a, op, func(w http.ResponseWriter, r *http.Request, p *P) error {
		out, err := find(r.Context(), p)
		if err != nil {
			return err
		}
		PO(out).write(w)
		return nil
	})
}

// handleQuery is answerQuery for an operation that writes its answer itself.
func handleQuery[P, O any, PP params[P]](a *api, op huma.Operation, answer func(http.ResponseWriter, *http.Request, *P) error) {
	huma.Register[P, O](a, op, nil)
	known := knownParamsOf(a.operations[patternOf(&op)])
	a.mux.Handle(patternOf(&op), handler(func(w http.ResponseWriter, r *http.Request) error {
		query, err := known.parse(r.URL.RawQuery)
		if err != nil {
			return err
		}
		p := new(P)
		err = PP(p).read(given{query, r.Header})
		if err != nil {
			return err
		}
		return answer(w, r, p)
	}))
}

// answerBody routes an operation whose parameters are JSON in a body, which edge has read.
func answerBody[B, O any, PO output[O]](a *api, op huma.Operation, find func(context.Context, *B) (*O, error)) {
	huma.Register[struct{ Body B }, O](a, op, nil)
	known := knownParamsOf(a.operations[patternOf(&op)])
	a.mux.Handle(patternOf(&op), handler(func(w http.ResponseWriter, r *http.Request) error {
		_, err := known.parse(r.URL.RawQuery)
		if err != nil {
			return err
		}
		b := new(B)
		err = decodeBody(r.Body.(*wholeBody).Bytes(), b)
		if err != nil {
			return newProblem(http.StatusBadRequest, "", &huma.ErrorDetail{Location: inBody, Message: err.Error()})
		}
		out, err := find(r.Context(), b)
		if err != nil {
			return err
		}
		PO(out).write(w)
		return nil
	}))
}
