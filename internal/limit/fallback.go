package limit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tallyroll/internal/platform/redisconn"
)

//lint:file-ignore ST1005 Redis is a name

// undoFor bounds the time for taking back what Redis counted in vain.
const undoFor = 5 * time.Second

// fallback is the fourth decider. If Redis fails, is late or full, the limits' fail modes decide, from this
// process's accounts. After failures in a row, the breaker skips Redis.
//
// If a reply is lost or late, only what Redis certainly counted is reconciled with the caller's outcome. The
// rest stays counted, so a limit refuses too much rather than too little.
type fallback struct {
	*process
	accounts *accounts // the next decider
	remote   *remote   // takes back what Redis counted in vain
	breaker  breaker
}

func (f *fallback) decide(ctx context.Context, r *request) (verdict, error) {
	if r.down != nil {
		return f.decideLocally(r, r.down)
	}
	if ctx.Err() != nil {
		return verdict{}, ctx.Err() // the caller is gone: this is no failure of Redis
	}
	if !f.breaker.mayAsk(r.keys[0], r.asked) {
		return f.decideWithout(r, nil, errDown)
	}
	waiting := ctx
	if r.isCounted() {
		waiting = context.WithoutCancel(ctx) // the first reply is counted, even if its caller has gone
	}
	bounded, cancel := context.WithTimeout(waiting, f.timeout())
	defer cancel()
	v, err := f.accounts.decide(bounded, r)
	if err != nil {
		return f.handleFailure(ctx, r, v.states, err)
	}
	f.breaker.succeeded()
	for i := range v.Decisions {
		d := &v.Decisions[i]
		if d.Ends.IsZero() {
			continue
		}
		now := f.now()
		d.EndsIn = max(0, d.EndsIn-now.Sub(r.asked))
		if d.Take.Limit.Fail == FailLocal {
			f.accounts.addLease(r.keys[i], d.Take.Lease, now.Add(d.Take.Limit.Window), now)
		}
	}
	return v, nil
}

// handleFailure answers after an error. states are what was certainly counted all the same.
func (f *fallback) handleFailure(ctx context.Context, r *request, states []state, err error) (verdict, error) {
	gone := ctx.Err()
	if deadline, ok := ctx.Deadline(); ok && gone == nil && !time.Now().Before(deadline) {
		gone = context.DeadlineExceeded // a connection's deadline can pass before its context ends
	}
	if gone != nil {
		f.reconcile(r, states, outcomeNone)
		return verdict{}, gone
	}
	err = f.classify(r.keys[0], err)
	if down, ok := errors.AsType[*downError](err); ok {
		return f.decideWithout(r, states, down.err)
	}
	f.accounts.record(r, states, f.now())
	return verdict{}, err
}

// classify updates the breaker. It returns a *downError if Redis did not decide, another error if it refuses
// to.
func (f *fallback) classify(key string, err error) error {
	refused := refusedByRedis(err)
	switch {
	case err == nil, refused != nil:
		f.breaker.succeeded()
		return refused
	case redisconn.IsFull(err): // nothing was counted
		f.breaker.succeeded()
		return &downError{ErrFull}
	}
	if shared, ok := errors.AsType[*tripError](err); ok {
		if !shared.trip.failed.Swap(true) {
			f.breaker.failed("", f.now())
		}
		return &downError{err}
	}
	late := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
	if !late {
		key = severalKeys
	}
	f.breaker.failed(key, f.now())
	return &downError{err}
}

// decideWithout decides by the fail modes, and reconciles what Redis certainly counted with the outcome. A
// share fails with a *downError, because only Redis gives shares.
func (f *fallback) decideWithout(r *request, states []state, why error) (verdict, error) {
	if r.share {
		f.reconcile(r, states, outcomeRefused)
		return verdict{}, &downError{why}
	}
	v, err := f.decideLocally(r, why)
	o := outcomeRefused
	if err == nil && v.Allowed {
		o = outcomeAllowed
	}
	f.reconcile(r, states, o)
	return v, err
}

func (f *fallback) decideLocally(r *request, why error) (verdict, error) {
	for i := range r.takes {
		limit := r.takes[i].Limit
		isClosed := limit.Fail == FailClosed || r.settle && limit.Fail == FailLocal
		if r.release || limit.Mode != Shadow && isClosed {
			return verdict{}, &UnavailableError{limit, &downError{why}}
		}
	}
	states := make([]state, len(r.takes))
	if r.settle {
		for i := range states {
			states[i].fits = true // and nothing changes
		}
	} else {
		states = f.accounts.decideLocally(r, f.now())
	}
	if r.renew && !states[0].fits {
		return verdict{}, &UnavailableError{r.takes[0].Limit, &downError{why}}
	}
	a := buildAnswer(r.takes, states, SourceLocal, r.count && !r.settle)
	for i := range a.Decisions {
		a.Decisions[i].Certain = false
	}
	return verdict{Answer: a}, nil
}

