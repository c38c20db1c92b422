package consume

import (
	"sync"
	"time"
)

// committed is the place up to which everything has been committed on every
// shard, counts and rejects: not what has been read.
type committed struct {
	mu     sync.Mutex
	seq    uint64
	stored int64 // of that message, Unix nanoseconds
}

func (c *committed) set(seq uint64, stored int64) {
	c.mu.Lock()
	c.seq, c.stored = seq, stored
	c.mu.Unlock()
}

func (c *committed) place() (seq uint64, stored int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq, c.stored
}

// observeLag tells of what the stream holds and is not committed. It returns the
// reader's lag: how much earlier the last message in memory had been stored, if there are more.
func (s *session) observeLag(place uint64, stored int64, state streamState) (lag time.Duration) {
	if place < state.last {
		lag = max(0, time.Duration(state.at*1e6-stored))
	}
	done, at := s.committed.place()
	behind, age := uint64(0), time.Duration(0)
	if done < state.last {
		behind = state.last - done
		age = max(0, time.Duration(state.at*1e6-max(at, state.firstStored)))
	}
	s.metrics.lagMessages.WithLabelValues(s.stream).Set(float64(behind))
	s.metrics.lagSeconds.WithLabelValues(s.stream).Set(age.Seconds())
	s.metrics.uncommitted.WithLabelValues(s.stream).Set(float64(max(place, done) - done))
	s.clocks.observe(clockNATS, state.ahead)
	return lag
}
