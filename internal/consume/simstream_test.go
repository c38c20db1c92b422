package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// simStream is a model of one stream and of the stream of its rejects.
type simStream struct {
	mu       sync.Mutex
	created  int64
	held     []*simMessage // in the order of seq; a deleted one is not in it
	stored   []*simMessage // all of this incarnation
	last     uint64
	highest  uint64 // last, before any roll-back
	lastTime int64  // of the last message, held or not
	readings map[*simReading]bool
	rejected map[string]int // by message id: items that the stream of rejects holds

	// Faults.
	stateFails  bool // the stream does not say what it is
	rejectFails bool // rejects are refused
	rejectMute  bool // rejects are stored, and the acknowledgement is lost
	away        bool // nothing is delivered either
}

// simMessage is a message and what is known of its fate.
type simMessage struct {
	id     int
	seq    uint64
	stored int64 // Unix nanoseconds
	data   []byte
	hits   []simHit
	items  []string
	bad    []int // of items, those that are to be rejected
	again  bool  // seq was another message's, which was rolled away
	fate   simFate
}

type simFate int

const (
	simHeld       simFate = iota
	simDiscarded          // purged, deleted, or gone with its stream
	simRolledAway         // gone without a trace
)

func newSimStream() *simStream {
	return &simStream{created: time.Now().UnixNano(), lastTime: 0, readings: map[*simReading]bool{}, rejected: map[string]int{}}
}

func (s *simStream) store(m *simMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	m.seq = s.last
	m.again = m.seq <= s.highest
	s.highest = max(s.highest, s.last)
	s.lastTime = m.stored
	s.held, s.stored = append(s.held, m), append(s.stored, m)
	for r := range s.readings {
		r.push(m)
	}
}

// discard removes the first n messages that are held.
func (s *simStream) discard(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.held))
	fated(s.held[:n], simDiscarded)
	if s.held = s.held[n:]; len(s.held) == 0 {
		s.lastTime = time.Now().UnixNano() // as the server does
	}
}

// deleteTail removes the last n messages; their sequences are not used again.
func (s *simStream) deleteTail(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.held))
	fated(s.held[len(s.held)-n:], simDiscarded)
	s.held = s.held[: len(s.held)-n : len(s.held)-n]
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

// anew deletes the stream and makes another one of its name.
func (s *simStream) anew(created int64, notice time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fated(s.held, simDiscarded)
	s.held, s.stored, s.last, s.highest, s.lastTime, s.created = nil, nil, 0, 0, 0, created
	s.dropReadings(notice)
}

func fated(messages []*simMessage, fate simFate) {
	for _, m := range messages {
		m.fate = fate
	}
}

