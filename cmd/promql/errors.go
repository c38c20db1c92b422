package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/prometheus/promql"

	"tallyroll/internal/window"
)

// readTimeout is how long one round trip to Redis may take.
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

// badData is a 400: the client must correct the request.
func badData(format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "bad_data", fmt.Sprintf(format, args...)}
}

// refused is a 422: the request is well formed, but costs too much or cannot be answered.
func refused(format string, args ...any) *apiError {
	return &apiError{http.StatusUnprocessableEntity, "execution", fmt.Sprintf(format, args...)}
}

// unavailable is a 503: the same request may be answered later.
func unavailable(format string, args ...any) *apiError {
	return &apiError{http.StatusServiceUnavailable, "unavailable", fmt.Sprintf(format, args...)}
}

func tooManySamples(n int64, most int) *apiError {
	return refused("this query reads %d samples: at most %d are allowed (PROMQL_MAX_SAMPLES): ask about fewer counters or a shorter time", n, most)
}

// askRedis reads from Redis for at most readTimeout. Its errors are *apiError, but for those of
// window that a caller may want to tell apart.
func askRedis[T any](ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	until, own := ctx.Deadline()
	own = own && time.Until(until) <= readTimeout // the query's time ends first
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
	case errors.As(err, &foreign):
		return out, &apiError{http.StatusInternalServerError, "internal", foreign.Error()}
	case errors.Is(err, window.ErrBadLayout):
		return out, &apiError{http.StatusInternalServerError, "internal", err.Error()}
	case errors.As(err, &much) && much.What == "points":
		return out, tooManySamples(much.Count, int(much.Max))
	case errors.As(err, &much):
		return out, refused("the hashes that this query reads hold up to %d cells: at most %d are allowed (PROMQL_MAX_CELLS): ask about fewer counters", much.Count, much.Max)
	case errors.As(err, &bad):
		return out, err
	case errors.Is(err, window.ErrNoLayout):
		return out, unavailable("%s", err)
	case ctx.Err() != nil:
		return out, ctx.Err() // the query's own time is over, or its client is gone
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded): // before and on the socket
		return out, &redisError{*unavailable("Redis cannot answer now: ask again in a second"), err}
	case own:
		return out, context.DeadlineExceeded
	}
	return out, &redisError{*unavailable("Redis did not answer within %s: ask again in a second", readTimeout), err}
}

// redisError is an error of Redis. The cause may tell about the network inside, so it goes to the
// log and not to the client.
type redisError struct {
	apiError
	cause error
}

func (e *redisError) Unwrap() error { return &e.apiError }

// apiErrorOf returns what to tell the client about an error of the engine or of a querier.
func (s *service) apiErrorOf(err error) *apiError {
	var known *apiError
	var bad *window.QuestionError
	var timeout promql.ErrQueryTimeout
	var canceled promql.ErrQueryCanceled
	var samples promql.ErrTooManySamples
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &bad):
		return refused("%s: choose a later start or a shorter range", bad)
	case errors.As(err, &timeout), errors.Is(err, context.DeadlineExceeded):
		return &apiError{http.StatusServiceUnavailable, "timeout", fmt.Sprintf("the query took longer than it may (timeout, or PROMQL_TIMEOUT=%s): ask about fewer counters or a shorter time", s.settings.Timeout)}
	case errors.As(err, &canceled), errors.Is(err, context.Canceled):
		return &apiError{statusClientGone, "canceled", "the client is gone"}
	case errors.As(err, &samples):
		return refused("this query holds more than %d samples (PROMQL_MAX_SAMPLES): ask about fewer counters or a shorter time", s.settings.MaxSamples)
	}
	return refused("%s", err)
}
