package limit

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"tallyroll/internal/limit/cells"
	"tallyroll/internal/platform/redisconn"
)

// LocalKeys bounds the accounts of this process, which take some 20 to 75 MB. Beyond it some of those whose
// last hit is oldest are forgotten; without Redis, their keys restart.
const LocalKeys = 100_000

// accounts is the fifth decider. It holds what this process allowed under limits with the fail mode local,
// granted by Redis or by itself, so it allows at most max, whether Redis answers or not. What it granted
// itself is owed: the next request about the key first counts it in Redis, and until then it counts in
// addition to the hits in Redis.
type accounts struct {
	*process
	next *remote

	mu     sync.Mutex        // guards the fields below
	all    bounded[*account] // by key in Redis
	leases leases            // of policies that have slots
}

// account is what this process allowed of one key.
type account struct {
	cells.Ring       // all hits that were allowed
	owed       int64 // of them: hits that Redis lacks
	sending    int64 // of them: hits that are being counted in Redis
	pending    int64 // hits that Redis is being asked about
	underWay   int   // requests that Redis is being asked about
	begun      int   // requests so far
	period     int64 // the number of the one that the hits are in, if the policy turns
}

// enter forgets hits of an earlier period. It returns the time until this one ends; 0 if the window rolls.
func (a *account) enter(l *Limit, now time.Time) time.Duration {
	if !l.Policy.Traits().Turns {
		return 0
	}
	number, left := l.turn(now)
	a.turn(number)
	return left
}

func (a *account) turn(number int64) {
	if number > a.period {
		a.Ring, a.owed, a.period = cells.Ring{}, 0, number
	}
}

// extra returns how many hits count in addition to those in Redis. If there are any, pending hits are among
// them, because they can reach Redis after the request that is about to be sent, which would not see them.
func (a *account) extra(now time.Time, l *Limit) int64 {
	a.enter(l, now)
	if a.owed+a.sending == 0 {
		return 0
	}
	v := a.At(now, l.ring())
	a.owed = min(a.owed, v.Sum) // the others have left the window
	n := min(a.owed+a.sending, v.Sum)
	if n == 0 {
		return 0
	}
	return n + a.pending
}

// entry is a request's part of an account.
type entry struct {
	*account       // nil if the key has no account
	pending  int64 // the request's own hits
	extra    int64 // hits that count, though Redis lacks them
	claimed  int64 // of those: hits that the request first counts in Redis
	begun    int   // of the account, if no other request was under way; otherwise 0
	adopted  bool  // Redis may lack the lease that is renewed, and counts it even beyond max
}

func (a *accounts) decide(ctx context.Context, r *request) (v verdict, err error) {
	r.entries = a.beginEntries(r, r.asked)
	for i := 0; i < len(r.entries) && err == nil; i++ {
		err = a.countOwed(ctx, r, i)
	}
	if err == nil {
		v, err = a.next.decide(ctx, r)
	}
	if r.share && err == nil && v.states[0].fits && r.entries != nil {
		v.account = r.entries[0].account // where its hits are pending until they are spent
		r.entries[0].pending, v.states[0].counted = 0, 0
	}
	states := v.states
	if err != nil {
		states = nil
	}
	a.commit(r, states, a.now())
	return v, err
}

// countOwed counts in Redis what was allowed without it. If Redis is full or has max hits, the rest stays
// here.
func (a *accounts) countOwed(ctx context.Context, r *request, i int) error {
	v, take := &r.entries[i], &r.takes[i]
	if v.claimed == 0 {
		return nil
	}
	counted, err := a.next.force(ctx, take, r.keys[i], v.claimed, take.Limit.Max)
	a.confirm(v, counted)
	if redisconn.IsFull(err) {
		return nil
	}
	return err
}

// beginEntries returns a request's entries, or nil if no account is involved.
func (a *accounts) beginEntries(r *request, now time.Time) (out []entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range r.takes {
		var v entry
		take, key := &r.takes[i], r.keys[i]
		counts := r.count && take.N > 0
		switch {
		case take.Limit.Fail != FailLocal:
			continue
		case take.Limit.Policy.Traits().Slots:
			v.extra = a.leases.owed(key, take.Lease, now)
			v.adopted = r.renew && a.leases.byKey[key][take.Lease].isOwed(now)
		default:
			v.account = a.all[key]
			if v.account == nil && counts {
				v.account = a.findOrPut(key)
			}
		}
		if own := v.account; own != nil {
			v.extra = own.extra(now, take.Limit)
			own.begun++
			if own.underWay++; own.underWay == 1 && own.pending == 0 {
				v.begun = own.begun
			}
			if counts && !r.settle {
				v.pending = take.N
				own.pending += take.N
			}
			if r.count && v.extra > 0 {
				v.claimed = own.owed
				own.owed, own.sending = 0, own.sending+own.owed
			}
		} else if v.extra == 0 && !v.adopted {
			continue
		}
		if out == nil {
			out = make([]entry, len(r.takes))
		}
		out[i] = v
	}
	return out
}

// confirm records that Redis counted n of the claimed hits. It leaves the others to a later request.
func (a *accounts) confirm(v *entry, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v.sending -= v.claimed
	v.owed += v.claimed - n
	v.claimed, v.extra = 0, 0
	if lacking := v.owed + v.sending; lacking > 0 {
		v.extra = lacking + v.account.pending - v.pending
	}
}

