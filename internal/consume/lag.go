package consume

import (
	"sync"
	"time"
)

// committed is the place up to which everything has been committed on every shard,
// counts and rejects. The reader may be further on.
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

// observeLag sets the metrics of what the stream holds and is not committed. It returns the reader's
// lag: how much earlier than the end of the stream the last message in memory was stored, if there
// are more messages.
func (w *watcher) observeLag(place uint64, stored int64, state streamState) (lag time.Duration) {
	if place < state.last {
		lag = max(0, time.Duration(state.at*1e6-stored))
	}
	done, at := w.committed.place()
	behind, age := uint64(0), time.Duration(0)
	if done < state.last {
		behind = state.last - done
		age = max(0, time.Duration(state.at*1e6-max(at, state.firstStored)))
	}
	w.metrics.lagMessages.WithLabelValues(w.stream).Set(float64(behind))
	w.metrics.lagSeconds.WithLabelValues(w.stream).Set(age.Seconds())
	w.metrics.uncommitted.WithLabelValues(w.stream).Set(float64(max(place, done) - done))
	w.clocks.observe(clockNATS, state.ahead)
	return lag
}
