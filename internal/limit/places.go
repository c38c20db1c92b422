package limit

import (
	"context"
	"time"
)

// places are the slots of the policy Concurrent that this process gave out under limits with the fail mode
// local. With them it never gives out more than max by itself. local.mu guards them.
// A slot given out without Redis is owed, and counts on top of Redis's, until its lease is renewed there.
type places struct {
	keys   map[string]*keyPlaces // by key in Redis
	all    int
	swept  time.Time
	missed time.Time // when the last lease ends of those that Redis has given out and for which there was no room here
}

type keyPlaces struct {
	leases map[string]place
	owed   int // at least as many as are owed
}

type place struct {
	ends time.Time
	owed bool
	told bool // Redis has had it at some time
}

// note remembers a slot. There are about LocalKeys at most. If a slot of Redis's finds no room here, look
// finds none free until its lease ends.
func (p *places) note(key, lease string, ends time.Time, owed bool, now time.Time) {
	if !owed && !p.knows(key, lease) && !p.room(now) {
		if ends.After(p.missed) {
			p.missed = ends
		}
		return
	}
	k := p.keys[key]
	if k == nil {
		k = &keyPlaces{leases: make(map[string]place, 1)}
		if p.keys == nil {
			p.keys = make(map[string]*keyPlaces)
		}
		p.keys[key] = k
	}
	before, known := k.leases[lease]
	if !known {
		p.all++
	}
	if before.owed {
		k.owed--
	}
	if owed {
		k.owed++
	}
	k.leases[lease] = place{ends, owed, before.told || !owed}
}

func (p *places) knows(key, lease string) bool {
	k := p.keys[key]
	if k == nil {
		return false
	}
	_, known := k.leases[lease]
	return known
}

// room reports whether one more slot can be remembered. When full, it forgets ended ones once per second.
func (p *places) room(now time.Time) bool {
	if p.all < LocalKeys {
		return true
	}
	if now.Sub(p.swept) < time.Second {
		return false
	}
	p.swept = now
	for key, k := range p.keys {
		p.clean(k, now)
		if len(k.leases) == 0 {
			delete(p.keys, key)
		}
	}
	return p.all < LocalKeys
}

func (p *places) clean(k *keyPlaces, now time.Time) {
	for lease, held := range k.leases {
		if !now.Before(held.ends) {
			p.remove(k, lease)
		}
	}
}

func (p *places) remove(k *keyPlaces, lease string) {
	held, known := k.leases[lease]
	if !known {
		return
	}
	if held.owed {
		k.owed--
	}
	delete(k.leases, lease)
	p.all--
}

// release forgets a slot, and reports whether only this process had it.
func (p *places) release(key, lease string) (alone bool) {
	k := p.keys[key]
	if k == nil {
		return false
	}
	alone = k.leases[lease].owed && !k.leases[lease].told
	p.remove(k, lease)
	if len(k.leases) == 0 {
		delete(p.keys, key)
	}
	return alone
}

func (p *places) forget(key string) {
	if k := p.keys[key]; k != nil {
		p.all -= len(k.leases)
		delete(p.keys, key)
	}
}

// owed is the number of slots that count in addition to those in Redis, without the lease's own.
func (p *places) owed(key, lease string, now time.Time) (n int64) {
	k := p.keys[key]
	if k == nil || k.owed == 0 {
		return 0
	}
	p.clean(k, now)
	for name, held := range k.leases {
		if held.owed && name != lease {
			n++
		}
	}
	return n
}

// look decides about a take from the slots remembered here. None is free if it could not be remembered, or
// may be one that could not be.
func (p *places) look(t *Take, key string, now time.Time) (out state) {
	held, wait := int64(0), t.Limit.Window
	again := false
	if k := p.keys[key]; k != nil {
		p.clean(k, now)
		held = int64(len(k.leases))
		_, again = k.leases[t.Lease]
		for _, one := range k.leases {
			wait = min(wait, one.ends.Sub(now))
		}
	}
	out.lower, out.estimate, out.upper = held, held, held
	out.fits = again || held+t.N <= t.Limit.Max && !now.Before(p.missed) && p.room(now)
	if !out.fits {
		out.wait = wait
	}
	return out
}

func (p *places) acquire(t *Take, key string, s *state, now time.Time) {
	before := p.all
	p.note(key, t.Lease, now.Add(t.Limit.Window), true, now)
	s.ends = now.Add(t.Limit.Window).UnixMilli()
	if p.all > before {
		s.counted = 1
	}
}

