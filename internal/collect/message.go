package collect

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

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

// end tells every entry what became of it, and gives the message's memory back.
func (m *message) end(o outcome) {
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
