package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultTimeout bounds how long a decision waits for Redis.
const DefaultTimeout = 500 * time.Millisecond

// Limiter decides about takes. Its methods may be called concurrently.
type Limiter struct {
	store   store
	local   local
	denials denials
	shares  shares
	breaker breaker
	timeout func() time.Duration
	now     func() time.Time
	asking  sync.WaitGroup // what gives shares back
}

// New returns a limiter that keeps hits in Redis under the namespace. The client must not retry commands
// (redisconn.Settings.Client returns such clients). A decision waits for Redis for at most timeout.
func New(client redis.UniversalClient, namespace string, timeout time.Duration) *Limiter {
	return &Limiter{store: store{client, namespace, scripts}, timeout: func() time.Duration { return timeout }, now: time.Now}
}

// Wait gives back unspent shares, and waits for background work. Call it after the last take, and before the
// client is closed.
func (l *Limiter) Wait() {
	l.giveBackAll()
	l.asking.Wait()
}

// Take decides about takes and counts them, all or none. It refuses a take if its hits and those in the
// window exceed the limit's max. A limit in shadow mode refuses nothing: a take that it would refuse is not
// counted under it, and counts under the others as if it were not there.
//
// Up to MaxTogether takes whose keys one script can reach are atomic: no other caller sees only some of them
// counted. On a cluster, keys of different callers can be on different nodes. Then Take counts one at a time,
// and of more than MaxTogether as many at a time, and gives back what it counted if a later one is refused.
// Others may be refused meanwhile, but none is allowed too much.
//
// The error is a *TooManyError, *TooLargeError, *TwiceError or *LeaseError for bad takes, an
// *UnavailableError if Redis does not decide and the fail mode of one of the limits is closed, a
// *ForbiddenError or a *ForeignError. After an error of ctx, the takes may have been counted.
func (l *Limiter) Take(ctx context.Context, takes []Take) (Answer, error) {
	return l.decide(ctx, takes, true)
}

// Look decides like Take and counts nothing.
func (l *Limiter) Look(ctx context.Context, takes []Take) (Answer, error) {
	return l.decide(ctx, takes, false)
}

// Reset deletes a key's hits. Its error is one of Take's: without Redis always an *UnavailableError.
func (l *Limiter) Reset(ctx context.Context, take Take) error {
	key := l.store.key(&take)
	l.denials.forget(key)
	l.shares.forget(key)
	l.local.forget(key)
	down, err := l.askAbout(ctx, key, func(ctx context.Context) error { return l.store.forget(ctx, key) })
	if down != nil {
		return &UnavailableError{take.Limit, &downError{down}}
	}
	return err
}

// askAbout sends Redis a request about a key that is no take. down is why Redis does not decide.
func (l *Limiter) askAbout(ctx context.Context, key string, ask func(context.Context) error) (down, err error) {
	if !l.breaker.mayAsk(key, l.now()) {
		return errDown, nil
	}
	bounded, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	err = ask(bounded)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err() // the caller is gone: it says nothing about Redis
	}
	err = l.heard(key, err)
	if why, is := errors.AsType[*downError](err); is {
		return why.err, nil
	}
	return nil, err
}

func (l *Limiter) decide(ctx context.Context, takes []Take, count bool) (Answer, error) {
	if never := neverFit(takes); never != nil {
		return l.decideWithout(ctx, takes, never, Decision{Certain: true, Source: FromMemory}, count)
	}
	answer, err := l.decideAll(ctx, takes, count)
	if shadows := shadowsOf(takes); shadows != nil && forbids(err) {
		return l.decideWithout(ctx, takes, shadows, Decision{WouldAllow: true, Source: FromLocal}, count)
	}
	return answer, err
}

func (l *Limiter) decideAll(ctx context.Context, takes []Take, count bool) (Answer, error) {
	keys, err := l.keys(takes, count)
	if err != nil {
		return Answer{}, err
	}
	if count && len(takes) == 1 && takes[0].shares() {
		return l.takeShared(ctx, &takes[0], keys[0])
	}
	return l.decideOf(ctx, takes, keys, count)
}

// decideOf decides about sorted takes with these keys.
func (l *Limiter) decideOf(ctx context.Context, takes []Take, keys []string, count bool) (Answer, error) {
	asked := l.now()
	if count {
		if answer, ok := l.denied(takes, keys, asked); ok {
			return answer, nil
		}
	}
	if ctx.Err() != nil {
		return Answer{}, ctx.Err() // the caller is gone: it says nothing about Redis
	}
	q := question{takes: takes, keys: keys, count: count}
	if !l.breaker.mayAsk(keys[0], asked) {
		return l.withoutRedis(&q, nil, errDown)
	}
	q.stakes = l.local.begin(takes, keys, asked, count)
	states, err := l.ask(ctx, &q)
	if err != nil {
		return l.notDecided(ctx, &q, states, err)
	}
	l.breaker.answered()
	l.local.end(takes, keys, q.stakes, states, l.now())
	l.local.hold(takes, keys, states, l.now())
	for i := range states {
		if takes[i].Limit.Policy == Concurrent {
			continue // a slot can be free again at any time
		}
		if !states[i].fits {
			l.denials.remember(&takes[i], keys[i], states[i], asked)
		} else if takes[i].N < 0 {
			l.denials.forget(keys[i])
		}
	}
	out := answerOf(takes, states, FromRedis, count)
	for i := range out.Decisions {
		if d := &out.Decisions[i]; d.EndsIn > 0 {
			d.EndsIn = max(0, d.EndsIn-l.now().Sub(asked))
		}
	}
	return out, nil
}