// dropReadings ends all deliveries; what a client has received it still has.
func (s *simStream) dropReadings(notice time.Duration) {
	for r := range s.readings {
		delete(s.readings, r)
		time.AfterFunc(notice, func() { r.lose(errReconnect) })
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
	fails := s.stream.stateFails || s.stream.away || s.process.dead.Load()
	s.stream.mu.Unlock()
	if fails {
		return errSimAway
	}
	return ctx.Err()
}

func (s *simSource) state(ctx context.Context) (streamState, error) {
	if err := s.ask(ctx); err != nil {
		return streamState{}, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	at := time.Now().UnixMilli()
	state := streamState{
		subjects: []string{"hits.>"}, created: s.stream.created, last: s.stream.last,
		first: s.stream.last + 1, firstStored: at * 1e6, lastStored: s.stream.lastTime, at: at,
	}
	if len(s.stream.held) > 0 {
		state.first, state.firstStored = s.stream.held[0].seq, s.stream.held[0].stored
	}
	return state, nil
}

func (s *simSource) storedAt(ctx context.Context, seq uint64) (int64, error) {
	if err := s.ask(ctx); err != nil {
		return 0, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	for _, m := range s.stream.held {
		if m.seq == seq {
			return m.stored, nil
		}
	}
	return 0, nil
}

// lastUpTo answers as the server does: the sequence before the first message that is later.
func (s *simSource) lastUpTo(ctx context.Context, stored int64) (uint64, error) {
	if err := s.ask(ctx); err != nil {
		return 0, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	for _, m := range s.stream.held {
		if m.stored > stored {
			return m.seq - 1, nil
		}
	}
	return s.stream.last, nil
}

func (s *simSource) holdsAfter(ctx context.Context, seq uint64) (bool, error) {
	if err := s.ask(ctx); err != nil {
		return false, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	n := len(s.stream.held)
	return n > 0 && s.stream.held[n-1].seq > seq, nil
}

// reject keeps the identities that the production messages carry.
func (s *simSource) reject(ctx context.Context, rejects []rejectedHit) (int, error) {
	s.process.wait()
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	if s.stream.rejectFails || s.stream.away || s.process.dead.Load() {
		return 0, errSimAway
	}
	for _, r := range rejects {
		for _, m := range r.messages(1 << 20) {
			// publishRejects stores one of another message of the same number under another identity.
			id := m.Header.Get(jetstream.MsgIDHeader) + m.Header.Get(storedHeader)
			if _, again := s.stream.rejected[id]; !again {
				s.stream.rejected[id] = 1
				s.stream.rejected["body "+string(m.Data)]++
			}
		}
	}
	if s.stream.rejectMute {
		return 0, errSimAway
	}
	return len(rejects), ctx.Err()
}

func (s *simSource) open(ctx context.Context, from uint64) (reading, error) {
	if err := s.ask(ctx); err != nil {
		return nil, err
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	r := &simReading{source: s, more: make(chan struct{}, 1), done: make(chan struct{})}
	for _, m := range s.stream.held {
		if m.seq >= from {
			r.push(m)
		}
	}
	r.waiting = uint64(len(r.queue))
	s.stream.readings[r] = true
	return r, nil
}

// simReading delivers what the stream has sent to a client. Under stream.mu but
// for what start's goroutine alone uses.
type simReading struct {
	source  *simSource
	waiting uint64
	queue   []simDelivery
	nth     uint64
	more    chan struct{}
	done    chan struct{}
	stopped atomic.Bool
	onLost  func(error)
	once    sync.Once
}

type simDelivery struct {
	*simMessage
	nth uint64
}

func (r *simReading) push(m *simMessage) {
	r.nth++
	r.queue = append(r.queue, simDelivery{m, r.nth})
	r.wake()
}

func (r *simReading) wake() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// lose tells the client that its deliveries cannot be trusted.
func (r *simReading) lose(err error) {
	r.source.process.wait()
	if r.onLost != nil && !r.stopped.Load() {
		r.once.Do(func() { r.onLost(err) })
	}
}

// gap loses what the client has not been given yet, or the next message to come.
func (r *simReading) gap() {
	if len(r.queue) > 0 {
		r.queue = r.queue[1:]
	} else {
		r.nth++
	}
}

// repeat delivers a message of the past again, numbered as if it were the next
// or (reset) as if the consumer had begun anew.
func (r *simReading) repeat(m *simMessage, reset bool) {
	if reset {
		r.nth = 0
	}
	r.push(m)
}

func (r *simReading) pending() uint64 { return r.waiting }

func (r *simReading) start(deliver func(delivery), lost func(error)) error {
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
			deliver(delivery{
				subject: "hits.c", data: d.data, seq: d.seq, nth: d.nth, stored: d.stored,
			})
		}
	}()
	return nil
}

func (r *simReading) pop() (simDelivery, bool) {
	r.source.stream.mu.Lock()
	defer r.source.stream.mu.Unlock()
	if len(r.queue) == 0 || r.source.stream.away || r.source.process.dead.Load() {
		return simDelivery{}, false
	}
	d := r.queue[0]
	r.queue = r.queue[1:]
	return d, true
}

func (r *simReading) stop() {
	if !r.stopped.Swap(true) {
		close(r.done)
	}
}

func (r *simReading) release() error {
	r.stop()
	r.source.stream.mu.Lock()
	defer r.source.stream.mu.Unlock()
	delete(r.source.stream.readings, r)
	return nil
}

func (m *simMessage) String() string {
	return fmt.Sprintf("m%d (seq %d, stored %s)", m.id, m.seq, time.Unix(0, m.stored).UTC().Format("05.000"))
}