// outcome is the answer that the caller got without Redis.
type outcome int

const (
	outcomeAllowed outcome = iota
	outcomeRefused         // or that Redis does not decide
	outcomeNone            // the caller was gone
)

// reconcile undoes what Redis certainly counted for a refused take, but nothing that it may not have counted,
// because that would allow too much.
func (f *fallback) reconcile(r *request, states []state, o outcome) {
	if states == nil {
		return
	}
	switch o {
	case outcomeRefused:
		f.remote.undo(r.takes, r.keys, states)
	case outcomeNone:
		f.accounts.record(r, states, f.now())
		slots := slices.Clone(states) // no caller holds them
		for i := range slots {
			if !r.takes[i].Limit.Policy.Traits().Slots {
				slots[i].counted = 0
			}
		}
		f.remote.undo(r.takes, r.keys, slots)
	}
}

// giveBack gives back n unspent hits of a share, which are pending in the account. While Redis is down, they
// stay counted until they leave the window.
func (f *fallback) giveBack(take *Take, key string, n, at int64, a *account) {
	defer f.accounts.giveUp(a, n)
	if f.breaker.until.Load() != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoFor)
	defer cancel()
	_ = f.remote.takeBack(ctx, take, key, n, at)
}

// reset forgets a key here and in Redis.
func (f *fallback) reset(ctx context.Context, limit *Limit, key string) error {
	f.accounts.forget(key)
	if !f.breaker.mayAsk(key, f.now()) {
		return &UnavailableError{limit, &downError{errDown}}
	}
	bounded, cancel := context.WithTimeout(ctx, f.timeout())
	defer cancel()
	err := f.remote.store.forget(bounded, key)
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // the caller is gone: this is no failure of Redis
	}
	err = f.classify(key, err)
	if down, ok := errors.AsType[*downError](err); ok {
		return &UnavailableError{limit, down}
	}
	return err
}

// ErrFull means that Redis has no memory left for hits.
var ErrFull = errors.New("Redis is full (maxmemory)")

var errDown = errors.New("no answer from Redis before; it is asked again soon")

// downError means that Redis is down, late or full.
type downError struct{ err error }

func (e *downError) Error() string { return fmt.Sprintf("Redis does not decide: %v", e.err) }
func (e *downError) Unwrap() error { return e.err }

// UnavailableError means that Redis is down, late or full, and the limit's fail mode is closed.
type UnavailableError struct {
	Limit *Limit
	Err   error
}

func (e *UnavailableError) Error() string { return "Redis cannot decide now" }
func (e *UnavailableError) Unwrap() error { return e.Err }

const (
	// failuresInARow is how many decisions must fail to open the breaker.
	failuresInARow = 3
	// openFor is how long it stays open. Then one decision tries Redis again.
	openFor = 250 * time.Millisecond
)

// breaker skips Redis after failures in a row, so that not every decision waits for it. If all failures were
// slow replies about one key, it skips Redis for that key only, because others may still work.
type breaker struct {
	until    atomic.Int64           // Unix nanoseconds: Redis is not asked before; 0: closed
	only     atomic.Pointer[string] // the key that Redis is not asked about; nil: all keys
	failures atomic.Int64           // in a row

	mu      sync.Mutex // for slowKey, and for changes of the others
	slowKey string     // that all failures can be about; empty, or severalKeys
}

// mayAsk reports whether Redis may be asked about a key. After openFor one caller may, others on its success.
func (b *breaker) mayAsk(key string, now time.Time) bool {
	until := b.until.Load()
	if until == 0 {
		return true
	}
	if only := b.only.Load(); only != nil && *only != key {
		return true
	}
	return now.UnixNano() >= until && b.until.CompareAndSwap(until, now.Add(openFor).UnixNano())
}

func (b *breaker) succeeded() {
	if b.failures.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures.Store(0)
	b.until.Store(0)
}

// severalKeys stands in place of a key if a failure was no timeout, or if failures have no key in common.
const severalKeys = "*"

// failed records a failure: a timeout about a key, or about an unknown one of several if key is empty.
func (b *breaker) failed(key string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	failures := b.failures.Add(1)
	switch {
	case failures == 1, b.slowKey == "":
		b.slowKey = key
	case key != "" && key != b.slowKey:
		b.slowKey = severalKeys
	}
	if failures < failuresInARow {
		return
	}
	b.only.Store(nil)
	if slow := b.slowKey; slow != "" && slow != severalKeys {
		b.only.Store(&slow)
	}
	b.until.Store(now.Add(openFor).UnixNano())
}
