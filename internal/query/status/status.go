package status

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web/api"
)

// Status answers how far the streams are counted, by whom, and what was refused.
type Status struct {
	*servers
	streams streams
	rejects newest
	rules   ruleStates
}

// New adds the status's gauges to the registry. asksNATS: there is a NATS, which may connect later.
func New(reader scope.Namespace, redis *answer.Source, namespace string, asksNATS bool, failures zerolog.Logger,
	registry prometheus.Registerer) *Status {
	both := &servers{Reader: reader, redis: redis, Namespace: namespace, Now: time.Now, failures: failures,
		AsksNATS: asksNATS}
	s := &Status{servers: both, streams: streams{servers: both}, rejects: newest{servers: both},
		rules: ruleStates{servers: both}}
	registry.MustRegister(&freshness{servers: both, streams: &s.streams})
	return s
}

func (s *Status) Register(a *api.API) {
	s.streams.register(a)
	s.rejects.register(a)
	s.rules.register(a)
}

// FollowWatch keeps the states of rules and their changes until ctx ends.
func (s *Status) FollowWatch(ctx context.Context, js jetstream.JetStream) {
	s.rules.history.Follow(ctx, js, s.Namespace)
}
