package main

import (
	"sync"
	"time"

	"tallyroll/internal/hit"
)

// linger is the longest that a hit waits for others to share its message.
const linger = 100 * time.Millisecond

// message is a batch of hits on its way to the stream. Once submitted it
// belongs to the publisher.
type message struct {
	id   uint64
	hits int
	body []byte // NDJSON
	once *once  // of a reject that is published again, or of a log that is followed; else nil

	due     time.Time // when to send it again
	open    int       // sends without an answer yet
	sent    int       // sends in all
	doubted time.Time // the first send that may have stored it; zero: none
}

// once addresses a message that must follow another one on its subject, or be the first: the stream itself
// refuses a second.
type once struct {
	subject string
	id      string // its Nats-Msg-Id, the same whoever sends it
	after   uint64 // the sequence of the message before it; 0: none
	reject  *reject
}

var messages = sync.Pool{New: func() any { return new(message) }}

func newMessage() *message {
	m := messages.Get().(*message)
	*m = message{body: m.body[:0]}
	return m
}

// batcher collects hits into messages. It belongs to one goroutine.
type batcher struct {
	maxHits int
	// open is called before the first message. It waits for the connection, and returns submit,
	// which blocks while too much is unacknowledged, and the size of the largest body.
	open     func() (submit func(*message) error, maxBytes int, err error)
	submit   func(*message) error
	maxBytes int

	hits  int64 // taken in all, also those that could not be submitted
	msg   *message
	since time.Time // when the first hit of msg came
}

// add puts the hit into the message that is being filled, and submits it when
// it is full.
func (b *batcher) add(h hit.Hit) error {
	b.hits++
	if b.msg == nil {
		if err := b.begin(); err != nil {
			return err
		}
	}
	body := b.msg.body
	before := len(body)
	if before > 0 {
		body = append(body, '\n')
	}
	body = h.AppendJSON(body)
	if len(body) > b.maxBytes && before > 0 {
		b.msg.body = body[:before]
		if err := b.flush(); err != nil {
			return err
		}
		if err := b.begin(); err != nil {
			return err
		}
		body = h.AppendJSON(b.msg.body)
	}
	b.msg.body = body
	b.msg.hits++
	if b.msg.hits >= b.maxHits {
		return b.flush()
	}
	return nil
}

func (b *batcher) begin() (err error) {
	if b.submit == nil {
		if b.submit, b.maxBytes, err = b.open(); err != nil {
			return err
		}
	}
	b.msg = newMessage()
	b.since = time.Now()
	return nil
}

// flush submits the message that is being filled.
func (b *batcher) flush() error {
	if b.msg == nil || b.msg.hits == 0 {
		return nil
	}
	m := b.msg
	b.msg = nil
	return b.submit(m)
}

// due is when the message that is being filled has to go; ok is false while
// there is none.
func (b *batcher) due() (t time.Time, ok bool) {
	return b.since.Add(linger), b.msg != nil && b.msg.hits > 0
}
