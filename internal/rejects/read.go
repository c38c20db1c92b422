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

const (
	// readAhead is how many messages are asked for at once: 32 of a megabyte each are bearable.
	readAhead = 32
	// readPause is the wait after nothing came, or after the server could not be asked.
	readPause = 100 * time.Millisecond
)

// Message is a message of the stream.
type Message struct {
	Part
	Known    bool   // a worker has written it
	Position uint64 // its sequence in the stream
	Data     []byte
}

// Reader reads the messages of some subjects in order. It leaves none out: after a gap it begins again there.
type Reader struct {
	js         jetstream.JetStream
	filter     string
	next, last uint64 // sequences
	consumer   jetstream.Consumer
	delivered  uint64 // by this consumer
	ended      bool
}

// NewReader returns a reader of the messages that the stream holds at a state. Whoever calls it closes it.
func NewReader(js jetstream.JetStream, filter string, state jetstream.StreamState) *Reader {
	return &Reader{js: js, filter: filter, next: state.FirstSeq, last: state.LastSeq}
}

// Read returns the next messages, and none once all are read. While the server cannot be asked, it waits.
func (r *Reader) Read(ctx context.Context) ([]Message, error) {
	for {
		if r.ended {
			return nil, nil
		}
		got, err := r.try(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, fmt.Errorf("read stream %s: %w", Stream, err)
		case len(got) > 0 || r.ended:
			return got, nil
		case err != nil:
			r.Close()
		}
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
		}
	}
}

func (r *Reader) try(ctx context.Context) (out []Message, err error) {
	if r.next > r.last {
		r.ended = true
		return nil, nil
	}
	if r.consumer == nil {
		r.delivered = 0
		r.consumer, err = r.js.CreateConsumer(ctx, Stream, jetstream.ConsumerConfig{
			Description: "tallyroll publish", DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(1, r.next),
			FilterSubject: r.filter, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 30 * time.Second,
		})
		if err != nil {
			return nil, err
		}
	}
	batch, err := r.consumer.FetchNoWait(readAhead)
	if err != nil {
		return nil, err
	}
	lost := false
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil || lost || meta.Sequence.Consumer != r.delivered+1 {
			lost = true // the rest of the batch is read again
			continue
		}
		r.delivered++
		if meta.Sequence.Stream > r.last {
			r.ended = true
			continue
		}
		r.next = meta.Sequence.Stream + 1
		r.ended = r.ended || meta.NumPending == 0
		part, known := Parse(m.Headers())
		out = append(out, Message{Part: part, Known: known, Position: meta.Sequence.Stream, Data: m.Data()})
	}
	if lost || batch.Error() != nil {
		r.Close()
	}
	if len(out) == 0 && !r.ended && r.consumer != nil {
		info, err := r.consumer.Info(ctx)
		if err != nil {
			return nil, err
		}
		// Somebody else may have removed the rest. Deliveries that did not arrive are read again.
		r.ended = info.NumPending == 0 && info.Delivered.Consumer == r.delivered
		if info.Delivered.Consumer != r.delivered {
			r.Close()
		}
	}
	return out, nil
}

// Close removes the consumer; if that fails, the server forgets it by itself.
func (r *Reader) Close() {
	if r.consumer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.js.DeleteConsumer(ctx, Stream, r.consumer.CachedInfo().Name)
	r.consumer = nil
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
