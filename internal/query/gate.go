package query

import (
	"context"
	"net/http"
	"tallyroll/internal/answer"
	"tallyroll/internal/limit"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// faller is the part of window.Reader that judges counters of the streams.
type faller interface {
	Fall(ctx context.Context, counter string, length time.Duration, most int64) (window.Answers, time.Duration, error)
}

// gate decides about takes, and looks at limits and at counters of the streams.
type gate struct {
	limits    *limits
	counters  faller
	redis     *answer.Source
	failures  zerolog.Logger         // limited to a few lines per minute, because clients decide how often something fails
	decisions *prometheus.CounterVec // by limit, result and source
}

func newGate(l *limits, counters faller, redis *answer.Source, failures zerolog.Logger, registry prometheus.Registerer) *gate {
	g := &gate{limits: l, counters: counters, redis: redis, failures: failures, decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "tallyroll", Subsystem: "limit", Name: "decisions_total",
		Help: "Takes by what was decided about each, under which limit (empty: numbers in the request) and by whom.",
	}, []string{"limit", "result", "source"})}
	registry.MustRegister(g.decisions)
	return g
}

// register adds the operations.
func (g *gate) register(a *api.API, mux *http.ServeMux) {
	g.registerTake(a)
	g.registerLimit(a)
	g.describeAuthz(a)
	mux.Handle(authzPath, api.Handler(g.getAuthz))
	mux.Handle(authzPath+"/{limit}", api.Handler(g.getAuthz))
}

// decided counts the decisions of an answer.
func (g *gate) decided(a *limit.Answer) {
	for i := range a.Decisions {
		d := &a.Decisions[i]
		result := "refused"
		if d.Allowed {
			result = "allowed"
		}
		g.decisions.WithLabelValues(d.Take.Limit.Name, result, string(d.Source)).Inc()
	}
}

// notDecided counts takes about which nothing could be decided.
func (g *gate) notDecided(takes []limit.Take) {
	for i := range takes {
		g.decisions.WithLabelValues(takes[i].Limit.Name, "error", "").Inc()
	}
}
