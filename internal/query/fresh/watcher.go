package fresh

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window/read"
)

const (
	// checkEvery is the shortest time between the beginnings of two reads. A worker commits every 250 ms.
	checkEvery = 50 * time.Millisecond
	// maxWaiting bounds the questions that wait at a time.
	maxWaiting = 20_000
)

// Watcher holds questions back. One goroutine, Run, reads for all of them, so Redis has no more to do however
// many wait.
type Watcher struct {
	read    func(context.Context) (read.Reach, error) // its errors are for clients
	reads   prometheus.Counter
	joined  wait.Signal   // a question has begun to wait
	stopped chan struct{} // closed when Run has ended

	mu      sync.Mutex
	waiting map[*waiter]struct{}
	begun   uint64     // reads that have begun
	last    read.Reach // the latest read that succeeded
	lastAt  time.Time  // when that began
}

// waiter is a question that waits.
type waiter struct {
	Condition
	mayList  bool   // its caller may list the streams
	since    uint64 // the number of the first read that begins after it came
	until    time.Time
	done     chan error // gets one value
	complete int64      // completeFrom, by the first read that showed the messages as counted; Watcher.mu guards it
}

// NewWatcher returns a watcher that the caller must run. program is a part of its metrics' names.
func NewWatcher(read func(context.Context) (read.Reach, error), program string,
	registry prometheus.Registerer) *Watcher {
	w := &Watcher{read: read, joined: wait.NewSignal(), stopped: make(chan struct{}),
		waiting: make(map[*waiter]struct{})}
	w.reads = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "tallyroll", Subsystem: program, Name: "wait_reads_total", Help: "Reads of Redis for all requests " +
			"that wait for counting together.",
	})
	registry.MustRegister(w.reads, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "tallyroll", Subsystem: program, Name: "waiting_requests", Help: "Requests that wait until " +
			"counting is as far as they ask (after, max_age).",
	}, func() float64 { return float64(w.count()) }))
	return w
}

// Run reads while any question waits, until ctx ends. Then it ends all waits.
func (w *Watcher) Run(ctx context.Context) error {
	defer close(w.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.joined:
		}
		for w.count() > 0 {
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
}

// check reads once, and ends each wait that this decides.
func (w *Watcher) check(ctx context.Context) {
	w.mu.Lock()
	w.begun++
	number, began := w.begun, time.Now()
	w.mu.Unlock()
	w.reads.Inc()
	found, err := w.read(ctx)
	if ctx.Err() != nil {
		return // the end of Run ends all waits
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.last, w.lastAt = found, began
	}
	for q := range w.waiting {
		isLater := q.since <= number
		decided, why := isLater, err
		if err == nil {
			decided, why = w.decide(q, isLater)
		}
		if decided {
			delete(w.waiting, q)
			q.done <- why
		}
	}
}

// decide reports whether the latest read decides a wait, and returns why the condition does not hold; nil if
// it does. A read that began before the question came (not isLater) can only show that it holds. The caller
// holds mu.
func (w *Watcher) decide(q *waiter, isLater bool) (decided bool, why error) {
	at, now := &w.last, time.Now()
	missing, counted := q.missing(at)
	if missing == nil && q.complete == 0 {
		q.complete = q.completeFrom(at)
	}
	isPartial := missing == nil && at.AsOf < q.complete
	// Redis's clock, at most the length of the read ahead.
	redisNow := at.Now + now.Sub(w.lastAt).Milliseconds()
	age := time.Duration(redisNow-at.AsOf) * time.Millisecond
	if missing == nil && !isPartial && (q.maxAge == 0 || age <= q.maxAge) {
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
	asOf := time.UnixMilli(at.AsOf).UTC().Format(time.RFC3339Nano)
	switch {
	case now.Before(q.until):
		return false, nil
	case missing != nil && q.mayList:
		why = retryLater(web.NotYet, "%s: stream %s is counted up to %d of %d", q.names.After, missing.stream, counted,
			missing.seq)
	case missing != nil:
		why = retryLater(web.NotYet, "%s: message %d of stream %s is not counted yet", q.names.After, missing.seq,
			missing.stream)
	case isPartial:
		why = retryLater(web.NotYet, "%s: as_of is %s, which is within the cells of these messages", q.names.After,
			asOf)
	default:
		why = retryLater(web.TooOld, "%s: as_of is %s, which is %s ago: at most %s was asked for", q.names.MaxAge, asOf,
			age, q.maxAge)
	}
	return true, why
}

func retryLater(kind *web.Kind, format string, args ...any) error {
	return web.RetryLater(fmt.Sprintf(format, args...), "1").OfKind(kind)
}

// Await returns when the condition holds. Its errors are for the client: a *web.InputError, a *web.Problem,
// or one of read.
func (w *Watcher) Await(ctx context.Context, c Condition) error {
	if c.IsZero() {
		return nil
	}
	mayList := access.From(ctx).Require(access.Admin, "a list of streams") == nil
	q := &waiter{Condition: c, mayList: mayList, until: time.Now().Add(c.wait), done: make(chan error, 1)}
	if waits, why := w.join(q); !waits {
		return why
	}
	if c.Waits != nil {
		defer c.Waits()()
	}
	defer w.leave(q)
	select {
	case why := <-q.done:
		return why
	case <-w.stopped:
		return web.RetryLater("the service is stopping", "1")
	case <-ctx.Done():
		return web.ClientGone()
	}
}

// join begins a wait, unless the latest read is recent and shows that the condition holds, or too many wait.
func (w *Watcher) join(q *waiter) (waits bool, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.lastAt) < checkEvery {
		if holds, _ := w.decide(q, false); holds {
			return false, nil
		}
	}
	if len(w.waiting) >= maxWaiting {
		return false, web.RetryLater(fmt.Sprintf("%d requests wait for counting already, which is the most allowed",
			maxWaiting), "1")
	}
	q.since = w.begun + 1
	w.waiting[q] = struct{}{}
	w.joined.Give()
	return true, nil
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
