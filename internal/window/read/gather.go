package read

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"tallyroll/internal/window/internal/cluster"
)

// gatherer lets simultaneous questions share a round trip to Redis. If fewer than maxTrips are under way, or
// if a question would make a trip too large, it travels at once, alone. Otherwise it joins the gathering
// trip, which departs when one returns, or with the next question if none has departed for gatherAtMost. So a
// lone question does not wait, and there is no timer.
//
// What several questions need is read once. A question whose context ends leaves, and the trip goes on. If a
// trip fails, all of its questions get the error. Errors of single keys concern only their readers.
type gatherer struct {
	read func(ctx context.Context, t *trip) error
	// apart is set if questions must not share trips.
	apart bool

	mu        sync.Mutex
	underWay  int       // trips that have departed, except for large ones
	departed  time.Time // when the last of them did
	gathering *trip     // nil if no question waits
}

const (
	// maxTrips bounds the shared trips under way. With one, every question would wait for the slowest.
	maxTrips = 2
	// maxShared bounds the hashes and unique cells of a shared trip: some milliseconds of Redis at most.
	maxShared = 256
	// gatherAtMost bounds how long questions gather if trips hang: they would fail with these.
	gatherAtMost = 100 * time.Millisecond
)

type sharedTrip struct {
	deadline time.Time     // of the question that can wait longest; zero if one can wait for ever
	done     chan struct{} // closed when the trip is back
	err      error
	panicked any
}

// errTripEnded is the error of a trip that ended without one.
var errTripEnded = errors.New("the round trip to Redis has ended early")

func (g *gatherer) ask(ctx context.Context, want keySets) (*trip, error) {
	if g.apart || want.size() > maxShared {
		t := &trip{keySets: want}
		return t, g.read(ctx, t)
	}
	g.mu.Lock()
	if g.underWay < maxTrips {
		g.underWay, g.departed = g.underWay+1, time.Now()
		g.mu.Unlock()
		defer g.back()
		t := &trip{keySets: want}
		return t, g.read(ctx, t)
	}
	t, ok := g.join(ctx, want)
	if time.Since(g.departed) > gatherAtMost {
		g.underWay++
		g.depart()
	}
	g.mu.Unlock()
	if !ok {
		t := &trip{keySets: want}
		return t, g.read(ctx, t)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.done:
	}
	if t.panicked != nil {
		panic(t.panicked)
	}
	return t, t.err
}

// join adds what a question wants to the gathering trip; ok is false if that would be too much.
func (g *gatherer) join(ctx context.Context, want keySets) (t *trip, ok bool) {
	deadline, _ := ctx.Deadline()
	if g.gathering == nil {
		g.gathering = &trip{keySets: want, sharedTrip: sharedTrip{deadline: deadline, done: make(chan struct{})}}
		return g.gathering, true
	}
	t = g.gathering
	if t.size()+want.size() > maxShared {
		return nil, false
	}
	t.cursors.addAll(want.cursors.keys)
	for kind := range want.hashes {
		t.hashes[kind].addAll(want.hashes[kind].keys)
	}
	for _, key := range want.unions.keys {
		t.addUnion(key, strings.Count(key, keySeparator)+1)
	}
	if deadline.IsZero() || !t.deadline.IsZero() && deadline.After(t.deadline) {
		t.deadline = deadline
	}
	return t, true
}

// back makes the gathered trip depart when another one returns.
func (g *gatherer) back() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gathering == nil || g.underWay > maxTrips {
		g.underWay--
		return
	}
	g.depart()
}

func (g *gatherer) depart() {
	go g.travel(g.gathering)
	g.gathering, g.departed = nil, time.Now()
}

func (g *gatherer) travel(t *trip) {
	defer g.back()
	defer close(t.done)
	t.err = errTripEnded
	defer func() {
		if p := recover(); p != nil {
			t.panicked = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
		}
	}()
	ctx := context.Background()
	if !t.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, t.deadline)
		defer cancel()
	}
	t.err = g.read(ctx, t)
}

// gathered is how many hashes the next trip reads.
func (g *gatherer) gathered() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gathering == nil {
		return 0
	}
	return len(g.gathering.hashes[wholeHash].keys)
}

// Gathered returns how many hashes the next shared trip is to read.
func (r *Reader) Gathered() int { return r.trips.gathered() }

type trip struct {
	keySets
	replies
	sharedTrip
}

// replies are what a trip reads in addition to the wanted keys.
type replies struct {
	record, list   cluster.Reply       // the layout record and the list of streams
	idle           cluster.Reply       // the claims
	sent, received time.Time           // by the local clock
	times          cluster.ServerTimes // when everything had been read
}
