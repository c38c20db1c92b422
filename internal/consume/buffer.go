package consume

import (
	"errors"
	"fmt"
	"sync"

	"tallyroll/internal/window"
)

// load is what one flush commits: coalesced hits, the rejects that must be
// published first, and the place in the stream that it reaches.
type load struct {
	batch    *window.Batch
	messages int
	commands int    // of all shards
	sum      int64  // of the hits' n
	seq      uint64 // of the last message
	stored   int64  // when the stream stored it, Unix nanoseconds

	rejects     []rejectedHit
	rejectBytes int

	discarded        uint64 // messages that the stream dropped before they were read
	incompleteBefore int64  // Unix milliseconds; see window.Cursor
}

func (l *load) reset() {
	l.batch.Reset()
	clear(l.rejects)
	*l = load{batch: l.batch, rejects: l.rejects[:0], seq: l.seq, stored: l.stored}
}

// maxRejectBytes bounds the rejects that wait in memory for their flush: bodies,
// details, and rejectCost for the rest of each, so that a million tiny ones are bounded too.
const (
	maxRejectBytes = 8 << 20
	rejectCost     = 256
)

// maxSum is the sum of n at which a load is full. One message can add 2⁶⁰ (a
// million hits of 2⁴⁰), so no sum of a load passes an int64.
const maxSum = 1 << 62

// buffer is the two halves of a session: one fills while the other is
// committed. Its memory is bounded by maxCommands per shard and maxTotal per half.
type buffer struct {
	layout      window.Layout
	maxCommands int             // of one transaction
	splits      int             // transactions that a shard's part of a half may take, once the replay is over
	maxTotal    int             // commands of all shards together; one message more may pass it
	resumed     []window.Cursor // per shard: what had been applied when the session began
	replayed    uint64          // no counter had been further on than this, and no reject been published behind it
	limit       int             // of commands a shard, of the filling half

	mu      sync.Mutex
	room    sync.Cond // the filling half was taken, or the buffer was closed
	filling *load
	spare   *load // nil while it is being committed
	waiting bool  // the reader waits for room
	closed  bool
	perHit  []int // scratch: hits of one message per shard

	full chan struct{} // a flush is due before its time
}

func newBuffer(layout window.Layout, limits limits, resumed []window.Cursor) *buffer {
	b := &buffer{
		layout: layout, maxCommands: limits.maxCommands, splits: limits.splits,
		maxTotal: max(limits.maxBuffered, limits.maxCommands), resumed: resumed,
		filling: &load{batch: window.NewBatch(layout)},
		spare:   &load{batch: window.NewBatch(layout)},
		perHit:  make([]int, layout.Shards),
		full:    make(chan struct{}, 1),
	}
	for _, c := range resumed {
		b.replayed = max(b.replayed, c.Furthest())
	}
	b.setLimit()
	b.room.L = &b.mu
	return b
}

// message is what the reader found in one message.
type message struct {
	seq     uint64
	stored  int64 // Unix nanoseconds
	hits    []hit
	rejects []reject
}

// errClosed says that a buffer takes nothing more.
var errClosed = errors.New("the buffer is closed")

// add puts a message into the filling half, waiting for room while it is full. Those
// between it and the place before were discarded unread. It fails with errClosed, and
// with errGap if the message is not after that place.
func (b *buffer) add(stream string, m message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && !b.fits(m) {
		b.waiting = true
		b.flushSoon()
		b.room.Wait()
	}
	b.waiting = false
	l := b.filling
	switch {
	case b.closed:
		return errClosed
	case m.seq <= l.seq:
		return fmt.Errorf("%w: message %d of %s came after %d", errGap, m.seq, stream, l.seq)
	}
	storedMilli := m.stored / 1e6
	for _, h := range m.hits {
		if shard := b.layout.ShardOf(h.hash); m.seq > b.replayed || m.seq > b.resumed[shard].Applied(h.hash) {
			cells := l.batch.Shard(shard)
			before := cells.Commands()
			l.batch.Add(h.counter, h.hash, h.at, storedMilli, h.n)
			l.commands += cells.Commands() - before
			l.sum += h.n
		}
	}
	if m.seq > b.replayed {
		for _, r := range m.rejects {
			l.rejects = append(l.rejects, newRejectedHit(stream, m.seq, m.stored, r))
			l.rejectBytes += len(r.body) + len(r.detail) + rejectCost
		}
	}
	if discarded := m.seq - l.seq - 1; discarded > 0 {
		l.discarded += discarded
		l.incompleteBefore = storedMilli + 1 // they had been stored no later than this one
	}
	l.messages++
	l.seq, l.stored = m.seq, m.stored
	return nil
}

// pass moves the place from one message to another over messages that the stream does
// not hold any more, all stored before a moment (Unix milliseconds). It does nothing
// if another message has come meanwhile: that one shows the gap itself.
func (b *buffer) pass(from, to uint64, stored, before int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.filling; !b.closed && l.seq == from {
		l.discarded += to - from
		l.incompleteBefore = before
		l.seq, l.stored = to, max(l.stored, stored)
	}
}

// setLimit: a load that begins in a replay has to fit into one transaction a
// shard, since a cursor tells of one place that some counters are ahead at.
func (b *buffer) setLimit() {
	b.limit = b.maxCommands
	if b.filling.seq >= b.replayed {
		b.limit *= b.splits
	}
}

// fits reports whether a message can join the filling half without taking a
// shard over the limit. A message always fits into an empty half: a
// half ends at a message's end.
func (b *buffer) fits(m message) bool {
	l := b.filling
	if l.messages == 0 {
		return true
	}
	if l.rejectBytes > maxRejectBytes || l.commands >= b.maxTotal || l.sum >= maxSum {
		return false
	}
	perHit := b.layout.CommandsPerHit()
	if len(m.hits) == 1 {
		return l.batch.Shard(b.layout.ShardOf(m.hits[0].hash)).Commands()+perHit <= b.limit
	}
	clear(b.perHit)
	for _, h := range m.hits {
		shard := b.layout.ShardOf(h.hash)
		b.perHit[shard]++
		if l.batch.Shard(shard).Commands()+b.perHit[shard]*perHit > b.limit {
			return false
		}
	}
	return true
}

func (b *buffer) flushSoon() {
	select {
	case b.full <- struct{}{}:
	default:
	}
}

// take swaps the halves and returns the one to commit.
func (b *buffer) take() *load {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.filling
	b.filling, b.spare = b.spare, nil
	b.filling.seq, b.filling.stored = taken.seq, taken.stored
	b.setLimit()
	b.room.Signal()
	return taken
}

// give returns a committed half.
func (b *buffer) give(l *load) {
	l.reset()
	b.mu.Lock()
	b.spare = l
	b.mu.Unlock()
}

// close wakes the reader and takes nothing more.
func (b *buffer) close() {
	b.mu.Lock()
	b.closed = true
	b.room.Broadcast()
	b.mu.Unlock()
}

// place is the last message in memory, when it was stored (Unix nanoseconds),
// and whether the reader waits for room.
func (b *buffer) place() (seq uint64, stored int64, waiting bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.filling.seq, b.filling.stored, b.waiting
}
