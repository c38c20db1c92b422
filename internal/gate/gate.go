package gate

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/access"
	"tallyroll/internal/answer"
	"tallyroll/internal/limit"
	"tallyroll/internal/setting"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// Limiter is the part of limit.Limiter that the service uses.
type Limiter interface {
	Take(ctx context.Context, takes []limit.Take) (limit.Answer, error)
	Look(ctx context.Context, takes []limit.Take) (limit.Answer, error)
	Reset(ctx context.Context, take limit.Take) error
	Renew(ctx context.Context, take limit.Take) (limit.Lease, error)
	Release(ctx context.Context, take limit.Take) (bool, error)
	// Reserved returns the unspent hits of this process by the names of limits.
	Reserved() map[string]int64
}

// Gate decides about takes, and checks limits and counters of the streams.
type Gate struct {
	Proxies web.Networks // whose word about their clients is believed

	limits    *limits
	limiter   Limiter
	Counters  access.Counters
	redis     *answer.Source
	failures  zerolog.Logger         // limited to a few lines per minute, because clients decide how often something fails
	decisions *prometheus.CounterVec // by limit, result and source
	process   string                 // as /v1/limits names it
	audit     Audit
}

type Settings struct {
	Take    TakeMode
	File    string // of named limits; empty: there are none
	Files   *setting.Files
	Proxies web.Networks
	Audit   Audit
}

// Audit begins a log line about a change by a request: who sent it, and from where.
type Audit func(*http.Request) *zerolog.Event

// New reads the file of limits. The error names the setting, the file and the line.
func New(settings Settings, l Limiter, counters access.Counters, redis *answer.Source, failures zerolog.Logger, metrics *web.Metrics) (*Gate, error) {
	limits, err := newLimits(settings.Take, settings.File, settings.Files)
	if err != nil {
		return nil, err
	}
	g := &Gate{
		Proxies: settings.Proxies, limits: limits, limiter: l, Counters: counters, redis: redis, failures: failures, audit: settings.Audit,
		process: newProcess(), decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "limit", Name: "decisions_total",
			Help: "Takes by what was decided about each, under which limit (empty: numbers in the request) and by whom. A limit in shadow mode would_refuse, and refuses none.",
		}, []string{"limit", "result", "source"}),
	}
	metrics.Registry.MustRegister(g.decisions)
	return g, nil
}

// Named is the number of named limits.
func (g *Gate) Named() int { return len(g.limits.named.Load()) }

// Counts reports whether any take can be counted.
func (g *Gate) Counts() bool { return g.limits.counts() }

// Why returns why no take can be decided now, or "": without Redis, limits whose fail mode is not closed
// still can. known means that Redis was checked, and lost that it did not answer. Takes need no layout.
func (g *Gate) Why(known, lost bool) string {
	takes, withoutRedis := g.limits.serve()
	switch {
	case g.limits.mode == TakeOff:
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

// Register adds the operations.
func (g *Gate) Register(a *api.API, mux *http.ServeMux) {
	g.registerTake(a)
	g.registerPlaces(a)
	g.registerLimit(a)
	g.registerLimits(a)
	g.describeAuthz(a)
	mux.Handle(AuthzPath, api.Handler(g.getAuthz))
	mux.Handle(AuthzPath+"/{limit}", api.Handler(g.getAuthz))
}

func (g *Gate) decided(a *limit.Answer) {
	now := g.limits.now()
	for i := range a.Decisions {
		d := &a.Decisions[i]
		result, became := "refused", refused
		switch {
		case d.WouldAllow:
			result, became = "allowed", allowed
		case d.Shadow:
			result, became = "would_refuse", wouldRefuse
		}
		g.decisions.WithLabelValues(d.Take.Limit.Name, result, string(d.Source)).Inc()
		g.limits.note(&d.Take, became, now)
	}
}

func (g *Gate) notDecided(takes []limit.Take) {
	now := g.limits.now()
	for i := range takes {
		g.decisions.WithLabelValues(takes[i].Limit.Name, "error", "").Inc()
		g.limits.note(&takes[i], failed, now)
	}
}
