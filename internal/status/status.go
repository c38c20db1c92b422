package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/access"
	"tallyroll/internal/answer"
	"tallyroll/internal/web/api"
)

// New adds the status's gauges to the registry. asksNATS: there is a NATS, which may connect later.
func New(reader access.Namespace, redis *answer.Source, namespace string, asksNATS bool, failures zerolog.Logger, registry prometheus.Registerer) *Status {
	s := &Status{Reader: reader, redis: redis, Namespace: namespace, Now: time.Now, failures: failures, AsksNATS: asksNATS}
	registry.MustRegister(&freshness{status: s})
	return s
}

// Register adds the operations.
func (s *Status) Register(a *api.API) {
	s.registerStreams(a)
	s.registerRejects(a)
	s.registerWatch(a)
}
