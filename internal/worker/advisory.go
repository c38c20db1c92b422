package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window/schema"
)

// A stream that is not listed in Redis cannot hold as_of back: other streams' as_of would claim its hits. So
// a worker moves as_of only after a check of all streams that began after the moment that as_of claims, and
// that has listed the new ones. The server's advisories only make the worker read new streams sooner.

const (
	streamAdvisories = "$JS.EVENT.ADVISORY.STREAM."
	streamCreated    = streamAdvisories + "CREATED.*"
	streamDeleted    = streamAdvisories + "DELETED.*"
	// checkWithin bounds a check of all streams. Without a reply, as_of stands still.
	checkWithin = time.Second
)

// discoverEvery is how often the worker checks for streams, with or without advisories.
const discoverEvery = time.Second

// streamCheck lets all sessions that wait for a check of all streams share one.
type streamCheck struct {
	js       jetstream.JetStream
	store    *schema.Store
	fleet    *fleet.Fleet
	readable func() fleet.Globs // the streams that the worker may read
	copies   *consume.Copies
	log      zerolog.Logger

	running sync.WaitGroup
	turn    sync.Mutex // held by the round that checks

	mu   sync.Mutex
	next *checkRound     // not begun; nil if no session waits for one
	live map[string]bool // streams known to be listed as live
}

type checkRound struct {
	done chan struct{}
	ok   bool // set before done is closed
}

// allListed reports whether every stream created before this call is listed in Redis.
func (c *streamCheck) allListed(ctx context.Context) bool {
	c.mu.Lock()
	r := c.next
	if r == nil {
		r = &checkRound{done: make(chan struct{})}
		c.next = r
		c.running.Go(func() { c.runRound(r) })
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.ok
	case <-ctx.Done():
		return false
	}
}

func (c *streamCheck) runRound(r *checkRound) {
	c.turn.Lock()
	defer c.turn.Unlock()
	defer close(r.done)
	c.mu.Lock()
	c.next = nil // later callers wait for a later check
	c.mu.Unlock()
	if !c.js.Conn().IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkWithin)
	defer cancel()
	all, err := listStreams(ctx, c.js)
	if err == nil {
		err = c.listNew(ctx, all)
	}
	r.ok = err == nil
	if !r.ok {
		c.log.Debug().Err(err).Msg("as_of stands still: streams could not be checked")
	}
}

// listNew lists the streams that this worker has not listed as live yet.
func (c *streamCheck) listNew(ctx context.Context, all []string) error {
	for _, name := range all {
		c.mu.Lock()
		known := c.live[name]
		c.mu.Unlock()
		if known || !c.fleet.AnyMayRead(name) {
			continue
		}
		if err := c.listStream(ctx, name); err != nil {
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

// resetLive forgets streams that Redis does not list as live, or that are gone, so that listNew lists them if
// they return.
func (c *streamCheck) resetLive(all []string, listed map[string]schema.Listed) {
	live := make(map[string]bool)
	for _, name := range all {
		l, known := listed[name]
		live[name] = known && l.Ended == 0
	}
	c.mu.Lock()
	c.live = live
	c.mu.Unlock()
}

// listStream lists a stream as live, with the moment before which it stored nothing. A mirror that stands
// still must not hold as_of back.
func (c *streamCheck) listStream(ctx context.Context, name string) error {
	infoCtx, cancel := context.WithTimeout(ctx, source.CheckWithin)
	defer cancel()
	handle, err := c.js.Stream(infoCtx, name)
	switch {
	case err == nil && c.copies.StandsStill(c.js, handle.CachedInfo()):
		return nil
	case err == nil:
		return c.store.AddStreamSince(ctx, name, source.Since(handle.CachedInfo()))
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil // deleted again
	case !c.readable().Match(name):
		return c.store.AddUnknownStream(ctx, name) // another worker reads it; this one may lack the right
	}
	return fmt.Errorf("get the info of the new stream %s: %w", name, err)
}

// subscribe signals discoverDue at each advisory of a created or deleted stream. The user may lack the right.
func (c *streamCheck) subscribe(discoverDue wait.Signal) (stop func(), err error) {
	conn := c.js.Conn()
	var subs []*nats.Subscription
	stop = func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // its only error is that the connection is closed
		}
	}
	for _, subject := range []string{streamCreated, streamDeleted} {
		sub, err := conn.Subscribe(subject, func(m *nats.Msg) {
			if c.fleet.AnyMayRead(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]) {
				discoverDue.Give()
			}
		})
		if err != nil {
			stop()
			return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		subs = append(subs, sub)
	}
	_ = conn.FlushTimeout(checkWithin) // a refusal arrives before the flush is answered
	refusal := conn.LastError()
	if errors.Is(refusal, nats.ErrPermissionViolation) && strings.Contains(refusal.Error(), streamAdvisories) {
		c.log.Warn().Msgf("this user may not subscribe to %s: new streams are read up to %s later; grant that right "+
			"to read them at once",
			streamCreated, discoverEvery)
	}
	return stop, nil
}

// listStreams returns the names of all streams, because other workers may read other streams.
func listStreams(ctx context.Context, js jetstream.JetStream) ([]string, error) {
	all := []string{}
	list := js.StreamNames(ctx)
	for name := range list.Name() {
		all = append(all, name)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	return all, nil
}
