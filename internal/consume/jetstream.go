package consume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
)

const (
	pullMessages = 10_000   // measured better than 1,000 and 50,000
	maxPullOne   = 16 << 20 // bytes: bounds what is buffered of large messages, as does the worker's share
	pullExpiry   = 30 * time.Second
	// heartbeat: a consumer is given up after twice that in silence. It lives on one
	// server of a cluster and dies with it, which nobody says.
	heartbeat = time.Second
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

// look asks the stream's leader. The moment at which the state held is the
// server's time less the time the answer took: nothing stored before it can be
// missing from the state, whichever of the two the server took first.
func (j *jetStreamSource) look(ctx context.Context) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	if j.handle == nil {
		handle, err := j.js.Stream(ctx, j.name)
		if err != nil {
			return look{}, j.failed("find it", err)
		}
		j.handle = handle
	}
	asked := time.Now()
	info, err := j.handle.Info(ctx)
	if err != nil {
		return look{}, j.failed("ask for its state", err)
	}
	answered := time.Now()
	s := streamState{
		subjects: info.Config.Subjects,
		created:  info.Created.UnixNano(),
		first:    info.State.FirstSeq, last: info.State.LastSeq,
		firstStored: info.State.FirstTime.UnixNano(),
		lastStored:  info.State.LastTime.UnixNano(),
		at:          info.TimeStamp.Add(-answered.Sub(asked)).UnixMilli(),
		seen:        info.TimeStamp.UnixMilli() + 1,
	}
	if info.State.Msgs == 0 {
		s.first, s.firstStored = s.last+1, s.seen*1e6
	}
	return look{state: s, reign: newReign(info.Cluster), asked: asked, answered: answered}, nil
}

func (j *jetStreamSource) failed(what string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = errNoStream
	}
	return fmt.Errorf("stream %s: %s: %w", j.name, what, err)
}

// next asks the stream's leader too. The client library's own request may go to
// any replica, and a consumer lives on any.
func (j *jetStreamSource) next(ctx context.Context, from uint64) (uint64, int64, error) {
	what := fmt.Sprintf("get the message at or after %d", from)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, from)
	reply, err := j.js.Conn().RequestWithContext(ctx, jetstream.DefaultAPIPrefix+"STREAM.MSG.GET."+j.name, request)
	if err != nil {
		return 0, 0, j.failed(what, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq  uint64    `json:"seq"`
			Time time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, 0, j.failed(what, err)
	}
	switch {
	case answer.Error == nil:
		return answer.Message.Seq, answer.Message.Time.UnixNano(), nil
	case answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return 0, 0, nil
	}
	return 0, 0, j.failed(what, answer.Error)
}

// noPeers is the server's code for "no suitable peers for placement": servers that are still to come may be them.
const noPeers jetstream.ErrorCode = 10005

// transient tells what a cluster answers, or does not, while it elects leaders or
// has too few servers, from errors that waiting cannot mend.
func transient(err error) bool {
	var answer *jetstream.APIError
	if errors.As(err, &answer) {
		return answer.Code == http.StatusServiceUnavailable || answer.ErrorCode == noPeers
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders)
}

// awaitLeader calls try until it does not fail for a reason that passes, saying what it waits for.
func awaitLeader(ctx context.Context, log zerolog.Logger, try func(context.Context) error) (failed error) {
	err := boot.WaitFor(ctx, log, "a leader of JetStream and enough servers", func(ctx context.Context) error {
		if failed = try(ctx); transient(failed) {
			return failed
		}
		return nil
	})
	if err != nil {
		return err
	}
	return failed
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
			d, ok := parseReply(msg.Reply())
			if !ok {
				lost(r.source.failed("read a message's metadata", fmt.Errorf("reply subject %q", msg.Reply())))
				return
			}
			d.subject, d.data, d.marker = msg.Subject(), msg.Data(), isMarker(msg.Headers())
			deliver(d)
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
