package limit

import (
	"context"
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
		return newLease(&take, l.now(), SourceMemory), nil
	}
	return l.fallback.renew(ctx, &take, l.key(&take))
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
	return l.fallback.release(ctx, &take, l.key(&take))
}

func (t *Take) checkSlot() error {
	if !t.Limit.Policy.Traits().Slots {
		return &TakeError{*t, "limit", fmt.Sprintf("has no slots: only a limit with %s has", slotPolicies())}
	}
	return t.checkLease(true)
}

// newLease is a lease that this process has given or renewed.
func newLease(t *Take, now time.Time, source Source) Lease {
	return Lease{Held: true, Ends: now.Add(t.Limit.Window).UTC(), EndsIn: t.Limit.Window, Source: source}
}

// renew renews a lease in Redis, or without it by the fail mode. What this process has given out, and Redis
// lacks, Redis adopts.
func (f *fallback) renew(ctx context.Context, take *Take, key string) (Lease, error) {
	action, local, now := "renew", take.Limit.Fail == FailLocal, f.now()
	if local && f.accounts.owesLease(key, take.Lease, now) {
		action = "adopt"
	}
	var held bool
	var left time.Duration
	var ends int64
	down, err := f.call(ctx, key, func(ctx context.Context) (err error) {
		held, left, ends, err = f.remote.store.lease(ctx, action, take, key)
		return err
	})
	switch {
	case down != nil && (take.Limit.Fail == FailOpen || local && f.accounts.renewLease(take, key, now)):
		return newLease(take, f.now(), SourceLocal), nil
	case down != nil:
		return Lease{}, &UnavailableError{take.Limit, &downError{down}}
	case err != nil:
		return Lease{}, err
	case !held:
		if local {
			f.accounts.removeLease(key, take.Lease)
		}
		return Lease{Source: SourceRedis}, nil
	}
	if local {
		f.accounts.addLease(key, take.Lease, now.Add(left), now)
	}
	return Lease{Held: true, Ends: time.UnixMilli(ends).UTC(), EndsIn: max(0, left-f.now().Sub(now)),
		Source: SourceRedis}, nil
}

func (f *fallback) release(ctx context.Context, take *Take, key string) (bool, error) {
	alone := f.accounts.removeLease(key, take.Lease)
	var held bool
	down, err := f.call(ctx, key, func(ctx context.Context) (err error) {
		held, _, _, err = f.remote.store.lease(ctx, "release", take, key)
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
