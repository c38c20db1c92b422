package rejects

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// readPause is the wait after the server could not be asked.
const readPause = 100 * time.Millisecond

// Message is a message of the stream.
type Message struct {
	Part
	Known    bool   // a worker has written it
	Position uint64 // its sequence in the stream
	Data     []byte
}

// Reader reads the messages of some subjects in order, those that the stream held at a state.
type Reader struct {
	stream     jetstream.Stream
	filter     string
	next, last uint64 // sequences
}

// NewReader returns a reader of the messages that the stream holds at a state.
func NewReader(stream jetstream.Stream, filter string, state jetstream.StreamState) *Reader {
	return &Reader{stream: stream, filter: filter, next: max(1, state.FirstSeq), last: state.LastSeq}
}

// Read returns the next message; more is false once all are read. While the server cannot be asked, it waits.
func (r *Reader) Read(ctx context.Context) (m Message, more bool, err error) {
	for r.next <= r.last {
		got, err := r.stream.GetMsg(ctx, r.next, jetstream.WithGetMsgSubject(r.filter))
		switch {
		case err == nil && got.Sequence <= r.last:
			r.next = got.Sequence + 1
			part, known := Parse(got.Header)
			return Message{Part: part, Known: known, Position: got.Sequence, Data: got.Data}, true, nil
		case err == nil, errors.Is(err, jetstream.ErrMsgNotFound):
			return Message{}, false, nil
		case ctx.Err() != nil:
			return Message{}, false, ctx.Err()
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return Message{}, false, fmt.Errorf("read stream %s: %w", Stream, err)
		}
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
		}
	}
	return Message{}, false, nil
}

// maxApart bounds the bytes of the parts that wait for others of their reject.
const maxApart = 64 << 20

// Assembly puts rejects together from their parts. The zero Assembly is empty.
type Assembly struct {
	Dropped int64 // rejects whose parts were too far apart

	waiting map[string]*pieces
	order   []string // of waiting, the oldest first
	bytes   int
}

// Stored is a reject as the stream holds it.
type Stored struct {
	Reject
	Positions []uint64 // of all parts
}

// pieces are the parts of a reject that have come.
type pieces struct {
	stored Stored
	bodies [][]byte // by number; nil: has not come
}

// Add takes a message that a worker has written. It returns the reject if that is now whole, and nil if it is not.
func (a *Assembly) Add(m Message) *Stored {
	name := m.Name()
	w := a.waiting[name]
	if w == nil || len(w.bodies) != m.Of {
		a.forget(name)
		w = &pieces{stored: Stored{Reject: m.Reject}, bodies: make([][]byte, m.Of)}
		if a.waiting == nil {
			a.waiting = map[string]*pieces{}
		}
		a.waiting[name] = w
		a.order = append(a.order, name)
	}
	a.bytes += len(m.Data) - len(w.bodies[m.Number-1])
	w.bodies[m.Number-1] = append([]byte{}, m.Data...) // never nil
	w.stored.Positions = append(w.stored.Positions, m.Position)
	if slices.ContainsFunc(w.bodies, func(b []byte) bool { return b == nil }) {
		for a.bytes > maxApart && len(a.order) > 1 {
			a.forget(a.order[0])
			a.Dropped++
		}
		return nil
	}
	a.forget(name)
	w.stored.Body = slices.Concat(w.bodies...)
	return &w.stored
}

// Incomplete yields the rejects that wait for parts, without their bodies, and whether their first part is there.
func (a *Assembly) Incomplete() iter.Seq2[*Stored, bool] {
	return func(yield func(*Stored, bool) bool) {
		for _, name := range a.order {
			if w := a.waiting[name]; !yield(&w.stored, w.bodies[0] != nil) {
				return
			}
		}
	}
}

func (a *Assembly) forget(name string) {
	w := a.waiting[name]
	if w == nil {
		return
	}
	for _, b := range w.bodies {
		a.bytes -= len(b)
	}
	delete(a.waiting, name)
	a.order = slices.DeleteFunc(a.order, func(n string) bool { return n == name })
}
