package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// answerTimeout is how long a request waits for Redis, which answers in
// milliseconds when it is well. A client that would wait longer does better to ask again.
const answerTimeout = 2 * time.Second

// reader is the part of window.Reader that the service uses.
type reader interface {
	looker
	Answer(ctx context.Context, questions []window.Question) (window.Answers, error)
	Explain(ctx context.Context, questions []window.Question, maxCells int) (window.Answers, []window.Explanation, error)
	Fall(ctx context.Context, counter string, length time.Duration, most int64) (window.Answers, time.Duration, error)
	Series(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error)
	Top(ctx context.Context, asked window.Span, limit int) (window.Top, error)
	Progress(ctx context.Context) (id string, streams []window.Progress, err error)
	Names(ctx context.Context, q window.NamesQuestion) (window.Names, error)
	About(ctx context.Context) (layout window.Layout, countingSince int64, err error)
}

// askRedis reads from Redis for at most answerTimeout. If the client must correct its question, it
// returns the *window.QuestionError unchanged (see mendable). Every other error is, or wraps, one
// to return to the client.
func askRedis[T any](ctx context.Context, s *service, read func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	began := time.Now()
	out, err := read(bounded)
	s.metrics.redisSeconds.Observe(time.Since(began).Seconds())
	var bad *window.QuestionError
	var much *window.TooMuchError
	switch {
	case isSpoilt(err):
		// Asking again does not help: whoever runs the service has to look at the key.
		s.health.due.Give()
		s.failures.Error().Err(err).Msg("question not answered")
		if errors.As(err, &bad) {
			return out, &window.QuestionError{Index: bad.Index, Err: spoiltProblem(err)}
		}
		return out, spoiltProblem(err)
	case err == nil, errors.As(err, &bad):
		return out, err
	case errors.As(err, &much):
		return out, tooMuchProblem(much)
	}
	return out, s.unavailable(ctx, err)
}

// mendable returns the question that the client must correct, if the error is about one. It
// returns nil if the fault lies with the service or with Redis.
func mendable(err error) *window.QuestionError {
	var p *web.Problem
	var bad *window.QuestionError
	if errors.As(err, &p) || !errors.As(err, &bad) {
		return nil
	}
	return bad
}

// spoiltProblem is the 500 for a key that another program has written to. It names the key.
func spoiltProblem(err error) *web.Problem {
	var foreign *window.ForeignError
	if errors.As(err, &foreign) {
		err = foreign // without what was being done
	}
	return web.NewProblem(http.StatusInternalServerError, err.Error()).Of(web.ForeignKey)
}

// tooMuchProblem is the 413 for a question that would cost more than the settings allow.
func tooMuchProblem(e *window.TooMuchError) *web.Problem {
	if e.What == window.ExplainedCells {
		return web.NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the explanation names at least %d cells: at most %d are allowed (QUERY_MAX_EXPLAIN): ask about fewer counters or shorter windows at once", e.Count, e.Max))
	}
	if e.What == "points" {
		return web.NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("%d points in one answer: at most %d are allowed (QUERY_MAX_POINTS): ask about fewer counters, a longer step or a shorter range", e.Count, e.Max))
	}
	return web.NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the hashes that this question reads hold up to %d cells: at most %d are allowed (QUERY_MAX_CELLS): ask about fewer counters or windows at once", e.Count, e.Max))
}

// unavailable is the 503 for an error of reading. The error itself may tell
// about the network inside, so it goes to the log and not to the client.
func (s *service) unavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return web.ClientGone()
	}
	s.health.due.Give()
	detail := "Redis cannot answer now: ask again in a second"
	switch {
	case errors.Is(err, window.ErrNoLayout):
		detail = err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded): // before and on the socket
		detail = "Redis did not answer within " + answerTimeout.String() + ": ask again in a second"
	}
	if s.health.whyNoAnswers() == "" { // otherwise the log has said why
		s.failures.Warn().Err(err).Msg("question not answered")
	}
	p := web.RetryLater(detail, "1")
	if errors.Is(err, window.ErrNoLayout) {
		p.Of(web.NothingCounted)
	}
	return p
}
