package limit

import (
	"context"
	"time"
)

// slots are those of the policy Concurrent that this process gave out under limits with the fail mode local.
// With them it never gives out more than max by itself. A slot given out without Redis is owed, and counts in
// addition to Redis's, until its lease is renewed there. accounts.mu guards them.
type slots struct {
	leases map[string]map[string]slot // by key in Redis and lease
	owing  map[string]int             // slots that are owed, by key, ended ones included
	all    int
	swept  time.Time
	// lost is when the last lease ends of those that Redis has given out and for which there was no room
	// here.
	lost time.Time
}

type slot struct {
	ends    time.Time
	owed    bool
	inRedis bool // Redis has had it at some time
}

// add remembers a slot. There are about LocalKeys at most. If a slot of Redis's finds no room here, check
// finds none free until its lease ends.
func (s *slots) add(key, lease string, ends time.Time, owed bool, now time.Time) {
	before, known := s.leases[key][lease]
	if !owed && !known && !s.hasRoom(now) {
		if ends.After(s.lost) {
			s.lost = ends
		}
		return
	}
	s.remove(key, lease)
	if s.leases == nil {
		s.leases, s.owing = make(map[string]map[string]slot), make(map[string]int)
	}
	if s.leases[key] == nil {
		s.leases[key] = make(map[string]slot, 1)
	}
	s.leases[key][lease] = slot{ends, owed, before.inRedis || !owed}
	s.all++
	if owed {
		s.owing[key]++
	}
}

// hasRoom reports whether one more slot can be remembered. When full, it forgets ended ones once per second.
func (s *slots) hasRoom(now time.Time) bool {
	if s.all >= LocalKeys && now.Sub(s.swept) >= time.Second {
		s.swept = now
		for key := range s.leases {
			s.removeEnded(key, now)
		}
	}
	return s.all < LocalKeys
}

func (s *slots) removeEnded(key string, now time.Time) {
	for lease, held := range s.leases[key] {
		if !now.Before(held.ends) {
			s.remove(key, lease)
		}
	}
}

// remove forgets a slot, and reports whether only this process had it.
func (s *slots) remove(key, lease string) (alone bool) {
	held, known := s.leases[key][lease]
	if !known {
		return false
	}
	s.all--
	if held.owed {
		s.owing[key]--
	}
	delete(s.leases[key], lease)
	if len(s.leases[key]) == 0 {
		delete(s.leases, key)
		delete(s.owing, key)
	}
	return held.owed && !held.inRedis
}

func (s *slots) forget(key string) {
	s.all -= len(s.leases[key])
	delete(s.leases, key)
	delete(s.owing, key)
}

// owed is the number of slots that count in addition to those in Redis, without the lease's own.
func (s *slots) owed(key, lease string, now time.Time) (n int64) {
	if s.owing[key] == 0 {
		return 0
	}
	s.removeEnded(key, now)
	for name, held := range s.leases[key] {
		if held.owed && name != lease {
			n++
		}
	}
	return n
}

// check decides about a take from the slots remembered here. None is free if it could not be remembered, or
// may be one that could not be.
func (s *slots) check(t *Take, key string, now time.Time) (out state) {
	s.removeEnded(key, now)
	wait, held := t.Limit.Window, int64(len(s.leases[key]))
	for _, one := range s.leases[key] {
		wait = min(wait, one.ends.Sub(now))
	}
	_, again := s.leases[key][t.Lease]
	out.lower, out.estimate, out.upper = held, held, held
	out.fits = again || held+t.N <= t.Limit.Max && !now.Before(s.lost) && s.hasRoom(now)
	if !out.fits {
		out.wait = wait
	}
	return out
}

func (s *slots) acquire(t *Take, key string, out *state, now time.Time) {
	before, ends := s.all, now.Add(t.Limit.Window)
	s.add(key, t.Lease, ends, true, now)
	out.ends, out.counted = ends.UnixMilli(), int64(s.all-before)
}

// addSlot remembers a slot that Redis has given out.
func (a *accounts) addSlot(key, lease string, ends, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots.add(key, lease, ends, false, now)
}

// confirmSlots records that Redis has slots, after all, that were given out here.
func (a *accounts) confirmSlots(r *request, states []state, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range states {
		if held := a.slots.leases[r.keys[i]][r.takes[i].Lease]; states[i].ends > 0 && held.owed {
			a.slots.add(r.keys[i], r.takes[i].Lease, held.ends, false, now)
		}
	}
}

// owesSlot reports whether a slot was given out here, and Redis may lack it.
func (a *accounts) owesSlot(key, lease string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	held := a.slots.leases[key][lease]
	return held.owed && now.Before(held.ends)
}

// removeSlot forgets a slot, and reports whether only this process had it.
func (a *accounts) removeSlot(key, lease string) (alone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slots.remove(key, lease)
}

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
	action, local := "renew", take.Limit.Fail == FailLocal
	if local && accounts.owesSlot(key, take.Lease, now) {
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
			accounts.removeSlot(key, take.Lease)
		}
		return Lease{Source: SourceRedis}, nil
	}
	if local {
		accounts.addSlot(key, take.Lease, now.Add(left), now)
	}
	return Lease{Held: true, Ends: time.UnixMilli(ends).UTC(), EndsIn: max(0, left-l.now().Sub(now)), Source: SourceRedis}, nil
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
		if !accounts.slots.check(take, key, now).fits {
			return Lease{}, &UnavailableError{take.Limit, &downError{why}}
		}
		accounts.slots.add(key, take.Lease, now.Add(take.Limit.Window), true, now)
	}
	return Lease{Held: true, Ends: now.Add(take.Limit.Window).UTC(), EndsIn: take.Limit.Window, Source: SourceLocal}, nil
}

// Release frees a take's slot under Concurrent, and reports whether it was held. Errors are as in Take;
// without Redis always an *UnavailableError, and the slot is free when its lease ends.
func (l *Limiter) Release(ctx context.Context, take Take) (bool, error) {
	take.N = 1
	if err := take.checkSlot(); err != nil {
		return false, err
	}
	key := l.key(&take)
	alone := l.fallback.accounts.removeSlot(key, take.Lease)
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
		return &TakeError{*t, "limit", "it has no slots: only a limit with the policy concurrent has"}
	}
	return t.checkLease(true)
}
