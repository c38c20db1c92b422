package limit

import "time"

// leases are the slots of the policy Concurrent that this process gave out under limits with the fail mode
// local. With them it never gives out more than max by itself. What it gave out without Redis is owed, and
// counts in addition to what Redis has until the lease is renewed there. accounts.mu guards them.
type leases struct {
	byKey map[string]map[string]lease // by key in Redis, and name
	owing map[string]int              // leases that are owed, by key, ended ones included
	all   int
	swept time.Time
	// lost is when the last lease ends of those that Redis has given out and for which there was no room
	// here.
	lost time.Time
}

type lease struct {
	ends    time.Time
	owed    bool
	inRedis bool // Redis has had it at some time
}

// add remembers a lease. There are about LocalKeys at most. If one of Redis's finds no room here, check finds
// none free until it ends.
func (s *leases) add(key, name string, ends time.Time, owed bool, now time.Time) {
	before, known := s.byKey[key][name]
	if !owed && !known && !s.hasRoom(now) {
		if ends.After(s.lost) {
			s.lost = ends
		}
		return
	}
	s.remove(key, name)
	if s.byKey == nil {
		s.byKey, s.owing = make(map[string]map[string]lease), make(map[string]int)
	}
	if s.byKey[key] == nil {
		s.byKey[key] = make(map[string]lease, 1)
	}
	s.byKey[key][name] = lease{ends, owed, before.inRedis || !owed}
	s.all++
	if owed {
		s.owing[key]++
	}
}

// hasRoom reports whether one more can be remembered. When full, it forgets ended ones once per second.
func (s *leases) hasRoom(now time.Time) bool {
	if s.all >= LocalKeys && now.Sub(s.swept) >= time.Second {
		s.swept = now
		for key := range s.byKey {
			s.removeEnded(key, now)
		}
	}
	return s.all < LocalKeys
}

func (s *leases) removeEnded(key string, now time.Time) {
	for name, held := range s.byKey[key] {
		if !now.Before(held.ends) {
			s.remove(key, name)
		}
	}
}

// remove forgets a lease, and reports whether only this process had it.
func (s *leases) remove(key, name string) (alone bool) {
	held, known := s.byKey[key][name]
	if !known {
		return false
	}
	s.all--
	if held.owed {
		s.owing[key]--
	}
	delete(s.byKey[key], name)
	if len(s.byKey[key]) == 0 {
		delete(s.byKey, key)
		delete(s.owing, key)
	}
	return held.owed && !held.inRedis
}

func (s *leases) forget(key string) {
	s.all -= len(s.byKey[key])
	delete(s.byKey, key)
	delete(s.owing, key)
}

// owed returns the slots that count in addition to those in Redis, without that of the lease name.
func (s *leases) owed(key, name string, now time.Time) (n int64) {
	if s.owing[key] == 0 {
		return 0
	}
	s.removeEnded(key, now)
	for other, held := range s.byKey[key] {
		if held.owed && other != name {
			n++
		}
	}
	return n
}

// check decides about a slot from those remembered here. None is free if it could not be remembered, or may
// be one that could not be.
func (s *leases) check(t *Take, key string, now time.Time) (out state) {
	s.removeEnded(key, now)
	wait, held := t.Limit.Window, int64(len(s.byKey[key]))
	for _, one := range s.byKey[key] {
		wait = min(wait, one.ends.Sub(now))
	}
	_, again := s.byKey[key][t.Lease]
	out.lower, out.estimate, out.upper = held, held, held
	out.fits = again || held+t.N <= t.Limit.Max && !now.Before(s.lost) && s.hasRoom(now)
	if !out.fits {
		out.wait = wait
	}
	return out
}

// acquire gives out a slot without Redis. Under the fail mode open, nothing is counted.
func (s *leases) acquire(t *Take, key string, out *state, now time.Time) {
	_, known := s.byKey[key][t.Lease]
	ends := now.Add(t.Limit.Window)
	if t.Limit.Fail == FailLocal {
		s.add(key, t.Lease, ends, true, now)
	}
	out.ends = ends.UnixMilli()
	if !known {
		out.counted = 1
	}
}

// addLease remembers what Redis has given out.
func (a *accounts) addLease(key, name string, ends, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leases.add(key, name, ends, false, now)
}

// confirmLeases records that Redis has what was given out here, after all.
func (a *accounts) confirmLeases(r *request, states []state, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range states {
		name := r.takes[i].Lease
		if held := a.leases.byKey[r.keys[i]][name]; states[i].ends > 0 && held.owed {
			a.leases.add(r.keys[i], name, held.ends, false, now)
		}
	}
}

// owesLease reports whether a lease was given out here, and Redis may lack it.
func (a *accounts) owesLease(key, name string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	held := a.leases.byKey[key][name]
	return held.owed && now.Before(held.ends)
}

// removeLease forgets a lease, and reports whether only this process had it.
func (a *accounts) removeLease(key, name string) (alone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases.remove(key, name)
}
