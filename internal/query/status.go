package query

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
	"github.com/rs/zerolog"
)

// progressReader is the part of window.Reader that says how far the streams are counted.
type progressReader interface {
	Progress(ctx context.Context) (id string, streams []window.Progress, err error)
	ClockDifference() (ahead time.Duration, known bool)
}

// status answers how far the streams are counted, by whom, and what was refused.
type status struct {
	reader    progressReader
	redis     *answer.Source
	namespace string
	now       func() time.Time
	failures  zerolog.Logger                      // limited to a few lines per minute, because clients decide how often something fails
	asksNATS  bool                                // there is a NATS, as far as the settings say
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
	streams   recent[streamsAnswer]
	rejects   recent[newestRejects]
}

// register adds the operations.
func (s *status) register(a *api.API) {
	s.registerStreams(a)
	s.registerRejects(a)
}

// connected keeps the connection to NATS, which is there from now on.
func (s *status) connected(js jetstream.JetStream) { s.js.Store(&js) }

// jetStream returns the connection to NATS for a request, or the problem that there is none.
func (s *status) jetStream() (jetstream.JetStream, error) {
	if !s.asksNATS {
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
func (s *status) natsUnavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return web.ClientGone()
	}
	s.failures.Warn().Err(err).Msg("question not answered")
	return web.RetryLater("NATS cannot answer now: ask again in a second", "1")
}
