package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A stream that is not listed in Redis holds nothing back: the others' as_of would
// claim its hits. So no as_of moves before all streams have been looked at once more,
// by a look that began after what it claims, and new ones have been listed. The
// server's advisories only make new streams be read sooner.

const (
	streamCreated = "$JS.EVENT.ADVISORY.STREAM.CREATED.*"
	streamDeleted = "$JS.EVENT.ADVISORY.STREAM.DELETED.*"
	// censusWithin bounds a look at all streams. Without an answer as_of stands still.
	censusWithin = time.Second
)

// census lets those who wait for a look at all streams share one.
type census struct {
	turn sync.Mutex // held by the round that looks

	mu   sync.Mutex
	next *round          // has not begun; nil if nobody waits for one
	live map[string]bool // streams known to be listed as live
}

type round struct {
	done chan struct{}
	ok   bool
}

// upToDate reports whether every stream made before this call is listed in Redis.
func (w *worker) upToDate(ctx context.Context) bool {
	if w.js == nil {
		return true // a worker without a server has its one stream
	}
	c := &w.census
	c.mu.Lock()
	r := c.next
	if r == nil {
		r = &round{done: make(chan struct{})}
		c.next = r
		w.running.Go(func() { w.count(r) })
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.ok
	case <-ctx.Done():
		return false
	}
}

// count looks at all streams for those who wait for the round.
func (w *worker) count(r *round) {
	c := &w.census
	c.turn.Lock()
	defer c.turn.Unlock()
	defer close(r.done)
	c.mu.Lock()
	c.next = nil // whoever comes now has a later look
	c.mu.Unlock()
	if !w.js.Conn().IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), censusWithin)
	defer cancel()
	all, err := w.list(ctx)
	if err == nil {
		err = w.enlist(ctx, all)
	}
	if r.ok = err == nil; !r.ok {
		w.log.Debug().Err(err).Msg("as_of stands still: streams could not be looked at")
	}
}

// enlist lists the streams that are not known to be listed.
func (w *worker) enlist(ctx context.Context, all []string) error {
	c := &w.census
	for _, name := range all {
		c.mu.Lock()
		known := c.live[name]
		c.mu.Unlock()
		if known || !w.fleet.matters(name) {
			continue
		}
		if err := w.enter(ctx, name); err != nil {
			return err
		}
		c.mu.Lock()
		if c.live == nil {
			c.live = make(map[string]bool)
		}
		c.live[name] = true
		c.mu.Unlock()
	}
	return nil
}

// recall forgets what is not listed as live in Redis, and what is there no more: it
// is listed anew when it comes again.
func (w *worker) recall(ctx context.Context, all []string) error {
	listed, err := w.store.Streams(ctx)
	if err != nil {
		return err
	}
	live := make(map[string]bool)
	for _, name := range all {
		l, known := listed[name]
		live[name] = known && l.Ended == 0
	}
	w.census.mu.Lock()
	w.census.live = live
	w.census.mu.Unlock()
	return nil
}

// enter lists a stream as live, with the moment before which it has stored nothing.
func (w *worker) enter(ctx context.Context, name string) error {
	asking, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	handle, err := w.js.Stream(asking, name)
	switch {
	case err == nil:
		return w.store.AddStreamSince(ctx, name, sinceOf(handle.CachedInfo()))
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil // it is gone again
	case !w.settings.Streams.match(name):
		return w.store.AddUnknownStream(ctx, name) // another worker's, which this one need not have a right to
	}
	return fmt.Errorf("look at the new stream %s: %w", name, err)
}

// hear has streams looked for whenever the server tells that one was made or
// deleted. A user without the right to that goes on without.
func (w *worker) hear() (stop func(), err error) {
	conn := w.js.Conn()
	var subs []*nats.Subscription
	stop = func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // its only error is that the connection is closed
		}
	}
	for _, subject := range []string{streamCreated, streamDeleted} {
		sub, err := conn.Subscribe(subject, func(m *nats.Msg) {
			if w.fleet.matters(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]) {
				signal(w.look)
			}
		})
		if err != nil {
			stop()
			return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		subs = append(subs, sub)
	}
	_ = conn.FlushTimeout(censusWithin) // a refusal comes before the answer; without one there is nothing to say
	if err := conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "$JS.EVENT.ADVISORY.STREAM.") {
		w.log.Warn().Msgf("this user may not subscribe to %s: new streams are read up to %s later; grant that right to read them at once", streamCreated, discoverEvery)
	}
	return stop, nil
}
