package status

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"tallyroll/internal/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Progress is the part of window.Reader that says how far the streams are counted.
type Progress interface {
	Progress(ctx context.Context) (id string, streams []window.Progress, err error)
	ClockDifference() (ahead time.Duration, known bool)
}

// Status answers how far the streams are counted, by whom, and what was refused.
type Status struct {
	Reader    Progress
	redis     *answer.Source
	Namespace string
	Now       func() time.Time
	failures  zerolog.Logger                      // limited to a few lines per minute, because clients decide how often something fails
	AsksNATS  bool                                // there is a NATS, as far as the settings say
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
	streams   recent[StreamsAnswer]
	rejects   recent[newestRejects]
}

// New makes a status, and adds its gauges to the registry. asksNATS says that there is a NATS, which may come later.
func New(reader Progress, redis *answer.Source, namespace string, asksNATS bool, failures zerolog.Logger, registry prometheus.Registerer) *Status {
	s := &Status{Reader: reader, redis: redis, Namespace: namespace, Now: time.Now, failures: failures, AsksNATS: asksNATS}
	registry.MustRegister(&freshness{status: s})
	return s
}

// Register adds the operations.
func (s *Status) Register(a *api.API) {
	s.registerStreams(a)
	s.registerRejects(a)
}

// Connected keeps the connection to NATS, which is there from now on.
func (s *Status) Connected(js jetstream.JetStream) { s.js.Store(&js) }

// jetStream returns the connection to NATS for a request, or the problem that there is none.
func (s *Status) jetStream() (jetstream.JetStream, error) {
	if !s.AsksNATS {
		return nil, web.NewProblem(http.StatusNotImplemented, noNATS)
	}
	js := s.js.Load()
	if js == nil {
		return nil, web.RetryLater("NATS does not answer, and this needs it: start it, or set NATS_URL to where it is; all else is answered without it", "1")
	}
	return *js, nil
}

// noNATS is the 501 of a service that is told to do without NATS.
const noNATS = "this needs NATS, and NATS_URL is empty: set NATS_URL for the query service"

// needsNATS adds to the answers of an operation that there may be no NATS to ask.
func needsNATS(a *api.API, responses map[string]*huma.Response) map[string]*huma.Response {
	responses["501"] = a.ProblemResponse("The NATS_URL of this service is empty.", web.NewProblem(http.StatusNotImplemented, noNATS), nil)
	return responses
}

// natsUnavailable is the 503 for an error of NATS. The error itself goes to the log. ctx is that of the
// request.
func (s *Status) natsUnavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return web.ClientGone()
	}
	s.failures.Warn().Err(err).Msg("question not answered")
	return web.RetryLater("NATS cannot answer now: ask again in a second", "1")
}
