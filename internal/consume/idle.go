package consume

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/window"
)

// An idle stream has nothing to commit, but its as_of has to move. Moving its cursors on 16 shards every
// second takes 75 commands. So a worker's idle streams share one command, a claim about each (window.Claim).

const (
	claimEvery = time.Second
	// claimWithin bounds a write. If Redis does not answer in time, the cursors move instead.
	claimWithin = time.Second
	// renewEvery is how often the cursors of an idle stream move. This detects that another worker has the
	// stream, and what one server of a Redis Cluster has lost while the one with the claims has lost nothing.
	renewEvery = 30 * time.Second
)

type claims struct {
	mu      sync.Mutex
	next    map[string]window.Claim // to be written
	written map[string]window.Claim // as Redis should have them
	doubts  map[string]int          // see doubted
	failing bool                    // the last write failed
}

func (c *claims) put(stream string, claim window.Claim) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(map[string]window.Claim)
	}
	c.next[stream] = claim
}

// doubted counts the writes about a stream that failed, or found another claim in Redis than this worker's
// last one. Redis may then have lost commits too, which only a commit detects.
func (c *claims) doubted(stream string) int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubts[stream]
}

func (c *claims) forget(stream string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.next, stream)
	delete(c.written, stream)
	delete(c.doubts, stream)
}

// keepWriting writes the claims once per second until ctx ends, each time after upToDate (nil: no check) has
// checked for new streams, as for any as_of.
func (c *claims) keepWriting(ctx context.Context, store *window.Store, upToDate func(context.Context) bool, log zerolog.Logger) {
	ticker := time.NewTicker(claimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		next, before := c.take()
		if len(next) == 0 || upToDate != nil && !upToDate(ctx) {
			continue
		}
		writing, cancel := context.WithTimeout(ctx, claimWithin)
		changed, err := store.Claims.Write(writing, next, before)
		cancel()
		if ctx.Err() == nil && c.note(next, changed, err) {
			log.Warn().Err(err).Int("streams", len(next)).Msg("as_of of idle streams could not be written: their cursors move instead")
		}
	}
}

func (c *claims) take() (next, before map[string]window.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, c.next = c.next, nil
	return next, maps.Clone(c.written)
}

// note records the outcome of a write, and reports whether it is the first one that failed.
func (c *claims) note(next map[string]window.Claim, changed []string, err error) (begins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == nil {
		c.written, c.doubts = make(map[string]window.Claim), make(map[string]int)
	}
	for stream, claim := range next {
		if err == nil {
			c.written[stream] = claim
			continue
		}
		delete(c.written, stream) // it may have been written all the same
		c.doubts[stream]++
	}
	for _, stream := range changed {
		c.doubts[stream]++
	}
	begins = err != nil && !c.failing
	c.failing = err != nil
	return begins
}
