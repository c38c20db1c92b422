package consume

import (
	"sync"
	"time"
)

// tail is what the watcher last learnt about the stream's end.
type tail struct {
	mu     sync.Mutex
	last   uint64
	stored int64         // of that message, Unix nanoseconds
	at     int64         // Unix milliseconds: when it was the end
	clock  int64         // see streamState
	lag    time.Duration // of the reader, see observeLag
}

// While a stream is far behind, its loads gather in memory for longer than the flush
// interval: the larger a load is, the more of its hits coalesce. After a crash, the whole
// load is read again. No wait may starve another one, so:
//
//   - a load gathers only while it grows: one flush interval without a message ends
//     the wait. So a load is committed before the watcher ends a session that stalls;
//   - the first load of a backlog gathers for one flush interval, each later one for
//     at most twice as long as the one before: a worker that is killed again and
//     again makes progress within the first second of each life;
//   - a session that ends first commits what it has read, unless a failed commit
//     ended it: sessions that end again and again make progress;
//   - after a session that stalled without a message, the next one has twice the time.
const (
	// farBehind is a lag so large that another second matters to nobody.
	farBehind = 5 * time.Second
	// gatherPart: a load may gather for one gatherPart-th of the lag, and at most for maxGather.
	gatherPart = 5
	maxGather  = 5 * time.Second
)

func (t *tail) set(state streamState, lag time.Duration) {
	t.mu.Lock()
	t.last, t.stored, t.at, t.clock, t.lag = state.last, state.endStored(), state.at, state.clock, lag
	t.mu.Unlock()
}

// end is the sequence of the last message; 0 before the first look.
func (t *tail) end() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// gather is how long a load may wait at this place for more; 0 if it is not far behind.
func (t *tail) gather(place uint64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lag <= farBehind || place >= t.last {
		return 0
	}
	return min(t.lag/gatherPart, maxGather)
}

// reached returns the moment at which a message was the stream's end, and the clock of NATS then, both 0 if it is not
// known to have been the end. If the stream was rolled back, another message can have a sequence that was
// read already, so the sequence alone does not identify a message.
func (t *tail) reached(seq uint64, stored int64) (at, clock int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq != t.last || t.stored != 0 && stored != t.stored {
		return 0, 0
	}
	return t.at, t.clock
}
