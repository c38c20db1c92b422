package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"tallyroll/internal/puback"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

const (
	// maxUnacked is how many messages may be unacknowledged. Measured with 200 hits
	// a message and a server on the same machine: 64 reached 11.1 million hits a
	// second, 256 14.0 and 1024 13.9.
	maxUnacked = 256
	// windowBytes bounds what those messages hold in memory.
	windowBytes = 32 << 20
	// ackWait is how long an acknowledgement may take before the message is
	// sent again. JetStream drops the repeat, so being too short only costs traffic.
	ackWait = 5 * time.Second
	// refusedWait is the pause after a refusal: no stream yet, or no room in it.
	refusedWait = 250 * time.Millisecond
	// tick is how often overdue messages are looked for.
	tick = 50 * time.Millisecond
	// sayEvery is how often a standstill is logged.
	sayEvery = 5 * time.Second
	// duplicateWindow is how long a stream recognises a repeated Nats-Msg-Id by default.
	duplicateWindow = 2 * time.Minute
	// fanOut is how many subjects messages are spread over, so that a server
	// that partitions by subject can spread them over streams.
	fanOut = 64
)

// tally is what the publisher has done.
type tally struct {
	hits     int64 // acknowledged
	messages int64 // acknowledged
	late     int64 // messages sent again after duplicateWindow: perhaps stored twice
}

// publisher sends messages until they are acknowledged. The goroutine in run
// owns all of its state; others reach it through submit and close.
type publisher struct {
	conn    *nats.Conn
	log     zerolog.Logger
	subject string // messages go to <subject>.<0 … fanOut-1>
	runID   string // first part of each Nats-Msg-Id
	stored  func(hits int)
	settled func(fate) // is told the fate of each message that has a once

	in    chan *message
	ended chan struct{} // closed when run returns
	cause error         // why it returned; read after ended

	inbox    string
	nextID   uint64
	pending  map[uint64]*message
	bytes    int
	tally    tally
	places   places
	said     time.Time // when a standstill was last logged
	answered time.Time // when the last answer came, or the wait for one began
}

// newPublisher makes a publisher on a connection that buffers nothing while it
// is disconnected. stored is called with the hits of each acknowledged message.
func newPublisher(conn *nats.Conn, log zerolog.Logger, subject string, stored func(hits int)) *publisher {
	return &publisher{
		conn: conn, log: log, subject: subject, stored: stored,
		runID:   strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36),
		in:      make(chan *message),
		ended:   make(chan struct{}),
		pending: map[uint64]*message{},
	}
}

// submit hands a message over. It blocks while the window is full, and fails
// when the publisher has ended.
func (p *publisher) submit(m *message) error {
	select {
	case p.in <- m:
		return nil
	case <-p.ended:
		return fmt.Errorf("publisher has ended: %w", p.cause)
	}
}

// close says that no more messages come; publish returns when all are acknowledged.
func (p *publisher) close() { close(p.in) }

