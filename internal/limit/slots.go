package limit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Lease is the result of a renewal.
type Lease struct {
	// Held is false if the lease had ended or was released: another may hold the slot.
	Held bool
	// Ends is when it ends unless it is renewed, by Redis's clock, and EndsIn is the time until then.
	Ends   time.Time
	EndsIn time.Duration
	Source Source
}

// Renew extends a lease to a whole window from now, and never acquires a slot. The error is one of Take's.
func (l *Limiter) Renew(ctx context.Context, take Take) (Lease, error) {
	take.N = 1
	if err := take.checkSlot(); err != nil {
		return Lease{}, err
	}
	if take.Limit.Unlimited {
		ends := l.now().Add(take.Limit.Window).UTC()
		return Lease{Held: true, Ends: ends, EndsIn: take.Limit.Window, Source: SourceMemory}, nil
	}
	r := l.newSlotRequest(take)
	r.renew = true
	v, err := l.fallback.decide(ctx, &r)
	if err != nil {
		return Lease{}, err
	}
	d := &v.Decisions[0]
	if !d.WouldAllow {
		l.fallback.accounts.removeLease(r.keys[0], take.Lease)
	}
	return Lease{Held: d.WouldAllow, Ends: d.Ends, EndsIn: d.EndsIn, Source: d.Source}, nil
}

// Release frees a take's slot under Concurrent, and reports whether it was held. Errors are as in Take.
// Without Redis it is an *UnavailableError, and the slot is free when its lease ends, unless only this
// process had it.
func (l *Limiter) Release(ctx context.Context, take Take) (bool, error) {
	take.N = 1
	if err := take.checkSlot(); err != nil {
		return false, err
	}
	if take.Limit.Unlimited {
		return true, nil
	}
	take.N = -1
	r := l.newSlotRequest(take)
	r.release = true
	alone := l.fallback.accounts.removeLease(r.keys[0], take.Lease)
	v, err := l.fallback.decide(ctx, &r)
	if _, down := errors.AsType[*UnavailableError](err); down && alone {
		return true, nil
	}
	return alone || err == nil && v.Decisions[0].change < 0, err
}

// newSlotRequest returns the request that renews or releases the slot of a take.
func (l *Limiter) newSlotRequest(take Take) request {
	return request{takes: []Take{take}, keys: []string{l.key(&take)}, asked: l.now(), count: true}
}

func (t *Take) checkSlot() error {
	if !t.Limit.Policy.Traits().Slots {
		return &TakeError{*t, "limit", fmt.Sprintf("has no slots: only a limit with %s has", slotPolicies())}
	}
	return t.checkLease(true)
}
