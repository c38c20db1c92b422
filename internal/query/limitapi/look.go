package limitapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/fresh"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const LimitPath = "/v1/limit"

// registerLimit describes header.NAME by hand, because a parameter whose name varies has no tag.
func (s *Service) registerLimit(a *api.API) {
	header := &huma.Param{
		Name: api.AnyHeader, In: web.InQuery, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"gold"}},
		Description: "With limit, if its key template has {header.NAME}: the request's header of that name, as in " +
			"header.X-Plan=gold.",
	}
	look := a.Operation(huma.Operation{
		OperationID: "get-limit", Method: http.MethodGet, Path: LimitPath,
		Summary: "Whether hits would be allowed",
		Description: "Decides like POST /v1/take, and counts nothing. With window and max and without policy, it " +
			"decides about a counter of the streams: " +
			"the answer has as_of and complete, too. The status is 200 even if the hits would be refused.",
		Parameters: []*huma.Param{header},
		Responses:  api.SuccessOnly("The decision.", takeExample()),
	})
	api.AnswerQuery(a, look, func(ctx context.Context, p *LookParams) (*TakeOutput, error) {
		return s.Look(ctx, web.InQuery, p)
	})
	reset := a.Operation(huma.Operation{
		OperationID: "delete-limit", Method: http.MethodDelete, Path: LimitPath, DefaultStatus: http.StatusNoContent,
		Summary: "Remove the hits of a key", Description: "Afterwards the key has had no hit under the limit. " +
			"Counters of the streams cannot be reset.",
		Parameters: []*huma.Param{header},
		Responses:  map[string]*huma.Response{"204": {Description: "The key has no hits now."}},
	})
	describeForbidden(a, &reset)
	api.HandleQuery[resetParams, api.NoOutput](a, reset, func(w http.ResponseWriter, r *http.Request,
		p *resetParams) error {
		take, err := s.reset(r.Context(), p)
		if err != nil {
			return err
		}
		s.audit(r).Str("limit", p.Limit).Str("key", take.Key).Msg("limit reset")
		(*api.NoOutput)(nil).Write(w)
		return nil
	})
}

// LookParams is what GET /v1/limit takes, and as JSON the endpoint limit over NATS.
type LookParams struct {
	TakeItem
	answer.FreshParams
}

// TakeItem has a name by which other packages can embed it.
type TakeItem = takeItem

// isTotal reports whether the question is about a counter of the streams.
func (p *LookParams) isTotal() bool {
	return p.Limit == "" && p.Policy == "" && (p.Window != "" || p.Max != "")
}

func (p *LookParams) Condition() (fresh.Condition, error) {
	c, err := p.FreshParams.Condition()
	if err == nil && !c.IsZero() && !p.isTotal() {
		err = web.BadInput("limit", "not together with after or max_age, which are for a look at a counter of the "+
			"streams: a take counts at once")
	}
	c.Counters = []string{p.Key}
	return c, err
}

// Look checks an item and decides without counting. Its errors are for the client.
func (s *Service) Look(ctx context.Context, part string, p *LookParams) (*TakeOutput, error) {
	item := &p.TakeItem
	if p.isTotal() {
		return s.decideTotal(ctx, part, item)
	}
	take, err := s.limits.parseTake(ctx, item, "")
	if err != nil {
		return nil, web.InputProblem(err, part)
	}
	takes := []limit.Take{take}
	answer, err := s.limiter.Look(ctx, takes)
	if err != nil {
		return nil, web.InputProblem(s.limitError(ctx, err, takes, ""), part)
	}
	return newLookOutput(&answer), nil
}

type resetParams struct {
	Subject
	Window string     `query:"window" hint:"window" doc:"In place of limit, with QUERY_TAKE=any: the window of the takes." example:"1m"`
	Policy policyName `query:"policy" doc:"With window: the policy of the takes." example:"cells"`
}

// reset needs the policy with a window, because hits are kept under both, and deletes whatever max they had.
func (s *Service) reset(ctx context.Context, p *resetParams) (take limit.Take, err error) {
	err = s.limits.checkCounting()
	if err != nil {
		return take, err
	}
	item := &takeItem{Subject: p.Subject, Window: p.Window, Policy: p.Policy}
	if p.Limit == "" && p.Window != "" {
		if p.Policy == "" {
			return take, web.BadInput("policy", "missing: must be %s", p.Policy.Hint()).Problem(web.InQuery)
		}
		item.Max = "1" // any: it is no part of what hits are kept under
	}
	take, err = s.limits.parseTake(ctx, item, "")
	if err != nil {
		return take, web.InputProblem(err, web.InQuery)
	}
	err = s.limiter.Reset(ctx, take)
	if err != nil {
		return take, s.limitError(ctx, err, []limit.Take{take}, "")
	}
	return take, nil
}

