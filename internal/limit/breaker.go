package limit

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// failuresInARow is how many decisions must fail to open the breaker.
	failuresInARow = 3
	// downFor is how long it stays open. Then one decision tries Redis again.
	downFor = 250 * time.Millisecond
)

// breaker skips Redis after failures in a row, so that not every decision waits for it. If all failures were
// slow replies about one key, it skips Redis for that key only, because others may still work.
type breaker struct {
	until    atomic.Int64           // Unix nanoseconds; Redis is not asked before
	only     atomic.Pointer[string] // the key that is left alone; nil: all are
	failures atomic.Int64           // in a row

	mu      sync.Mutex // for slowKey, and for changes of the others
	slowKey string     // of all failures; empty if they have none in common, or one was no timeout
}

// mayAsk reports whether Redis may be asked about a key. After downFor one caller may, others on its success.
func (b *breaker) mayAsk(key string, now time.Time) bool {
	until := b.until.Load()
	if until == 0 {
		return true
	}
	if only := b.only.Load(); only != nil && *only != key {
		return true
	}
	return now.UnixNano() >= until && b.until.CompareAndSwap(until, now.Add(downFor).UnixNano())
}

func (b *breaker) answered() {
	if b.failures.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures.Store(0)
	b.until.Store(0)
}

// failed records a failure about a key; slow means that no reply came in time.
func (b *breaker) failed(key string, slow bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	failures := b.failures.Add(1)
	switch {
	case !slow, failures > 1 && b.slowKey != key:
		b.slowKey = ""
	default:
		b.slowKey = key
	}
	if failures < failuresInARow {
		return
	}
	b.only.Store(nil)
	if b.slowKey != "" {
		b.only.Store(&key)
	}
	b.until.Store(now.Add(downFor).UnixNano())
}
