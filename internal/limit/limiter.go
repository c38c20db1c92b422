package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// DefaultTimeout is how long a decision waits for Redis.
	DefaultTimeout = 50 * time.Millisecond
	// failuresInARow is how many decisions have to fail before Redis is left alone.
	failuresInARow = 3
	// downFor is how long Redis is then left alone. After that, one decision tries it again.
	downFor = 250 * time.Millisecond
)

// Limiter decides about takes. Its methods may be called concurrently.
type Limiter struct {
	store   store
	local   local
	denials denials
	timeout time.Duration
	now     func() time.Time

	failures  atomic.Int64 // in a row
	downUntil atomic.Int64 // Unix nanoseconds; Redis is not asked before
}

// New returns a limiter that keeps hits in Redis, under the namespace. The client must not repeat commands by itself
// (boot.Redis.Client makes such clients). A decision waits for Redis for at most timeout.
func New(client redis.UniversalClient, namespace string, timeout time.Duration) *Limiter {
	return &Limiter{store: store{client, namespace, scripts}, timeout: timeout, now: time.Now}
}

// Take decides about takes and counts them, all of them or none. A take is refused if its hits and those in
// the window are more than the limit's max together.
//
// If one script can reach all keys, nobody sees some of the takes counted and others not. On a cluster, keys of
// different callers can be on different nodes. Then Take counts one after the other, and gives
// back what it had counted if one is refused: others may be refused meanwhile, but none is
// allowed too much.
//
// The error is a *TooManyError or a *TwiceError for bad takes, an *UnavailableError if Redis
// could not be asked and one of the limits is closed then, a *ForbiddenError or a *ForeignError. If the error is
// that of ctx, the takes may have been counted.
func (l *Limiter) Take(ctx context.Context, takes []Take) (Answer, error) {
	return l.decide(ctx, takes, true)
}

// Look decides like Take and counts nothing.
func (l *Limiter) Look(ctx context.Context, takes []Take) (Answer, error) {
	return l.decide(ctx, takes, false)
}

// Reset forgets the hits of a take's key. The error is one of Take's: an *UnavailableError if Redis
// could not be asked, whatever the limit's fail mode.
func (l *Limiter) Reset(ctx context.Context, take Take) error {
	key := l.store.key(&take)
	l.denials.forget(key)
	l.local.forget(key)
	err := l.ask(ctx, func(ctx context.Context) error { return l.store.forget(ctx, key) })
	var down *downError
	if errors.As(err, &down) {
		return &UnavailableError{take.Limit, down}
	}
	return err
}

func (l *Limiter) decide(ctx context.Context, takes []Take, count bool) (Answer, error) {
	keys, err := l.keys(takes)
	if err != nil {
		return Answer{}, err
	}
	if count {
		if answer, ok := l.denied(takes, keys); ok {
			return answer, nil
		}
	}
	asked := l.now()
	var states []state
	err = l.ask(ctx, func(ctx context.Context) (err error) {
		states, err = l.askStore(ctx, takes, keys, count)
		return err
	})
	var down *downError
	if errors.As(err, &down) {
		return l.withoutRedis(takes, keys, count, down)
	}
	if err != nil {
		return Answer{}, err
	}
	for i := range states {
		if !states[i].fits {
			l.denials.remember(&takes[i], keys[i], states[i], asked)
		} else if takes[i].N < 0 {
			l.denials.forget(keys[i])
		}
	}
	return answerOf(takes, states, FromRedis, count), nil
}

// keys checks takes and returns their keys in Redis.
func (l *Limiter) keys(takes []Take) ([]string, error) {
	out := make([]string, len(takes))
	for i := range takes {
		if takes[i].N > takes[i].Limit.Max {
			return nil, &TooManyError{takes[i]}
		}
		out[i] = l.store.key(&takes[i])
		if slices.Contains(out[:i], out[i]) {
			return nil, &TwiceError{takes[i]}
		}
	}
	return out, nil
}

// denied returns the refusals that memory knows of.
func (l *Limiter) denied(takes []Take, keys []string) (Answer, bool) {
	now := l.now()
	var known []Take
	var states []state
	for i := range takes {
		if said, ok := l.denials.find(&takes[i], keys[i], now); ok {
			known, states = append(known, takes[i]), append(states, said)
		}
	}
	return answerOf(known, states, FromMemory, false), len(known) > 0
}

