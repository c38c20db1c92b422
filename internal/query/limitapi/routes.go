package limitapi

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

type Settings struct {
	Take    TakeMode
	File    string // of named limits; empty without them
	Files   *setting.Files
	Proxies web.Networks
	Audit   Audit
}

// New reads the file of limits. The error names the setting, the file and the line.
func New(settings Settings, l Limiter, counters scope.Counters, redis *answer.Source, failures zerolog.Logger,
	metrics *web.Metrics) (*Service, error) {
	limits, err := newLimits(settings.Take, settings.File, settings.Files)
	if err != nil {
		return nil, err
	}
	s := &Service{
		Proxies: settings.Proxies, limits: limits, limiter: l, Counters: counters, redis: redis, failures: failures,
		audit: settings.Audit, process: newProcess(),
	}
	s.outcomes = outcomes{
		limits: limits, decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "limit", Name: "decisions_total",
			Help: "Takes by result, limit (empty: numbers in the request) and source of the decision. The result " +
				"would_refuse is of a limit in shadow mode, which refuses nothing, returned of hits given back, and " +
				"canceled of takes whose client did not wait.",
		}, []string{"limit", "result", "source"}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "limit", Name: "settlements_total",
			Help: "Settlements of takes by limit and result: settled, repeated, uncounted (a limit in shadow " +
				"mode did not count the take, or is open without Redis), refused (the id is not remembered or cannot " +
				"be settled, or Redis does not answer), or canceled (the client did not wait).",
		}, []string{"limit", "result"}),
	}
	metrics.Registry.MustRegister(s.outcomes.decisions, s.outcomes.settled)
	return s, nil
}

// Named is the number of named limits.
func (s *Service) Named() int { return len(s.limits.named.Load()) }

// Counts reports whether any take can be counted.
func (s *Service) Counts() bool { return s.limits.countsTakes() }

// Why returns why no take can be decided now, or "": without Redis, limits whose fail mode is not closed
// still can. known means that Redis was checked, and lost that it did not answer. Takes need no layout.
func (s *Service) Why(known, lost bool) string {
	takes, withoutRedis := s.limits.servesTakes()
	switch {
	case s.limits.mode == TakeOff:
		return "this service counts no takes (QUERY_TAKE=off)"
	case !takes:
		return "there is no limit to take under: QUERY_LIMITS_FILE names none"
	case !known:
		return "Redis has not answered yet" // a process that starts is not ready before it has looked once
	case lost && !withoutRedis:
		return "Redis does not answer, and every limit is closed then"
	}
	return ""
}

// newProcess names a process at random, because a host name would describe the internal network.
func newProcess() string {
	name := make([]byte, 4)
	_, _ = rand.Read(name) // it never fails
	return hex.EncodeToString(name)
}

// Register adds the operations.
func (s *Service) Register(a *api.API, mux *http.ServeMux) {
	s.registerTake(a)
	s.registerReturn(a)
	s.registerSlots(a)
	s.registerSettle(a)
	s.registerLimit(a)
	s.registerLimits(a)
	describeAuthz(a)
	mux.Handle(AuthzPath, api.Handler(s.getAuthz))
	mux.Handle(AuthzPath+"/{limit}", api.Handler(s.getAuthz))
}
