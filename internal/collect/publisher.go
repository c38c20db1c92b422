package collect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/web"
)

const (
	// headerRoom is kept free in the largest message for Nats-Msg-Id.
	headerRoom = 1 << 10
	// queue is how many entries may wait for the publisher's goroutine before store blocks.
	queue = 1024
)

// grace is how long requests may still wait for JetStream at shutdown. It is shorter than web.Serve's five
// seconds, so that every one of them is answered.
const grace = 4 * time.Second

// publisher gathers entries into messages and sends these until their outcome is known. serve owns its state.
type publisher struct {
	conn    *nats.Conn
	target  *target
	metrics *metrics
	log     zerolog.Logger
	subject string
	maxWait time.Duration
	timeout time.Duration
	maxHits int

	in    chan *entry
	ended chan struct{} // closed when serve returns

	box    *outbox.Box[*message]
	group  *message  // that gathers entries; nil if no entry waits
	latest time.Time // no entry waits longer; zero until the service stops
}

func newPublisher(conn *nats.Conn, target *target, metrics *metrics, settings Settings, log zerolog.Logger) *publisher {
	return &publisher{
		conn: conn, target: target, metrics: metrics, log: log, subject: settings.Subject,
		maxWait: settings.MaxWait, timeout: settings.Timeout, maxHits: settings.MaxHits,
		in:    make(chan *entry, queue),
		ended: make(chan struct{}),
	}
}

// store submits an entry and waits for its outcome, or until the timeout.
func (p *publisher) store(e *entry) outcome {
	select {
	case p.in <- e:
	case <-p.ended:
		return outcome{problem: stopping()}
	}
	select {
	case o := <-e.done:
		return o
	case <-p.ended:
	}
	select {
	case o := <-e.done:
		return o
	default: // serve had ended before it saw the entry
		return outcome{problem: stopping()}
	}
}

// serve publishes until ctx ends. Once stopping is closed, no entry waits longer than grace.
func (p *publisher) serve(ctx context.Context, stopping <-chan struct{}) error {
	defer close(p.ended)
	var err error
	// COLLECT_MAX_REQUESTS bounds how many messages can be in it.
	if p.box, err = outbox.Open(p.conn, p.mayResend, p.refuseUnsent); err != nil {
		return err
	}
	defer p.box.Close()
	full := time.NewTimer(time.Hour) // while a group gathers, it fires when the group has gathered for long enough
	defer full.Stop()

	for {
		gathering := p.group != nil
		select {
		case <-ctx.Done():
			p.stop()
			return nil
		case <-stopping:
			stopping, p.latest = nil, time.Now().Add(grace)
		case e := <-p.in:
			p.gatherWaiting(e)
		case a := <-p.box.Answers:
			p.receive(a)
		case <-full.C:
			p.flush()
		case now := <-p.box.Ticks:
			p.endOverdue(now)
			p.box.Tick(now)
		}
		// While a message is under way, entries gather for the next one. If none is, nothing waits.
		if p.group != nil && p.box.Len() == 0 {
			p.flush()
		}
		if p.group != nil && !gathering {
			full.Reset(p.maxWait)
		}
	}
}

