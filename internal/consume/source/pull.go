package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/rejects"
)

const (
	// pullMessages is the size of a request. Up to two are under way. 10,000 measured better than 1,000 and
	// 50,000.
	pullMessages = 10_000
	pullExpiry   = 30 * time.Second
	// heartbeat is how often the server shows that the consumer exists. After silentHeartbeats missing ones
	// the feed ends: a consumer lives on one server of a cluster and dies with it, without notice.
	heartbeat        = time.Second
	silentHeartbeats = 2
	// ReleaseWithin bounds the deletion of the feed's consumer, which would also expire by itself.
	ReleaseWithin = time.Second
)

// ErrReconnected means that a reconnect has ended a feed.
var ErrReconnected = errors.New("NATS was reconnected")

// jetStreamFeed reads with an unfiltered pull consumer. It sends the same requests as the client library's
// Consume, which takes locks, sets timers and allocates for each message, a third of the time of reading. Nor
// does it use the library's self-healing ("ordered") consumer, which resets silently: at every reset the
// stream may have changed. Anything unexpected ends the feed, and the next session begins at the cursors.
type jetStreamFeed struct {
	source   *JetStream
	conn     *nats.Conn
	consumer *jetstream.ConsumerInfo
	next     string // the subject of requests
	request  pullRequest

	subscription *nats.Subscription
	outstanding  int           // messages requested and not received; the subscription's goroutine owns it
	steps        atomic.Uint64 // begins and ends of deliveries: odd during one
	stopOnce     sync.Once
	done         chan struct{}
}

// pullRequest asks a consumer for messages. It ends after Batch messages, MaxBytes or Expires.
type pullRequest struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// Open creates the consumer. Start subscribes to its deliveries.
func (j *JetStream) Open(ctx context.Context, from uint64) (Feed, error) {
	config := j.ephemeral(jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq: from})
	consumer, err := j.createConsumer(ctx, config)
	if errors.Is(err, jetstream.ErrMaximumConsumersLimit) && j.removeFormer(ctx, config.Description) {
		consumer, err = j.createConsumer(ctx, config)
	}
	if err != nil {
		return nil, j.wrap(fmt.Sprintf("read from %d", from), err)
	}
	conn := j.js.Conn()
	r := &jetStreamFeed{source: j, conn: conn, consumer: consumer.CachedInfo(), done: make(chan struct{})}
	r.next = natsconn.APISubject(j.js, "CONSUMER.MSG.NEXT."+r.consumer.Stream+"."+r.consumer.Name)
	// Two requests are under way at once, and the largest message must fit into one.
	r.request = pullRequest{pullMessages, max(j.bytes/2, 2*int(conn.MaxPayload())), pullExpiry, heartbeat}
	if most := r.consumer.Config.MaxRequestBatch; most > 0 { // the server can be configured to allow less
		r.request.Batch = min(r.request.Batch, most)
	}
	return r, nil
}

func (r *jetStreamFeed) Pending() uint64 { return r.consumer.NumPending }

func (r *jetStreamFeed) Start(deliver func(Delivery), lost func(error)) error {
	var once sync.Once
	fail := func(err error) { once.Do(func() { lost(err) }) }
	reconnected := r.conn.StatusChanged(nats.CONNECTED)
	err := r.subscribe(func(m *nats.Msg) {
		r.steps.Add(1)
		defer r.steps.Add(1)
		if err := r.receive(m, deliver); err != nil {
			fail(r.source.wrap("read", err))
		}
	})
	if err != nil {
		r.conn.RemoveStatusListener(reconnected)
		return r.source.wrap("read", err)
	}
	go func() {
		defer r.conn.RemoveStatusListener(reconnected)
		r.watch(reconnected, fail)
	}()
	return nil
}

// subscribe requests the first messages and passes each message to handle.
func (r *jetStreamFeed) subscribe(handle nats.MsgHandler) (err error) {
	inbox := cmp.Or(r.consumer.Config.DeliverSubject, r.conn.NewInbox())
	r.outstanding = r.request.Batch
	if r.subscription, err = r.conn.Subscribe(inbox, handle); err != nil {
		return err
	}
	// No limit here: the requests, or the flow control, bound what is pending.
	if err = r.subscription.SetPendingLimits(-1, -1); err == nil && !r.isPushed() {
		err = r.sendRequest(inbox)
	}
	if err != nil {
		_ = r.subscription.Unsubscribe()
	}
	return err
}

func (r *jetStreamFeed) sendRequest(inbox string) error {
	body, err := json.Marshal(r.request)
	if err != nil {
		return err
	}
	return r.conn.PublishRequest(r.next, inbox, body)
}

