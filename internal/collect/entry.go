package collect

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

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
