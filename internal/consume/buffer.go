package consume

import (
	"errors"
	"fmt"
	"sync"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rejects"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
)

// buffer holds the two halves of a session's memory: one fills while the other is committed.
type buffer struct {
	layout      window.Layout
	maxCommands int             // of one transaction
	maxBytes    int             // of the hits of a half; one message more may exceed it
	resumed     []window.Cursor // per shard: what had been applied when the session began
	replayed    uint64          // when the session began, no hit after this message was counted or rejected
	sparse      bool            // missing sequences may have been no hits, see source.State.Gaps
	beforeFirst uint64          // see source.State.BeforeFirst
	whole       bool            // the filling half must fit into one transaction per shard

	mu       sync.Mutex
	capacity sync.Cond // the filling half was drained, or the buffer was closed
	filling  *load
	spare    *load // nil while it is being committed
	waiting  bool  // the reader waits for capacity
	closed   bool
	ofShard  []int // scratch: commands of one message per shard

	perHit, perUnique int // see window.Layout.CommandsPerHit

	first wait.Signal // the filling half has its first message
	full  wait.Signal // the reader waits until the filling half is drained
}

// load is what one flush commits: hits, the rejects to store first, and the position that the load reaches.
type load struct {
	batch    *window.Batch
	messages int
	sum      int64  // of the hits' n
	seq      uint64 // of the last message
	stored   int64  // when the stream stored it, Unix nanoseconds
	latest   int64  // the latest stored of any message that the session has read, see window.Cursor

	rejects     []rejects.Reject
	rejectBytes int

	unmet int // events that met no rule's when

	discarded        uint64 // messages that the stream discarded before they were read
	incompleteBefore int64  // Unix milliseconds; see window.Cursor
}

func (l *load) reset() {
	l.batch.Reset()
	clear(l.rejects)
	*l = load{batch: l.batch, rejects: l.rejects[:0], seq: l.seq, stored: l.stored, latest: l.latest}
}

// maxRejectBytes bounds the rejects in memory: bodies, details, and rejectCost for each, which bounds tiny
// ones.
const (
	maxRejectBytes = 8 << 20
	rejectCost     = 256
)

// maxSum is the sum of n at which a load is full. A message adds at most 2⁶⁰ (a million hits of 2⁴⁰), so the
// sum fits into an int64.
const maxSum = 1 << 62

func newBuffer(layout window.Layout, limits Limits, resumed []window.Cursor) *buffer {
	b := &buffer{
		layout: layout, maxCommands: limits.MaxCommands, maxBytes: limits.MaxLoad, resumed: resumed,
		filling: &load{batch: window.NewBatch(layout)},
		spare:   &load{batch: window.NewBatch(layout)},
		ofShard: make([]int, layout.Shards),
		perHit:  layout.CommandsPerHit(false), perUnique: layout.CommandsPerHit(true),
		first: wait.NewSignal(), full: wait.NewSignal(),
	}
	for _, c := range resumed {
		b.replayed = max(b.replayed, c.Furthest())
	}
	b.setWhole()
	b.capacity.L = &b.mu
	return b
}

type message struct {
	seq       uint64
	stored    int64 // Unix nanoseconds
	hits      []hit.Hit
	rejects   []hit.Reject
	counter   string         // of hits that name none
	origin    rejects.Origin // of rejects of events
	trace     string         // of rejects: the message's traceparent
	increment string         // of rejects: the message's hit.IncrementHeader, cut
	unmet     int            // events that met no rule's when
}

var (
	errClosed = errors.New("the buffer is closed")
	errGap    = errors.New("messages were lost on the way")
)

