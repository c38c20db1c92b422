package answer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

type Service struct {
	Reader    scope.Counters
	Redis     *Source
	Namespace string
	// The bounds of one answer; the settings have these names.
	MaxKeys, MaxSum, MaxProbe int
}

// Source reads from Redis for answers. It bounds and measures each read, and turns its errors into problems.
type Source struct {
	// Timeout is how long a request waits for Redis (QUERY_TIMEOUT), which normally answers in milliseconds.
	Timeout  time.Duration
	health   Health
	seconds  prometheus.Observer
	failures zerolog.Logger // program.Sampled
}

func NewSource(health Health, timeout time.Duration, failures zerolog.Logger, registry prometheus.Registerer) *Source {
	seconds := prometheus.NewHistogram(buildinfo.Native(prometheus.HistogramOpts{
		Namespace: "tallyroll", Subsystem: "query", Name: "redis_seconds",
		Help:    "Seconds that Redis took for the reads of one answer.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	}))
	registry.MustRegister(seconds)
	return &Source{Timeout: timeout, health: health, seconds: seconds, failures: failures}
}

type Health interface {
	Why() string   // empty if questions can be answered
	RequestCheck() // something has just failed
}

// Read reads from Redis for at most r.Timeout. It returns unchanged a *window.QuestionError, which the client
// must correct (see ClientError), and a *web.Problem (see scope.Authorized). Every other error is,
// or wraps, a problem.
func Read[T any](ctx context.Context, r *Source, read func(context.Context) (T, error)) (T, error) {
	return readWithin(ctx, r, r.Timeout, read)
}

// readWithin first only checks a question that is to wait: a caller who may not ask is refused at once, and
// does not learn when counting is so far.
func readWithin[T any](ctx context.Context, r *Source, timeout time.Duration,
	read func(context.Context) (T, error)) (T, error) {
	if h, ok := ctx.Value(holdKey{}).(*hold); ok && !h.over {
		h.over = true
		out, err := readWithin(scope.Checking(ctx), r, timeout, read)
		if err != nil && !errors.Is(err, scope.ErrChecked) {
			return out, err
		}
		if err := h.await(ctx); err != nil {
			return out, HeldError{err}
		}
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	out, err := read(bounded)
	if errors.Is(err, scope.ErrChecked) {
		return out, err
	}
	r.seconds.Observe(time.Since(began).Seconds())
	var bad *window.QuestionError
	var much *window.TooMuchError
	var refused *web.Problem
	switch {
	case IsCorrupt(err):
		// Asking again does not help: an operator has to inspect the key.
		r.health.RequestCheck()
		r.failures.Error().Ctx(ctx).Err(err).Msg("question not answered")
		if errors.As(err, &bad) {
			return out, &window.QuestionError{Index: bad.Index, Err: CorruptProblem(err)}
		}
		return out, CorruptProblem(err)
	case err == nil, errors.As(err, &bad), errors.As(err, &refused):
		return out, err
	case errors.As(err, &much):
		return out, tooMuchProblem(much)
	}
	return out, r.unavailable(ctx, timeout, err)
}

// ClientError returns the question that the client must correct, or nil if the fault is not the client's.
func ClientError(err error) *window.QuestionError {
	var p *web.Problem
	var bad *window.QuestionError
	if errors.As(err, &p) || !errors.As(err, &bad) {
		return nil
	}
	return bad
}

// CorruptProblem is the 500 for a key that another program has written to. It names the key.
func CorruptProblem(err error) *web.Problem {
	var foreign *window.ForeignError
	if errors.As(err, &foreign) {
		err = foreign // without what was being done
	}
	return web.NewProblem(http.StatusInternalServerError, err.Error()).OfKind(web.ForeignKey)
}

func tooMuchProblem(e *window.TooMuchError) *web.Problem {
	if e.What == window.UniqueCells {
		return web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("this question reads %d cells of uniques: at most %d are allowed (QUERY_MAX_UNIQUE_CELLS): "+
				"ask about fewer counters, windows or steps at once, or about a shorter range", e.Count, e.Max))
	}
	if e.What == "points" {
		return web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("%d points in one answer: at most %d are allowed (QUERY_MAX_POINTS): ask about fewer "+
				"counters, a longer step or a shorter range", e.Count, e.Max))
	}
	return web.NewProblem(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("the hashes that this question reads hold up to %d cells: at most %d are allowed "+
			"(QUERY_MAX_CELLS): ask about fewer counters or windows at once", e.Count, e.Max))
}

// unavailable is the 503 for a read error. The error may describe the internal network, so it is only logged.
func (r *Source) unavailable(ctx context.Context, timeout time.Duration, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return web.ClientGone()
	}
	detail := "Redis cannot answer now: ask again in a second"
	switch {
	case errors.Is(err, schema.ErrNoLayout):
		detail = err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded): // before and on the socket
		detail = "Redis did not answer within " + timeout.String() + ": ask again in a second"
	}
	r.LogFailure(ctx, err, "question not answered")
	p := web.RetryLater(detail, "1")
	if errors.Is(err, schema.ErrNoLayout) {
		p.OfKind(web.NothingCounted)
	}
	return p
}

// LogFailure logs a failed read of a request with this context, unless the log already has why all of them
// fail.
func (r *Source) LogFailure(ctx context.Context, err error, message string) {
	r.health.RequestCheck()
	if r.health.Why() == "" {
		r.failures.Warn().Ctx(ctx).Err(err).Msg(message)
	}
}

// IsLost reports whether an error is one of Redis, and not about a missing or unusable layout.
func IsLost(err error) bool {
	return err != nil && !errors.Is(err, schema.ErrNoLayout) && !IsCorrupt(err)
}

// IsCorrupt reports whether an error is about a key that another program has written to.
func IsCorrupt(err error) bool {
	return window.IsForeign(err) || errors.Is(err, schema.ErrBadLayout)
}
