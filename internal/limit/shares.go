package limit

import (
	"context"
	"errors"
	"sync"
	"time"
)

// With a share, this process takes many hits from Redis in one decision and spends them itself. Redis counts
// them when the share is taken, so they expire up to the share's duration before the requests they served.
//
// The bound. Let U be the hits that a process holds unspent when a window begins. Whatever it allows in the
// window was counted by Redis in the window, or is among U. Redis counts at most max in the window, and U is
// less than a share, because a process has one share of a key at a time, and spends a hit of it at once. So P
// processes together allow less than max + P × share in any window.
//
// Redis alone decides each refusal. So a limit refuses too early only by what others hold unspent: less than
// P × share, for as long as a share lasts. If a process dies, its hits stay counted for a window.

// SharedKeys bounds the keys that a process tracks for shares. Redis decides about further ones.
const SharedKeys = 100_000

// shares holds the shares of this process, by key in Redis. mu guards them.
type shares struct {
	mu    sync.Mutex
	all   map[string]*share
	after func(time.Duration, func()) // calls the function after a time; nil: time.AfterFunc
}

type share struct {
	limit Limit // as it was when it was taken
	take  Take
	key   string

	left    int64 // hits that are not spent
	until   time.Time
	state   state // the window, as Redis last returned it
	granted int64
	account *account // nil if the limit is not local without Redis; what is left flies there

	size    int64       // that was asked for last
	last    time.Time   // when it was last used
	not     time.Time   // until then Redis is not asked for a share, because there was no room for one
	asking  *shareAsked // nil if Redis is not asked for one
	waiting bool        // for its end
}

type shareAsked struct {
	done chan struct{} // closed when it is over
	err  error         // why Redis has not decided; nil if it has, or if no caller waits any more
	size int64
}

type verdict int

const (
	spent   verdict = iota // it is allowed
	byRedis                // Redis has to decide about it alone
	another                // another one is asking for a share
	fill                   // ask for a share
)

func (l *Limiter) takeShared(ctx context.Context, take *Take, key string) (Answer, error) {
	takes, keys := []Take{*take}, []string{key}
	for {
		v, s, asked, answer := l.spend(take, key)
		switch v {
		case spent:
			return answer, nil
		case byRedis:
			return l.decideOf(ctx, takes, keys, true)
		case fill:
			return l.fill(ctx, takes, keys, s, asked)
		}
		err := asked.wait(ctx, l.timeout())
		if ctx.Err() != nil {
			return Answer{}, ctx.Err()
		}
		if err != nil {
			return l.withoutRedis(&question{takes: takes, keys: keys, count: true}, nil, err)
		}
	}
}

