package consume

import (
	"sync"
	"time"

	"tallyroll/internal/progress"
	"tallyroll/internal/source"
)

// tail is the stream's end, as the watcher read it last.
type tail struct {
	mu    sync.Mutex
	state source.State  // zero before the first check
	lag   time.Duration // of the reader, see observeLag
}

func (t *tail) set(state source.State, lag time.Duration) {
	t.mu.Lock()
	t.state, t.lag = state, lag
	t.mu.Unlock()
}

// lastSeq returns the sequence of the last message; 0 before the first check.
func (t *tail) lastSeq() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.Last
}

// timeAtEnd returns when a message was the stream's end, and NATS's clock then (Unix milliseconds); both 0 if
// unknown. The sequence alone does not identify a message, because after a roll-back another one can have it.
func (t *tail) timeAtEnd(seq uint64, stored int64) (at, clock int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if end := t.state.EndStored(); seq != t.state.Last || end != 0 && stored != end {
		return 0, 0
	}
	return t.state.At, t.state.Clock
}

// If a worker is far behind, loads gather for longer, because more hits of a larger load coalesce. After a
// crash, the whole load is read again. So that a worker always makes progress:
//
//   - a load gathers only while it grows, so it is committed before the watcher ends a session that stalls;
//   - the first load of a backlog gathers for one flush interval, each later one for at most twice as long: a
//     worker that is killed repeatedly commits within its first second;
//   - a session that ends first commits what it has read, unless a commit has failed;
//   - after a session that stalled without a message, the next one has twice the time.
const (
	// farBehind is the lag from which loads gather for longer.
	farBehind = 5 * time.Second
	// A load may gather for the lag divided by gatherPart, at most for maxGather.
	gatherPart = 5
	maxGather  = 5 * time.Second
)

// gatherTime returns how long a load at this position may gather; 0 if it is not far behind.
func (t *tail) gatherTime(position uint64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lag <= farBehind || position >= t.state.Last {
		return 0
	}
	return min(t.lag/gatherPart, maxGather)
}

// backlogSpan is how often a backlog is logged, and the time over which its speed is measured.
const backlogSpan = 10 * time.Second

// backlog measures how fast a worker that is far behind catches up.
type backlog struct {
	since     time.Time  // when the worker fell far behind; zero without a backlog
	start     uint64     // the reader's position then
	loggedAt  time.Time  // when it was logged last
	snapshots []snapshot // of the last backlogSpan
}

type snapshot struct {
	at             time.Time
	position, last uint64
}

// observe records the reader's position and the stream's end. The progress is empty without a backlog, and at
// its first check, which shows no speed yet. due is whether to log it. caught is how long a backlog lasted
// that has just ended.
func (b *backlog) observe(now time.Time, position, last uint64, far bool) (p progress.State, due bool, caught time.Duration) {
	if !far {
		if !b.since.IsZero() {
			caught = now.Sub(b.since)
		}
		*b = backlog{}
		return p, false, caught
	}
	if b.since.IsZero() {
		*b = backlog{since: now, start: position, loggedAt: now}
	}
	b.snapshots = append(b.snapshots, snapshot{now, position, last})
	for len(b.snapshots) > 2 && now.Sub(b.snapshots[1].at) >= backlogSpan {
		b.snapshots = b.snapshots[1:]
	}
	first := b.snapshots[0]
	seconds := now.Sub(first.at).Seconds()
	if seconds == 0 {
		return p, false, 0
	}
	read := float64(position - first.position)
	p = progress.State{
		Done: position - b.start, Left: last - position,
		PerSecond: read / seconds, Gained: (read - (float64(last) - float64(first.last))) / seconds,
	}
	due = now.Sub(b.loggedAt) >= backlogSpan
	if due {
		b.loggedAt = now
	}
	return p, due, 0
}

// committed is the position up to which every shard has committed counts and rejects.
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

func (c *committed) position() (seq uint64, stored int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq, c.stored
}
