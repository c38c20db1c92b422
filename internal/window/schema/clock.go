package schema

import (
	"sync"
	"time"
)

// latestClocks are the latest times read from the clock of each shard's server.
type latestClocks struct {
	mu     sync.Mutex
	latest map[int]time.Time // by shard
}

// Observe records a time of a shard's server, and returns the latest one.
func (c *latestClocks) Observe(shard int, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest == nil {
		c.latest = make(map[int]time.Time)
	}
	if now.After(c.latest[shard]) {
		c.latest[shard] = now
	}
	return c.latest[shard]
}