// maxTotal bounds max of a totalCheck: every JSON reader has integers up to it exactly.
const maxTotal = 1 << 53

// decideTotal decides about a counter of the streams by its rolling total. Only the streams count its hits.
func (s *Service) decideTotal(ctx context.Context, part string, item *takeItem) (*TakeOutput, error) {
	j, err := parseTotalCheck(item)
	if err != nil {
		return nil, web.InputProblem(err, part)
	}
	var wait time.Duration
	found, err := answer.Read(ctx, s.redis, func(ctx context.Context) (out window.Answers, err error) {
		out, wait, err = s.Counters.Fall(ctx, item.Key, j.length, j.most-j.n)
		return out, err
	})
	if err != nil {
		if bad := answer.ClientError(err); bad != nil {
			return nil, web.BadInput("window", "%s: %v", item.Window, bad).Problem(part)
		}
		var p *web.Problem
		var held answer.HeldError
		if j.fail == limit.FailOpen && errors.As(err, &p) && p.Status == http.StatusServiceUnavailable &&
			!errors.As(err, &held) {
			decision := j.unknown(0)
			return newLookOutput(&decision), nil
		}
		return nil, err
	}
	counted, asOf := found.Answers[0], found.AsOf
	outrun := counted.Range.Outruns(asOf)
	decision := j.decide(counted.Estimate, wait)
	switch {
	case outrun && j.fail == limit.FailClosed:
		return nil, web.RetryLater(fmt.Sprintf("hits stored after %s are not counted yet, and fail is closed: ask "+
			"again when a worker counts", answer.Time(asOf).Format(time.RFC3339)), "1")
	case outrun && j.fail == limit.FailOpen:
		decision = j.unknown(counted.Total)
	case outrun:
		decision.Decisions[0].Certain = false
	}
	out := newLookOutput(&decision)
	complete := counted.Complete && !outrun
	out.Body.AsOf, out.Body.Complete = answer.Time(asOf), &complete
	return out, nil
}

// newLookOutput answers 200 even to a refusal.
func newLookOutput(a *limit.Answer) *TakeOutput {
	out := newTakeOutput(a, false)
	out.Status, out.RetryAfter = http.StatusOK, ""
	return out
}

// totalCheck asks whether a counter may have n more hits, with at most most in the window.
type totalCheck struct {
	length  time.Duration
	most, n int64
	fail    limit.Fail
}

// parseTotalCheck allows n to be 0 and max to pass limit.MaxHits, unlike a take, because nothing is counted.
func parseTotalCheck(item *takeItem) (j totalCheck, err error) {
	if given := item.values(); len(given) > 0 {
		return j, web.BadInput(given[0].name, "only with limit, if its key template has it")
	}
	if err := api.CheckKey("key", item.Key); err != nil {
		return j, err
	}
	j.length, err = limitWindow("", item.Window)
	if err != nil {
		return j, err
	}
	if item.Max == "" {
		return j, web.BadInput("max", "missing: must be the number of hits that the window may have")
	}
	j.most, err = item.Max.Parse("max", 0, 1, maxTotal)
	if err != nil {
		return j, err
	}
	j.fail = limit.Fail(item.Fail)
	if j.fail != "" && !slices.Contains(limit.Fails, j.fail) {
		return j, web.BadInput("fail", "%s: must be %s", web.Excerpt(item.Fail), failHint)
	}
	j.n, err = item.N.Parse("n", 1, 0, j.most)
	return j, err
}

// unknown allows, for fail=open, if the hits are unknown. known are those counted.
func (j totalCheck) unknown(known int64) limit.Answer {
	out := j.decide(window.Estimate{Total: known}, 0)
	d := &out.Decisions[0]
	out.Allowed, d.Allowed, d.WouldAllow, d.Certain, d.Source = true, true, true, false, limit.SourceLocal
	return out
}

func (j totalCheck) decide(e window.Estimate, wait time.Duration) limit.Answer {
	fits := func(total int64) bool { return window.AddCounts(total, j.n) <= j.most }
	d := limit.Decision{
		Take:    limit.Take{Limit: &limit.Limit{Window: j.length, Max: j.most}, N: j.n},
		Allowed: fits(e.Total), WouldAllow: fits(e.Total),
		// It is certain if the smallest and the largest possible total lead to the same decision.
		Certain:   fits(e.Lower) == fits(e.Upper),
		Remaining: max(0, j.most-e.Total), RetryAfter: wait, Source: limit.SourceRedis, Lower: e.Lower, Upper: e.Upper,
	}
	return limit.Answer{Allowed: d.Allowed, Decisions: []limit.Decision{d}}
}
