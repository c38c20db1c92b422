package collect

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/web"
)

// entry is the hits or CloudEvents of one request on their way to JetStream. The publisher owns it from
// publisher.store until it has put the outcome into done.
type entry struct {
	lines    []byte      // the hits, one object per line; or CloudEvents as they came
	hits     int         // or events
	idSource string      // whose the id is, human-readable
	id       string      // Nats-Msg-Id; empty: any
	separate bool        // it shares no message with others
	header   nats.Header // on the message, if no other entry shares it: the event's of CloudEvents, and the trace
	since    time.Time
	held     web.Hold
	done     chan outcome
}

// newEvents takes CloudEvents unchanged. It returns nil if there is no room for them.
func newEvents(b *web.Budget, body []byte, events int, header nats.Header, id string) *entry {
	e := newEntry(b, nil, id)
	if e == nil {
		return nil
	}
	e.lines, e.hits, e.separate, e.header = append(e.lines, body...), events, true, header
	return e.keep()
}

type outcome struct {
	stream    string
	sequence  uint64
	duplicate bool
	problem   *web.Problem // if it is not stored, or if that is unknown
}

var entries = sync.Pool{New: func() any { return &entry{done: make(chan outcome, 1)} }}

// newEntry encodes hits as the workers read them. It returns nil if there is no room for them.
func newEntry(b *web.Budget, hits []hit.Hit, id string) *entry {
	e := entries.Get().(*entry)
	e.lines, e.hits, e.header = e.lines[:0], len(hits), nil
	e.id, e.separate, e.idSource = id, id != "", keyHeader
	e.since, e.held = time.Now(), b.Hold()
	for _, h := range hits {
		e.lines = append(h.AppendJSON(e.lines), '\n')
	}
	return e.keep()
}

// size is the entry's bytes in a message, without its Nats-Msg-Id.
func (e *entry) size() int {
	n := len(e.lines)
	for name, values := range e.header {
		for _, v := range values {
			n += len(name) + len(": \r\n") + len(v)
		}
	}
	return n
}

func (e *entry) trace(parent string) {
	if e.header == nil {
		e.header = make(nats.Header, 1)
	}
	e.header.Set(trace.Header, parent)
}

// free returns the entry's memory. The entry must not be used afterwards.
func (e *entry) free() {
	e.held.Resize(0)
	if cap(e.lines) > mostPooled {
		e.lines = nil
	}
	entries.Put(e)
}

// message is what JetStream stores at once: the hits of one request, or of several.
type message struct {
	outbox.Envelope
	hits     int
	entries  []*entry
	deadline time.Time // of the entry that waits longest
}

var messages = sync.Pool{New: func() any { return new(message) }}

func newMessage(subject string) *message {
	m := messages.Get().(*message)
	*m = message{Envelope: outbox.Envelope{Subject: subject, Body: m.Body[:0]}, entries: m.entries[:0]}
	return m
}

func (m *message) add(e *entry, timeout time.Duration) {
	m.More = nil // of several requests, none's trace is the message's; an event is alone
	if len(m.entries) == 0 {
		m.deadline = e.since.Add(timeout)
		m.More = e.header
	}
	m.Body = append(m.Body, e.lines...)
	m.hits += e.hits
	m.entries = append(m.entries, e)
}

func (m *message) complete(o outcome) {
	for i, e := range m.entries {
		m.entries[i] = nil
		e.done <- o // it has room for one
	}
	m.free()
}

func (m *message) free() {
	m.entries = m.entries[:0]
	if cap(m.Body) > 4*mostPooled {
		m.Body = nil
	}
	messages.Put(m)
}

// keyHeader makes a client's retry safe (draft-ietf-httpapi-idempotency-key-header).
const keyHeader = "Idempotency-Key"

// keep holds the memory of an encoded entry, or frees it and returns nil if there is no room.
func (e *entry) keep() *entry {
	if !e.held.Resize(cap(e.lines)) {
		e.free()
		return nil
	}
	return e
}
