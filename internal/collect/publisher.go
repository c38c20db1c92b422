package collect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"tallyroll/internal/puback"
	"tallyroll/internal/web"
)

const (
	// headerRoom is kept free in the largest message for Nats-Msg-Id.
	headerRoom = 1 << 10
	// ackWait is how long an answer may take before the message is sent again. JetStream drops the
	// repeat, so being too short only costs traffic.
	ackWait = 5 * time.Second
	// refusedWait is the pause after a refusal of a message of which an earlier send may be stored.
	refusedWait = 250 * time.Millisecond
	// tick is how often overdue messages are looked for.
	tick = 50 * time.Millisecond
	// queue is how many entries and answers may wait for the publisher's goroutine before others wait for it.
	queue = 1024
)

// publisher gathers entries into messages and sends these until it is known what became of them.
// The goroutine in run owns all of its state; others reach it through submit.
type publisher struct {
	conn    *nats.Conn
	target  *target
	metrics *metrics
	log     zerolog.Logger
	subject string
	maxWait time.Duration
	timeout time.Duration
	maxHits int
	runID   string // first part of each Nats-Msg-Id

	in    chan *entry
	ended chan struct{} // closed when run returns

	inbox   string
	lastN   uint64
	pending map[uint64]*message // sent, and not known what became of it
	group   *message            // that gathers entries; nil if there are none
	latest  time.Time           // no entry waits longer; zero until the service stops
}

func newPublisher(conn *nats.Conn, target *target, metrics *metrics, settings Settings, log zerolog.Logger) *publisher {
	return &publisher{
		conn: conn, target: target, metrics: metrics, log: log, subject: settings.Subject,
		maxWait: settings.MaxWait, timeout: settings.Timeout, maxHits: settings.MaxHits,
		runID:   strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36),
		in:      make(chan *entry, queue),
		ended:   make(chan struct{}),
		pending: make(map[uint64]*message),
	}
}

// store hands an entry over and waits until it is known what became of it, or the timeout has passed.
func (p *publisher) store(e *entry) outcome {
	select {
	case p.in <- e:
	case <-p.ended:
		return outcome{problem: notStored("the service is stopping: nothing of this request is stored")}
	}
	select {
	case o := <-e.done:
		return o
	case <-p.ended:
	}
	select {
	case o := <-e.done:
		return o
	default: // run had ended before it saw the entry
		return outcome{problem: notStored("the service is stopping: nothing of this request is stored")}
	}
}

// serve publishes until ctx ends. When stopping is closed, it lets no entry wait longer than grace.
func (p *publisher) serve(ctx context.Context, stopping <-chan struct{}) error {
	defer close(p.ended)
	answers := make(chan puback.Answer, queue)
	// COLLECT_MAX_REQUESTS bounds how many can wait there.
	inbox, stop, err := puback.Listen(p.conn, answers, p.ended)
	if err != nil {
		return err
	}
	defer stop()
	p.inbox = inbox
	connected := p.conn.StatusChanged(nats.CONNECTED)
	defer p.conn.RemoveStatusListener(connected)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	full := time.NewTimer(time.Hour) // while a group gathers, it fires when the group has gathered for long enough
	defer full.Stop()

	for {
		gathering := p.group != nil
		select {
		case <-ctx.Done():
			p.giveUp()
			return nil
		case <-stopping:
			stopping, p.latest = nil, time.Now().Add(grace)
		case e := <-p.in:
			p.take(e)
		case a := <-answers:
			p.settle(a)
		case <-full.C:
			p.flush()
		case <-connected:
			// What was under way when the connection broke is lost or its answer is: waiting
			// for ackWait would gain nothing.
			p.sendAgain(func(*message) bool { return true })
		case now := <-ticker.C:
			p.overdue(now)
			p.sendAgain(func(m *message) bool { return now.After(m.due) })
		}
		// While a message is under way, entries gather for the next one. With nothing under way, nobody waits.
		if p.group != nil && len(p.pending) == 0 {
			p.flush()
		}
		if p.group != nil && !gathering {
			full.Reset(p.maxWait)
		}
	}
}

// take gathers an entry, and all others that wait.
func (p *publisher) take(e *entry) {
	most, _ := p.most()
	for range queue {
		p.gather(e, most)
		select {
		case e = <-p.in:
		default:
			return
		}
	}
	p.gather(e, most)
}

// most is how many bytes of hits a message can carry, and the name of what bounds it.
func (p *publisher) most() (bytes int, bound string) {
	bytes, bound = int(p.conn.MaxPayload()), "max_payload of the NATS server"
	if size := p.target.maxMsgSize(); size > 0 && size < bytes {
		bytes, bound = size, "max_msg_size of the stream"
	}
	return bytes - headerRoom, bound
}

// gather puts an entry into the group, or sends it as a message of its own if it shares none.
func (p *publisher) gather(e *entry, most int) {
	if e.alone {
		m := newMessage()
		m.id = e.id
		m.add(e, p.timeout)
		p.begin(m)
		return
	}
	if p.group != nil && (len(p.group.body)+len(e.lines) > most || p.group.hits+e.hits > p.maxHits) {
		p.flush()
	}
	if p.group == nil {
		p.group = newMessage()
	}
	p.group.add(e, p.timeout)
}

// flush sends the group.
func (p *publisher) flush() {
	m := p.group
	if m == nil {
		return
	}
	p.group = nil
	p.begin(m)
}

