package limit

import (
	"context"
	"errors"
	"slices"
)

// A limit in shadow mode decides like any other and refuses nothing. Redis does the rest: a take that does
// not fit blocks no other, and is not counted (lua/decide.lua).

func shadowsOf(takes []Take) (out []int) {
	for i := range takes {
		if takes[i].Limit.shadow() {
			out = append(out, i)
		}
	}
	return out
}

// neverFit returns the indexes of invalid takes in shadow mode. They do not affect the others.
func neverFit(takes []Take) (out []int) {
	members := int64(0)
	for i := range takes {
		t := &takes[i]
		logged := int64(0)
		if t.Limit.Policy == Log && t.N > 0 {
			logged = t.N
		}
		if t.Limit.shadow() && (t.N > t.Limit.Max || members+logged > MaxLogTake) {
			out = append(out, i)
			continue
		}
		members += logged
	}
	return out
}

// forbids reports whether Redis refuses to decide at all.
func forbids(err error) bool {
	var forbidden *ForbiddenError
	var foreign *ForeignError
	return errors.As(err, &forbidden) || errors.As(err, &foreign)
}

// decideWithout gives the takes at places, which are in shadow mode, the decision said, and decides the rest.
func (l *Limiter) decideWithout(ctx context.Context, takes []Take, places []int, said Decision, count bool) (Answer, error) {
	var rest []Take
	for i := range takes {
		if !slices.Contains(places, i) {
			rest = append(rest, takes[i])
		}
	}
	out := Answer{Allowed: true}
	if rest != nil {
		var err error
		out, err = l.decide(ctx, rest, count)
		if err != nil || len(out.Decisions) < len(rest) || !out.Allowed && out.Decisions[0].Source == FromMemory {
			return out, err // memory says only who refuses
		}
	}
	for _, i := range places {
		d := said
		d.Take, d.Allowed, d.Shadow = takes[i], true, true
		if !d.WouldAllow {
			d.RetryAfter = takes[i].Limit.Window
		}
		out.Decisions = slices.Insert(out.Decisions, i, d)
	}
	return out, nil
}
