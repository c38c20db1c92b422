package limit

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxTrips is how many round trips to a node are under way before scripts gather.
	maxTrips = 2
	// maxShared bounds the takes of a shared trip, because all replies come at its end: some 4 ms of Redis.
	maxShared = 64
	// maxSharedHits bounds the hits of a shared take if its policy bounds those of a request.
	maxSharedHits = 10
	// gatherAtMost bounds how long scripts gather, so that a slow one delays no others.
	gatherAtMost = 10 * time.Millisecond
	// maxSuspects bounds the keys that go alone.
	maxSuspects = 10_000
	// idleTrips is how long trips to a node are unused before they are forgotten.
	idleTrips = time.Minute
)

// trips lets cheap scripts share round trips to a node of Redis. If fewer than maxTrips are under way, a
// script is sent at once, alone. Otherwise it joins the next trip, which departs when one returns, or after
// gatherAtMost.
//
// A trip has a context of its own, until the latest deadline. Each caller waits by its own, and one that
// goes away takes no other's answer along; if it is gone before the trip departs, its script is not sent.
// Errors in replies are per script. If the trip fails, that is one failure, and no evidence about a key:
// its keys then go alone, until Redis answers about them.
type trips struct {
	node       redis.Cmdable
	background *sync.WaitGroup

	mu       sync.Mutex        // for the fields below
	underWay int               // trips that have departed, except those of suspects
	usedAt   time.Time         // when the last script came
	next     *trip             // gathers; nil if no script waits
	suspects bounded[struct{}] // keys that go alone
}

// trip is scripts that are sent together.
type trip struct {
	scripts  []*sentScript
	takes    int
	deadline time.Time
	timer    *time.Timer
	done     chan struct{} // closed when the replies are there
	err      error         // of the whole
	failed   atomic.Bool   // a caller has reported that it failed
}

type sentScript struct {
	ctx    context.Context
	script *redis.Script
	keys   []string
	args   []any
	reply  *redis.Cmd // nil before the trip is done, or if the caller was gone before it departed
}

func (s *sentScript) runAlone(node redis.Scripter) ([]any, error) {
	return s.script.Run(s.ctx, node, s.keys, s.args...).Slice()
}

// tripError means that a shared trip failed, and not which of its scripts is why.
type tripError struct {
	error
	trip *trip
}

func (e *tripError) Unwrap() error { return e.error }

// isShareable reports whether a script is so cheap that others can wait for its reply.
func isShareable(m mode, r *request) bool {
	if m == force || m == undo {
		return false
	}
	for i := range r.takes {
		t := &r.takes[i]
		if most := t.Limit.Policy.Traits().MaxTake; t.N < 0 || most > 0 && (m == settle || t.N > maxSharedHits) {
			return false
		}
	}
	return true
}

// run runs a script about so many takes. key is that of the first.
func (t *trips) run(s *sentScript, key string, takes int) ([]any, error) {
	t.mu.Lock()
	t.usedAt = time.Now()
	if _, suspect := t.suspects[key]; suspect {
		t.mu.Unlock()
		reply, err := s.runAlone(t.node)
		if err == nil {
			t.mu.Lock()
			delete(t.suspects, key)
			t.mu.Unlock()
		}
		return reply, err
	}
	if t.underWay < maxTrips {
		t.underWay++
		t.mu.Unlock()
		defer t.back()
		return s.runAlone(t.node)
	}
	joined := t.join(s, takes)
	t.mu.Unlock()
	select {
	case <-joined.done:
	case <-s.ctx.Done():
		return nil, t.failed(joined, key, s.ctx.Err())
	}
	if s.reply == nil { // it was gone before the trip departed
		return nil, t.failed(joined, key, s.ctx.Err())
	}
	reply, err := s.reply.Slice()
	var answered redis.Error
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return s.runAlone(t.node)
	case s.reply.Val() == nil && !errors.As(err, &answered): // without a connection, only the trip has an error
		return nil, t.failed(joined, key, cmp.Or(s.reply.Err(), joined.err))
	}
	return reply, err
}

// isIdle reports whether no script has come for long. One that still waits goes on without the trips.
func (t *trips) isIdle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.usedAt) > idleTrips
}

// failed notes that a key's trip has failed. Whether it is slow shows alone.
func (t *trips) failed(joined *trip, key string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.suspects.put(key, struct{}{}, maxSuspects, func(struct{}) int64 { return 0 })
	return &tripError{err, joined}
}

// join adds a script to the next trip. The caller holds mu.
func (t *trips) join(s *sentScript, takes int) *trip {
	if t.next != nil && t.next.takes+takes > maxShared {
		t.depart()
	}
	if t.next == nil {
		next := &trip{done: make(chan struct{})}
		next.timer = time.AfterFunc(gatherAtMost, func() { t.departLate(next) })
		t.next = next
	}
	t.next.scripts, t.next.takes = append(t.next.scripts, s), t.next.takes+takes
	if deadline, ok := s.ctx.Deadline(); ok && deadline.After(t.next.deadline) {
		t.next.deadline = deadline
	}
	return t.next
}

// departLate sends a trip for which no other one has returned in time.
func (t *trips) departLate(late *trip) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next == late {
		t.depart()
	}
}

// back sends the next trip when another one returns.
func (t *trips) back() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.underWay--; t.next != nil && t.underWay < maxTrips {
		t.depart()
	}
}

// depart sends the next trip. The caller holds mu.
func (t *trips) depart() {
	sent := t.next
	t.next = nil
	sent.timer.Stop()
	t.underWay++
	t.background.Go(func() {
		defer t.back()
		sent.send(t.node)
	})
}

func (t *trip) send(node redis.Cmdable) {
	defer close(t.done)
	ctx, cancel := context.WithDeadline(context.Background(), t.deadline)
	defer cancel()
	pipe := node.Pipeline()
	for _, s := range t.scripts {
		if s.ctx.Err() == nil {
			s.reply = s.script.EvalSha(ctx, pipe, s.keys, s.args...)
		}
	}
	_, t.err = pipe.Exec(ctx)
}
