package limit

import (
	"context"
	"errors"
	"sync"
	"time"
)

// SharedKeys bounds the keys that a process tracks for shares. Redis decides about further ones.
const SharedKeys = 100_000

// shares is the second decider. With a share, this process acquires many hits from Redis in one decision and
// spends them itself. Redis dates them at the share's end, and every decision counts whatever is dated after
// the window's beginning, the future included.
//
// The bound. Take the last decision of Redis about hits that any process spends in a window, at the time t. A
// hit is spent before its date, and its share is acquired before it is spent. So the hits spent in the window
// up to its end are dated after its beginning, and Redis had counted all of them at t or counts them then:
// none was dated before the beginning of the window that Redis looked at, because that is not later. So they
// are at most max, for any number of processes.
//
// The price: a hit of a share counts up to the share's duration longer than a window, and a limit refuses too
// early by what others hold unspent. If a process dies, its hits stay counted. The process measures the
// duration by its monotonic clock, from before it asks. If the machine is suspended meanwhile, that clock can
// stand still, so the hits that it holds can be allowed too much.
type shares struct {
	*process
	next     *refusals
	fallback *fallback // gives back
	accounts *accounts // have pending hits

	mu    sync.Mutex                  // guards all, and what is in it
	all   bounded[*share]             // by key in Redis
	after func(time.Duration, func()) // calls the function after a time; nil: time.AfterFunc
}

// share is what a process holds of one key.
type share struct {
	limit Limit // as it was when the share was acquired
	take  Take
	key   string

	left    int64 // unspent hits
	granted int64
	until   time.Time
	turn    time.Time // when the period ends; zero without one
	state   state     // the window, as Redis last returned it
	account *account  // where the unspent hits are pending; nil unless the fail mode is local

	size      int64        // of the last share that was asked for
	last      time.Time    // when the share was last used
	pause     time.Time    // until then Redis is not asked for a share, because there was no room for one
	acquiring *acquisition // nil if Redis is not being asked for a share
	scheduled bool         // its expiry is
}

// acquisition is a question to Redis about a share.
type acquisition struct {
	done chan struct{} // closed when it is over
	err  error         // why Redis did not decide; nil if it did, or if its caller is gone
	size int64
}

// shareAction is how a take is decided.
type shareAction int

const (
	spendShare   shareAction = iota // allow it
	askNext                         // by the next decider, alone
	awaitShare                      // after an acquisition by another take
	acquireShare                    // from a share to be acquired
)

func (sh *shares) decide(ctx context.Context, r *request) (verdict, error) {
	if !r.count || r.ids || len(r.takes) != 1 || r.takes[0].N <= 0 || r.takes[0].N >= r.takes[0].Limit.Share.Hits {
		return sh.next.decide(ctx, r)
	}
	for {
		action, s, asked, d := sh.spend(&r.takes[0], r.keys[0])
		switch action {
		case spendShare:
			return verdict{Answer: Answer{Allowed: true, Decisions: []Decision{d}}}, nil
		case askNext:
			return sh.next.decide(ctx, r)
		case acquireShare:
			return sh.acquire(ctx, r, s, asked)
		}
		err := asked.wait(ctx, sh.timeout())
		if ctx.Err() != nil {
			return verdict{}, ctx.Err()
		}
		if err != nil {
			r.down = err
			return sh.next.decide(ctx, r)
		}
	}
}

func (a *acquisition) wait(ctx context.Context, most time.Duration) error {
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
func (sh *shares) spend(take *Take, key string) (shareAction, *share, *acquisition, Decision) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.now()
	s := sh.all[key]
	if s == nil {
		sh.track(take, key, now)
		return askNext, nil, nil, Decision{} // because it may be the only take for long
	}
	if s.limit.Max != take.Limit.Max || s.limit.Share != take.Limit.Share || s.limit.Fail != take.Limit.Fail ||
		s.limit.Period != take.Limit.Period {
		sh.giveBack(s)
		s.limit, s.size, s.pause = *take.Limit, 1, time.Time{}
	}
	idle := now.Sub(s.last)
	s.last = now
	switch {
	case s.left >= take.N && now.Before(s.until):
		return spendShare, nil, nil, sh.subtract(s, take, now)
	case s.acquiring != nil:
		return awaitShare, s, s.acquiring, Decision{}
	case now.Before(s.pause):
		return askNext, nil, nil, Decision{}
	case idle >= s.limit.Share.For || idle < 0:
		s.size = 1
		return askNext, nil, nil, Decision{}
	}
	sh.giveBack(s)
	s.size = min(s.limit.Share.Hits, max(2*s.size, take.N+1))
	s.acquiring = &acquisition{done: make(chan struct{}), size: s.size}
	return acquireShare, s, s.acquiring, Decision{}
}