// receive handles a message or status, and requests more in time. After an error, no delivery can be trusted.
func (r *jetStreamFeed) receive(m *nats.Msg, deliver func(Delivery)) error {
	if r.isPushed() {
		if flow := flowControl(m); flow != "" {
			return r.conn.Publish(flow, nil)
		}
	}
	if m.Reply == "" { // every delivery has a reply subject, so this is a status
		unused, err := unusedOf(m.Header)
		if err != nil {
			return err
		}
		r.outstanding -= unused
	} else {
		d, ok := parseReply(m.Reply)
		if !ok {
			return fmt.Errorf("reply subject %q is not one of a delivery", m.Reply)
		}
		d.Subject, d.Header, d.Data, d.Skip = m.Subject, m.Header, m.Data, r.source.skipReason(m)
		deliver(d)
		r.outstanding--
	}
	if r.outstanding > r.request.Batch || r.isPushed() {
		return nil
	}
	r.outstanding += r.request.Batch
	return r.sendRequest(m.Sub.Subject)
}

// unusedOf returns how many requested messages will not arrive. Any other status than the end of a
// request or a heartbeat is an error.
func unusedOf(h nats.Header) (unused int, err error) {
	status, description := h.Get("Status"), h.Get("Description")
	switch {
	case status == "100": // heartbeat
		return 0, nil
	case status == "408", status == "409" && (description == "Message Size Exceeds MaxBytes" ||
		description == "Batch Completed"):
		if unused, err = strconv.Atoi(h.Get("Nats-Pending-Messages")); err == nil && unused >= 0 {
			return unused, nil
		}
	}
	return 0, fmt.Errorf("the server ended the delivery: %s %s", status, description)
}

// watch detects a reconnect and silence, which no message shows.
func (r *jetStreamFeed) watch(reconnected chan nats.Status, lost func(error)) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	heard, silent := uint64(0), 0
	for silent < silentHeartbeats {
		select {
		case <-reconnected:
			lost(ErrReconnected)
			return
		case <-r.done:
			return
		case <-ticker.C:
		}
		silent++
		// While a delivery waits for capacity in the buffer, the feed cannot hear the server.
		if steps := r.steps.Load(); steps != heard || steps%2 == 1 || !r.conn.IsConnected() {
			heard, silent = steps, 0
		}
	}
	hint := ""
	if r.isPushed() {
		hint = ": does this account import the delivery subject " + r.consumer.Config.DeliverSubject + "?"
	}
	lost(r.source.wrap("read", fmt.Errorf("the consumer was silent for %s%s", silentHeartbeats*heartbeat, hint)))
}

// Why a message is skipped, as in the metric.
const (
	SkippedCopy      = "copy"
	SkippedMarker    = "delete_marker"
	SkippedNamespace = "other_namespace"
	SkippedNoValue   = "no_value"
	SkippedSchedule  = "schedule"
)

// SkipReasons has all of them.
var SkipReasons = []string{SkippedCopy, SkippedMarker, SkippedNamespace, SkippedNoValue, SkippedSchedule}

// OriginsOf returns the streams of which a message says that it is a copy: one that republished it, and one
// that this stream sources; "" for none. A source of another account or domain has a name of its own, with a
// colon. Headers are read here, and not what streams are set to, because a message keeps its headers.
func OriginsOf(header nats.Header) [2]string {
	if len(header) == 0 {
		return [2]string{}
	}
	var out [2]string
	if header.Get("Nats-Sequence") != "" {
		out[0] = header.Get("Nats-Stream")
	}
	out[1], _, _ = strings.Cut(header.Get("Nats-Stream-Source"), " ")
	return out
}

// skipReason returns why a message counts nothing here, or "". Only the message and the namespace decide, so
// a replay skips the same messages.
func (j *JetStream) skipReason(m *nats.Msg) string {
	if len(m.Header) == 0 {
		return ""
	}
	if namespace := m.Header.Get(rejects.HeaderNamespace); namespace != "" && namespace != j.namespace {
		return SkippedNamespace
	}
	if isMarker(m) {
		return SkippedMarker
	}
	if len(m.Data) == 0 && hit.HasNoValue(m.Header.Get) {
		return SkippedNoValue
	}
	if m.Header.Get(hit.ScheduleHeader) != "" && m.Header.Get(hit.ScheduleTarget) != "" {
		return SkippedSchedule // its message will come
	}
	return ""
}