// publish sends messages until close was called and everything is acknowledged, ctx
// ends, or a message can never be stored.
func (p *publisher) publish(ctx context.Context) (err error) {
	defer func() {
		p.cause = err
		close(p.ended)
	}()
	answers := make(chan puback.Answer, 2*maxUnacked)
	inbox, stop, err := puback.Listen(p.conn, answers, p.ended) // the window bounds how many can wait there
	if err != nil {
		return err
	}
	defer stop()
	p.inbox = inbox
	connected := p.conn.StatusChanged(nats.CONNECTED)
	defer p.conn.RemoveStatusListener(connected)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()

	in := p.in
	for in != nil || len(p.pending) > 0 {
		take := in
		if len(p.pending) >= maxUnacked || p.bytes >= windowBytes {
			take = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m, ok := <-take:
			if !ok {
				in = nil
				break
			}
			p.adopt(m)
			err = p.send(m)
		case a := <-answers:
			err = p.settle(a)
		case <-connected:
			// What was under way when the connection broke is lost or its
			// acknowledgement is: waiting for ackWait would gain nothing.
			err = p.sendDue(func(*message) bool { return true })
		case now := <-ticker.C:
			p.logStandstill(now)
			err = p.sendDue(func(m *message) bool { return now.After(m.due) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *publisher) adopt(m *message) {
	if len(p.pending) == 0 {
		p.answered = time.Now()
	}
	m.id = p.nextID
	p.nextID++
	p.pending[m.id] = m
	p.bytes += len(m.body)
}

// send sends the message once and notes when to do so again.
func (p *publisher) send(m *message) error {
	now := time.Now()
	if !p.conn.IsConnected() && !p.conn.IsClosed() {
		m.due = now.Add(refusedWait)
		return nil
	}
	if m.doubted.IsZero() {
		m.doubted = now
	} else if m.once == nil && m.sent > 0 && now.Sub(m.doubted) > duplicateWindow {
		p.logLate(m)
	}
	out := &nats.Msg{
		Subject: p.subject + "." + strconv.FormatUint(m.id%fanOut, 10),
		Reply:   p.inbox + "." + strconv.FormatUint(m.id, 36),
		Header:  nats.Header{nats.MsgIdHdr: {p.runID + "-" + strconv.FormatUint(m.id, 10)}},
		Data:    m.body,
	}
	if m.once != nil {
		out.Subject, out.Header = m.once.subject, m.once.header()
	}
	err := p.conn.PublishMsg(out)
	m.sent++
	m.open++
	m.due = now.Add(ackWait)
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("publish %d hits in %d bytes on %s: the server takes messages of %d bytes at most: lower --batch: %w",
			m.hits, len(m.body), p.subject, p.conn.MaxPayload(), err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrHeadersNotSupported):
		return fmt.Errorf("publish on %s: %w", p.destination(m), err)
	default: // the connection is breaking: it is not known how much left
		m.due = now.Add(refusedWait)
	}
	return nil
}

func (p *publisher) sendDue(due func(*message) bool) error {
	for _, m := range p.pending {
		if due(m) {
			if err := p.send(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle takes an answer in. The second answer for a message that was sent
// twice finds it gone.
func (p *publisher) settle(a puback.Answer) error {
	m := p.pending[a.ID]
	switch {
	case m == nil:
		return nil
	case a.Stored:
		p.tally.hits += int64(m.hits)
		p.tally.messages++
		p.places.add(a.Stream, a.Seq)
		p.stored(m.hits)
		p.drop(m, a)
		return nil
	case m.once != nil && (a.Last > 0 || a.Code == puback.CodeWrongLast && m.once.after > 0 || a.Code == puback.CodeTooLarge):
		p.drop(m, a)
		return nil
	case a.Code == puback.CodeTooLarge:
		return fmt.Errorf("publish %d hits in %d bytes on %s: %w: lower --batch", m.hits, len(m.body), p.subject, a.Refusal)
	}
	if m.open--; m.open == 0 {
		m.doubted = time.Time{} // every send was refused: it is certainly not stored
	}
	p.answered = time.Now()
	m.due = p.answered.Add(refusedWait)
	p.logRefusal(m, a.Refusal)
	return nil
}

// drop forgets a message whose fate is known.
func (p *publisher) drop(m *message, a puback.Answer) {
	delete(p.pending, m.id)
	p.bytes -= len(m.body)
	p.answered = time.Now()
	if m.once != nil {
		// If it was sent twice, it was this program that had stored it.
		p.settled(fate{m.once, a, m.sent == 1 && (a.Duplicate || a.Last > 0), !a.Stored && m.open == 1})
	}
	messages.Put(m)
}

// destination returns the subject of a message, for people.
func (p *publisher) destination(m *message) string {
	if m.once != nil {
		return m.once.subject
	}
	return p.subject + ".*"
}

func (p *publisher) logRefusal(m *message, why error) {
	if time.Since(p.said) < sayEvery {
		return
	}
	p.said = time.Now()
	if errors.Is(why, puback.ErrNoStream) {
		p.log.Warn().Msgf("no stream takes %s: is ingest running? It waits.", p.destination(m))
		return
	}
	p.log.Warn().Err(why).Msgf("%s is refused; trying again", p.destination(m))
}

// logStandstill logs that acknowledgements stay away altogether. A lost
// connection is logged by itself.
func (p *publisher) logStandstill(now time.Time) {
	if len(p.pending) == 0 || now.Sub(p.answered) < ackWait || now.Sub(p.said) < sayEvery || !p.conn.IsConnected() {
		return
	}
	p.said = now
	for _, m := range p.pending {
		p.log.Warn().Int("messages", len(p.pending)).Msgf("nothing acknowledges %s; sending again", p.destination(m))
		return
	}
}

func (p *publisher) logLate(m *message) {
	if p.tally.late == 0 {
		p.log.Warn().Msgf("messages are sent again after more than %v: a stream that remembers ids no longer may store them twice", duplicateWindow)
	}
	p.tally.late++
	m.doubted = time.Now() // say it once for each time it happens
}
