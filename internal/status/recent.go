package status

import (
	"context"
	"net/http"
	"sync"
	"time"

	"tallyroll/internal/web"
)

const recentFor = time.Second

// recent is an answer that is read at most once per second, however many ask, and even if reading fails.
type recent[A any] struct {
	mu   sync.Mutex
	last *attempt[A] // nil before the first one
}

type attempt[A any] struct {
	done  chan struct{} // closed at its end; the rest is set before
	at    time.Time
	found A
	err   error
}

// errNotFound is the error for those who wait for an attempt that has panicked.
var errNotFound = web.NewProblem(http.StatusInternalServerError, "a fault of this service, which is in its log")

// get returns the answer of the last attempt, or of a new one if that is over and not recent. An attempt has
// a timeout, whether or not its callers still wait.
func (r *recent[A]) get(ctx context.Context, timeout time.Duration, find func(context.Context) (A, error)) (A, error) {
	r.mu.Lock()
	a := r.last
	due := a == nil || a.isOld()
	if due {
		a = &attempt[A]{done: make(chan struct{}), err: errNotFound}
		r.last = a
	}
	r.mu.Unlock()
	if due {
		a.run(context.WithoutCancel(ctx), timeout, find)
	}
	select {
	case <-a.done:
		return a.found, a.err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

func (a *attempt[A]) run(ctx context.Context, timeout time.Duration, find func(context.Context) (A, error)) {
	defer close(a.done)
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a.found, a.err = find(bounded)
	a.at = time.Now()
}

func (a *attempt[A]) isOld() bool {
	select {
	case <-a.done:
		return time.Since(a.at) >= recentFor
	default:
		return false
	}
}
