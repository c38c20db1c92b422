package limitapi

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

const limitsPath = "/v1/limits"

type limitsParams struct {
	Name []string `query:"name,explode" doc:"Only the limits of these names. May repeat, up to 100 times." example:"[\"login\"]"`
}

const maxNames = 100

// LimitsAnswer holds the named limits, with what this process decided under each.
type LimitsAnswer struct {
	AsOf    time.Time    `json:"as_of" doc:"When the numbers were read, by the clock of this service." example:"2026-11-21T10:00:00.2Z"`
	Process string       `json:"process" doc:"The process of query that answers; it has a new name after each start. All numbers are of this process; /metrics of every process has its own." example:"5f0c2a9e"`
	Counts  bool         `json:"counts" doc:"Whether takes are counted here, and keys can be reset: false with QUERY_TAKE=off." example:"true"`
	Limits  []LimitState `json:"limits" doc:"The limits of QUERY_LIMITS_FILE, by name."`
}

func (s *Service) registerLimits(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-limits", Method: http.MethodGet, Path: limitsPath,
		Summary: "The limits and their decisions",
		Description: "Every named limit, with the decisions of the process that answers, per second and since its " +
			"start.",
		Responses: api.SuccessOnly("The limits, as of now.", limitsExample()),
	}), api.OverHTTP(s.findLimits))
}

// findLimits checks parameters and returns the limits. Its errors are for the client.
func (s *Service) findLimits(_ context.Context, part string, p *limitsParams) (LimitsAnswer, error) {
	set := s.limits.named.Load()
	if len(p.Name) > maxNames {
		return LimitsAnswer{}, web.BadInput("name", "%d names: at most %d are allowed", len(p.Name),
			maxNames).Problem(part)
	}
	if len(p.Name) > 0 {
		set = make(limitfile.Set, len(p.Name))
	}
	for _, name := range p.Name {
		var err error
		if set[name], err = s.limits.lookup(nil, name, "name"); err != nil {
			return LimitsAnswer{}, web.InputProblem(err, part)
		}
	}
	reserved, usages, now := s.limiter.Reserved(), *s.limits.usages.Load(), s.limits.now()
	out := LimitsAnswer{AsOf: now.UTC(), Process: s.process, Counts: s.limits.mode != TakeOff, Limits: []LimitState{}}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		use := usages[name]
		if use == nil {
			continue // a reload has just removed it
		}
		lim := set[name]
		state := use.state(now)
		state.Limit, state.Window, state.Max = name, human.FormatDuration(lim.Window), lim.Max
		state.Unlimited, state.AtMost = lim.Unlimited, lim.AtMost
		if p := lim.Period; p != nil {
			state.Window, state.TZ, state.Starts = p.String(), p.Zone().String(), p.Starts()
		}
		state.Fail, state.Key, state.Variables = string(lim.Fail), lim.Key.String(), lim.Key.Variables()
		t := lim.Policy.Traits()
		state.Policy, state.Kept, state.Slots = namedPolicy(t.Policy), t.Kept, t.Slots
		state.Mode, state.Count = string(lim.Mode), countersOf(&lim.Limit)
		if lim.Share.Hits > 0 {
			state.Share = &share{Hits: lim.Share.Hits, For: lim.Share.For.Seconds(), Unspent: reserved[name]}
		}
		out.Limits = append(out.Limits, state)
	}
	return out, nil
}

func limitsExample() LimitsAnswer {
	at := time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC)
	return LimitsAnswer{AsOf: at, Process: "5f0c2a9e", Counts: true, Limits: []LimitState{{
		Limit: "login", Window: "1m", Max: 5, Policy: "log", Kept: "in a log: exact", Mode: "enforce", Fail: "closed",
		Key:       "{key}",
		Variables: []string{"key"},
		Count: &counters{Allowed: []string{"sum.usage.login", "usage.login.{key}"},
			Refused: []string{"sum.refused.login", "refused.login.{key}"}},
		Since: at.Add(-2 * time.Hour), Allowed: 1200, Refused: 7, AllowedRate: 1.5, RefusedRate: .1,
	}}}
}