// add adds a message to the filling half, and waits while that is full. Messages between the previous
// position and this one were discarded unread, unless the stream is sparse. The error is errClosed, or errGap
// if the message comes out of order.
func (b *buffer) add(stream string, m message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && !b.fits(m) {
		b.waiting = true
		b.full.Give()
		b.capacity.Wait()
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
	for i := range m.hits {
		h := &m.hits[i]
		if shard := b.layout.ShardOf(h.Hash); m.seq > b.replayed || m.seq > b.resumed[shard].Applied(h.Hash) {
			if h.Excluded {
				l.batch.AddExcluded(h.Counter, h.Hash, h.At, storedMilli, h.N)
			} else {
				l.batch.Add(h.Counter, h.Hash, h.At, storedMilli, h.N)
			}
			if h.Unique != nil {
				l.batch.AddUnique(h.Counter, h.Hash, h.At, storedMilli, unique.Of(h.Unique))
			}
			l.sum += h.N
		}
	}
	if m.seq > b.replayed {
		l.unmet += m.unmet
		for _, r := range m.rejects {
			rejected := rejects.New(stream, m.seq, m.stored, r)
			if r.Kind == hit.OfHit {
				rejected.Counter = m.counter
			}
			rejected.Origin, rejected.Trace, rejected.Increment = m.origin, m.trace, m.increment
			l.rejects = append(l.rejects, rejected)
			l.rejectBytes += len(r.Body) + len(r.Detail) + len(m.counter) + m.origin.Size() + len(m.trace) + rejectCost
		}
	}
	if from := max(l.seq, b.beforeFirst) + 1; m.seq > from && !b.sparse {
		l.discarded += m.seq - from
		// They were stored between the two messages.
		l.incompleteBefore = max(l.incompleteBefore, l.stored/1e6+1, m.stored/1e6+1)
	}
	if l.messages++; l.messages == 1 {
		b.first.Give()
	}
	l.advance(m.seq, m.stored)
	return nil
}

func (l *load) advance(seq uint64, stored int64) {
	l.seq, l.stored, l.latest = seq, stored, max(l.latest, stored)
}

// startAt sets the position after which reading begins.
func (b *buffer) startAt(seq uint64, stored int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filling.advance(seq, stored)
}

// latest returns the latest stored of any message that was applied or read (Unix nanoseconds).
func (b *buffer) latest() (at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at = b.filling.latest
	for _, c := range b.resumed {
		at = max(at, c.Latest)
	}
	return at
}

// skip moves the position past sequences that the stream no longer holds. lost of them were discarded unread,
// all stored before a moment (Unix milliseconds). If the reader has added a message since, it does nothing:
// that message shows the gap.
func (b *buffer) skip(position, end, lost uint64, stored, before int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.filling; !b.closed && l.seq == position {
		l.discarded += lost
		l.incompleteBefore = max(l.incompleteBefore, before)
		l.advance(end, stored)
	}
}

// markIncomplete marks that hits from before a moment (Unix milliseconds) may be missing, and reports whether
// that is new.
func (b *buffer) markIncomplete(before int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before <= b.filling.incompleteBefore {
		return false
	}
	b.filling.incompleteBefore = before
	return true
}

// setWhole decides whether the filling half must fit into one transaction per shard. A load that begins in a
// replay must, because a cursor can have only one position that some counters have reached (Ahead).
func (b *buffer) setWhole() { b.whole = b.filling.seq < b.replayed }

// fits reports whether the filling half has capacity for a message. An empty half accepts any message,
// because no message is divided.
func (b *buffer) fits(m message) bool {
	l := b.filling
	switch {
	case l.messages == 0:
		return true
	case l.rejectBytes > maxRejectBytes, l.sum >= maxSum, l.batch.Bytes() >= b.maxBytes:
		return false
	case !b.whole:
		return true
	}
	if len(m.hits) == 1 {
		h := &m.hits[0]
		return l.batch.Shard(b.layout.ShardOf(h.Hash)).Commands()+b.commandsOf(h) <= b.maxCommands
	}
	clear(b.ofShard)
	for i := range m.hits {
		h := &m.hits[i]
		shard := b.layout.ShardOf(h.Hash)
		b.ofShard[shard] += b.commandsOf(h)
		if l.batch.Shard(shard).Commands()+b.ofShard[shard] > b.maxCommands {
			return false
		}
	}
	return true
}

func (b *buffer) commandsOf(h *hit.Hit) int {
	if h.Unique != nil {
		return b.perUnique
	}
	return b.perHit
}

// drain swaps the halves and returns the one that was filling.
func (b *buffer) drain() *load {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.filling
	b.filling, b.spare = b.spare, nil
	b.filling.seq, b.filling.stored, b.filling.latest = full.seq, full.stored, full.latest
	b.setWhole()
	b.capacity.Signal()
	return full
}

// recycle empties a committed half for reuse.
func (b *buffer) recycle(l *load) {
	l.reset()
	b.mu.Lock()
	b.spare = l
	b.mu.Unlock()
}

func (b *buffer) close() {
	b.mu.Lock()
	b.closed = true
	b.capacity.Broadcast()
	b.mu.Unlock()
}

// position returns the sequence and time (Unix nanoseconds) of the last message added, and whether the reader
// waits for capacity.
func (b *buffer) position() (seq uint64, stored int64, waiting bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.filling.seq, b.filling.stored, b.waiting
}
