package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/window/schema"
)

// countedStreams knows which streams count, for consume.Copies.
type countedStreams struct {
	js    jetstream.JetStream
	fleet *fleet.Fleet

	mu      sync.Mutex
	all     []string                 // streams that exist
	listed  map[string]schema.Listed // in Redis; as read last
	missing map[string]time.Time     // when streams that a message names were found missing
}

func (c *countedStreams) copies() *consume.Copies {
	return &consume.Copies{Counts: c.counts, MayCount: c.mayCount}
}

func (c *countedStreams) set(all []string, listed map[string]schema.Listed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.Clone(all)
	if listed != nil {
		c.listed = listed
	}
	clear(c.missing)
}

// counts is consume.Copies.Counts. A message can name a stream that was created since the last check.
func (c *countedStreams) counts(name string) bool {
	c.mu.Lock()
	_, listed := c.listed[name]
	exists, missing := slices.Contains(c.all, name), time.Since(c.missing[name]) < discoverEvery
	c.mu.Unlock()
	if listed || missing || !c.fleet.AnyMayRead(name) {
		return listed
	}
	if exists {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), source.CheckWithin)
	defer cancel()
	_, err := c.js.Stream(ctx, name)
	gone := errors.Is(err, jetstream.ErrStreamNotFound) // any other error proves nothing
	if gone {
		c.mu.Lock()
		c.missing[name] = time.Now()
		c.mu.Unlock()
	}
	return !gone
}

// mayCount is consume.Copies.MayCount.
func (c *countedStreams) mayCount(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, listed := c.listed[name]
	return listed && l.Ended == 0 || c.fleet.AnyMayRead(name)
}
