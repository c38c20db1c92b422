package rejects

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tallyroll/internal/platform/wait"

	"github.com/nats-io/nats.go/jetstream"
)

const readPause = 100 * time.Millisecond

type Message struct {
	Reject
	Known    bool   // a worker has written it
	Position uint64 // its sequence in the stream
	Size     int    // bytes of the refused body: more than in Body if it was cut
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
			m.Reject, m.Known = Parse(got.Header)
			m.Body, m.Size = BodyOf(got.Header, got.Data)
			m.Position = got.Sequence
			return m, true, nil
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