func (l *local) hold(takes []Take, keys []string, states []state, now time.Time) {
	for i := range takes {
		if states[i].ends > 0 && takes[i].Limit.Fail == FailLocal {
			l.mu.Lock()
			l.places.note(keys[i], takes[i].Lease, now.Add(takes[i].Limit.Window), false, now)
			l.mu.Unlock()
		}
	}
}

// learnPlaces notes that Redis has slots, after all, that were given out here.
func (l *local) learnPlaces(takes []Take, keys []string, states []state) {
	for i := range states {
		if states[i].ends == 0 || takes[i].Limit.Policy != Concurrent {
			continue
		}
		l.mu.Lock()
		if k := l.places.keys[keys[i]]; k != nil {
			if held, known := k.leases[takes[i].Lease]; known && held.owed {
				k.owed--
				k.leases[takes[i].Lease] = place{held.ends, false, true}
			}
		}
		l.mu.Unlock()
	}
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
	if err := take.checkPlace(); err != nil {
		return Lease{}, err
	}
	key, now := l.store.key(&take), l.now()
	what, local := "renew", take.Limit.Fail == FailLocal
	if local && l.local.owes(key, take.Lease, now) {
		what = "adopt"
	}
	var held bool
	var left time.Duration
	var ends int64
	down, err := l.askAbout(ctx, key, func(ctx context.Context) (err error) {
		held, left, ends, err = l.store.lease(ctx, what, &take, key)
		return err
	})
	switch {
	case down != nil:
		return l.renewLocally(&take, key, down)
	case err != nil:
		return Lease{}, err
	}
	if local {
		l.local.renewed(key, take.Lease, held, now.Add(left), now)
	}
	if !held {
		return Lease{Source: FromRedis}, nil
	}
	return Lease{Held: true, Ends: time.UnixMilli(ends).UTC(), EndsIn: max(0, left-l.now().Sub(now)), Source: FromRedis}, nil
}

// renewLocally decides by the fail mode. Another process may have given out a slot that is unknown here: it
// counts as held if there is room.
func (l *Limiter) renewLocally(take *Take, key string, why error) (Lease, error) {
	now := l.now()
	switch take.Limit.Fail {
	case FailClosed:
		return Lease{}, &UnavailableError{take.Limit, &downError{why}}
	case FailLocal:
		l.local.mu.Lock()
		defer l.local.mu.Unlock()
		if !l.local.places.look(take, key, now).fits {
			return Lease{}, &UnavailableError{take.Limit, &downError{why}}
		}
		l.local.places.note(key, take.Lease, now.Add(take.Limit.Window), true, now)
	}
	return Lease{Held: true, Ends: now.Add(take.Limit.Window).UTC(), EndsIn: take.Limit.Window, Source: FromLocal}, nil
}

// Release frees a take's slot under Concurrent, and reports whether it was held. Errors are as in Take;
// without Redis always an *UnavailableError, and the slot is free when its lease ends.
func (l *Limiter) Release(ctx context.Context, take Take) (bool, error) {
	take.N = 1
	if err := take.checkPlace(); err != nil {
		return false, err
	}
	key := l.store.key(&take)
	alone := l.local.released(key, take.Lease)
	var held bool
	down, err := l.askAbout(ctx, key, func(ctx context.Context) (err error) {
		held, _, _, err = l.store.lease(ctx, "release", &take, key)
		return err
	})
	switch {
	case err != nil:
		return false, err
	case down != nil && !alone: // if it is known here alone, Redis has never heard of it
		return false, &UnavailableError{take.Limit, &downError{down}}
	}
	return held || alone, nil
}

func (t *Take) checkPlace() error {
	if t.Limit.Policy != Concurrent {
		return &LeaseError{*t, "limit", "it has no places: only a limit with the policy concurrent has"}
	}
	return t.checkLease(true)
}

func (l *local) owes(key, lease string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.places.keys[key]
	if k == nil {
		return false
	}
	held := k.leases[lease]
	return held.owed && now.Before(held.ends)
}

func (l *local) renewed(key, lease string, held bool, ends, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held {
		l.places.note(key, lease, ends, false, now)
	} else {
		l.places.release(key, lease)
	}
}

func (l *local) released(key, lease string) (alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.places.release(key, lease)
}
