package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

type result struct {
	data     any
	warnings annotations.Annotations
	query    string // that the warnings are about
}

type queryFunc func(r *http.Request) (result, error)

type response struct {
	Status    string   `json:"status"`
	Data      any      `json:"data,omitempty"`
	ErrorType string   `json:"errorType,omitempty"`
	Error     string   `json:"error,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
	Infos     []string `json:"infos,omitempty"`
}

const maxNotes = 10

type encoder func(r *http.Request) ([]byte, error)

func encodeResult(run queryFunc) encoder {
	return func(r *http.Request) ([]byte, error) {
		out, err := run(r)
		if err != nil {
			return nil, err
		}
		warnings, infos := out.warnings.AsStrings(out.query, maxNotes, maxNotes)
		return json.Marshal(response{Status: "success", Data: out.data, Warnings: warnings, Infos: infos})
	}
}

func (s *service) serve(encode encoder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := encode(r)
		if err == nil {
			writeJSON(w, http.StatusOK, text)
			return
		}
		e := s.asAPIError(err)
		if e.status >= http.StatusInternalServerError {
			cause := err
			var redis *redisError
			if errors.As(err, &redis) {
				cause = redis.cause
			}
			s.failures.Warn().Ctx(r.Context()).Err(cause).Str("path", r.URL.Path).Int("code",
				e.status).Msg("query not answered")
		}
		writeError(w, e)
	})
}

func writeError(w http.ResponseWriter, e *apiError) {
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	text, _ := json.Marshal(response{Status: "error", ErrorType: e.kind,
		Error: truncateMessage(e.message)}) // strings have no errors
	writeJSON(w, e.status, text)
}

func writeJSON(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone; an error has no other recipient
}

// encodeValue encodes at most limit series. The engine's types encode themselves as Prometheus does.
func encodeValue(v parser.Value, limit int) (data json.RawMessage, cut bool, err error) {
	switch list := v.(type) {
	case promql.Vector:
		v, cut = truncate(list, limit)
	case promql.Matrix:
		v, cut = truncate(list, limit)
	}
	data, err = json.Marshal(queryData{ResultType: v.Type(), Result: v})
	return data, cut, err
}

// truncate returns the first n elements, or all if n is 0.
func truncate[S ~[]E, E any](list S, n int) (out S, cut bool) {
	if n > 0 && len(list) > n {
		return list[:n], true
	}
	return list, false
}

const readTimeout = 5 * time.Second

// statusClientGone is nginx's status for a client that did not wait.
const statusClientGone = 499

// apiError is an error in Prometheus's form: a kind that its clients know, and a sentence.
type apiError struct {
	status  int
	kind    string // the errorType
	message string
}

func (e *apiError) Error() string { return e.message }

func newBadData(format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "bad_data", fmt.Sprintf(format, args...)}
}

// readRedis reads for at most readTimeout. It returns an *apiError, *window.QuestionError or ctx's error.
func readRedis[T any](ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	deadline, queryEndsFirst := ctx.Deadline()
	queryEndsFirst = queryEndsFirst && time.Until(deadline) <= readTimeout // the query's time ends first
	bounded, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	out, err := read(bounded)
	if err == nil {
		return out, nil
	}
	var much *window.TooMuchError
	var foreign *window.ForeignError
	var bad *window.QuestionError
	switch {
	case asForbidden(err) != nil:
		return out, asForbidden(err)
	case errors.As(err, &foreign):
		return out, &apiError{http.StatusInternalServerError, "internal", foreign.Error()}
	case errors.Is(err, schema.ErrBadLayout):
		return out, &apiError{http.StatusInternalServerError, "internal", err.Error()}
	case errors.As(err, &much) && much.What == "points":
		return out, newTooManySamples(much.Count, int(much.Max))
	case errors.As(err, &much) && much.What == window.UniqueCells:
		return out, newRefusal("this query reads %d cells of uniques: at most %d are allowed "+
			"(PROMQL_MAX_UNIQUE_CELLS): select fewer counters or a shorter time", much.Count, much.Max)
	case errors.As(err, &much):
		return out, newRefusal("the hashes that this query reads hold up to %d cells: at most %d are allowed "+
			"(PROMQL_MAX_CELLS): select fewer counters", much.Count, much.Max)
	case errors.As(err, &bad):
		return out, err
	case errors.Is(err, schema.ErrNoLayout):
		return out, newUnavailable("%s", err)
	case ctx.Err() != nil:
		return out, ctx.Err() // the query's own time has ended, or its client is gone
	// before and on the socket
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded):
		return out, &redisError{*newUnavailable("Redis cannot answer now: retry in a second"), err}
	case queryEndsFirst:
		return out, context.DeadlineExceeded
	}
	return out, &redisError{*newUnavailable("Redis did not answer within %s: retry in a second", readTimeout), err}
}

// asForbidden returns err as a 403 if it is a token's that does not cover the query; otherwise nil.
func asForbidden(err error) *apiError {
	var p *web.Problem
	if !errors.As(err, &p) {
		return nil
	}
	return &apiError{p.Status, "forbidden", p.Detail}
}

// newUnavailable returns a 503: the same request may succeed later.
func newUnavailable(format string, args ...any) *apiError {
	return &apiError{http.StatusServiceUnavailable, "unavailable", fmt.Sprintf(format, args...)}
}

func newTooManySamples(n int64, most int) *apiError {
	return newRefusal("this query reads %d samples: at most %d are allowed (PROMQL_MAX_SAMPLES): select fewer "+
		"counters or a shorter time", n, most)
}

// redisError is an error of Redis. The cause may describe the internal network, so it is only logged.
type redisError struct {
	apiError
	cause error
}

func (e *redisError) Unwrap() error { return &e.apiError }

func (s *service) asAPIError(err error) *apiError {
	var apiErr *apiError
	var bad *window.QuestionError
	var timeout promql.ErrQueryTimeout
	var canceled promql.ErrQueryCanceled
	var samples promql.ErrTooManySamples
	switch {
	case errors.As(err, &apiErr):
		return apiErr
	case errors.As(err, &bad):
		return newRefusal("%s: choose a later start or a shorter range", bad)
	case errors.As(err, &timeout), errors.Is(err, context.DeadlineExceeded):
		return &apiError{http.StatusServiceUnavailable, "timeout",
			fmt.Sprintf("the query took longer than it may (timeout, or PROMQL_TIMEOUT=%s): select fewer counters or "+
				"a shorter time", s.settings.Timeout)}
	case errors.As(err, &canceled), errors.Is(err, context.Canceled):
		return &apiError{statusClientGone, "canceled", "the client is gone"}
	case errors.As(err, &samples):
		return newRefusal("this query holds more than %d samples (PROMQL_MAX_SAMPLES): select fewer counters or a "+
			"shorter time", s.settings.MaxSamples)
	}
	return newRefusal("%s", err)
}

// newRefusal returns a 422: the request is well formed, but costs too much or cannot be answered.
func newRefusal(format string, args ...any) *apiError {
	return &apiError{http.StatusUnprocessableEntity, "execution", fmt.Sprintf(format, args...)}
}
