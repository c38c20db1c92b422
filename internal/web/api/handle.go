package api

import (
	"context"
	"maps"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
)

// AnswerQuery routes an operation whose parameters are in the query string.
func AnswerQuery[P, O any, PO Output[O]](
	a *API, op huma.Operation, find func(context.Context, *P) (*O, error),
) {
	HandleQuery[P, O](a, op, func(w http.ResponseWriter, r *http.Request, p *P) error {
		out, err := find(r.Context(), p)
		if err != nil {
			return err
		}
		PO(out).Write(w)
		return nil
	})
}

// HandleQuery is AnswerQuery for an operation that writes its answer itself.
func HandleQuery[P, O any](
	a *API, op huma.Operation, answer func(http.ResponseWriter, *http.Request, *P) error,
) {
	huma.Register[P, O](a, op, nil)
	described := a.operations[patternOf(&op)]
	for _, p := range described.Parameters {
		if p.In == web.InQuery && len(p.Schema.OneOf) > 0 {
			p.Schema = p.Schema.OneOf[0] // generated clients cannot set a parameter of several types
		}
	}
	known, params := KnownParamsOf(described), paramsOf(reflect.TypeFor[P]())
	a.mux.Handle(patternOf(&op), Handler(func(w http.ResponseWriter, r *http.Request) error {
		query, err := known.Parse(r.URL.RawQuery)
		if err != nil {
			return err
		}
		p := new(P)
		err = params.read(reflect.ValueOf(p).Elem(), query, r.Header)
		if err != nil {
			return err
		}
		ctx, err := a.Hold(r.Context(), web.InQuery, p)
		if err != nil {
			return err
		}
		if ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		return answer(w, r, p)
	}))
}

// HeaderReader is implemented by bodies that are completed by fields of the request's header.
type HeaderReader interface{ ReadHeader(http.Header) }

// AnswerBody routes an operation whose parameters are JSON in a body, which BufferBody has read.
func AnswerBody[B, O any, PO Output[O]](a *API, op huma.Operation, find func(context.Context, *B) (*O, error)) {
	huma.Register[struct{ Body B }, O](a, op, nil)
	known := KnownParamsOf(a.operations[patternOf(&op)])
	a.mux.Handle(patternOf(&op), Handler(func(w http.ResponseWriter, r *http.Request) error {
		_, err := known.Parse(r.URL.RawQuery)
		if err != nil {
			return err
		}
		b := new(B)
		err = DecodeBody(r.Body.(*web.Body).Bytes(), b)
		if err != nil {
			return web.NewProblem(http.StatusBadRequest, "",
				web.ProblemDetail{Location: web.InBody, Message: err.Error()})
		}
		if reader, ok := any(b).(HeaderReader); ok {
			reader.ReadHeader(r.Header)
		}
		ctx, err := a.Hold(r.Context(), web.InBody, b)
		if err != nil {
			return err
		}
		out, err := find(ctx, b)
		if err != nil {
			return err
		}
		PO(out).Write(w)
		return nil
	}))
}

// Handler answers a request. Its errors are for the client.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP answers a request, if only with a problem.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		writeError(w, err)
	}
}

func writeError(w http.ResponseWriter, err error) {
	p := web.ProblemOf(err)
	maps.Copy(w.Header(), p.Headers())
	WriteJSON(w, p.Status, web.ProblemType, p)
}
