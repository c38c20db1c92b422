package query

import (
	"context"
	"maps"
	"net/http"
)

// output is the answer of an operation, with its headers. huma describes them, and write sends them.
type output[O any] interface {
	*O
	write(w http.ResponseWriter)
}

// jsonType is the content type of most answers.
const jsonType = "application/json"

// jsonOutput is an answer that is a JSON body and nothing else.
type jsonOutput[A any] struct{ Body A }

func (o *jsonOutput[A]) write(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, jsonType, &o.Body)
}

// noOutput is the answer of an operation that only says that it is done.
type noOutput struct{}

func (*noOutput) write(w http.ResponseWriter) {
	w.WriteHeader(http.StatusNoContent)
}

// setHeader sets a header that an answer may do without.
func setHeader(w http.ResponseWriter, name, value string) {
	if value != "" {
		w.Header().Set(name, value)
	}
}

// overHTTP is find for a query string, if the answer is only a body.
func overHTTP[P, A any](find func(ctx context.Context, part string, p *P) (A, error)) func(context.Context, *P) (*jsonOutput[A], error) {
	return func(ctx context.Context, p *P) (*jsonOutput[A], error) {
		out, err := find(ctx, inQuery, p)
		return &jsonOutput[A]{out}, err
	}
}

// rawOutput is an answer that need not be JSON.
type rawOutput struct {
	ContentType  string   `header:"Content-Type"`
	CacheControl string   `header:"Cache-Control"`
	ETag         string   `header:"ETag"`
	Vary         []string `header:"Vary"` // a list is added to what is there
	Body         []byte
}

func (o *rawOutput) write(w http.ResponseWriter) {
	setHeader(w, "Content-Type", o.ContentType)
	setHeader(w, "Cache-Control", o.CacheControl)
	setHeader(w, "ETag", o.ETag)
	for _, name := range o.Vary {
		w.Header().Add("Vary", name)
	}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(o.Body) // the client may be gone; the edge logs it
}

// writeError sends the problem that an error is or stands for.
func writeError(w http.ResponseWriter, err error) {
	p := problemOf(err)
	maps.Copy(w.Header(), p.Headers())
	writeJSON(w, p.Status, problemType, p)
}
