package consume

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// pullMessages are asked for at a time, and asked for again when so few are on
	// their way: measured better than 1,000 and 50,000.
	pullMessages = 10_000
	maxPullOne   = 16 << 20 // bytes: bounds what is buffered of large messages, as does the worker's share
	pullExpiry   = 30 * time.Second
	// heartbeat: a consumer that is silent for some of them is given up. It lives on
	// one server of a cluster and dies with it, which nobody says.
	heartbeat        = time.Second
	silentHeartbeats = 2
)

// jetStreamReading reads with an unfiltered pull consumer. It asks for messages
// itself, by the request that the client library's Consume sends: that takes locks,
// sets timers and makes values for each message, which was a third of the time
// of reading. Whatever it does not understand ends the reading; the next one begins at the cursors.
//
// The library's self-healing ("ordered") consumer is not used either: it resets
// in silence, and every reset is a moment at which the stream may have changed.
type jetStreamReading struct {
	source   *jetStreamSource
	conn     *nats.Conn
	consumer *jetstream.ConsumerInfo
	request  pullRequest

	subscription *nats.Subscription
	coming       int           // messages that were asked for and have not come; of the subscription's goroutine
	steps        atomic.Uint64 // of deliveries: odd within one
	ended        sync.Once
	done         chan struct{}
}

// pullRequest asks a consumer for messages: until there have been so many, or so
// many bytes, or it expires. Meanwhile the server shows at every heartbeat that it is there.
type pullRequest struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

func (j *jetStreamSource) open(ctx context.Context, from uint64) (reading, error) {
	consumer, err := j.handle.CreateConsumer(ctx, ephemeral(jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
	}))
	if err != nil {
		return nil, j.failed(fmt.Sprintf("read from %d", from), err)
	}
	conn := j.js.Conn()
	r := &jetStreamReading{source: j, conn: conn, consumer: consumer.CachedInfo(), done: make(chan struct{})}
	// Two requests are under way, and the largest message must fit into one.
	r.request = pullRequest{pullMessages, max(j.bytes/2, 2*int(conn.MaxPayload())), pullExpiry, heartbeat}
	if most := r.consumer.Config.MaxRequestBatch; most > 0 { // a server can be told to allow less
		r.request.Batch = min(r.request.Batch, most)
	}
	return r, nil
}

func (r *jetStreamReading) pending() uint64 { return r.consumer.NumPending }

func (r *jetStreamReading) start(deliver func(delivery), lost func(error)) error {
	var once sync.Once
	fail := func(err error) { once.Do(func() { lost(err) }) }
	reconnected := r.conn.StatusChanged(nats.CONNECTED)
	err := r.subscribe(func(m *nats.Msg) {
		r.steps.Add(1)
		defer r.steps.Add(1)
		if err := r.receive(m, deliver); err != nil {
			fail(r.source.failed("read", err))
		}
	})
	if err != nil {
		r.conn.RemoveStatusListener(reconnected)
		return r.source.failed("read", err)
	}
	go func() {
		defer r.conn.RemoveStatusListener(reconnected)
		r.watch(reconnected, fail)
	}()
	return nil
}

// subscribe asks for the first messages and has handle called for each.
func (r *jetStreamReading) subscribe(handle nats.MsgHandler) (err error) {
	inbox := r.conn.NewInbox()
	r.coming = r.request.Batch
	if r.subscription, err = r.conn.Subscribe(inbox, handle); err != nil {
		return err
	}
	// The requests are the limit.
	if err = r.subscription.SetPendingLimits(-1, -1); err == nil {
		err = r.ask(inbox)
	}
	if err != nil {
		_ = r.subscription.Unsubscribe()
	}
	return err
}

func (r *jetStreamReading) ask(inbox string) error {
	body, err := json.Marshal(r.request)
	if err != nil {
		return err
	}
	return r.conn.PublishRequest(jetstream.DefaultAPIPrefix+"CONSUMER.MSG.NEXT."+r.consumer.Stream+"."+r.consumer.Name, inbox, body)
}