func (p *publisher) gatherWaiting(e *entry) {
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

// most returns how many bytes of hits a message can carry, and the name of that bound.
func (p *publisher) most() (bytes int, bound string) {
	bytes, bound = int(p.conn.MaxPayload()), "max_payload of the NATS server"
	if size := p.target.maxMsgSize(); size > 0 && size < bytes {
		bytes, bound = size, "max_msg_size of the stream"
	}
	return bytes - headerRoom, bound
}

// gather adds an entry to the group, or sends it alone if it shares no message.
func (p *publisher) gather(e *entry, most int) {
	if e.separate {
		m := newMessage(p.subject)
		m.ID = e.id
		m.add(e, p.timeout)
		p.box.Send(m)
		return
	}
	if p.group != nil && (len(p.group.Body)+len(e.lines) > most || p.group.hits+e.hits > p.maxHits) {
		p.flush()
	}
	if p.group == nil {
		p.group = newMessage(p.subject)
	}
	p.group.add(e, p.timeout)
}

func (p *publisher) flush() {
	m := p.group
	if m == nil {
		return
	}
	p.group = nil
	p.box.Send(m)
}

// mayResend reports whether a message may be resent. JetStream recognises a stored id only for a while: after
// half of that, a message only waits for an answer.
func (p *publisher) mayResend(_ *message, age time.Duration) bool {
	if age > p.target.duplicateWindow()/2 {
		return false
	}
	p.metrics.sentAgain.Inc()
	return true
}

func (p *publisher) refuseUnsent(m *message, why error) {
	if !m.Open() {
		p.refuse(m, why)
	}
}

func (p *publisher) receive(a outbox.Answer) {
	m, ok := p.box.Resolve(a)
	switch {
	case !ok:
	case a.Stored:
		p.metrics.observeStored(m.hits, m.Since(), a.Duplicate)
		p.target.recordStored()
		m.complete(outcome{stream: a.Stream, sequence: a.Seq, duplicate: a.Duplicate})
	case !m.Open():
		p.refuse(m, a.Refusal)
	}
}

// endOverdue ends messages that have waited as long as a request may. They were sent: their outcome is
// unknown.
func (p *publisher) endOverdue(now time.Time) {
	for m := range p.box.All() {
		limit := m.deadline
		if !p.latest.IsZero() && p.latest.Before(limit) {
			limit = p.latest
		}
		if now.After(limit) {
			p.endUnknown(m)
		}
	}
}

func (p *publisher) stop() {
	for len(p.in) > 0 {
		e := <-p.in
		e.done <- outcome{problem: stopping()}
	}
	if p.group != nil {
		p.group.complete(outcome{problem: stopping()})
		p.group = nil
	}
	for m := range p.box.All() {
		p.endUnknown(m)
	}
}

func (p *publisher) endUnknown(m *message) {
	p.box.Drop(m)
	m.complete(outcome{problem: web.NewProblem(http.StatusGatewayTimeout,
		"JetStream has not answered in time (COLLECT_TIMEOUT): whether the hits of this request are stored is "+
			"unknown; sending them again counts them once only with the same Idempotency-Key, or the same source and "+
			"id of a CloudEvent, within the time for which the stream remembers it (2 minutes by default)",
	).OfKind(web.StoredUnknown)})
}

// refuse ends a message that is certainly not stored.
func (p *publisher) refuse(m *message, why error) {
	p.box.Drop(m)
	var refusal outbox.Refusal
	if !errors.As(why, &refusal) || refusal.Code != outbox.CodeTooLarge {
		p.target.recordRefusal(why)
		m.complete(outcome{problem: p.refusalProblem(why)})
		return
	}
	if len(m.entries) == 1 {
		m.complete(outcome{problem: tooLargeFor("max_msg_size of the stream")})
		return
	}
	for _, e := range m.entries { // the stream takes less than it did: each request by itself may fit
		one := newMessage(p.subject)
		one.add(e, p.timeout)
		p.box.Send(one)
	}
	m.free()
}

func (p *publisher) refusalProblem(why error) *web.Problem {
	switch {
	case errors.Is(why, outbox.ErrNoStream):
		return notStored(noStream(p.subject))
	case errors.Is(why, nats.ErrMaxPayload):
		return tooLargeFor("max_payload of the NATS server")
	case outbox.NeverLeft(why):
		return notStored("NATS does not answer: nothing of this request is stored; send it again in a second")
	}
	var refusal outbox.Refusal
	if errors.As(why, &refusal) && refusal.Lasts() {
		return web.NewProblem(http.StatusServiceUnavailable, fmt.Sprintf(
			"messages on %s do not suit their stream (%v): nothing of this request is stored, and sending it again "+
				"does not help: an operator has to set COLLECT_SUBJECT to a subject of another stream",
			p.subject, why)).OfKind(web.NotStored).WithHeader("Retry-After", "60")
	}
	return notStored(fmt.Sprintf("JetStream refuses messages on %s now (%v): nothing of this request is stored; send "+
		"it again in a second", p.subject, why))
}
