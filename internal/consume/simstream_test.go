package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rejects"
)

// simStream is a model of one stream and of the stream of its rejects.
type simStream struct {
	mu       sync.Mutex
	created  int64
	subjects []string
	held     []*simMessage // in the order of seq; a deleted one is not in it
	stored   []*simMessage // all of this incarnation
	last     uint64
	highest  uint64    // last, before any roll-back
	lastTime int64     // of the last message, held or not
	noticed  time.Time // when all clients will have learnt that their consumers are gone
	copied   uint64    // the last message that came from a backup
	feeds    map[*simFeed]bool
	clock    time.Duration   // how far the server's clock is ahead, never more than 0
	rejects  int             // ever stored
	rejected map[string]bool // by message id
	bodies   map[string]int  // of rejected items: how many messages have them

	begin uint64 // first_seq
	gaps  string // why sequences may be missing, see source.State; between messages are some that are
	limit int    // of messages (max_msgs); 0 for none

	// The cluster; a stream without one has a leader all the same.
	clustered bool
	since     time.Time // of its reign
	deposed   *simDeposed

	// Faults.
	stateFails  bool          // the stream does not say what it is
	rejectFails bool          // rejects are refused
	rejectMute  bool          // rejects are stored, and the acknowledgement is lost
	away        bool          // nothing is delivered either
	gone        bool          // the stream was deleted
	pace        time.Duration // of the deliveries, one after the other
}

// simDeposed is a leader that does not know of its successor.
type simDeposed struct {
	look   source.Check
	held   []*simMessage
	since  time.Time // when its followers have last answered it in truth
	paused bool      // rather than cut off
	asleep bool      // it answers nothing yet
}

// simMessage is a message and what is known of its fate.
type simMessage struct {
	id        int
	seq       uint64
	stored    int64 // Unix nanoseconds, by the clock of NATS
	createdAt time.Time
	subject   string
	header    nats.Header // of a copy
	data      []byte
	hits      []simHit
	items     []string
	ways      []simWay // that versions count its events in; nil if it has none
	way       int      // one that the last check has found to fit
	counters  []string // of all ways
	bad       []int    // of items, those that are to be rejected
	again     bool     // seq was another message's, which was rolled away
	repeats   int64    // if not 0: the clock had been set back, and it showed this moment before, Unix nanoseconds
	overtook  bool     // the clock was set back to an earlier moment than it was stored at
	fate      simFate
	hidden    bool // it was discarded between others, and only a cursor shows that its sequence was a message

	foreign bool // something else had written to a key that its hits belong to
}

type simFate int

const (
	simHeld       simFate = iota
	simDiscarded          // dropped by the limit, purged, deleted, or gone with its stream
	simDeleted            // purged or deleted where sequences may be missing anyway
	simRolledAway         // gone without a trace
)

func newSimStream() *simStream {
	return &simStream{created: time.Now().UnixNano(), subjects: simSubjects[0], lastTime: 0, feeds: map[*simFeed]bool{}, rejected: map[string]bool{}, bodies: map[string]int{}}
}

// now is the moment that the server's clock shows.
func (s *simStream) now() time.Time { return time.Now().Add(s.clock) }

// shown is now, for those that do not hold the lock while others may set the clock back.
func (s *simStream) shown() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *simStream) store(m *simMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last++; s.gaps != "" {
		s.last += uint64(m.id % 3)
	}
	m.seq = s.last
	m.again = m.seq <= s.highest
	s.highest = max(s.highest, s.last)
	s.lastTime = m.stored
	s.held, s.stored = append(s.held, m), append(s.stored, m)
	if n := len(s.held) - s.limit; s.limit > 0 && n > 0 {
		fated(s.held[:n], simDiscarded)
		s.held = s.held[n:]
	}
	for r := range s.feeds {
		r.push(m)
	}
}

// discard removes the first n messages that are held.
func (s *simStream) discard(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.held))
	fated(s.held[:n], s.deleted())
	if s.held = s.held[n:]; len(s.held) == 0 && n > 0 {
		s.lastTime = s.now().UnixNano() // as the server does
	}
}

// deleteTail removes the last n messages; their sequences are not used again.
func (s *simStream) deleteTail(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.held))
	fated(s.held[len(s.held)-n:], s.deleted())
	s.held = s.held[: len(s.held)-n : len(s.held)-n]
}

// deleted is the fate of a message that a person deletes.
func (s *simStream) deleted() simFate {
	if s.gaps != "" {
		return simDeleted
	}
	return simDiscarded
}

// raise sets the limit higher, and in the end removes it: no worker can tell what it had dropped before.
func (s *simStream) raise(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit += n; n%4 == 0 {
		s.limit = 0
	}
}

// allowSchedules lets sequences be missing from now on.
func (s *simStream) allowSchedules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.stored {
		m.hidden = m.hidden || s.gaps == "" && m.fate == simDiscarded && len(s.held) > 0 && m.seq > s.held[0].seq
	}
	s.gaps = cmp.Or(s.gaps, source.GapsOfSchedules)
}

