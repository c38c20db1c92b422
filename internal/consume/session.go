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
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/window"
)

// Why a session ends other than by the worker's shutdown.
var (
	errGap        = errors.New("messages were lost on the way")
	errStalled    = errors.New("the stream holds messages that are not delivered")
	errReconnect  = errors.New("NATS was reconnected")
	errIncarnated = errors.New("the stream was made anew")
	errRolledBack = errors.New("the stream was rolled back")
	errConsumer   = errors.New("the consumer is gone")
)

// limits are the bounds that a session keeps.
type limits struct {
	flushInterval time.Duration
	maxCommands   int
	maxAhead      time.Duration
	maxHits       int
}

const (
	pullMessages = 10_000   // measured better than 1,000 and 50,000
	pullBytes    = 16 << 20 // bounds what is buffered of large messages
	pullExpiry   = 30 * time.Second
	heartbeat    = 5 * time.Second
	// consumerIdle is how long the server keeps the consumer of a worker that died.
	consumerIdle = 30 * time.Second
	// shutdownCommit bounds the last commit.
	shutdownCommit = 8 * time.Second
	// openConcurrency is how many shards are read or committed at the same time.
	openConcurrency = 8
)

// session is one attempt to keep a stream flowing.
type session struct {
	stream  string
	js      jetstream.JetStream
	store   *window.Store
	layout  window.Layout
	limits  limits
	metrics *metrics
	outage  *outage
	log     zerolog.Logger

	info    streamState
	writers []*shardWriter
	buffer  *buffer

	// Of the reader's goroutine alone.
	decode   *decoder
	subjects subjects
	last     uint64 // stream sequence of the last message
	expected uint64 // consumer sequence of the next one

	tail tail
	fail context.CancelCauseFunc
}

// tail is what the watch last learnt of the stream's end.
type tail struct {
	mu   sync.Mutex
	last uint64
	at   int64 // Unix milliseconds
}

func (t *tail) set(last uint64, at int64) {
	t.mu.Lock()
	t.last, t.at = last, at
	t.mu.Unlock()
}

func (t *tail) get() (last uint64, at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.at
}

// run keeps the stream flowing until ctx ends (nil) or something asks for a new
// session (the reason). When ctx ends it commits what it has in memory first.
// opened is called once the stream is being read.
func (s *session) run(ctx context.Context, opened func()) error {
	within, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.fail = fail

	handle, err := s.js.Stream(ctx, s.stream)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", s.stream, err)
	}
	config, err := s.resume(ctx, handle)
	if err != nil {
		return err
	}
	s.subjects = newSubjects(config.Subjects)
	s.decode = newDecoder(s.layout, s.limits.maxAhead, s.limits.maxHits)

	reconnected := s.js.Conn().StatusChanged(nats.CONNECTED)
	defer s.js.Conn().RemoveStatusListener(reconnected)
	consumer, err := s.open(ctx, handle)
	if err != nil {
		return err
	}
	reading, err := consumer.Consume(s.read,
		jetstream.PullMaxMessagesWithBytesLimit(pullMessages, max(pullBytes, 2*int(s.js.Conn().MaxPayload()))),
		jetstream.PullExpiry(pullExpiry),
		jetstream.PullHeartbeat(heartbeat),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { fail(fmt.Errorf("%w: %w", errConsumer, err)) }),
	)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.stream, err)
	}
	opened()

	var rest sync.WaitGroup
	rest.Go(func() { s.watch(within, handle) })
	rest.Go(func() {
		select {
		case <-reconnected:
			fail(errReconnect)
		case <-within.Done():
		}
	})
	s.flushLoop(ctx, within, reading)
	fail(nil)
	reading.Stop()
	rest.Wait()
	s.release(handle, consumer)
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(within)
}

