package limit

import (
	"math"
	"sync"
	"time"
)

// LocalKeys bounds the accounts of this process, which take some 20 to 50 MB. Beyond it the least recently
// used are forgotten; without Redis, their keys restart.
const LocalKeys = 100_000

// local holds what this process allowed under limits with the fail mode local, granted by Redis or by itself,
// so it allows at most max, whether Redis answers or not. What it granted itself is counted in Redis at the
// next request about the key, and until then in addition to the hits in Redis. mu guards all fields.
type local struct {
	mu sync.Mutex
	// accounts are by key in Redis. At half of LocalKeys they become older, which are forgotten when that
	// happens again. An account that is used meanwhile moves back.
	accounts, older map[string]*account
	places          places // of the policy Concurrent
}

type account struct {
	ring         // all hits that were allowed
	owed   int64 // of them: those that Redis does not know of
	busy   int64 // of them: those that are being counted in Redis
	flying int64 // hits that Redis is being asked about
}

// beside returns how many hits count in addition to those in Redis. If there are any, hits on their way can
// reach Redis after the request that is about to be sent, which is unaware of them.
func (a *account) beside(now time.Time, window time.Duration) int64 {
	if a.owed+a.busy == 0 {
		return 0
	}
	v := a.at(now, window)
	a.owed = min(a.owed, v.sum) // the others have left the window
	n := min(a.owed+a.busy, v.sum)
	if n == 0 {
		return 0
	}
	return n + a.flying
}

// stake is a request's reservation in an account.
type stake struct {
	*account       // nil if there is none
	flying   int64 // the question's own hits
	beside   int64 // hits that count, though Redis does not know of them
	claimed  int64 // of those: hits that the request first counts in Redis
}

// begin reserves for a request to Redis about takes. It returns nil if no account is involved.
func (l *local) begin(takes []Take, keys []string, now time.Time, count bool) []stake {
	var out []stake
	note := func(i int, s stake) {
		if out == nil {
			out = make([]stake, len(takes))
		}
		out[i] = s
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range takes {
		take := &takes[i]
		if take.Limit.Fail != FailLocal {
			continue
		}
		if take.Limit.Policy == Concurrent {
			if n := l.places.owed(keys[i], take.Lease, now); n > 0 {
				note(i, stake{beside: n})
			}
			continue
		}
		flies := count && take.N > 0
		a := l.find(keys[i])
		if a == nil && !flies {
			continue
		}
		if a == nil {
			a = l.open(keys[i])
		}
		s := stake{account: a, beside: a.beside(now, take.Limit.Window)}
		if flies {
			s.flying = take.N
			a.flying += take.N
		}
		if count && s.beside > 0 {
			s.claimed = a.owed
			a.owed, a.busy = 0, a.busy+a.owed
		}
		note(i, s)
	}
	return out
}

// told notes that Redis counted n hits that it lacked.
func (l *local) told(s *stake, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.busy -= n
	s.claimed -= n
	s.beside = 0
	if unknown := s.owed + s.busy; unknown > 0 {
		s.beside = unknown + s.account.flying - s.flying
	}
}

func (l *local) release(s *stake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.busy, s.owed = s.busy-s.claimed, s.owed+s.claimed
	s.claimed = 0
}

// end notes what Redis counted; states is nil if that is nothing or unknown.
func (l *local) end(takes []Take, keys []string, stakes []stake, states []state, now time.Time) {
	if stakes == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range stakes {
		s := &stakes[i]
		if s.account == nil {
			continue
		}
		s.land()
		if states != nil {
			s.count(now, takes[i].Limit.Window, states[i].counted)
		}
		if a := s.account; a.last == 0 && a.flying == 0 && l.accounts[keys[i]] == a {
			delete(l.accounts, keys[i]) // of a first take that was refused
		}
	}
}

func (s *stake) land() {
	if s.account != nil {
		s.account.flying -= s.flying
		s.flying = 0
	}
}

func (a *account) count(now time.Time, window time.Duration, n int64) {
	switch v := a.at(now, window); {
	case n > 0:
		a.add(&v, n)
	case n < 0:
		a.give(&v, -n)
	}
}

// decide is like store.decide, from the accounts alone. What it allows is owed to Redis, which may have
// counted it already or may do so later: then the limit refuses too much.
func (l *local) decide(takes []Take, keys []string, stakes []stake, now time.Time, count bool) []state {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range stakes {
		stakes[i].land()
	}
	out, accounts, views := make([]state, len(takes)), make([]*account, len(takes)), make([]view, len(takes))
	all := true
	for i := range takes {
		if takes[i].Limit.Fail != FailLocal {
			out[i].fits = takes[i].Limit.Fail == FailOpen // one that is closed is here in shadow mode only
			all = all && (out[i].fits || takes[i].Limit.shadow())
			continue
		}
		if takes[i].Limit.Policy == Concurrent {
			out[i] = l.places.look(&takes[i], keys[i], now)
			all = all && (out[i].fits || takes[i].Limit.shadow())
			continue
		}
		limit, a := takes[i].Limit, l.find(keys[i])
		if a == nil {
			a = l.open(keys[i])
		}
		accounts[i], views[i] = a, a.at(now, limit.Window)
		excess := views[i].estimate() + a.flying + takes[i].N - limit.Max
		out[i].fits = takes[i].N <= 0 || excess <= 0
		if !out[i].fits {
			out[i].wait = a.wait(&views[i], excess)
		}
		all = all && (out[i].fits || takes[i].Limit.shadow())
	}
	for i, take := range takes {
		a, v := accounts[i], &views[i]
		if a == nil {
			if all && count && out[i].fits && take.N > 0 && take.Limit.Policy == Concurrent {
				l.places.acquire(&take, keys[i], &out[i], now)
			}
			continue
		}
		if all && count && take.N < 0 {
			n := -max(take.N, -math.MaxInt64)
			a.give(v, n)
			a.owed -= min(n, a.owed)
		}
		out[i].lower, out[i].estimate, out[i].upper = v.lower(), v.estimate(), v.sum
		if all && count && take.N > 0 && out[i].fits {
			a.add(v, take.N)
			a.owed += take.N
		}
	}
	return out
}

func (l *local) find(key string) *account {
	a := l.accounts[key]
	if a == nil && l.older != nil {
		if a = l.older[key]; a != nil {
			l.put(key, a)
		}
	}
	return a
}

func (l *local) open(key string) *account {
	a := &account{}
	l.put(key, a)
	return a
}

func (l *local) put(key string, a *account) {
	if len(l.accounts) >= LocalKeys/2 {
		l.turn()
	}
	if l.accounts == nil {
		l.accounts = make(map[string]*account)
	}
	l.accounts[key] = a
}

// turn forgets the older accounts, except those that are owed or in use, up to a quarter of LocalKeys.
func (l *local) turn() {
	kept := make(map[string]*account, LocalKeys/2)
	for key, a := range l.older {
		if a.owed+a.busy+a.flying > 0 && len(kept) < LocalKeys/4 {
			kept[key] = a
		}
	}
	l.older, l.accounts = l.accounts, kept
}

func (l *local) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.accounts, key)
	delete(l.older, key)
	l.places.forget(key)
}

func (l *local) spend(a *account, now time.Time, window time.Duration, n int64) {
	if a == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.flying -= n
	a.count(now, window, n)
}

// giveUp ends the flight of a share's unspent hits.
func (l *local) giveUp(a *account, n int64) {
	if a == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.flying -= n
}