func (a *shareAsked) wait(ctx context.Context, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-a.done:
		return a.err
	case <-timer.C:
		return errDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// spend takes hits from a share, or returns what to do instead.
func (l *Limiter) spend(take *Take, key string) (verdict, *share, *shareAsked, Answer) {
	sh := &l.shares
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := l.now()
	s := sh.all[key]
	if s == nil {
		sh.open(take, key, now)
		return byRedis, nil, nil, Answer{} // it may be the only one for long
	}
	if s.limit.Max != take.Limit.Max || s.limit.Share != take.Limit.Share || s.limit.Fail != take.Limit.Fail {
		l.giveBack(s)
		s.limit, s.size, s.not = *take.Limit, 1, time.Time{}
	}
	idle := now.Sub(s.last)
	s.last = now
	switch {
	case s.left >= take.N && now.Before(s.until):
		return spent, nil, nil, Answer{Allowed: true, Decisions: []Decision{l.spendOf(s, take, now)}}
	case s.asking != nil:
		return another, s, s.asking, Answer{}
	case now.Before(s.not):
		return byRedis, nil, nil, Answer{}
	case idle >= s.limit.Share.For || idle < 0:
		s.size = 1
		return byRedis, nil, nil, Answer{}
	}
	l.giveBack(s)
	s.size = min(s.limit.Share.Hits, max(2*s.size, take.N+1))
	s.asking = &shareAsked{done: make(chan struct{}), size: s.size}
	return fill, s, s.asking, Answer{}
}

func (sh *shares) open(take *Take, key string, now time.Time) {
	if sh.all == nil {
		sh.all = make(map[string]*share)
	}
	if len(sh.all) >= SharedKeys && !sh.makeRoom(now) {
		return
	}
	own := *take
	own.N = 0
	sh.all[key] = &share{limit: *take.Limit, take: own, key: key, last: now, size: 1}
}

// makeRoom removes a few keys with an empty share that was not used for a share's duration.
func (sh *shares) makeRoom(now time.Time) bool {
	seen, removed := 0, false
	for key, s := range sh.all {
		if s.left == 0 && s.asking == nil && !s.waiting && now.Sub(s.last) >= s.limit.Share.For {
			delete(sh.all, key)
			removed = true
		}
		if seen++; seen == 8 {
			break
		}
	}
	return removed
}

func (l *Limiter) spendOf(s *share, take *Take, now time.Time) Decision {
	s.left -= take.N
	l.local.spend(s.account, now, s.limit.Window, take.N)
	gone := s.granted - s.left
	return Decision{
		Take: *take, Allowed: true, WouldAllow: true, Source: FromShare,
		Remaining: max(0, s.limit.Max-s.state.estimate-gone), Lower: s.state.lower + gone, Upper: s.state.upper + gone,
	}
}

// fill asks Redis for a share, and decides about the one take in takes from it.
func (l *Limiter) fill(ctx context.Context, takes []Take, keys []string, s *share, ask *shareAsked) (Answer, error) {
	asked, whole := l.now(), takes[0]
	whole.N = ask.size
	done := func(then func()) {
		l.shares.mu.Lock()
		defer l.shares.mu.Unlock()
		then()
		s.asking = nil
		close(ask.done)
	}
	if !l.breaker.mayAsk(keys[0], asked) {
		done(func() { ask.err = errDown })
		return l.withoutRedis(&question{takes: takes, keys: keys, count: true}, nil, errDown)
	}
	q := question{takes: []Take{whole}, keys: keys, count: true}
	q.stakes = l.local.begin(q.takes, keys, asked, true)
	states, err := l.ask(ctx, &q)
	if err != nil {
		answer, err := l.notFilled(ctx, &q, takes, states, err)
		done(func() {
			if ctx.Err() == nil && !forbids(err) {
				ask.err = errDown
			}
		})
		return answer, err
	}
	l.breaker.answered()
	if !states[0].fits {
		l.local.end(q.takes, keys, q.stakes, states, l.now())
		done(func() {
			s.size, s.not = max(1, ask.size/4), l.now().Add(s.limit.Share.For)
		})
		return l.decideOf(ctx, takes, keys, true)
	}
	var out Decision
	done(func() {
		s.left, s.granted, s.until, s.state = whole.N, whole.N, asked.Add(s.limit.Share.For), states[0]
		s.account = nil
		if q.stakes != nil {
			s.account = q.stakes[0].account
		}
		out = l.spendOf(s, &takes[0], l.now())
		switch {
		case l.shares.all[s.key] != s: // it was reset
			l.drop(s)
		case !s.waiting:
			s.waiting = true
			l.shares.wait(l.expire, s, s.limit.Share.For)
		}
	})
	out.Source, out.Certain = FromRedis, states[0].upper+whole.N <= takes[0].Limit.Max // it has just decided
	return Answer{Allowed: true, Decisions: []Decision{out}}, nil
}

func (l *Limiter) notFilled(ctx context.Context, q *question, takes []Take, states []state, err error) (Answer, error) {
	l.settle(q, states, toldRefused)
	if ctx.Err() != nil {
		return Answer{}, ctx.Err()
	}
	err = l.heard(q.keys[0], err)
	var down *downError
	if !errors.As(err, &down) {
		return Answer{}, err
	}
	return l.withoutRedis(&question{takes: takes, keys: q.keys, count: true}, nil, down.err)
}

func (sh *shares) wait(then func(*share), s *share, d time.Duration) {
	if sh.after != nil {
		sh.after(d, func() { then(s) })
		return
	}
	time.AfterFunc(d, func() { then(s) })
}

func (l *Limiter) expire(s *share) {
	l.shares.mu.Lock()
	defer l.shares.mu.Unlock()
	now := l.now()
	if s.left > 0 && now.Before(s.until) {
		l.shares.wait(l.expire, s, s.until.Sub(now))
		return
	}
	s.waiting = false
	if s.left > 0 {
		s.size = max(1, s.granted-s.left) // twice of what was spent is asked for next
		l.giveBack(s)
	}
}

// giveBack gives back what is left of a share, in the background. The caller holds shares.mu.
func (l *Limiter) giveBack(s *share) {
	if s.left == 0 {
		return
	}
	take, n, at := s.take, s.left, s.state.at
	take.Limit = &Limit{}
	*take.Limit = s.limit
	account, key := s.account, s.key
	s.left, s.account = 0, nil
	l.asking.Go(func() {
		defer l.local.giveUp(account, n)
		if l.breaker.until.Load() != 0 {
			return // Redis is away: they stay counted until they have left the window
		}
		ctx, cancel := context.WithTimeout(context.Background(), undoFor)
		defer cancel()
		if l.store.takeBack(ctx, &take, key, n, at) == nil {
			l.denials.forget(key)
		}
	})
}

// drop discards what is left of a share that Redis has lost.
func (l *Limiter) drop(s *share) {
	l.local.giveUp(s.account, s.left)
	s.left, s.account = 0, nil
}

func (l *Limiter) giveBackAll() {
	l.shares.mu.Lock()
	defer l.shares.mu.Unlock()
	for _, s := range l.shares.all {
		l.giveBack(s)
	}
}

func (sh *shares) forget(key string) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.all[key]; s != nil {
		s.left, s.account = 0, nil
		delete(sh.all, key)
	}
}

// Reserved returns the unspent hits of this process by the names of limits.
func (l *Limiter) Reserved() map[string]int64 {
	l.shares.mu.Lock()
	defer l.shares.mu.Unlock()
	out := make(map[string]int64)
	for _, s := range l.shares.all {
		if s.left > 0 {
			out[s.limit.Name] += s.left
		}
	}
	return out
}
