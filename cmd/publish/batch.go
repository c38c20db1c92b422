package main

import (
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/outbox"
)

// linger bounds a hit's wait for others to share its message.
const linger = 100 * time.Millisecond

// batcher collects hits into messages. It is not safe for concurrent use.
type batcher struct {
	maxHits  int
	maxBytes int                         // of the largest body
	submit   func(*outbox.Message) error // it blocks while too much is unacknowledged

	hits  int64           // taken in all, also those that could not be submitted
	msg   *outbox.Message // that is being filled; nil: no hit waits
	body  []byte          // of msg, and
	count int             // its hits: apart from it, which saves 10 ns per hit
	since time.Time       // when the first hit of msg came
}

// add adds the hit to the current message, and submits that when it is full.
func (b *batcher) add(h hit.Hit) error {
	b.hits++
	if b.msg == nil {
		b.begin()
	}
	body := b.body
	before := len(body)
	if before > 0 {
		body = append(body, '\n')
	}
	body = h.AppendJSON(body)
	if len(body) > b.maxBytes && before > 0 {
		b.body = body[:before]
		if err := b.flush(); err != nil {
			return err
		}
		b.begin()
		body = h.AppendJSON(b.body)
	}
	b.body = body
	b.count++
	if b.count >= b.maxHits {
		return b.flush()
	}
	return nil
}

func (b *batcher) begin() {
	b.msg = outbox.NewMessage()
	b.body, b.count = b.msg.Body, 0
	b.since = time.Now()
}

func (b *batcher) flush() error {
	if b.msg == nil || b.count == 0 {
		return nil
	}
	m := b.msg
	m.Body, m.Hits = b.body, b.count
	b.msg = nil
	return b.submit(m)
}

// due is when the current message has to go; ok is false if no hit waits.
func (b *batcher) due() (t time.Time, ok bool) {
	return b.since.Add(linger), b.msg != nil && b.count > 0
}
