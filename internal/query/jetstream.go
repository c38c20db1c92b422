package query

import (
	"context"
	"errors"
	"net/http"

	"tallyroll/internal/web"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"
)

// jetStream returns the connection to NATS for a request, or the problem that there is none.
func (s *service) jetStream() (jetstream.JetStream, error) {
	if !s.asksNATS {
		return nil, newProblem(http.StatusNotImplemented, noNATS)
	}
	js := s.js.Load()
	if js == nil {
		return nil, retryLater("NATS does not answer, and this needs it: start it, or set NATS_URL to where it is; all else is answered without it", "1")
	}
	return *js, nil
}

// noNATS is the 501 of a service that is told to do without NATS.
const noNATS = "this needs NATS, and NATS_URL is empty: set NATS_URL for the query service"

// needsNATS adds to the answers of an operation that there may be no NATS to ask.
func needsNATS(registry huma.Registry, responses map[string]*huma.Response) map[string]*huma.Response {
	responses["501"] = &huma.Response{
		Description: "The NATS_URL of this service is empty.",
		Content: map[string]*huma.MediaType{problemType: {
			Schema:  web.SchemaOf[problem](registry),
			Example: newProblem(http.StatusNotImplemented, noNATS),
		}},
	}
	return responses
}

// natsUnavailable is the 503 for an error of NATS. The error itself goes to the log. ctx is that of the
// request.
func (s *service) natsUnavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return newProblem(statusClientGone, "the client is gone")
	}
	s.failures.Warn().Err(err).Msg("question not answered")
	return retryLater("NATS cannot answer now: ask again in a second", "1")
}
