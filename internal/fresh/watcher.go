package fresh

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/access"
	"tallyroll/internal/wake"
	"tallyroll/internal/web"
	"tallyroll/internal/window/read"
)

const (
	// checkEvery is the shortest time between the beginnings of two reads. A worker commits every 250 ms.
	checkEvery = 50 * time.Millisecond
	// maxWaiting bounds the requests that wait at a time.
	maxWaiting = 20_000
)

// Watcher holds questions back. One goroutine, Run, reads for all of them, so Redis has no more to do however
// many wait.
type Watcher struct {
	read  func(context.Context) (read.Reach, error) // its errors are for clients
	reads prometheus.Counter
	joins wake.Signal // a question has begun to wait

	mu      sync.Mutex
	waiting map[*waiter]struct{}
	begun   uint64     // reads that have begun
	last    read.Reach // the latest read that succeeded
	lastAt  time.Time  // when that began
	stopped bool
}

// waiter is a question that waits. Its fields belong to Watcher.mu.
type waiter struct {
	Condition
	mayList      bool   // its caller may list the streams
	since        uint64 // the number of the first read that begins after it came
	until        time.Time
	completeFrom int64      // of cellsCompleteFrom, at the first read that showed the messages as counted; or 0
	done         chan error // gets one value
}

// NewWatcher returns a watcher that the caller must run. program is the middle of its metrics' names.
func NewWatcher(read func(context.Context) (read.Reach, error), program string, registry prometheus.Registerer) *Watcher {
	w := &Watcher{read: read, joins: wake.New(), waiting: make(map[*waiter]struct{}), reads: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "tallyroll", Subsystem: program, Name: "wait_reads_total", Help: "Reads of Redis for all requests that wait for counting together.",
	})}
	registry.MustRegister(w.reads, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "tallyroll", Subsystem: program, Name: "waiting_requests", Help: "Requests that wait until counting is as far as they ask (after, max_age).",
	}, func() float64 { return float64(w.count()) }))
	return w
}

// Run reads while any question waits, until ctx ends. Then it ends all waits.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.stop()
	for {
		if w.count() == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-w.joins:
			}
			continue // it may have left already
		}
		began := time.Now()
		w.check(ctx)
		// Reads that take long, of many streams and shards, leave Redis as much time as they take.
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(checkEvery-took, took)):
		}
	}
}

// check reads once, and ends each wait that this decides.
func (w *Watcher) check(ctx context.Context) {
	w.mu.Lock()
	w.begun++
	number := w.begun
	w.mu.Unlock()
	began := time.Now()
	w.reads.Inc()
	found, err := w.read(ctx)
	if ctx.Err() != nil {
		return // stop ends the waits
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.last, w.lastAt = found, began
	}
	now := time.Now()
	for q := range w.waiting {
		isLater := q.since <= number
		switch {
		case err == nil:
			if decided, why := q.decide(&w.last, w.redisNow(now), isLater, now); decided {
				w.end(q, why)
			}
		case isLater:
			w.end(q, err)
		}
	}
}

// redisNow returns Redis's clock at a moment, by the latest read. It is at most that read's length ahead.
func (w *Watcher) redisNow(now time.Time) int64 {
	return w.last.Now + now.Sub(w.lastAt).Milliseconds()
}

// decide reports whether a read decides the wait, and returns why the condition does not hold; nil if it does.
// A read that began before the question came can only show that it holds. redisNow is in Unix milliseconds.
func (q *waiter) decide(at *read.Reach, redisNow int64, isLater bool, now time.Time) (decided bool, why error) {
	missing, counted := q.missing(at)
	if missing == nil && q.completeFrom == 0 {
		q.completeFrom = q.cellsCompleteFrom(at)
	}
	isPartial := missing == nil && at.AsOf < q.completeFrom
	age := time.Duration(redisNow-at.AsOf) * time.Millisecond
	isOld := q.maxAge > 0 && age > q.maxAge
	if missing == nil && !isPartial && !isOld {
		return true, nil
	}
	if !isLater {
		return false, nil
	}
	if missing != nil {
		if why := q.refuse(missing, at, q.mayList); why != nil {
			return true, why
		}
	}
	switch {
	case now.Before(q.until):
		return false, nil
	case missing != nil:
		return true, retry(web.NotYet, q.names.After, "stream %s is counted up to %d of %d", missing.stream, counted, missing.seq)
	case isPartial:
		return true, retry(web.NotYet, q.names.After, "as_of is %s, and the cells of these messages are complete at %s", formatMilli(at.AsOf), formatMilli(q.completeFrom))
	}
	return true, retry(web.TooOld, q.names.MaxAge, "as_of is %s, which is %s ago: at most %s was asked for", formatMilli(at.AsOf), age, q.maxAge)
}

// Await returns when the condition holds. Its errors are for the client: a *web.InputError, or one of read.
func (w *Watcher) Await(ctx context.Context, c Condition) error {
	if c.IsZero() {
		return nil
	}
	q := &waiter{
		Condition: c, mayList: access.From(ctx).Require(access.Admin, "a list of streams") == nil,
		until: time.Now().Add(c.wait), done: make(chan error, 1),
	}
	w.join(q)
	defer w.leave(q)
	select {
	case err := <-q.done:
		return err
	case <-ctx.Done():
		return web.ClientGone()
	}
}

// join begins a wait, or ends it at once: if the latest read is recent and shows that the condition holds, or
// if no more questions may wait.
func (w *Watcher) join(q *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Sub(w.lastAt) < checkEvery {
		if holds, _ := q.decide(&w.last, w.redisNow(now), false, now); holds {
			w.end(q, nil)
			return
		}
	}
	switch {
	case w.stopped:
		w.end(q, errStopping())
	case len(w.waiting) >= maxWaiting:
		w.end(q, web.RetryLater(fmt.Sprintf("%d requests wait for counting already, which is the most allowed", maxWaiting), "1"))
	default:
		q.since = w.begun + 1
		w.waiting[q] = struct{}{}
		w.joins.Give()
	}
}

// end ends a wait. The caller holds mu.
func (w *Watcher) end(q *waiter, why error) {
	delete(w.waiting, q)
	q.done <- why
}

func (w *Watcher) leave(q *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, q)
}

func (w *Watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting)
}

func (w *Watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for q := range w.waiting {
		w.end(q, errStopping())
	}
}

func errStopping() error { return web.RetryLater("the service is stopping", "1") }