// sendAgain sends messages again. JetStream recognises the id of one that it has stored, but only for a
// while: after half of that, a message only waits for an answer.
func (p *publisher) sendAgain(due func(*message) bool) {
	safe := p.target.duplicateWindow() / 2
	for _, m := range p.pending {
		if !due(m) {
			continue
		}
		if time.Since(m.firstSent) > safe {
			m.due = m.deadline
			continue
		}
		p.metrics.sentAgain.Inc()
		p.send(m)
	}
}

// settle takes an answer in. An answer for a message that has been answered before finds it gone.
func (p *publisher) settle(a puback.Answer) {
	m := p.pending[a.ID]
	switch {
	case m == nil:
		return
	case a.Stored:
		delete(p.pending, m.n)
		p.metrics.stored(m, a.Duplicate)
		p.target.stored()
		m.settle(outcome{stream: a.Stream, sequence: a.Seq, duplicate: a.Duplicate})
		return
	case a.Code == puback.CodeInProcess: // another send with the same id is about to be stored
		m.due = time.Now().Add(refusedWait)
		return
	}
	m.open--
	if m.open <= 0 {
		p.refuse(m, a.Refusal)
		return
	}
	m.due = time.Now().Add(refusedWait)
}

// overdue ends the messages that have waited for as long as a request may. They were sent, so nobody knows
// whether they are stored.
func (p *publisher) overdue(now time.Time) {
	for _, m := range p.pending {
		limit := m.deadline
		if !p.latest.IsZero() && p.latest.Before(limit) {
			limit = p.latest
		}
		if now.After(limit) {
			p.unknown(m)
		}
	}
}

// giveUp ends everything that is left when the service has stopped.
func (p *publisher) giveUp() {
	for {
		select {
		case e := <-p.in:
			e.done <- outcome{problem: notStored("the service is stopping: nothing of this request is stored")}
			continue
		default:
		}
		break
	}
	if p.group != nil {
		p.group.settle(outcome{problem: notStored("the service is stopping: nothing of this request is stored")})
		p.group = nil
	}
	for _, m := range p.pending {
		p.unknown(m)
	}
}

func (p *publisher) unknown(m *message) {
	delete(p.pending, m.n)
	m.settle(outcome{problem: web.NewProblem(http.StatusGatewayTimeout,
		"JetStream has not answered in time (COLLECT_TIMEOUT): whether the hits of this request are stored is unknown; "+
			"sending them again counts them once only with the same Idempotency-Key, or the same source and id of a CloudEvent, within the time for which the stream knows it (2 minutes by default)").OfKind(web.StoredUnknown)})
}

// begin sends a message for the first time.
func (p *publisher) begin(m *message) {
	p.lastN++
	m.n = p.lastN
	if m.id == "" {
		m.id = p.runID + "-" + strconv.FormatUint(m.n, 36)
	}
	p.pending[m.n] = m
	p.send(m)
}

// send sends the message once and notes when to do so again. A message that never left is refused.
func (p *publisher) send(m *message) {
	now := time.Now()
	m.due = now.Add(ackWait)
	err := nats.ErrReconnectBufExceeded
	if p.conn.IsConnected() {
		err = p.conn.PublishMsg(&nats.Msg{
			Subject: p.subject,
			Reply:   p.inbox + "." + strconv.FormatUint(m.n, 36),
			Header:  m.header(),
			Data:    m.body,
		})
	}
	if err == nil || !neverLeft(err) { // if the connection is breaking, it is not known how much left
		m.open++
		if m.firstSent.IsZero() {
			m.firstSent = now
		}
	}
	if err == nil {
		return
	}
	m.due = now.Add(refusedWait)
	if m.open == 0 {
		p.refuse(m, err)
	}
}

// refuse ends a message that is surely not stored.
func (p *publisher) refuse(m *message, why error) {
	delete(p.pending, m.n)
	var refusal puback.Refusal
	if !errors.As(why, &refusal) || refusal.Code != puback.CodeTooLarge {
		p.target.refused(why)
		m.settle(outcome{problem: p.refusal(why)})
		return
	}
	if len(m.entries) == 1 {
		m.settle(outcome{problem: tooLargeFor("max_msg_size of the stream")})
		return
	}
	for _, e := range m.entries { // the stream takes less than it did: each request by itself may fit
		one := newMessage()
		one.add(e, p.timeout)
		p.begin(one)
	}
	m.free()
}

func (p *publisher) refusal(why error) *web.Problem {
	switch {
	case errors.Is(why, puback.ErrNoStream):
		return notStored(noStream(p.subject))
	case errors.Is(why, nats.ErrMaxPayload):
		return tooLargeFor("max_payload of the NATS server")
	case neverLeft(why):
		return notStored("NATS does not answer: nothing of this request is stored; send it again in a second")
	}
	return notStored(fmt.Sprintf("JetStream refuses messages on %s now (%v): nothing of this request is stored; send it again in a second", p.subject, why))
}

// neverLeft reports whether an error of the client says that it has sent nothing of a message.
func neverLeft(err error) bool {
	for _, sure := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionClosed, nats.ErrMaxPayload, nats.ErrBadSubject, nats.ErrHeadersNotSupported, nats.ErrConnectionDraining} {
		if errors.Is(err, sure) {
			return true
		}
	}
	return false
}

func noStream(subject string) string {
	return fmt.Sprintf("no stream takes messages on %s (COLLECT_SUBJECT): start ingest, which makes the stream HITS, or set COLLECT_SUBJECT to a subject of a stream that it reads; nothing of this request is stored", subject)
}

func tooLargeFor(bound string) *web.Problem {
	return web.NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("body: what is in it is larger than one message may be (%s): send less in one request", bound))
}