// rollBack forgets the last n messages as a server does that lost its last
// writes. Its consumers are gone; their clients learn of it after a while.
func (s *simStream) rollBack(n int, notice time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.held))
	if n == 0 {
		return
	}
	s.last = s.held[len(s.held)-n].seq - 1
	kept := s.stored[:0:0]
	for _, m := range s.stored {
		if m.seq > s.last {
			m.fate = simRolledAway
		} else {
			kept = append(kept, m)
		}
	}
	s.stored = kept
	s.held = s.held[: len(s.held)-n : len(s.held)-n]
	s.lastTime = 0
	if len(s.held) > 0 {
		s.lastTime = s.held[len(s.held)-1].stored
	}
	s.dropReadings(notice)
}

// restore deletes the stream, and makes one of its name from a backup, which lacks the last n messages.
func (s *simStream) restore(n int, created int64, notice time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.held))
	fated(s.held[len(s.held)-n:], simDiscarded)
	s.held = s.held[: len(s.held)-n : len(s.held)-n]
	if n > 0 && len(s.held) > 0 {
		s.last, s.lastTime = s.held[len(s.held)-1].seq, s.held[len(s.held)-1].stored
	} else if n > 0 {
		s.last, s.lastTime = s.begin-1, 0
	}
	s.copied, s.created = s.last, created
	s.dropReadings(notice)
}

// purge is a person who sees that the stream stands still: first what a backup has brought back goes, because
// it was counted before, and if that does not help, everything.
func (s *simStream) purge(all bool) {
	s.mu.Lock()
	n := 0
	for n < len(s.held) && (all || s.held[n].seq <= s.copied) {
		n++
	}
	s.mu.Unlock()
	s.discard(n)
}

// recreate deletes the stream and creates another one of its name.
func (s *simStream) recreate(created int64, notice time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fated(s.held, simDiscarded)
	s.copied = 0
	s.held, s.stored, s.last, s.highest, s.lastTime, s.created = nil, nil, s.begin-1, 0, 0, created
	s.dropReadings(notice)
}

func fated(messages []*simMessage, fate simFate) {
	for _, m := range messages {
		m.fate = fate
	}
}

// dropReadings ends all deliveries; what a client has received it still has.
func (s *simStream) dropReadings(notice time.Duration) {
	if at := time.Now().Add(notice); at.After(s.noticed) {
		s.noticed = at
	}
	for r := range s.feeds {
		delete(s.feeds, r)
		time.AfterFunc(notice, func() { r.lose(source.ErrReconnected) })
	}
}

// simSource is the stream as one process sees it.
type simSource struct {
	stream  *simStream
	process *simProcess
}

var errSimAway = errors.New("simulated: no answer from NATS")

func (s *simSource) ask(ctx context.Context) error {
	s.process.wait()
	s.stream.mu.Lock()
	fails, gone := s.stream.stateFails || s.stream.away || s.process.dead.Load(), s.stream.gone
	s.stream.mu.Unlock()
	if gone {
		return source.ErrNoStream
	}
	if fails {
		return errSimAway
	}
	return ctx.Err()
}

