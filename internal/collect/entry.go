package collect

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// receipt says where JetStream has stored the hits of a request.
type receipt struct {
	Stored    int    `json:"stored" doc:"Hits of the request." example:"3"`
	Stream    string `json:"stream" doc:"The stream that has stored them." example:"HITS"`
	Sequence  uint64 `json:"sequence" doc:"The message's sequence in the stream. Requests that came together share one message." example:"812"`
	Duplicate bool   `json:"duplicate,omitempty" doc:"True if an earlier request with the same Idempotency-Key had stored them." example:"true"`
}

// accept stores hits and returns when JetStream has stored them. With an id, they are a message
// of their own with that Nats-Msg-Id; without, they share one with those of other requests.
// The error is a *web.Problem: 503 if the hits are surely not stored, 504 if that is unknown.
func (s *service) accept(ctx context.Context, hits []hit.Hit, id string) (receipt, error) {
	e := newEntry(&s.gate, hits, id)
	if e == nil {
		return receipt{}, noRoom("COLLECT_MAX_WAITING")
	}
	return s.store(ctx, e)
}

// store is accept for hits that are written down already. The entry is the store's from then on.
func (s *service) store(ctx context.Context, e *entry) (receipt, error) {
	defer e.free()
	p := s.publisher.Load()
	if p == nil {
		return receipt{}, notStored("NATS has not answered yet: nothing of this request is stored; send it again in a second")
	}
	most, bound := p.most()
	if e.size() > most {
		return receipt{}, tooLargeFor(bound)
	}
	o := p.store(e)
	if o.problem != nil {
		return receipt{}, o.problem
	}
	if o.duplicate && e.id != "" {
		if p := s.sameAsFirst(ctx, e, o); p != nil {
			return receipt{}, p
		}
	}
	return receipt{Stored: e.hits, Stream: o.stream, Sequence: o.sequence, Duplicate: o.duplicate && e.id != ""}, nil
}

// newEvents takes CloudEvents as they came. It returns nil if there is no room for them.
func newEvents(g *gate, body []byte, events int, header nats.Header, id string) *entry {
	e := newEntry(g, nil, id)
	if e == nil {
		return nil
	}
	e.lines, e.hits, e.alone, e.event = append(e.lines, body...), events, true, header
	if !e.held.resize(cap(e.lines)) {
		e.free()
		return nil
	}
	return e
}

// entry is the hits or CloudEvents of one request on their way to JetStream. The publisher owns it from submit until it
// has put the outcome into done.
type entry struct {
	lines []byte      // the hits, one object per line; or CloudEvents as they came
	hits  int         // or events
	named string      // whose the id is, for people
	id    string      // Nats-Msg-Id; empty: any
	alone bool        // it shares no message with others
	event nats.Header // of CloudEvents, on the message
	since time.Time
	held  hold
	done  chan outcome
}

// outcome is what became of an entry.
type outcome struct {
	stream    string
	sequence  uint64
	duplicate bool
	problem   *web.Problem // if it is not stored, or if that is unknown
}

var entries = sync.Pool{New: func() any { return &entry{done: make(chan outcome, 1)} }}

// mostPooled is the largest buffer that is kept for the next request.
const mostPooled = 64 << 10

// newEntry writes hits as the workers read them. It returns nil if there is no room for them.
func newEntry(g *gate, hits []hit.Hit, id string) *entry {
	e := entries.Get().(*entry)
	e.lines, e.hits, e.id, e.alone, e.event, e.named, e.since, e.held = e.lines[:0], len(hits), id, id != "", nil, keyHeader, time.Now(), hold{gate: g}
	for _, h := range hits {
		e.lines = append(h.AppendJSON(e.lines), '\n')
	}
	if !e.held.resize(cap(e.lines)) {
		e.free()
		return nil
	}
	return e
}

// size is how many bytes of a message the entry takes, beside its Nats-Msg-Id.
func (e *entry) size() int {
	n := len(e.lines)
	for name, values := range e.event {
		for _, v := range values {
			n += len(name) + len(": \r\n") + len(v)
		}
	}
	return n
}

// free gives the entry's memory back. Nobody else may use it.
func (e *entry) free() {
	e.held.resize(0)
	if cap(e.lines) > mostPooled {
		e.lines = nil
	}
	entries.Put(e)
}

// message is what JetStream stores at once: the hits of one request, or of several.
type message struct {
	n         uint64      // its place in pending, and the end of the subject for its answer
	id        string      // Nats-Msg-Id
	event     nats.Header // of CloudEvents; nil for hits
	body      []byte
	hits      int
	entries   []*entry
	firstSent time.Time // zero before it was sent
	deadline  time.Time // of the entry that waits longest
	due       time.Time // send it again, unless its answer comes before
	open      int       // sends of which nothing is known: it may be stored
}

var messages = sync.Pool{New: func() any { return new(message) }}

func newMessage() *message {
	m := messages.Get().(*message)
	*m = message{body: m.body[:0], entries: m.entries[:0]}
	return m
}

// header is the message's, with which it is sent.
func (m *message) header() nats.Header {
	h := nats.Header{nats.MsgIdHdr: {m.id}}
	for name, values := range m.event {
		h[name] = values
	}
	return h
}

// add puts an entry's hits into the message.
func (m *message) add(e *entry, timeout time.Duration) {
	if len(m.entries) == 0 {
		m.deadline = e.since.Add(timeout)
		m.event = e.event // such an entry is alone
	}
	m.body = append(m.body, e.lines...)
	m.hits += e.hits
	m.entries = append(m.entries, e)
}

// settle tells every entry what became of it, and gives the message's memory back.
func (m *message) settle(o outcome) {
	for i, e := range m.entries {
		m.entries[i] = nil
		e.done <- o // it has room for one
	}
	m.free()
}

func (m *message) free() {
	m.entries = m.entries[:0]
	if cap(m.body) > 4*mostPooled {
		m.body = nil
	}
	messages.Put(m)
}