// isMarker reports whether a message is a delete marker, which the server writes into a stream with
// SubjectDeleteMarkerTTL when a subject's messages have expired. Only the exact form of nats-server 2.15
// counts (handleRemovalOrSdm in filestore.go): no body, these headers and no others. So the result never
// changes, however the stream is configured later. No program publishes this form by mistake: the server
// refuses Nats-TTL in a stream without AllowMsgTTL, and Nats-Rollup without AllowRollup.
func isMarker(m *nats.Msg) bool {
	const reason, ttl, rollup, source = hit.MarkerHeader, "Nats-TTL", "Nats-Rollup", "Nats-Stream-Source"
	if len(m.Header) < 3 || len(m.Data) > 0 {
		return false
	}
	for name, values := range m.Header {
		if len(values) != 1 || name != reason && name != ttl && name != rollup && name != source {
			return false // source is added when another stream copies the message
		}
	}
	lives, err := time.ParseDuration(m.Header.Get(ttl))
	return err == nil && lives >= time.Second && lives%time.Second == 0 && lives.String() == m.Header.Get(ttl) &&
		m.Header.Get(reason) == "MaxAge" && m.Header.Get(rollup) == "sub"
}

func (r *jetStreamFeed) Stop() {
	r.stopOnce.Do(func() {
		close(r.done)
		_ = r.subscription.Unsubscribe() // fails only if the connection is closed, which also ends the subscription
	})
}

// Release deletes the consumer at once instead of letting it expire.
func (r *jetStreamFeed) Release() error {
	ctx, cancel := context.WithTimeout(context.Background(), ReleaseWithin)
	defer cancel()
	return r.source.handle.DeleteConsumer(ctx, r.consumer.Name)
}

// If another account exports its JetStream to this one, replies to a pull come through that export, and the
// server treats a message without body and headers as their end (nats-server 2.15, processServiceImport in
// client.go). Such a message is an ordinary hit. So across accounts the feed uses a push consumer on a
// delivery subject that the account imports as a stream. The server waits for a flow control reply before it
// has 32 MiB under way that the feed has not received.

const (
	flowControlStart  = "$JS.FC."
	flowControlHeader = "Nats-Consumer-Stalled" // of a heartbeat, if a reply was lost
)

func (j *JetStream) createConsumer(
	ctx context.Context, config jetstream.ConsumerConfig,
) (consumer interface {
	CachedInfo() *jetstream.ConsumerInfo
}, err error) {
	if !natsconn.IsImported(j.js) {
		return j.handle.CreateConsumer(ctx, config)
	}
	config.DeliverSubject = j.js.Conn().NewInbox()
	config.FlowControl, config.IdleHeartbeat = true, heartbeat
	return j.handle.CreatePushConsumer(ctx, config)
}

// removeFormer removes the consumers with this reader's description, and reports whether there was one. A
// reader that was killed leaves its consumer, and max_consumers may allow no other until it expires.
func (j *JetStream) removeFormer(ctx context.Context, description string) (removed bool) {
	ctx, cancel := context.WithTimeout(ctx, CheckWithin)
	defer cancel()
	for former := range j.handle.ListConsumers(ctx).Info() {
		if former.Config.Description == description {
			removed = j.handle.DeleteConsumer(ctx, former.Name) == nil || removed
		}
	}
	return removed
}

// isPushed reports whether the server sends messages without requests.
func (r *jetStreamFeed) isPushed() bool { return r.consumer.Config.DeliverSubject != "" }

// flowControl returns the subject for the reply that everything before m was received, or "" if none is due.
func flowControl(m *nats.Msg) string {
	switch {
	case strings.HasPrefix(m.Reply, flowControlStart):
		return m.Reply
	case m.Reply == "":
		return m.Header.Get(flowControlHeader)
	}
	return ""
}

// The reply subject of a delivered message is its position. This parser reads it as the client library's
// Metadata does, but without an allocation per message, which took 8 % of a worker's time.
//
//	$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>. and the rest as above, maybe with more tokens
const (
	replyPrefix = "$JS.ACK."
	shortReply  = 7 // tokens after the prefix
	longReply   = 9 // tokens after the prefix, at least
)

// parseReply returns the numbers of a delivery.
func parseReply(reply string) (d Delivery, ok bool) {
	rest, ok := strings.CutPrefix(reply, replyPrefix)
	if !ok {
		return d, false
	}
	skip := 3 // stream, consumer, deliveries
	switch tokens := strings.Count(rest, ".") + 1; {
	case tokens >= longReply:
		skip = 5
	case tokens != shortReply:
		return d, false
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	for _, to := range []*uint64{&d.Seq, &d.Nth} {
		*to, rest, ok = cutNumber(rest)
		if !ok {
			return d, false
		}
	}
	stored, _, ok := cutNumber(rest)
	d.Stored = int64(stored)
	return d, ok
}

func cutNumber(text string) (n uint64, rest string, ok bool) {
	token, rest, _ := strings.Cut(text, ".")
	if len(token) == 0 || len(token) > 19 { // 19 digits fit
		return 0, "", false
	}
	for i := range len(token) {
		digit := token[i] - '0'
		if digit > 9 {
			return 0, "", false
		}
		n = n*10 + uint64(digit)
	}
	return n, rest, true
}
