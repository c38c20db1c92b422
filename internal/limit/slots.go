package limit

import (
	"context"
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
	key, now, accounts := l.key(&take), l.now(), l.fallback.accounts
	if take.Limit.Unlimited {
		return Lease{Held: true, Ends: now.Add(take.Limit.Window).UTC(), EndsIn: take.Limit.Window,
			Source: SourceMemory}, nil
	}
	action, local := "renew", take.Limit.Fail == FailLocal
	if local && accounts.owesLease(key, take.Lease, now) {
		action = "adopt"
	}
	var held bool
	var left time.Duration
	var ends int64
	down, err := l.fallback.call(ctx, key, func(ctx context.Context) (err error) {
		held, left, ends, err = l.store.lease(ctx, action, &take, key)
		return err
	})
	switch {
	case down != nil:
		return l.renewLocally(&take, key, down)
	case err != nil:
		return Lease{}, err
	case !held:
		if local {
			accounts.removeLease(key, take.Lease)
		}
		return Lease{Source: SourceRedis}, nil
	}
	if local {
		accounts.addLease(key, take.Lease, now.Add(left), now)
	}
	return Lease{Held: true, Ends: time.UnixMilli(ends).UTC(), EndsIn: max(0, left-l.now().Sub(now)),
		Source: SourceRedis}, nil
}

// renewLocally decides by the fail mode. Another process may have given out a slot that is unknown here: it
// counts as held if there is room.
func (l *Limiter) renewLocally(take *Take, key string, why error) (Lease, error) {
	now, accounts := l.now(), l.fallback.accounts
	switch take.Limit.Fail {
	case FailClosed:
		return Lease{}, &UnavailableError{take.Limit, &downError{why}}
	case FailLocal:
		accounts.mu.Lock()
		defer accounts.mu.Unlock()
		if !accounts.leases.check(take, key, now).fits {
			return Lease{}, &UnavailableError{take.Limit, &downError{why}}
		}
		accounts.leases.add(key, take.Lease, now.Add(take.Limit.Window), true, now)
	}
	return Lease{Held: true, Ends: now.Add(take.Limit.Window).UTC(), EndsIn: take.Limit.Window, Source: SourceLocal},
		nil
}

// Release frees a take's slot under Concurrent, and reports whether it was held. Errors are as in Take;
// without Redis always an *UnavailableError, and the slot is free when its lease ends.
func (l *Limiter) Release(ctx context.Context, take Take) (bool, error) {
	take.N = 1
	if err := take.checkSlot(); err != nil {
		return false, err
	}
	if take.Limit.Unlimited {
		return true, nil
	}
	key := l.key(&take)
	alone := l.fallback.accounts.removeLease(key, take.Lease)
	var held bool
	down, err := l.fallback.call(ctx, key, func(ctx context.Context) (err error) {
		held, _, _, err = l.store.lease(ctx, "release", &take, key)
		return err
	})
	switch {
	case err != nil:
		return false, err
	case down != nil && !alone: // if only this process had it, Redis has nothing to release
		return false, &UnavailableError{take.Limit, &downError{down}}
	}
	return held || alone, nil
}

func (t *Take) checkSlot() error {
	if t.Limit.Policy != Concurrent {
		return &TakeError{*t, "limit", "has no slots: only a limit with the policy concurrent has"}
	}
	return t.checkLease(true)
}
