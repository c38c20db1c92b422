package limit

import (
	"context"
	"errors"
	"slices"
)

// shadow is the first decider. It sees that a limit in shadow mode refuses nothing: neither by a take that
// can never fit, nor because Redis refuses to decide about its key. Otherwise such a limit decides like any
// other, and lua/decide.lua lets a take of it that does not fit block no other, and does not count it.
type shadow struct{ next *shares }

func (s shadow) decide(ctx context.Context, r *request) (verdict, error) {
	if r.never != nil {
		return s.decideWithout(ctx, r, r.never, Decision{Certain: true, Source: SourceMemory})
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

// decideWithout gives the takes at the indexes, which are in shadow mode, a decision, and decides the rest.
func (s shadow) decideWithout(ctx context.Context, r *request, indexes []int, d Decision) (verdict, error) {
	rest := request{count: r.count, ids: r.ids, settle: r.settle}
	for i := range r.takes {
		if !slices.Contains(indexes, i) {
			rest.takes, rest.keys = append(rest.takes, r.takes[i]), append(rest.keys, r.keys[i])
		}
	}
	out := verdict{Answer: Answer{Allowed: true}}
	if rest.takes != nil {
		var err error
		out, err = s.decide(ctx, &rest)
		if err != nil || len(out.Decisions) < len(rest.takes) || !out.Allowed && out.Decisions[0].Source == SourceMemory {
			return out, err // memory returns only the takes that it refuses
		}
	}
	for _, i := range indexes {
		d.Take, d.Allowed, d.Shadow = r.takes[i], true, true
		if !d.WouldAllow {
			d.RetryAfter = r.takes[i].Limit.Window
		}
		out.Decisions = slices.Insert(out.Decisions, i, d)
	}
	return out, nil
}
