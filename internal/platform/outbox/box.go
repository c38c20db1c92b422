package outbox

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// ackWait is the wait before a resend. Too short only costs traffic, because JetStream drops the repeat.
	ackWait = 5 * time.Second
	// refusedWait is the pause after a refusal, such as a full stream's, and after a send that never left.
	refusedWait = 250 * time.Millisecond
	// tick is the interval of checks for overdue messages.
	tick = 50 * time.Millisecond
	// queue bounds the answers that wait for a Box's owner before the connection's reader waits.
	queue = 1024
	// never is when a message is due that only waits for an answer.
	never = 1000 * time.Hour
)

// Envelope is a Box's part of a message; types of messages embed it. Its content must not change between Send
// and Drop, or the answer that it is stored.
type Envelope struct {
	Subject string
	ID      string      // Nats-Msg-Id; if it is empty, Send chooses one that no other message has
	More    nats.Header // further headers
	Body    []byte

	n     uint64    // the end of the subject for its answers
	due   time.Time // when to send it again
	sent  int       // sends in all
	open  int       // sends without an answer
	since time.Time // the first send that may have stored it; zero: no send may have
}

func (l *Envelope) envelope() *Envelope { return l }

// Open reports whether a send has no answer yet. If not, the message is certainly not stored.
func (l *Envelope) Open() bool { return l.open > 0 }

// Since is the time of the first send that may have stored it, or zero.
func (l *Envelope) Since() time.Time { return l.since }

type enveloped interface{ envelope() *Envelope }

// Box keeps messages until their outcome is known. Its one owner passes Answers to Resolve, and Ticks to
// Tick.
type Box[M enveloped] struct {
	Answers <-chan Answer
	Ticks   <-chan time.Time

	conn       *nats.Conn
	again      func(m M, age time.Duration) bool
	unsent     func(m M, why error)
	inbox      string
	sub        *nats.Subscription
	ticker     *time.Ticker
	closed     chan struct{}
	runID      string // first part of each Nats-Msg-Id
	last       uint64
	pending    map[uint64]M
	reconnects uint64 // of the connection, up to the last tick
}

// Open makes a Box on a connection with ConnOptions. Before Send and Tick repeat a message that may be
// stored, they call again with the age of its first such send; if it returns false, the message only waits
// for answers. They call unsent with the reason for a send of which nothing left this process.
func Open[M enveloped](conn *nats.Conn, again func(m M, age time.Duration) bool,
	unsent func(m M, why error)) (*Box[M], error) {
	answers := make(chan Answer, queue)
	b := &Box[M]{
		Answers: answers, conn: conn, again: again, unsent: unsent, inbox: conn.NewInbox(), closed: make(chan struct{}),
		runID:   strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36),
		pending: map[uint64]M{}, reconnects: conn.Stats().Reconnects,
	}
	var err error
	b.sub, err = conn.Subscribe(b.inbox+".*", func(m *nats.Msg) {
		a, ok := parse(m)
		if !ok {
			return
		}
		select {
		case answers <- a:
		case <-b.closed: // the answers are no longer received
		}
	})
	if err == nil {
		err = b.sub.SetPendingLimits(-1, -1) // the sender bounds how many messages wait for an answer
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements on %s: %w", b.inbox, err)
	}
	b.ticker = time.NewTicker(tick)
	b.Ticks = b.ticker.C
	return b, nil
}

// Close forgets all messages.
func (b *Box[M]) Close() {
	close(b.closed)
	b.ticker.Stop()
	_ = b.sub.Unsubscribe() // it fails if the connection is closed, which ends it too
}

// Len is the number of messages, and All yields them. All's caller may drop them.
func (b *Box[M]) Len() int { return len(b.pending) }

func (b *Box[M]) All() iter.Seq[M] { return maps.Values(b.pending) }

func (b *Box[M]) Send(m M) {
	l := m.envelope()
	b.last++
	l.n = b.last
	if l.ID == "" {
		l.ID = b.runID + "-" + strconv.FormatUint(l.n, 36)
	}
	b.pending[l.n] = m
	b.send(m)
}

func (b *Box[M]) send(m M) {
	l := m.envelope()
	now := time.Now()
	header := nats.Header{nats.MsgIdHdr: {l.ID}} // made for each send: it stays on the stack
	maps.Copy(header, l.More)
	err := nats.ErrReconnectBufExceeded
	if b.conn.IsConnected() || b.conn.IsClosed() {
		err = b.conn.PublishMsg(&nats.Msg{Subject: l.Subject, Reply: b.inbox + "." + strconv.FormatUint(l.n, 36),
			Header: header, Data: l.Body})
	}
	l.due = now.Add(ackWait)
	if err != nil {
		l.due = now.Add(refusedWait)
		if NeverLeft(err) {
			b.unsent(m, err)
			return
		}
	}
	l.sent++
	l.open++ // also if the connection is breaking: how much left is unknown
	if l.since.IsZero() {
		l.since = now
	}
}

// NeverLeft reports whether a client error means that nothing of a message has left this process.
func NeverLeft(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrReconnectBufExceeded, nats.ErrConnectionClosed, nats.ErrMaxPayload, nats.ErrBadSubject,
		nats.ErrHeadersNotSupported, nats.ErrConnectionDraining,
	}, func(sure error) bool { return errors.Is(err, sure) })
}

// Tick resends what is due, and after a reconnect everything, because each message or its answer is lost.
func (b *Box[M]) Tick(now time.Time) {
	before := b.reconnects
	b.reconnects = b.conn.Stats().Reconnects
	for _, m := range b.pending {
		l := m.envelope()
		switch {
		case b.reconnects == before && !now.After(l.due):
		case l.open > 0 && !b.again(m, now.Sub(l.since)):
			l.due = now.Add(never)
		default:
			b.send(m)
		}
	}
}

// Resolve takes an answer, and returns its message; ok is false if that is gone, as for the second answer to
// a message that was sent twice. A stored message leaves the Box. A refused one is sent again soon, unless it
// is dropped: if it is not Open now, every send was refused.
func (b *Box[M]) Resolve(a Answer) (m M, ok bool) {
	m, ok = b.pending[a.n]
	if !ok {
		return m, false
	}
	l := m.envelope()
	if a.Stored {
		b.Drop(m)
		return m, true
	}
	l.due = time.Now().Add(refusedWait)
	if a.Code == codeInProcess { // another send with the same id is about to be stored
		return m, true
	}
	if l.open--; l.open == 0 {
		l.since = time.Time{}
	}
	return m, true
}

// Drop forgets a message.
func (b *Box[M]) Drop(m M) { delete(b.pending, m.envelope().n) }
