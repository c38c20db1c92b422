package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
)

// Sender sends messages until they are acknowledged. Its goroutine owns all state: use Submit and Close.
type Sender struct {
	conn    *nats.Conn
	log     zerolog.Logger
	subject string // messages go to <subject>.<0 … fanOut-1>
	stored  func(hits int)

	in    chan *Message
	ended chan struct{} // closed when run returns
	cause error         // why it returned; read after ended

	box        *Box[*Message]
	count      uint64    // messages sent, for the subject of the next one
	bytes      int       // of the messages in box
	failed     error     // a message can never be stored
	mayRepeat  bool      // a message was sent again after duplicateWindow: it may be stored twice
	lastLogged time.Time // when a standstill was last logged
	answered   time.Time // when the last answer came, or the wait for one began
}

const (
	// maxUnacked bounds the unacknowledged messages. With 200 hits each and a local server, 64 reached 11.1
	// million hits per second, 256 14.0 and 1024 13.9.
	maxUnacked = 256
	// windowBytes bounds their memory.
	windowBytes = 32 << 20
	// logEvery is the interval of logs of a standstill.
	logEvery = 5 * time.Second
	// duplicateWindow is how long a stream recognises a repeated Nats-Msg-Id by default.
	duplicateWindow = 2 * time.Minute
	// fanOut is the number of subjects, by which a server that partitions can spread them over streams.
	fanOut = 64
)

// Message is a batch of hits for the stream. Once submitted it belongs to the Sender.
type Message struct {
	Envelope // its body is NDJSON; Submit fills in the rest
	Hits     int
	Once     *Once // nil: any subject and place in the stream will do
}

// Once addresses a message that must be the first on its subject: the stream refuses a second.
type Once struct {
	Subject string
	ID      string        // its Nats-Msg-Id, the same for every sender
	More    nats.Header   // further headers
	Done    func(Outcome) // called with its outcome by the Sender's goroutine
}

type Outcome struct {
	Answer
	Repeat bool // the stream had stored it before this Sender sent it
}

// Header returns the headers by which a stream stores the message at most once, and More.
func (o *Once) Header() nats.Header {
	h := nats.Header{
		// The stream takes it only if it holds no message of the subject.
		jetstream.ExpectedLastSubjSeqHeader: {"0"},
		// It distinguishes this message from any other that could be there.
		nats.MsgIdHdr: {o.ID},
	}
	maps.Copy(h, o.More)
	return h
}

var messages = sync.Pool{New: func() any { return new(Message) }}

// NewMessage returns an empty message, with the memory of a stored one.
func NewMessage() *Message {
	m := messages.Get().(*Message)
	*m = Message{Envelope: Envelope{Body: m.Body[:0]}}
	return m
}

// Free reuses the memory. The Sender does that for what was submitted.
func (m *Message) Free() { messages.Put(m) }

// CheckSubject refuses a subject that cannot be published to.
func CheckSubject(s string) error {
	if !hit.ValidSubject(s) || strings.ContainsAny(s, "*>") {
		return errors.New("must be a subject without wildcards or spaces, such as hits.publish")
	}
	return nil
}

// ConnOptions disables the client's reconnect buffer, because a Sender resends what is unacknowledged.
func ConnOptions() []nats.Option {
	return []nats.Option{nats.ReconnectBufSize(-1)}
}

// Start sends on a connection with ConnOptions until Close was called, ctx ends or a message can never be
// stored. The Sender's goroutine calls stored for each stored message.
func Start(ctx context.Context, conn *nats.Conn, log zerolog.Logger, subject string, stored func(hits int)) *Sender {
	s := &Sender{conn: conn, log: log, subject: subject, stored: stored, in: make(chan *Message),
		ended: make(chan struct{})}
	go s.run(ctx)
	return s
}

// Submit hands a message over. It blocks while too much is unacknowledged, and fails once the Sender ended.
func (s *Sender) Submit(m *Message) error {
	select {
	case s.in <- m:
		return nil
	case <-s.ended:
		return fmt.Errorf("publisher has ended: %w", s.cause)
	}
}

// Close waits until all messages are acknowledged or the Sender has ended, and returns why; nil if all are
// acknowledged. It is called once, after the last Submit.
func (s *Sender) Close() error {
	close(s.in)
	<-s.ended
	return s.cause
}

func (s *Sender) run(ctx context.Context) {
	defer close(s.ended)
	if s.box, s.cause = Open(s.conn, s.mayResend, s.failUnsent); s.cause != nil {
		return
	}
	defer s.box.Close()
	s.cause = s.serve(ctx)
}