func (s *simSource) Check(ctx context.Context) (source.Check, error) {
	if err := s.ask(ctx); err != nil {
		return source.Check{}, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	if old := s.stream.deposed; old != nil && !old.asleep {
		l := old.look
		l.Asked, l.Answered = time.Now(), time.Now()
		l.State.At = s.stream.now().UnixMilli()
		l.State.Seen, l.State.Clock = l.State.At+1, l.State.At+1
		if l.Leadership.Silence = time.Since(old.since); old.paused {
			l.Leadership.Silence = 0
		}
		return l, nil
	}
	return s.stream.lookLocked(), nil
}

func (s *simStream) lookLocked() source.Check {
	now := time.Now()
	at := s.now().UnixMilli()
	state := source.State{
		Subjects: s.subjects, Created: s.created, Last: s.last,
		First: s.last + 1, FirstStored: (at + 1) * 1e6, LastStored: s.lastTime, At: at, Seen: at + 1, Clock: at + 1, Begin: s.begin,
	}
	state.Gaps, state.Limits = s.gaps, fmt.Sprint(s.limit)
	if s.limit > 0 {
		state.Dropped = math.MaxInt64
	}
	if len(s.held) > 0 {
		state.First, state.FirstStored = s.held[0].seq, s.held[0].stored
		state.Deleted = s.last + 1 - state.First - uint64(len(s.held))
	}
	r := source.Leadership{Clustered: s.clustered, Leader: "server", Since: s.since, Majority: true, Silence: simSilence}
	return source.Check{State: state, Leadership: r, Asked: now, Answered: now}
}

// simSilence is how long ago the followers of a leader have been heard.
const simSilence = 300 * time.Millisecond

// simWaking is how long a leader that was paused takes to read that it is deposed.
const simWaking = 200 * time.Millisecond

// depose lets another server lead, which the old leader does not know: it was
// cut off, and goes on answering, or it was paused.
func (s *simStream) depose(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clustered && s.deposed == nil {
		s.deposed = &simDeposed{s.lookLocked(), slices.Clone(s.held), time.Now(), paused, paused}
		s.since = time.Now()
	}
}

// wake lets a paused leader answer for a moment, in which it reads old answers of
// its followers; one that was cut off learns that it is deposed.
func (s *simStream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deposed != nil && s.deposed.paused && s.deposed.asleep {
		s.deposed.asleep = false
		time.AfterFunc(simWaking, s.wake)
	} else {
		s.deposed = nil
	}
}

func (s *simSource) Next(ctx context.Context, from uint64) (uint64, int64, error) {
	if err := s.ask(ctx); err != nil {
		return 0, 0, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	held := s.stream.held
	if old := s.stream.deposed; old != nil && !old.asleep {
		held = old.held
	}
	for _, m := range held {
		if m.seq >= from {
			return m.seq, m.stored, nil
		}
	}
	return 0, 0, nil
}

// Reject keeps the identities that the production messages carry.
func (s *simSource) Reject(ctx context.Context, refused []rejects.Reject) (int, error) {
	s.process.wait()
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	if s.stream.rejectFails || s.stream.away || s.process.dead.Load() {
		return 0, errSimAway
	}
	for _, r := range refused {
		m, err := r.Message(1 << 20)
		if err != nil {
			return 0, err
		}
		// rejects.Publish stores one of another message of the same number under another identity.
		id := m.Header.Get(jetstream.MsgIDHeader) + m.Header.Get(rejects.HeaderStored)
		if !s.stream.rejected[id] {
			s.stream.rejects++
			s.stream.rejected[id] = true
			s.stream.bodies[string(m.Data)]++
		}
	}
	if s.stream.rejectMute {
		return 0, errSimAway
	}
	return len(refused), ctx.Err()
}

func (s *simSource) Open(ctx context.Context, from uint64) (source.Feed, error) {
	if err := s.ask(ctx); err != nil {
		return nil, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	r := &simFeed{source: s, more: wait.NewSignal(), done: make(chan struct{})}
	for _, m := range s.stream.held {
		if m.seq >= from {
			r.push(m)
		}
	}
	r.waiting = uint64(len(r.queue))
	s.stream.feeds[r] = true
	return r, nil
}

// simFeed delivers what the stream has sent to a client. Under simStream.mu but
// for what start's goroutine alone uses.
type simFeed struct {
	source  *simSource
	waiting uint64
	queue   []simDelivery
	nth     uint64
	more    wait.Signal
	done    chan struct{}
	stopped atomic.Bool
	onLost  func(error)
	once    sync.Once
}

type simDelivery struct {
	*simMessage
	nth uint64
}

func (r *simFeed) push(m *simMessage) {
	r.nth++
	r.queue = append(r.queue, simDelivery{m, r.nth})
	r.more.Give()
}

// lose tells the client that its deliveries cannot be trusted.
func (r *simFeed) lose(err error) {
	r.source.process.wait()
	if r.onLost != nil && !r.stopped.Load() {
		r.once.Do(func() { r.onLost(err) })
	}
}

// gap loses what the client has not been given yet, or the next message to come.
func (r *simFeed) gap() {
	if len(r.queue) > 0 {
		r.queue = r.queue[1:]
	} else {
		r.nth++
	}
}

// repeat delivers a message of the past again, numbered as if it were the next
// or (reset) as if the consumer had been recreated.
func (r *simFeed) repeat(m *simMessage, reset bool) {
	if reset {
		r.nth = 0
	}
	r.push(m)
}

func (r *simFeed) Pending() uint64 { return r.waiting }

func (r *simFeed) Start(deliver func(source.Delivery), lost func(error)) error {
	r.source.stream.mu.Lock()
	r.onLost = lost
	r.source.stream.mu.Unlock()
	go func() {
		for !r.stopped.Load() {
			r.source.process.wait()
			d, ok := r.pop()
			if !ok {
				select {
				case <-r.more:
				case <-r.done:
				}
				continue
			}
			time.Sleep(r.source.stream.pace)
			deliver(source.Delivery{
				Subject: d.subject, Header: d.header, Data: d.data, Seq: d.seq, Nth: d.nth, Stored: d.stored,
			})
		}
	}()
	return nil
}

func (r *simFeed) pop() (simDelivery, bool) {
	r.source.stream.mu.Lock()
	defer r.source.stream.mu.Unlock()
	if len(r.queue) == 0 || r.source.stream.away || r.source.process.dead.Load() {
		return simDelivery{}, false
	}
	d := r.queue[0]
	r.queue = r.queue[1:]
	return d, true
}

func (r *simFeed) Stop() {
	if !r.stopped.Swap(true) {
		close(r.done)
	}
}

func (r *simFeed) Release() error {
	r.Stop()
	r.source.stream.mu.Lock()
	defer r.source.stream.mu.Unlock()
	delete(r.source.stream.feeds, r)
	return nil
}

func (m *simMessage) String() string {
	return fmt.Sprintf("m%d (seq %d, stored %s)", m.id, m.seq, time.Unix(0, m.stored).UTC().Format("05.000"))
}
