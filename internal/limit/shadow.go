package limit

import (
	"context"
	"errors"
)

// shadow is the first decider. It sees that a limit in shadow mode refuses nothing: neither by a take that
// can never fit, nor because Redis refuses to decide about its key. Otherwise such a limit decides like any
// other, and lua/decide.lua lets a take of it that does not fit block no other, and does not count it. Limits
// that always refuse, or are unlimited, it decides without asking others.
type shadow struct{ next *shares }

func (s shadow) decide(ctx context.Context, r *request) (verdict, error) {
	if r.fixed != nil {
		return s.decideWithout(ctx, r, r.fixed, Decision{Certain: true, Source: SourceMemory})
	}
	v, err := s.next.decide(ctx, r)
	if err == nil || !isForbidden(err) {
		return v, err
	}
	var shadows []int
	for i := range r.takes {
		if r.takes[i].Limit.Mode == Shadow {
			shadows = append(shadows, i)
		}
	}
	if shadows == nil {
		return v, err
	}
	return s.decideWithout(ctx, r, shadows, Decision{WouldAllow: true, Source: SourceLocal})
}

// isForbidden reports whether Redis refuses to decide at all.
func isForbidden(err error) bool {
	var forbidden *ForbiddenError
	var foreign *ForeignError
	return errors.As(err, &forbidden) || errors.As(err, &foreign)
}

// decideWithout gives the takes at the indexes, which are in shadow mode or of fixed limits, a decision made
// from d, and decides the rest. If one of them refuses, nothing is counted, and of the rest only limits in
// shadow mode are asked, because what they would refuse counts even if another limit refuses.
func (s shadow) decideWithout(ctx context.Context, r *request, indexes []int, d Decision) (verdict, error) {
	own, allowed := make(map[int]Decision, len(indexes)), true
	for _, i := range indexes {
		decision := s.withoutHits(&r.takes[i], d)
		if r.settle && decision.Take.Limit.Unlimited {
			decision.Settled = &r.takes[i].N
		}
		own[i], allowed = decision, allowed && decision.Allowed
	}
	refused := r.count && !allowed
	rest := request{count: r.count && !refused, ids: r.ids, settle: r.settle}
	for i := range r.takes {
		if _, known := own[i]; !known && (!refused || r.takes[i].Limit.Mode == Shadow) {
			rest.takes, rest.keys = append(rest.takes, r.takes[i]), append(rest.keys, r.keys[i])
		}
	}
	out := verdict{Answer: Answer{Allowed: true}}
	if rest.takes != nil {
		var err error
		out, err = s.decide(ctx, &rest)
		if err != nil {
			return out, err
		}
	}
	out.Allowed = out.Allowed && allowed
	others := out.Decisions
	out.Decisions = nil
	for i := range r.takes {
		decision, known := own[i]
		switch isAsked := !refused || r.takes[i].Limit.Mode == Shadow; {
		case known && (isAsked || !decision.Allowed):
			out.Decisions = append(out.Decisions, decision)
		case !known && isAsked:
			out.Decisions, others = append(out.Decisions, others[0]), others[1:]
		}
	}
	return out, nil
}

// withoutHits completes a take's decision. An unlimited limit records neither slots nor takes.
func (s shadow) withoutHits(t *Take, d Decision) Decision {
	l := t.Limit
	d.Take, d.Shadow = *t, l.Mode == Shadow
	d.WouldAllow = d.WouldAllow || l.isFixed() && (l.Unlimited || t.N <= 0)
	d.Allowed = d.WouldAllow || d.Shadow
	if !d.WouldAllow {
		d.RetryAfter = l.Window
	}
	if l.Unlimited {
		d.Remaining, d.change = MaxHits, t.N
		if t.N > 0 && t.Lease != "" {
			d.Ends, d.EndsIn = s.next.now().Add(l.Window).UTC(), l.Window
		}
	}
	return d
}