func (s *Sender) serve(ctx context.Context) error {
	in := s.in
	for in != nil || s.box.Len() > 0 {
		take := in
		if s.box.Len() >= maxUnacked || s.bytes >= windowBytes {
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
			s.send(m)
		case a := <-s.box.Answers:
			s.receive(a)
		case now := <-s.box.Ticks:
			s.logStandstill(now)
			s.box.Tick(now)
		}
		if s.failed != nil {
			return s.failed
		}
	}
	return nil
}

func (s *Sender) send(m *Message) {
	if s.box.Len() == 0 {
		s.answered = time.Now()
	}
	if m.Once != nil {
		m.Subject, m.ID, m.More = m.Once.Subject, m.Once.ID, m.Once.Header()
	} else {
		m.Subject = s.subject + "." + strconv.FormatUint(s.count%fanOut, 10)
		s.count++
	}
	s.bytes += len(m.Body)
	s.box.Send(m)
}

// mayResend allows every resend, and logs one that may be stored twice.
func (s *Sender) mayResend(m *Message, age time.Duration) bool {
	if age > duplicateWindow && m.Once == nil && !s.mayRepeat {
		s.mayRepeat = true
		s.log.Warn().Msgf("messages are sent again after more than %v: a stream that remembers ids no longer may "+
			"store them twice", duplicateWindow)
	}
	return true
}

func (s *Sender) failUnsent(m *Message, why error) {
	switch {
	case errors.Is(why, nats.ErrMaxPayload):
		s.failed = fmt.Errorf("publish %d hits in %d bytes on %s: the server takes messages of %d bytes at most: "+
			"lower --batch: %w",
			m.Hits, len(m.Body), s.subject, s.conn.MaxPayload(), why)
	case errors.Is(why, nats.ErrConnectionClosed), errors.Is(why, nats.ErrBadSubject),
		errors.Is(why, nats.ErrHeadersNotSupported):
		s.failed = fmt.Errorf("publish on %s: %w", s.destination(m), why)
	}
}

func (s *Sender) receive(a Answer) {
	m, ok := s.box.Resolve(a)
	if !ok {
		return
	}
	s.answered = time.Now()
	switch {
	case a.Stored:
		s.stored(m.Hits)
		s.complete(m, a)
	case m.Once != nil && (a.Last > 0 || a.Code == CodeTooLarge):
		s.box.Drop(m)
		s.complete(m, a)
	case a.Code == CodeTooLarge:
		s.failed = fmt.Errorf("publish %d hits in %d bytes on %s: %w: lower --batch", m.Hits, len(m.Body), s.subject,
			a.Refusal)
	default:
		var refusal Refusal
		if errors.As(a.Refusal, &refusal) && refusal.Lasts() {
			s.failed = fmt.Errorf("publish on %s: %w, and will again", s.destination(m), refusal)
			return
		}
		s.logRefusal(m, a.Refusal)
	}
}

// complete frees a message whose outcome is known.
func (s *Sender) complete(m *Message, a Answer) {
	s.bytes -= len(m.Body)
	if m.Once != nil {
		// If it was sent twice, it was this program that had stored it.
		m.Once.Done(Outcome{a, m.sent == 1 && (a.Duplicate || a.Last > 0)})
	}
	m.Free()
}

func (s *Sender) destination(m *Message) string {
	if m.Once != nil {
		return m.Once.Subject
	}
	return s.subject + ".*"
}

func (s *Sender) logRefusal(m *Message, why error) {
	if time.Since(s.lastLogged) < logEvery {
		return
	}
	s.lastLogged = time.Now()
	if errors.Is(why, ErrNoStream) {
		s.log.Warn().Msgf("no stream takes %s: is ingest running? It waits.", s.destination(m))
		return
	}
	s.log.Warn().Err(why).Msgf("%s is refused; trying again", s.destination(m))
}

// logStandstill logs that no acknowledgements come. A lost connection is logged elsewhere.
func (s *Sender) logStandstill(now time.Time) {
	if s.box.Len() == 0 || now.Sub(s.answered) < ackWait || now.Sub(s.lastLogged) < logEvery || !s.conn.IsConnected() {
		return
	}
	s.lastLogged = now
	for m := range s.box.All() {
		s.log.Warn().Int("messages", s.box.Len()).Msgf("nothing acknowledges %s; sending again", s.destination(m))
		return
	}
}