// receive handles a message, or the server's word about a request, and asks for
// more in time. An error means that deliveries can no longer be trusted.
func (r *jetStreamReading) receive(m *nats.Msg, deliver func(delivery)) error {
	if m.Reply == "" { // a delivery has a subject to acknowledge it by
		unused, err := requestEnded(m.Header)
		if err != nil {
			return err
		}
		r.coming -= unused
	} else {
		d, ok := parseReply(m.Reply)
		if !ok {
			return fmt.Errorf("reply subject %q is not one of a delivery", m.Reply)
		}
		d.subject, d.data, d.marker = m.Subject, m.Data, isMarker(m)
		deliver(d)
		r.coming--
	}
	if r.coming > r.request.Batch {
		return nil
	}
	r.coming += r.request.Batch
	return r.ask(m.Sub.Subject)
}

// requestEnded is how many of the messages that a request asked for will not
// come, by what the server says of it. Everything but an ordinary end is an error.
func requestEnded(h nats.Header) (unused int, err error) {
	status, description := h.Get("Status"), h.Get("Description")
	switch {
	case status == "100": // heartbeat
		return 0, nil
	case status == "408", status == "409" && (description == "Message Size Exceeds MaxBytes" || description == "Batch Completed"):
		if unused, err = strconv.Atoi(h.Get("Nats-Pending-Messages")); err == nil && unused >= 0 {
			return unused, nil
		}
	}
	return 0, fmt.Errorf("the server ended the delivery: %s %s", status, description)
}

// watch notices what no message tells: that the connection is a new one, and silence.
func (r *jetStreamReading) watch(reconnected chan nats.Status, lost func(error)) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	heard, silent := uint64(0), 0
	for silent < silentHeartbeats {
		select {
		case <-reconnected:
			lost(errReconnect)
			return
		case <-r.done:
			return
		case <-ticker.C:
		}
		silent++
		// A delivery that waits for room in the buffer is no silence of the server's.
		if steps := r.steps.Load(); steps != heard || steps%2 == 1 || !r.conn.IsConnected() {
			heard, silent = steps, 0
		}
	}
	lost(r.source.failed("read", fmt.Errorf("nothing was heard of the consumer for %s", silentHeartbeats*heartbeat)))
}

// skippedMarker is why a message that has no hits is skipped, as the metric says it.
const skippedMarker = "delete_marker"

// isMarker tells the server's own note that a subject's messages have expired,
// which a stream with SubjectDeleteMarkerTTL has, from a message that a producer
// published. Only the very form that nats-server 2.15 writes is one (handleRemovalOrSdm
// in its filestore.go): no body, these headers and no others. The form alone
// decides, so that a message is the same whenever it is read, however the stream
// is configured by then. Nobody publishes it by mistake: the server refuses Nats-TTL in a
// stream without AllowMsgTTL, and Nats-Rollup in one without AllowRollup.
func isMarker(m *nats.Msg) bool {
	const reason, ttl, rollup, source = "Nats-Marker-Reason", "Nats-TTL", "Nats-Rollup", "Nats-Stream-Source"
	if len(m.Header) < 3 || len(m.Data) > 0 {
		return false
	}
	for name, values := range m.Header {
		if len(values) != 1 || name != reason && name != ttl && name != rollup && name != source {
			return false // source is added on the way from another stream
		}
	}
	lives, err := time.ParseDuration(m.Header.Get(ttl))
	return err == nil && lives >= time.Second && lives%time.Second == 0 && lives.String() == m.Header.Get(ttl) &&
		m.Header.Get(reason) == "MaxAge" && m.Header.Get(rollup) == "sub"
}

func (r *jetStreamReading) stop() {
	r.ended.Do(func() {
		close(r.done)
		_ = r.subscription.Unsubscribe() // a closed connection has none
	})
}

// release deletes the consumer, so that the server need not wait for its silence.
func (r *jetStreamReading) release() error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	return r.source.handle.DeleteConsumer(ctx, r.consumer.Name)
}
