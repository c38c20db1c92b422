package limit

import (
	"context"
	"math"
	"sync"
	"time"

	"tallyroll/internal/limit/cells"
)

// LocalKeys bounds the accounts of this process, which take some 20 to 50 MB. Beyond it the least recently
// used are forgotten; without Redis, their keys restart.
const LocalKeys = 100_000

// accounts is the fifth decider. It holds what this process allowed under limits with the fail mode local,
// granted by Redis or by itself, so it allows at most max, whether Redis answers or not. What it granted
// itself is owed: the next request about the key first counts it in Redis, and until then it counts in
// addition to the hits in Redis.
type accounts struct {
	*process
	next *remote

	mu sync.Mutex // guards the fields below
	// current are by key in Redis. At half of LocalKeys they become older, which are forgotten when that
	// happens again. An account that is used meanwhile moves back.
	current, older map[string]*account
	leases         leases // slots of the policy Concurrent
}

// account is what this process allowed of one key.
type account struct {
	cells.Ring       // all hits that were allowed
	owed       int64 // of them: hits that Redis lacks
	sending    int64 // of them: hits that are being counted in Redis
	pending    int64 // hits that Redis is being asked about
	underWay   int   // requests that Redis is being asked about
	begun      int   // requests so far
}

// extra returns how many hits count in addition to those in Redis. If there are any, pending hits are among
// them, because they can reach Redis after the request that is about to be sent, which would not see them.
func (a *account) extra(now time.Time, window time.Duration) int64 {
	if a.owed+a.sending == 0 {
		return 0
	}
	v := a.At(now, window)
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
	leased   int64 // of extra: the slots that Redis lacks
	begun    int   // of the account, if no other request was under way; otherwise 0
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
	if isFull(err) {
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
		case take.Limit.Policy == Concurrent:
		default:
			v.account = a.find(key)
			if v.account == nil && counts {
				v.account = a.put(key, &account{})
			}
		}
		v.leased = a.leases.owed(key, take.Lease, now)
		v.extra = v.leased
		if own := v.account; own != nil {
			v.extra += own.extra(now, take.Limit.Window)
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
		} else if v.extra == 0 {
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
	v.claimed, v.extra = 0, v.leased
	if lacking := v.owed + v.sending; lacking > 0 {
		v.extra += lacking + v.account.pending - v.pending
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
			n, window := states[i].counted, r.takes[i].Limit.Window
			if states[i].again || r.settle {
				n = states[i].own
			}
			own.Adjust(now, window, n)
			if e.begun == own.begun && own.owed+own.sending == 0 {
				own.Keep(now, window, states[i].upper+max(0, states[i].counted))
			}
		}
		if own.pending+int64(own.underWay) == 0 && own.Empty() && a.current[r.keys[i]] == own {
			delete(a.current, r.keys[i]) // of a first take that was refused
		}
	}
}

// record counts what Redis certainly counted although it failed.
func (a *accounts) record(r *request, states []state, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range states {
		limit := r.takes[i].Limit
		if limit.Fail != FailLocal || limit.Policy == Concurrent || states[i].counted == 0 {
			continue
		}
		a.findOrPut(r.keys[i]).Adjust(now, limit.Window, states[i].counted)
	}
}

// spend counts n pending hits of a share.
func (a *accounts) spend(own *account, now time.Time, window time.Duration, n int64) {
	if own == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	own.pending -= n
	own.Adjust(now, window, n)
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
		if counts && take.Limit.Policy == Concurrent {
			a.leases.acquire(take, r.keys[i], &out[i], now)
		}
		if own == nil {
			continue
		}
		if count && take.N < 0 {
			n := -max(take.N, -math.MaxInt64)
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
	case t.Limit.Policy == Concurrent:
		return a.leases.check(t, key, now)
	}
	v.account = a.findOrPut(key)
	v.View = v.At(now, t.Limit.Window)
	excess := v.Estimate() + v.pending + t.N - t.Limit.Max
	out.fits = t.N <= 0 || excess <= 0
	if !out.fits {
		out.wait = v.Wait(&v.View, excess)
	}
	return out
}

func (a *accounts) find(key string) *account {
	own := a.current[key]
	if own == nil && a.older != nil {
		if own = a.older[key]; own != nil {
			a.put(key, own)
		}
	}
	return own
}

func (a *accounts) findOrPut(key string) *account {
	if own := a.find(key); own != nil {
		return own
	}
	return a.put(key, &account{})
}

func (a *accounts) put(key string, own *account) *account {
	if len(a.current) >= LocalKeys/2 {
		a.turn()
	}
	if a.current == nil {
		a.current = make(map[string]*account)
	}
	a.current[key] = own
	return own
}

// turn forgets the older accounts, except those that are owed or in use, up to a quarter of LocalKeys.
func (a *accounts) turn() {
	kept := make(map[string]*account, LocalKeys/2)
	for key, own := range a.older {
		if own.owed+own.sending+own.pending > 0 && len(kept) < LocalKeys/4 {
			kept[key] = own
		}
	}
	a.older, a.current = a.current, kept
}

func (a *accounts) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.current, key)
	delete(a.older, key)
	a.leases.forget(key)
}
