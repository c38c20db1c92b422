package limitapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/limit"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
)

// Limiter is the part of limit.Limiter that the service uses.
type Limiter interface {
	Take(ctx context.Context, takes []limit.Take) (limit.Answer, error)
	Look(ctx context.Context, takes []limit.Take) (limit.Answer, error)
	Reset(ctx context.Context, take limit.Take) error
	Renew(ctx context.Context, take limit.Take) (limit.Lease, error)
	Release(ctx context.Context, take limit.Take) (bool, error)
	Settle(ctx context.Context, takes []limit.Take) (limit.Answer, error)
	// Reserved returns the unspent hits of this process by the names of limits.
	Reserved() map[string]int64
}

// Service decides about takes, and checks limits and counters of the streams.
type Service struct {
	Proxies web.Networks // whose word about their clients is believed

	limits   *limits
	limiter  Limiter
	Counters scope.Counters
	redis    *answer.Source
	failures zerolog.Logger // program.Sampled
	outcomes outcomes
	process  string // as /v1/limits names it
	audit    Audit
}

// outcomes counts what takes and settlements came to, for /metrics and GET /v1/limits.
type outcomes struct {
	limits    *limits
	decisions *prometheus.CounterVec // by limit, result and source
	settled   *prometheus.CounterVec // by limit and result
}

// Audit begins a log line about a change by a request: who sent it, and from where.
type Audit func(*http.Request) *zerolog.Event

func (o *outcomes) countDecisions(a *limit.Answer) {
	now := o.limits.now()
	for i := range a.Decisions {
		d := &a.Decisions[i]
		if d.Take.N < 0 {
			o.decisions.WithLabelValues(d.Take.Limit.Name, "returned", string(d.Source)).Inc()
			continue
		}
		result, became := "refused", outcomeRefused
		switch {
		case d.WouldAllow:
			result, became = "allowed", outcomeAllowed
		case d.Shadow:
			result, became = "would_refuse", outcomeWouldRefuse
		}
		o.decisions.WithLabelValues(d.Take.Limit.Name, result, string(d.Source)).Inc()
		o.limits.count(d.Take.Limit.Name, became, now)
	}
}

// countFailures counts takes that limitError's error kept from a decision. What the request itself got wrong
// is counted nowhere, and a client that did not wait is no failure.
func (o *outcomes) countFailures(takes []limit.Take, err error) {
	p, isProblem := errors.AsType[*web.Problem](err)
	now := o.limits.now()
	for i := range takes {
		switch name := takes[i].Limit.Name; {
		case web.IsClientGone(err):
			o.decisions.WithLabelValues(name, "canceled", "").Inc()
		case isProblem && p.Status >= http.StatusInternalServerError:
			o.decisions.WithLabelValues(name, "error", "").Inc()
			o.limits.count(name, outcomeFailed, now)
		}
	}
}