// askStore asks with one script, or take by take if the keys are on several nodes.
func (l *Limiter) askStore(ctx context.Context, takes []Take, keys []string, count bool) ([]state, error) {
	if l.store.together(takes) {
		return l.store.decide(ctx, takes, keys, count)
	}
	states := make([]state, len(takes))
	all := true
	order := giversLast(takes)
	for done, i := range order {
		s, err := l.store.decide(ctx, takes[i:i+1], keys[i:i+1], count && all)
		if err != nil {
			l.giveBack(ctx, takes, keys, order[:done], count && all)
			return nil, err
		}
		if all && !s[0].fits {
			all = false
			l.giveBack(ctx, takes, keys, order[:done], count)
		}
		states[i] = s[0]
	}
	return states, nil
}

// giversLast orders takes so that those which give back come last. They always fit, and what they have given
// back could not be taken again for certain.
func giversLast(takes []Take) []int {
	var first, last []int
	for i := range takes {
		if takes[i].N < 0 {
			last = append(last, i)
		} else {
			first = append(first, i)
		}
	}
	return append(first, last...)
}

// giveBack gives back the takes, by their places, that were counted before another one was refused. If it fails,
// they stay counted: the limit then refuses too much, never allows too much.
func (l *Limiter) giveBack(ctx context.Context, takes []Take, keys []string, places []int, counted bool) {
	if !counted {
		return
	}
	for _, i := range places {
		take := takes[i]
		if take.N > 0 {
			take.N = -take.N
			_, _ = l.store.decide(ctx, []Take{take}, keys[i:i+1], true)
		}
	}
}

// downError means that Redis could not be asked, or did not answer.
type downError struct{ err error }

func (e *downError) Error() string { return fmt.Sprintf("Redis does not decide: %v", e.err) }
func (e *downError) Unwrap() error { return e.err }

// ask asks Redis, if it is not to be left alone. The error is a *downError if it does not answer.
func (l *Limiter) ask(ctx context.Context, question func(context.Context) error) error {
	if !l.mayAsk() {
		return &downError{errDown}
	}
	bounded, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	err := question(bounded)
	refused := refusedByRedis(err)
	switch {
	case err == nil, refused != nil:
		l.answered()
		return refused
	case ctx.Err() != nil:
		return ctx.Err() // the caller is gone: it says nothing about Redis
	}
	if l.failures.Add(1) >= failuresInARow {
		l.downUntil.Store(l.now().Add(downFor).UnixNano())
	}
	return &downError{err}
}

// mayAsk reports whether Redis may be asked. After downFor, one caller may ask, and the others when it has
// succeeded.
func (l *Limiter) mayAsk() bool {
	until := l.downUntil.Load()
	if until == 0 {
		return true
	}
	now := l.now()
	return now.UnixNano() >= until && l.downUntil.CompareAndSwap(until, now.Add(downFor).UnixNano())
}

func (l *Limiter) answered() {
	if l.failures.Swap(0) > 0 {
		l.downUntil.Store(0)
	}
}

// withoutRedis decides by the fail modes: one that is closed refuses, one that is open allows.
func (l *Limiter) withoutRedis(takes []Take, keys []string, count bool, why error) (Answer, error) {
	var ringTakes []Take
	var ringKeys []string
	for i := range takes {
		switch takes[i].Limit.Fail {
		case FailClosed:
			return Answer{}, &UnavailableError{takes[i].Limit, why}
		case FailLocal:
			ringTakes, ringKeys = append(ringTakes, takes[i]), append(ringKeys, keys[i])
		}
	}
	states := l.local.decide(ringTakes, ringKeys, l.now(), count)
	all := make([]state, len(takes))
	for i := range takes {
		all[i] = state{fits: true}
		if takes[i].Limit.Fail == FailLocal {
			all[i], states = states[0], states[1:]
		}
	}
	out := answerOf(takes, all, FromLocal, count)
	for i := range out.Decisions {
		out.Decisions[i].Certain = false
	}
	return out, nil
}

// answerOf makes the answer of states. If counted is true, the hits of allowed takes were counted.
func answerOf(takes []Take, states []state, source Source, counted bool) Answer {
	out := Answer{Allowed: true, Decisions: make([]Decision, len(takes))}
	for i := range states {
		out.Allowed = out.Allowed && states[i].fits
	}
	for i := range takes {
		s, n, most := &states[i], takes[i].N, takes[i].Limit.Max
		d := Decision{
			Take: takes[i], Allowed: s.fits, RetryAfter: s.wait, Source: source, Lower: s.lower, Upper: s.upper,
			// It is certain if the smallest and the largest possible number of hits lead to the same decision.
			Certain:   n <= 0 || s.fits && s.upper+n <= most || !s.fits && s.lower+n > most,
			Remaining: max(0, most-s.estimate),
		}
		if counted && out.Allowed && n > 0 {
			d.Lower, d.Upper, d.Remaining = d.Lower+n, d.Upper+n, d.Remaining-n
		}
		out.Decisions[i] = d
	}
	return out
}
