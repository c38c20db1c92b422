package consume

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/window/schema"
)

// An idle stream has nothing to commit, but its as_of has to move. Moving its cursors on 16 shards every
// second takes 75 commands. So a worker's idle streams share one command, a claim about each (schema.Claim).

const (
	claimEvery = time.Second
	// claimWithin bounds a write. If Redis does not answer in time, the cursors move instead.
	claimWithin = time.Second
	// renewEvery is how often the cursors of an idle stream move. This detects that another worker reads the
	// stream, and that a server of a Redis Cluster other than the one with the claims has lost data.
	renewEvery = 30 * time.Second
)

// claims holds the claims of a worker's idle streams. It is safe for concurrent use; a nil one does nothing.
type claims struct {
	mu        sync.Mutex
	next      map[string]schema.Claim // to be written
	written   map[string]schema.Claim // that Redis should have
	suspected map[string]int          // by stream, see suspicions
	failing   bool                    // the last write failed
}

func (c *claims) put(stream string, claim schema.Claim) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(map[string]schema.Claim)
	}
	c.next[stream] = claim
}

// suspicions counts the writes about a stream that failed, or found another claim in Redis than this worker's
// last one. Redis may then also have lost commits, which only a commit detects.
func (c *claims) suspicions(stream string) int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspected[stream]
}

func (c *claims) forget(stream string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.next, stream)
	delete(c.written, stream)
	delete(c.suspected, stream)
}

// writePeriodically writes the claims once per second until ctx ends, each time after allListed (nil: no
// check) has checked for new streams, as before any as_of moves.
func (c *claims) writePeriodically(ctx context.Context, store *schema.Store, allListed func(context.Context) bool,
	log zerolog.Logger) {
	ticker := time.NewTicker(claimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		next, before := c.drain()
		if len(next) == 0 || allListed != nil && !allListed(ctx) {
			continue
		}
		writing, cancel := context.WithTimeout(ctx, claimWithin)
		changed, err := store.Claims.Write(writing, next, before)
		cancel()
		if ctx.Err() == nil && c.record(next, changed, err) {
			log.Warn().Err(err).Int("streams", len(next)).
				Msg("cannot write as_of of idle streams; moving their cursors instead")
		}
	}
}

// drain returns the claims to write, and those that Redis should have.
func (c *claims) drain() (next, before map[string]schema.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, c.next = c.next, nil
	return next, maps.Clone(c.written)
}

// record records the outcome of a write, and reports whether it is the first one that failed.
func (c *claims) record(next map[string]schema.Claim, changed []string, err error) (begins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == nil {
		c.written, c.suspected = make(map[string]schema.Claim), make(map[string]int)
	}
	for stream, claim := range next {
		if err == nil {
			c.written[stream] = claim
			continue
		}
		delete(c.written, stream) // it may have been written or not
		c.suspected[stream]++
	}
	for _, stream := range changed {
		c.suspected[stream]++
	}
	begins = err != nil && !c.failing
	c.failing = err != nil
	return begins
}
