package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/window"
)

// answerTimeout is how long a request waits for Redis, which answers in
// milliseconds when it is well. Whoever waits longer is better served by asking again.
const answerTimeout = 2 * time.Second

// statusClientGone is nginx's status for a client that did not wait. Nobody reads
// it; in the metrics it keeps impatience apart from trouble with Redis.
const statusClientGone = 499

// reader is the part of window.Reader that answers questions.
type reader interface {
	Answer(ctx context.Context, questions []window.Question) (window.Answers, error)
	Series(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error)
	Top(ctx context.Context, asked window.Span, limit int) (window.Top, error)
	Names(ctx context.Context, q window.NamesQuestion) (window.Names, error)
	ClockDifference() (ahead time.Duration, known bool)
}

// bounded asks Redis, for at most answerTimeout. A *window.QuestionError that the
// asker must mend comes back as it is (see mendable); every other error is, or wraps, one to
// return to the client.
func bounded[T any](ctx context.Context, s *service, read func(context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	out, err := read(limited)
	var bad *window.QuestionError
	var much *window.TooMuchError
	switch {
	case spoilt(err):
		p := s.spoilt(err)
		if errors.As(err, &bad) {
			return out, &window.QuestionError{Index: bad.Index, Err: p}
		}
		return out, p
	case err == nil, errors.As(err, &bad):
		return out, err
	case errors.As(err, &much):
		return out, tooMuch(much)
	}
	return out, s.unavailable(ctx, err)
}

// mendable is the question that the asker must mend, if the error is about one;
// nil if it is the service's or Redis's trouble.
func mendable(err error) *window.QuestionError {
	var p *problem
	var bad *window.QuestionError
	if errors.As(err, &p) || !errors.As(err, &bad) {
		return nil
	}
	return bad
}

// spoilt is the 500 for a key that something else has written. It names the key:
// asking again does not help, and whoever runs the service has to look at it.
func (s *service) spoilt(err error) *problem {
	s.health.look()
	s.failures.Error().Err(err).Msg("question not answered")
	return spoiltProblem(err)
}

func spoiltProblem(err error) *problem {
	var foreign *window.ForeignError
	if errors.As(err, &foreign) {
		err = foreign // without what was being done
	}
	return newProblem(http.StatusInternalServerError, err.Error())
}

// tooMuch is the 413 for a question that would cost more than the settings allow.
func tooMuch(e *window.TooMuchError) *problem {
	if e.What == "points" {
		return newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("%d points in one answer: at most %d are allowed (QUERY_MAX_POINTS): ask about fewer counters, a longer step or a shorter range", e.Count, e.Max))
	}
	return newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the hashes that this question reads hold up to %d cells: at most %d are allowed (QUERY_MAX_CELLS): ask about fewer counters or windows at once", e.Count, e.Max))
}

// unavailable is the 503 for an error of reading. The error itself may tell
// about the network inside, so it goes to the log and not to the client.
func (s *service) unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return newProblem(statusClientGone, "the client is gone")
	}
	s.health.look()
	detail := "Redis cannot answer now: ask again in a second"
	switch {
	case errors.Is(err, window.ErrNoLayout):
		detail = err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded): // before and on the socket
		detail = "Redis did not answer within " + answerTimeout.String() + ": ask again in a second"
	}
	if s.health.notReady() == "" { // otherwise the log has said why
		s.failures.Warn().Err(err).Msg("question not answered")
	}
	return huma.ErrorWithHeaders(newProblem(http.StatusServiceUnavailable, detail), http.Header{"Retry-After": {"1"}})
}
