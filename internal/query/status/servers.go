package status

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// servers reads Redis and NATS for the answers about the service.
type servers struct {
	Reader    scope.Namespace
	redis     *answer.Source
	Namespace string
	Now       func() time.Time
	failures  zerolog.Logger                      // program.Sampled
	AsksNATS  bool                                // there is a NATS, as far as the settings say
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
}

func (s *servers) Connected(js jetstream.JetStream) { s.js.Store(&js) }

// jetStream returns the connection to NATS for a request, or the problem that it is missing.
func (s *servers) jetStream() (jetstream.JetStream, error) {
	if !s.AsksNATS {
		return nil, web.NewProblem(http.StatusNotImplemented, noNATS)
	}
	js := s.js.Load()
	if js == nil {
		return nil, web.RetryLater("NATS does not answer, and this needs it: start it, or set NATS_URL to where it "+
			"is; all else is answered without it", "1")
	}
	return *js, nil
}

const noNATS = "this needs NATS, and NATS_URL is empty: set NATS_URL for the query service"

func addNoNATS(a *api.API, responses map[string]*huma.Response) map[string]*huma.Response {
	responses["501"] = a.ProblemResponse("The NATS_URL of this service is empty.",
		web.NewProblem(http.StatusNotImplemented, noNATS), nil)
	return responses
}

// natsUnavailable is the 503 for an error of NATS, which is only logged. ctx is that of the request.
func (s *servers) natsUnavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return web.ClientGone()
	}
	s.failures.Warn().Ctx(ctx).Err(err).Msg("question not answered")
	return web.RetryLater("NATS cannot answer now: ask again in a second", "1")
}

// redisNow is the time by Redis's clock, in Unix milliseconds.
func (s *servers) redisNow() int64 {
	ahead, _ := s.Reader.ClockDifference()
	return s.Now().Add(ahead).UnixMilli()
}

const recentFor = time.Second

// recent is an answer that is read at most once per second, however many ask, and even if reading fails.
type recent[A any] struct {
	mu   sync.Mutex
	last *attempt[A] // nil before the first one
}

type attempt[A any] struct {
	done  chan struct{} // closed at its end; the rest is set before
	at    time.Time
	found A
	err   error
}

// errNotFound is the error for those who wait for an attempt that has panicked.
var errNotFound = web.NewProblem(http.StatusInternalServerError, "a fault of this service, which is in its log")

// get returns the answer of the last attempt, or of a new one if that is over and not recent. An attempt has
// a timeout, whether or not its callers still wait. It ends sooner at the deadline of the caller that makes
// it: a scrape must end though a server hangs.
func (r *recent[A]) get(ctx context.Context, timeout time.Duration, find func(context.Context) (A, error)) (A, error) {
	r.mu.Lock()
	a := r.last
	due := a == nil || a.isOld()
	if due {
		a = &attempt[A]{done: make(chan struct{}), err: errNotFound}
		r.last = a
	}
	r.mu.Unlock()
	if due {
		if deadline, ok := ctx.Deadline(); ok {
			timeout = min(timeout, time.Until(deadline))
		}
		a.run(context.WithoutCancel(ctx), timeout, find)
	}
	select {
	case <-a.done:
		return a.found, a.err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

func (a *attempt[A]) run(ctx context.Context, timeout time.Duration, find func(context.Context) (A, error)) {
	defer close(a.done)
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a.found, a.err = find(bounded)
	a.at = time.Now()
}

func (a *attempt[A]) isOld() bool {
	select {
	case <-a.done:
		return time.Since(a.at) >= recentFor
	default:
		return false
	}
}
