package gate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"tallyroll/internal/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"time"

	"tallyroll/internal/limit"
	"tallyroll/internal/window"
)

// maxJudged is the largest max of a judgement: whole numbers up to it are exact in every JSON reader.
const maxJudged = 1 << 53

// judge decides about a counter of the streams, from its rolling total. Nothing is counted: the
// streams do that.
func (g *Gate) judge(ctx context.Context, part string, item *takeItem) (*TakeOutput, error) {
	j, err := judgementOf(item)
	if err != nil {
		return nil, web.InputProblem(err, part)
	}
	found, err := answer.Ask(ctx, g.redis, func(ctx context.Context) (f fallen, err error) {
		f.answers, f.wait, err = g.Counters.Fall(ctx, item.Key, j.length, j.most-j.n)
		return f, err
	})
	if err != nil {
		if bad := answer.Mendable(err); bad != nil {
			return nil, web.BadInput("window", "%s: %v", item.Window, bad).In(part)
		}
		var p *web.Problem
		if j.fail == limit.FailOpen && errors.As(err, &p) && p.Status == http.StatusServiceUnavailable {
			decision := j.unknown(0)
			return lookOutputOf(&decision), nil
		}
		return nil, err
	}
	of, asOf := found.answers.Answers[0], found.answers.AsOf
	outrun := of.Range.Outruns(asOf)
	decision := j.decide(of.Estimate, found.wait)
	switch {
	case outrun && j.fail == limit.FailClosed:
		return nil, web.RetryLater(fmt.Sprintf("hits stored after %s are not counted yet, and fail is closed: ask again when a worker counts", answer.Time(asOf).Format(time.RFC3339)), "1")
	case outrun && j.fail == limit.FailOpen:
		decision = j.unknown(of.Total)
	case outrun:
		decision.Decisions[0].Certain = false
	}
	out := lookOutputOf(&decision)
	complete := of.Complete && !outrun
	out.Body.AsOf, out.Body.Complete = answer.Time(asOf), &complete
	return out, nil
}

// judgement is a question about a counter: may it have n more hits, with at most so many in the window?
type judgement struct {
	length  time.Duration
	most, n int64
	fail    limit.Fail
}

// fallen is what the reader finds out about a judgement.
type fallen struct {
	answers window.Answers
	wait    time.Duration
}

func judgementOf(item *takeItem) (j judgement, err error) {
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
		return j, web.BadInput("max", "it is missing: say how many hits are allowed in the window")
	}
	j.most, err = item.Max.Parse("max", 0, 1, maxJudged)
	if err != nil {
		return j, err
	}
	j.fail = limit.Fail(item.Fail)
	if j.fail != "" && !slices.Contains(limit.Fails, j.fail) {
		return j, web.BadInput("fail", "%s: allowed is %s", web.Excerpt(item.Fail), failHint)
	}
	j.n, err = item.N.Parse("n", 1, 0, j.most)
	return j, err
}

// unknown allows, as fail=open wants if nobody knows the hits. known are those that have been counted.
func (j judgement) unknown(known int64) limit.Answer {
	out := j.decide(window.Estimate{Total: known}, 0)
	d := &out.Decisions[0]
	out.Allowed, d.Allowed, d.Certain, d.Source = true, true, false, limit.FromLocal
	return out
}

func (j judgement) decide(e window.Estimate, wait time.Duration) limit.Answer {
	d := limit.Decision{
		Take:    limit.Take{Limit: &limit.Limit{Window: j.length, Max: j.most}, N: j.n},
		Allowed: e.Total+j.n <= j.most,
		// It is certain if the smallest and the largest possible total lead to the same decision.
		Certain:   (e.Lower+j.n <= j.most) == (e.Upper+j.n <= j.most),
		Remaining: max(0, j.most-e.Total), RetryAfter: wait, Source: limit.FromRedis, Lower: e.Lower, Upper: e.Upper,
	}
	return limit.Answer{Allowed: d.Allowed, Decisions: []limit.Decision{d}}
}