// resume reads all cursors, decides where each shard goes on, and writes what
// has to change before anything is read.
func (s *session) resume(ctx context.Context, handle jetstream.Stream) (jetstream.StreamConfig, error) {
	info, state, err := inspect(ctx, handle)
	if err != nil {
		return jetstream.StreamConfig{}, err
	}
	s.info = state
	if err := s.store.EnsureLayout(ctx, s.layout); err != nil {
		return info.Config, err
	}
	if err := s.store.AddStream(ctx, s.stream); err != nil {
		return info.Config, err
	}

	s.writers = make([]*shardWriter, s.layout.Shards)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(openConcurrency)
	for shard := range s.writers {
		group.Go(func() error {
			w, err := s.store.OpenWriter(gctx, s.layout, s.stream, shard)
			if err == nil {
				w.OnRetry = s.lost
				s.writers[shard] = &shardWriter{Writer: w}
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return info.Config, err
	}
	s.outage.over()

	applied := make([]uint64, s.layout.Shards)
	history := newHistory(handle)
	var discarded uint64
	for shard, w := range s.writers {
		c, exists := w.Cursor()
		rolledBack, afterTime, err := history.check(ctx, c, exists, state)
		if err != nil {
			return info.Config, err
		}
		r := resume(c, exists, state, rolledBack, afterTime, s.limits.maxAhead.Milliseconds())
		w.position = r.cursor
		w.changed = r.changed
		applied[shard] = r.cursor.Seq
		if shard == 0 || r.discarded < discarded {
			discarded = r.discarded // what another shard had already read was not unread
		}
		if r.why != "" && shard == 0 {
			s.log.Warn().Uint64("cursor", c.Seq).Uint64("first", state.first).Uint64("last", state.last).
				Uint64("from", r.cursor.Seq+1).Uint64("discarded", r.discarded).Msg(r.why)
		}
	}
	s.metrics.discarded.WithLabelValues(s.stream).Add(float64(discarded))
	s.buffer = newBuffer(s.layout, s.limits.maxCommands, applied)
	return info.Config, s.take(ctx)
}

// take writes the cursors that resume has changed, so that readers of Redis and
// other workers see at once where counting goes on.
func (s *session) take(ctx context.Context) error {
	empty := window.NewBatch(s.layout)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(openConcurrency)
	for shard, w := range s.writers {
		if !w.changed {
			continue
		}
		group.Go(func() error {
			_, err := w.Commit(gctx, empty.Shard(shard), w.position)
			return err
		})
	}
	return group.Wait()
}

// open makes the consumer that reads from the smallest cursor. It is ephemeral
// and unacknowledged: the position lives with the counts, and acknowledgements
// cost two thirds of the speed.
func (s *session) open(ctx context.Context, handle jetstream.Stream) (jetstream.Consumer, error) {
	s.last = s.writers[0].position.Seq
	stored := s.writers[0].position.Stored
	for _, w := range s.writers {
		if w.position.Seq < s.last {
			s.last, stored = w.position.Seq, w.position.Stored
		}
	}
	s.expected = 1
	s.buffer.filling.seq, s.buffer.filling.stored = s.last, stored
	consumer, err := handle.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Description:       "tallyroll ingest",
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       s.last + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: consumerIdle,
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", s.stream, s.last+1, err)
	}
	pending := consumer.CachedInfo().NumPending
	s.log.Info().Uint64("from", s.last+1).Uint64("last", s.info.last).Uint64("pending", pending).Msg("stream taken")
	if pending == 0 && s.last < s.info.last {
		return consumer, s.passDeletedTail(ctx)
	}
	return consumer, nil
}

// passDeletedTail goes on to the end of a stream whose last messages were
// deleted: no delivery will ever show that gap, so as_of would stand still. That
// a consumer has nothing pending is not enough, for it may live on a replica
// that is behind; this request is answered by the stream's leader.
func (s *session) passDeletedTail(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, s.last+1)
	reply, err := s.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+s.stream, request)
	if err != nil {
		return fmt.Errorf("first message of %s after %d: %w", s.stream, s.last, err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return fmt.Errorf("first message of %s after %d: %w", s.stream, s.last, err)
	}
	if answer.Error == nil || answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
		return nil // there is one: it will be delivered
	}
	s.buffer.add(s.stream, message{
		seq: s.info.last, stored: s.info.lastStored, discarded: s.info.last - s.last,
	}, s.limits.maxAhead.Milliseconds())
	s.last = s.info.last
	return nil
}

// read handles one message, on the subscription's goroutine. Blocking here
// stops the reading: the stream holds the rest.
func (s *session) read(msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		s.fail(fmt.Errorf("message of %s without metadata: %w", s.stream, err))
		return
	}
	if meta.Sequence.Consumer != s.expected {
		s.fail(fmt.Errorf("%w: delivery %d of %s came where %d was expected", errGap, meta.Sequence.Consumer, s.stream, s.expected))
		return
	}
	s.expected++
	m := message{
		seq:       meta.Sequence.Stream,
		stored:    meta.Timestamp.UnixNano(),
		discarded: meta.Sequence.Stream - s.last - 1,
	}
	s.last = m.seq
	if !isMarker(msg) {
		s.decode.decode(s.subjects.counter(msg.Subject()), meta.Timestamp.UnixMilli(), msg.Data())
		m.hits, m.rejects = s.decode.hits, s.decode.rejects
	}
	s.buffer.add(s.stream, m, s.limits.maxAhead.Milliseconds())
}

// isMarker tells the server's own note that a subject's messages were deleted
// or expired from a message that a producer published.
func isMarker(msg jetstream.Msg) bool {
	h := msg.Headers()
	return len(h) > 0 && h.Get("Nats-Marker-Reason") != ""
}

// lost says once that Redis does not answer.
func (s *session) lost(err error) {
	s.metrics.retries.Inc()
	s.outage.begin(err)
}

// release deletes the consumer, so that the server need not wait for its silence.
func (s *session) release(handle jetstream.Stream, consumer jetstream.Consumer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := handle.DeleteConsumer(ctx, consumer.CachedInfo().Name); err != nil {
		s.log.Debug().Err(err).Msg("the consumer was left to expire")
	}
}