// commit ends a request's entries with what Redis counted; states is nil if that is nothing or unknown.
//
// What the answer to the caller allows is in the account, also if Redis counted it before, for this process
// or another. Then it may be there twice, and what others gave back, settled or reset is still there, too.
// So if no other request about the key was under way, and Redis lacks nothing, the account keeps no more hits
// than the window has there: the newest, as if the others had been the oldest. So at any time later it has at
// least those of this process that are left.
func (a *accounts) commit(r *request, states []state, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range r.entries {
		e := &r.entries[i]
		own := e.account
		if own == nil {
			continue
		}
		own.pending -= e.pending
		own.underWay--
		if states != nil {
			n, window := states[i].counted, r.takes[i].Limit.ring()
			own.enter(r.takes[i].Limit, now)
			if r.takes[i].Limit.Policy.Traits().Turns && states[i].counted > 0 {
				own.turn(states[i].at) // Redis's clock can be ahead
			}
			if states[i].again || r.settle {
				n = states[i].own
			}
			own.Adjust(now, window, n)
			if e.begun == own.begun && own.owed+own.sending == 0 {
				own.Keep(now, window, states[i].upper+max(0, states[i].counted))
			}
		}
		if own.pending+int64(own.underWay) == 0 && own.Empty() && a.all[r.keys[i]] == own {
			delete(a.all, r.keys[i]) // of a first take that was refused
		}
	}
}

// record counts what Redis certainly counted although it failed.
func (a *accounts) record(r *request, states []state, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range states {
		limit := r.takes[i].Limit
		if limit.Fail != FailLocal || limit.Policy.Traits().Slots || states[i].counted == 0 {
			continue
		}
		own := a.findOrPut(r.keys[i])
		own.enter(limit, now)
		own.Adjust(now, limit.ring(), states[i].counted)
	}
}

// spend counts n pending hits of a share.
func (a *accounts) spend(own *account, now time.Time, l *Limit, n int64) {
	if own == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	own.pending -= n
	own.enter(l, now)
	own.Adjust(now, l.ring(), n)
}

// giveUp drops n pending hits of a share.
func (a *accounts) giveUp(own *account, n int64) {
	if own == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	own.pending -= n
}

// decideLocally decides without Redis, by the fail modes. What it allows is owed to Redis, which may have
// counted it already or may do so later: then the limit refuses too much.
func (a *accounts) decideLocally(r *request, now time.Time) []state {
	a.mu.Lock()
	defer a.mu.Unlock()
	var one [1]accountView // on the stack, for most requests
	out, views := make([]state, len(r.takes)), one[:]
	if len(r.takes) > 1 {
		views = make([]accountView, len(r.takes))
	}
	count := r.count
	for i := range r.takes {
		out[i] = a.check(&r.takes[i], r.keys[i], now, &views[i])
		count = count && (out[i].fits || r.takes[i].Limit.Mode == Shadow)
	}
	for i := range r.takes {
		take, own, v := &r.takes[i], views[i].account, &views[i].View
		counts := count && out[i].fits && take.N > 0
		switch {
		case counts && take.Limit.Policy.Traits().Slots:
			a.leases.acquire(take, r.keys[i], &out[i], now)
		case counts:
			out[i].counted = take.N
		}
		if own == nil {
			continue
		}
		if count && take.N < 0 {
			n := -max(take.N, -math.MaxInt64)
			out[i].counted = -min(n, v.Sum)
			own.Give(v, n)
			own.owed -= min(n, own.owed)
		}
		out[i].lower, out[i].estimate, out[i].upper = v.Lower(), v.Estimate(), v.Sum
		if counts {
			own.Add(v, take.N)
			own.owed += take.N
		}
	}
	return out
}

type accountView struct {
	*account
	cells.View
}

// check decides about one take and counts nothing. It sets the view only if an account decides.
func (a *accounts) check(t *Take, key string, now time.Time, v *accountView) (out state) {
	switch {
	case t.Limit.Fail != FailLocal:
		out.fits = t.Limit.Fail == FailOpen // one that is closed is here in shadow mode only
		return out
	case t.Limit.Policy.Traits().Slots:
		return a.leases.check(t, key, now)
	}
	v.account = a.findOrPut(key)
	out.turn = v.account.enter(t.Limit, now)
	v.View = v.At(now, t.Limit.ring())
	excess := v.Estimate() + v.pending + t.N - t.Limit.Max
	out.fits = t.N <= 0 || excess <= 0
	if !out.fits {
		out.wait = cmp.Or(out.turn, v.Wait(&v.View, excess))
	}
	return out
}

func (a *accounts) findOrPut(key string) *account {
	own := a.all[key]
	if own == nil {
		own = &account{}
		a.all.put(key, own, LocalKeys, (*account).rank)
	}
	return own
}

// rank is the order in which accounts are forgotten: last those that Redis lacks hits of, or that are in use.
func (a *account) rank() int64 {
	if a.owed+a.sending+a.pending > 0 {
		return stays/2 + a.Last()
	}
	return a.Last()
}

func (a *accounts) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, key)
	a.leases.forget(key)
}

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

func (l lease) isOwed(now time.Time) bool { return l.owed && now.Before(l.ends) }

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
// be one that could not be. A lease that is unknown here is renewed if a slot is free: another process may
// have given it out.
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

// removeLease forgets a lease, and reports whether only this process had it.
func (a *accounts) removeLease(key, name string) (alone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases.remove(key, name)
}
