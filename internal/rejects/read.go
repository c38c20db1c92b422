package rejects

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"tallyroll/internal/platform/wait"

	"github.com/nats-io/nats.go/jetstream"
)

const readPause = 100 * time.Millisecond

type Message struct {
	Part
	Known    bool   // a worker has written it
	Position uint64 // its sequence in the stream
	Data     []byte
}

// MessageReader reads the messages of some subjects in order, up to the end in a given state.
type MessageReader struct {
	stream     jetstream.Stream
	filter     string
	next, last uint64 // sequences
}

func NewMessageReader(stream jetstream.Stream, filter string, state jetstream.StreamState) *MessageReader {
	return &MessageReader{stream: stream, filter: filter, next: max(1, state.FirstSeq), last: state.LastSeq}
}

// Read returns the next message; more is false once all are read. While requests fail, it retries.
func (r *MessageReader) Read(ctx context.Context) (m Message, more bool, err error) {
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
		_ = wait.Sleep(ctx, readPause)
	}
	return Message{}, false, nil
}

// maxWaiting bounds the bytes of parts that wait for others of their reject.
const maxWaiting = 64 << 20

// Assembly joins rejects from their parts. The zero Assembly is empty.
type Assembly struct {
	Dropped int64 // rejects whose parts were too far apart

	waiting map[string]*pieces
	order   []string // of waiting, the oldest first
	bytes   int
}

type Stored struct {
	Reject
	Positions []uint64 // of all parts
}

type pieces struct {
	stored Stored
	bodies [][]byte // by number; nil: has not come
}

// Add takes a message that a worker has written. It returns the reject once that is complete, otherwise nil.
func (a *Assembly) Add(m Message) *Stored {
	name := m.Name()
	w := a.waiting[name]
	if w == nil || len(w.bodies) != m.Of {
		a.drop(name)
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
		for a.bytes > maxWaiting && len(a.order) > 1 {
			a.drop(a.order[0])
			a.Dropped++
		}
		return nil
	}
	a.drop(name)
	w.stored.Body = slices.Concat(w.bodies...)
	return &w.stored
}

// Incomplete yields rejects with missing parts, without bodies, and whether the first part is there.
func (a *Assembly) Incomplete() iter.Seq2[*Stored, bool] {
	return func(yield func(*Stored, bool) bool) {
		for _, name := range a.order {
			if w := a.waiting[name]; !yield(&w.stored, w.bodies[0] != nil) {
				return
			}
		}
	}
}

func (a *Assembly) drop(name string) {
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

// Open returns the stream of rejects with its state, and how many rejects of a namespace come from each
// stream, or from one. It returns nil if the stream is missing, because nothing has ever been refused.
func Open(ctx context.Context, js jetstream.JetStream, namespace,
	stream string) (jetstream.Stream, *jetstream.StreamInfo, error) {
	handle, err := js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read stream %s: %w", Stream, err)
	}
	info, err := handle.Info(ctx, jetstream.WithSubjectFilter(Subject(namespace, stream)))
	if err != nil {
		return nil, nil, fmt.Errorf("count the messages of stream %s: %w", Stream, err)
	}
	return handle, info, nil
}