// notDecided answers without Redis. states are what was certainly counted all the same.
func (l *Limiter) notDecided(ctx context.Context, q *question, states []state, err error) (Answer, error) {
	if gone := goneOf(ctx); gone != nil { // it says nothing about Redis
		l.settle(q, states, toldNothing)
		return Answer{}, gone
	}
	err = l.heard(q.keys[0], err)
	var down *downError
	if !errors.As(err, &down) {
		l.local.end(q.takes, q.keys, q.stakes, states, l.now())
		return Answer{}, err
	}
	return l.withoutRedis(q, states, down.err)
}

// goneOf returns why the caller is gone, or nil. Its connection's deadline can pass before its context ends.
func goneOf(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

func (l *Limiter) keys(takes []Take, count bool) ([]string, error) {
	out := make([]string, len(takes))
	members := int64(0)
	for i := range takes {
		take := &takes[i]
		if err := take.checkLease(count); err != nil {
			return nil, err
		}
		if take.N > take.Limit.Max {
			return nil, &TooManyError{*take}
		}
		if take.Limit.Policy == Log && take.N > 0 {
			if members += take.N; members > MaxLogTake {
				return nil, &TooLargeError{*take, members}
			}
		}
		out[i] = l.store.key(take)
		if slices.Contains(out[:i], out[i]) {
			return nil, &TwiceError{*take}
		}
	}
	return out, nil
}

// denied returns the refusals in memory. Those in shadow mode, which refuse nothing, decide only alone.
func (l *Limiter) denied(takes []Take, keys []string, now time.Time) (Answer, bool) {
	var known, shadows []Take
	var states, shadowStates []state
	for i := range takes {
		said, ok := l.denials.find(&takes[i], keys[i], now)
		switch {
		case ok && takes[i].Limit.shadow():
			shadows, shadowStates = append(shadows, takes[i]), append(shadowStates, said)
		case ok:
			known, states = append(known, takes[i]), append(states, said)
		}
	}
	if len(shadows) == len(takes) {
		known, states = shadows, shadowStates
	}
	return answerOf(known, states, FromMemory, false), len(known) > 0
}

// downError means that Redis is unavailable, late or full.
type downError struct{ err error }

func (e *downError) Error() string { return fmt.Sprintf("Redis does not decide: %v", e.err) }
func (e *downError) Unwrap() error { return e.err }

// heard updates the breaker. It returns a *downError if Redis did not decide, another error if it refuses to.
func (l *Limiter) heard(key string, err error) error {
	refused := refusedByRedis(err)
	switch {
	case err == nil, refused != nil:
		l.breaker.answered()
		return refused
	case isFull(err):
		l.breaker.answered()
		return &downError{ErrFull}
	}
	l.breaker.failed(key, isLate(err), l.now())
	return &downError{err}
}

// withoutRedis decides by the fail modes, and then keeps or undoes what Redis certainly counted.
func (l *Limiter) withoutRedis(q *question, states []state, why error) (Answer, error) {
	answer, err := l.decideLocally(q, why)
	if err == nil && answer.Allowed {
		l.settle(q, states, toldAllowed)
	} else {
		l.settle(q, states, toldRefused)
	}
	return answer, err
}

func (l *Limiter) decideLocally(q *question, why error) (Answer, error) {
	for i := range q.takes {
		if limit := q.takes[i].Limit; limit.Fail == FailClosed && !limit.shadow() {
			return Answer{}, &UnavailableError{limit, &downError{why}}
		}
	}
	states := l.local.decide(q.takes, q.keys, q.stakes, l.now(), q.count)
	out := answerOf(q.takes, states, FromLocal, q.count)
	for i := range out.Decisions {
		out.Decisions[i].Certain = false
	}
	return out, nil
}

// answerOf builds the answer. counted is true if the hits of allowed takes were counted.
func answerOf(takes []Take, states []state, source Source, counted bool) Answer {
	out := Answer{Allowed: true, Decisions: make([]Decision, len(takes))}
	for i := range states {
		out.Allowed = out.Allowed && (states[i].fits || takes[i].Limit.shadow())
	}
	for i := range takes {
		s, n, most, shadow := &states[i], takes[i].N, takes[i].Limit.Max, takes[i].Limit.shadow()
		d := Decision{
			Take: takes[i], Allowed: s.fits || shadow, Shadow: shadow, WouldAllow: s.fits, RetryAfter: s.wait, Source: source, Lower: s.lower, Upper: s.upper,
			// It is certain if the smallest and the largest possible number of hits lead to the same decision.
			Certain:   n <= 0 || s.fits && s.upper+n <= most || !s.fits && s.lower+n > most,
			Remaining: max(0, most-s.estimate),
		}
		if takes[i].Limit.Policy == Concurrent {
			d.Certain = true
			if s.ends > 0 {
				d.Ends = time.UnixMilli(s.ends).UTC()
				d.EndsIn = takes[i].Limit.Window // less what has passed since Redis was asked
			}
			if s.counted == 0 {
				n = 0 // a slot that was held before
			}
		}
		if counted && out.Allowed && s.fits && n > 0 {
			d.Lower, d.Upper, d.Remaining = d.Lower+n, d.Upper+n, d.Remaining-n
		}
		out.Decisions[i] = d
	}
	return out
}
