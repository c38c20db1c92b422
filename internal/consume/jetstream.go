package consume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	pullMessages = 10_000   // measured better than 1,000 and 50,000
	maxPullOne   = 16 << 20 // bytes: bounds what is buffered of large messages, as does the worker's share
	pullExpiry   = 30 * time.Second
	heartbeat    = 5 * time.Second
	// consumerIdle is how long the server keeps the consumer of a worker that died.
	consumerIdle = 30 * time.Second
)

// jetStreamSource is a stream of a NATS server.
type jetStreamSource struct {
	js     jetstream.JetStream
	name   string
	bytes  int              // that it may buffer, at most maxPullOne
	handle jetstream.Stream // nil until the stream has been found
}

func newJetStreamSource(js jetstream.JetStream, name string, bytes int) *jetStreamSource {
	return &jetStreamSource{js: js, name: name, bytes: min(bytes, maxPullOne)}
}

// state asks the stream. The moment at which the state held is the server's time
// less the time the answer took: nothing stored before it can be missing from
// the state, whichever of the two the server took first.
func (j *jetStreamSource) state(ctx context.Context) (streamState, error) {
	if j.handle == nil {
		handle, err := j.js.Stream(ctx, j.name)
		if err != nil {
			return streamState{}, j.failed("find it", err)
		}
		j.handle = handle
	}
	began := time.Now()
	info, err := j.handle.Info(ctx)
	if err != nil {
		return streamState{}, j.failed("ask for its state", err)
	}
	at := info.TimeStamp.Add(-time.Since(began)).UnixMilli()
	s := streamState{
		subjects: info.Config.Subjects,
		created:  info.Created.UnixNano(),
		first:    info.State.FirstSeq, last: info.State.LastSeq,
		firstStored: info.State.FirstTime.UnixNano(),
		lastStored:  info.State.LastTime.UnixNano(),
		at:          at,
	}
	if info.State.Msgs == 0 {
		s.first, s.firstStored = s.last+1, at*1e6
	}
	return s, nil
}

func (j *jetStreamSource) failed(what string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = errNoStream
	}
	return fmt.Errorf("stream %s: %s: %w", j.name, what, err)
}

func (j *jetStreamSource) storedAt(ctx context.Context, seq uint64) (int64, error) {
	msg, err := j.handle.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, j.failed(fmt.Sprintf("get message %d", seq), err)
	}
	return msg.Time.UnixNano(), nil
}

// lastUpTo asks a consumer that would start after the moment what it has behind it.
func (j *jetStreamSource) lastUpTo(ctx context.Context, stored int64) (uint64, error) {
	start := time.Unix(0, stored+1)
	probe, err := j.handle.CreateConsumer(ctx, ephemeral(jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &start,
	}))
	if err != nil {
		return 0, j.failed(fmt.Sprintf("find what came after %s", start), err)
	}
	info := probe.CachedInfo()
	return info.Delivered.Stream, j.handle.DeleteConsumer(ctx, info.Name)
}

// holdsAfter asks the stream's leader: a consumer may live on a replica that is behind.
func (j *jetStreamSource) holdsAfter(ctx context.Context, seq uint64) (bool, error) {
	what := fmt.Sprintf("look for a message after %d", seq)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, seq+1)
	reply, err := j.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+j.name, request)
	if err != nil {
		return false, j.failed(what, err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return false, j.failed(what, err)
	}
	if answer.Error == nil {
		return true, nil
	}
	if answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
		return false, j.failed(what, answer.Error)
	}
	return false, nil
}

func (j *jetStreamSource) reject(ctx context.Context, rejects []rejectedHit) (int, error) {
	return publishRejects(ctx, j.js, rejects)
}

// ephemeral is a consumer that is not acknowledged and that the server forgets
// by itself: the position lives with the counts, and acknowledgements cost two
// thirds of the speed.
func ephemeral(c jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	c.Description = "tallyroll ingest"
	c.AckPolicy = jetstream.AckNonePolicy
	c.InactiveThreshold = consumerIdle
	c.MemoryStorage = true
	c.Replicas = 1
	return c
}

// jetStreamReading reads with an unfiltered pull consumer. The library's
// self-healing ("ordered") consumer is not used: it resets in silence, and
// every reset is a moment at which the stream may have changed.
type jetStreamReading struct {
	source   *jetStreamSource
	consumer jetstream.Consumer
	consume  jetstream.ConsumeContext
	done     chan struct{}
	stopping sync.Once
}

func (j *jetStreamSource) open(ctx context.Context, from uint64) (reading, error) {
	consumer, err := j.handle.CreateConsumer(ctx, ephemeral(jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
	}))
	if err != nil {
		return nil, j.failed(fmt.Sprintf("read from %d", from), err)
	}
	return &jetStreamReading{source: j, consumer: consumer, done: make(chan struct{})}, nil
}

func (r *jetStreamReading) pending() uint64 { return r.consumer.CachedInfo().NumPending }

func (r *jetStreamReading) start(deliver func(delivery), lost func(error)) error {
	conn := r.source.js.Conn()
	reconnected := conn.StatusChanged(nats.CONNECTED)
	var err error
	r.consume, err = r.consumer.Consume(
		func(msg jetstream.Msg) {
			meta, err := msg.Metadata()
			if err != nil {
				lost(r.source.failed("read a message's metadata", err))
				return
			}
			deliver(delivery{
				subject: msg.Subject(), data: msg.Data(), marker: isMarker(msg.Headers()),
				seq: meta.Sequence.Stream, nth: meta.Sequence.Consumer, stored: meta.Timestamp.UnixNano(),
			})
		},
		jetstream.PullMaxMessagesWithBytesLimit(pullMessages, max(r.source.bytes, 2*int(conn.MaxPayload()))),
		jetstream.PullExpiry(pullExpiry),
		jetstream.PullHeartbeat(heartbeat),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { lost(r.source.failed("read", err)) }),
	)
	if err != nil {
		conn.RemoveStatusListener(reconnected)
		return r.source.failed("read", err)
	}
	go func() {
		defer conn.RemoveStatusListener(reconnected)
		select {
		case <-reconnected:
			lost(errReconnect)
		case <-r.done:
		}
	}()
	return nil
}

// isMarker tells the server's own note that a subject's messages were deleted
// or expired from a message that a producer published.
func isMarker(h nats.Header) bool { return len(h) > 0 && h.Get("Nats-Marker-Reason") != "" }

func (r *jetStreamReading) stop() {
	r.stopping.Do(func() {
		close(r.done)
		r.consume.Stop()
	})
}

// release deletes the consumer, so that the server need not wait for its silence.
func (r *jetStreamReading) release() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return r.source.handle.DeleteConsumer(ctx, r.consumer.CachedInfo().Name)
}