// track adds a share of no hits, if there is room.
func (sh *shares) track(take *Take, key string, now time.Time) {
	own := *take
	own.N = 0
	s := &share{limit: *take.Limit, take: own, key: key, last: now, size: 1}
	sh.all.put(key, s, SharedKeys, func(s *share) int64 {
		if s.left > 0 || s.acquiring != nil || s.scheduled || now.Sub(s.last) < s.limit.Share.For {
			return stays
		}
		return s.last.UnixNano()
	})
}

// subtract spends hits of a share on a take. The caller holds mu.
func (sh *shares) subtract(s *share, take *Take, now time.Time) Decision {
	s.left -= take.N
	sh.accounts.spend(s.account, now, &s.limit, take.N)
	gone := s.granted - s.left
	return Decision{
		Take: *take, Allowed: true, WouldAllow: true, Source: SourceShare, change: take.N,
		Turn:      max(0, s.turn.Sub(now)), // 0 without one
		Certain:   s.state.upper+s.granted <= s.limit.Max,
		Remaining: max(0, s.limit.Max-s.state.estimate-gone), Lower: s.state.lower + gone, Upper: s.state.upper + gone,
	}
}

// acquire asks Redis for a share, and decides about the request's take from it.
func (sh *shares) acquire(ctx context.Context, r *request, s *share, asked *acquisition) (verdict, error) {
	whole := *r
	whole.takes, whole.share, whole.asked = []Take{r.takes[0]}, true, sh.now()
	whole.takes[0].N = asked.size
	v, err := sh.next.decide(ctx, &whole)
	if down, ok := errors.AsType[*downError](err); ok {
		r.down, asked.err = down.err, errDown
	}
	d, granted := sh.finish(s, asked, &r.takes[0], v, whole.asked)
	switch {
	case granted:
		v.Decisions[0] = d
		return verdict{Answer: v.Answer}, nil
	case err != nil && r.down == nil:
		return verdict{}, err
	}
	return sh.next.decide(ctx, r)
}

// finish ends an acquisition that began then. If Redis granted the share, it returns the decision about the
// take.
func (sh *shares) finish(s *share, asked *acquisition, take *Take, v verdict, began time.Time) (d Decision,
	granted bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.acquiring = nil
	defer close(asked.done)
	now := sh.now()
	switch {
	case v.states == nil:
		return Decision{}, false
	case !v.states[0].fits:
		s.size, s.pause = max(1, asked.size/4), now.Add(s.limit.Share.For)
		return Decision{}, false
	}
	s.left, s.granted, s.until = asked.size, asked.size, began.Add(s.limit.Share.For)
	s.state, s.account, s.turn = v.states[0], v.account, time.Time{}
	if s.state.turn > 0 {
		s.turn = began.Add(s.state.turn)
	}
	d = sh.subtract(s, take, now)
	d.Source = SourceRedis // because it has just decided
	switch {
	case sh.all[s.key] != s: // it was reset, and Redis has lost what is left
		sh.accounts.giveUp(s.account, s.left)
		s.left, s.account = 0, nil
	case !s.scheduled:
		s.scheduled = true
		sh.schedule(s, s.limit.Share.For)
	}
	return d, true
}

func (sh *shares) schedule(s *share, d time.Duration) {
	if sh.after != nil {
		sh.after(d, func() { sh.expire(s) })
		return
	}
	time.AfterFunc(d, func() { sh.expire(s) })
}

func (sh *shares) expire(s *share) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.now()
	if s.left > 0 && now.Before(s.until) {
		sh.schedule(s, s.until.Sub(now))
		return
	}
	s.scheduled = false
	if s.left > 0 {
		s.size = max(1, s.granted-s.left) // twice the spent hits are asked for next
		sh.giveBack(s)
	}
}

// giveBack gives back what is left of a share, in the background. The caller holds mu.
func (sh *shares) giveBack(s *share) {
	if s.left == 0 {
		return
	}
	take, limit, key, n, at, account := s.take, s.limit, s.key, s.left, s.state.at, s.account
	take.Limit = &limit
	s.left, s.account = 0, nil
	sh.background.Go(func() { sh.fallback.giveBack(&take, key, n, at, account) })
}

func (sh *shares) giveBackAll() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, s := range sh.all {
		sh.giveBack(s)
	}
}

// forget drops a share whose hits Redis has lost.
func (sh *shares) forget(key string) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.all[key]; s != nil {
		s.left, s.account = 0, nil
		delete(sh.all, key)
	}
}

// unspent returns the unspent hits by the names of limits.
func (sh *shares) unspent() map[string]int64 {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	out := make(map[string]int64)
	for _, s := range sh.all {
		if s.left > 0 {
			out[s.limit.Name] += s.left
		}
	}
	return out
}
