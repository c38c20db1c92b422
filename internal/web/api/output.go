package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/cespare/xxhash/v2"

	"tallyroll/internal/web"
)

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
func OverHTTP[P, A any](find func(ctx context.Context, part string, p *P) (A, error)) func(context.Context,
	*P) (*JSONOutput[A], error) {
	return inPart(web.InQuery, find)
}

// OverHTTPBody is OverHTTP for parameters in a body.
func OverHTTPBody[P, A any](find func(ctx context.Context, part string, p *P) (A, error)) func(context.Context,
	*P) (*JSONOutput[A], error) {
	return inPart(web.InBody, find)
}

func inPart[P, A any](part string,
	find func(ctx context.Context, part string, p *P) (A, error)) func(context.Context, *P) (*JSONOutput[A], error) {
	return func(ctx context.Context, p *P) (*JSONOutput[A], error) {
		out, err := find(ctx, part, p)
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
	_, _ = w.Write(o.Body) // the client may be gone; the middleware logs it
}

// SetHeader sets a header unless value is empty.
func SetHeader(w http.ResponseWriter, name, value string) {
	if value != "" {
		w.Header().Set(name, value)
	}
}

// Encode returns what WriteJSON sends, without the newline.
func Encode(v any) []byte {
	var out bytes.Buffer
	encodeInto(&out, v)
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

// encodeInto encodes a value of our own types, which always encode.
func encodeInto(text *bytes.Buffer, v any) {
	encoder := json.NewEncoder(text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Errorf("encode %T: %w", v, err))
	}
}

// largestKept bounds the buffers, in bytes, that are kept for the next answer.
const largestKept = 1 << 20

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// WriteJSON sends a value, followed by a newline and without escapes for HTML.
//
// Totals that append their own JSON would save 1.2 µs each (CPU time, medians of alternating runs of
// BenchmarkWithoutRedis): 2 % of query's work for 100 totals; of the work of query, Redis
// and client together (docs/benchmarks.md), 0.8 % for one total and 2.4 % for 100 counters × 4 windows.
func WriteJSON(w http.ResponseWriter, status int, contentType string, v any) {
	text := buffers.Get().(*bytes.Buffer)
	text.Reset()
	encodeInto(text, v)
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes()) // the client may be gone; the middleware logs it
	if text.Cap() <= largestKept {
		buffers.Put(text)
	}
}

// CacheHeaders returns the headers of an answer about a range that ended before now. A client may keep such
// an answer, but must revalidate it, because a late hit still counts at its own time. The tag is weak: it is
// made from the counts and not from the moment of reading, because an older as_of stays true.
func CacheHeaders(content ...any) (cacheControl, etag string) {
	return "no-cache", fmt.Sprintf(`W/"%016x"`, xxhash.Sum64(Encode(content)))
}
