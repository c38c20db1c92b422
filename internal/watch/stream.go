package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
)

// The stream of a namespace, and its subjects:
//
//	WATCH_<namespace>
//	tallyroll_watch.<namespace>.state.<rule>.<hash of the key>   a Record
//	tallyroll_watch.<namespace>.seat                             a heartbeat (beat)
//	tallyroll_watch.<namespace>.delivery.<target>                a progress
//	tallyroll_watch.<namespace>.given_up.<target>                a giveUpRecord
const (
	streamPrefix  = "WATCH_"
	subjectPrefix = "tallyroll_watch."
)

// StreamName is the stream of a namespace.
func StreamName(namespace string) string { return streamPrefix + hit.NamespaceToken(namespace) }

// buildSubject returns the subject of a kind: seat, or state, delivery or given_up with what follows.
func buildSubject(namespace, kind string) string {
	return subjectPrefix + hit.NamespaceToken(namespace) + "." + kind
}

// stateSubject returns the subject of a rule's key. It hashes the key, which may have any characters and 512 bytes.
func stateSubject(namespace, rule, key string) string {
	sum := sha256.Sum256([]byte(key))
	return buildSubject(namespace, "state."+rule+"."+hex.EncodeToString(sum[:16]))
}

// changeID returns a change's id, from its sequence and time in the stream. A restored or recreated stream
// may reuse a sequence, but not for a message of the same nanosecond.
func changeID(seq uint64, stored time.Time) string {
	return strconv.FormatInt(stored.UnixNano(), 36) + "-" + strconv.FormatUint(seq, 10)
}

// Retention configures retention in a stream that openStream creates.
type Retention struct {
	Age      time.Duration
	PerKey   int64 // changes of one rule's key
	Replicas int
}

// openStream finds or creates the stream of a namespace. It leaves an existing one as it is.
func openStream(ctx context.Context, js jetstream.JetStream, namespace string, keep Retention) (*jetstream.StreamInfo, error) {
	name := StreamName(namespace)
	s, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Description: "tallyroll: states of rules, their history, and what targets are told",
			Subjects: []string{buildSubject(namespace, ">")},
			MaxAge:   keep.Age, MaxMsgsPerSubject: keep.PerKey, Replicas: keep.Replicas,
			AllowRollup: true, AllowDirect: true,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process created it, with other settings
			s, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, err)
	}
	return s.CachedInfo(), nil
}

type entry struct {
	Record
	seq    uint64
	stored time.Time
}

// heartbeat is the leader's heartbeat.
type heartbeat struct {
	By          string    `json:"by"`              // the leader's unique name; empty: it has released leadership
	At          time.Time `json:"at"`              // of the evaluation, by Redis's clock
	Fingerprint string    `json:"file"`            // fingerprint of its file
	NoRedis     bool      `json:"blind,omitempty"` // it could not reach Redis
	Rules       int       `json:"rules"`
}

// progress is how far a target was notified: of every change up to Cursor, except those in Waiting. It is the
// lease, too: a process that publishes it with the expected sequence may deliver.
type progress struct {
	By      string   `json:"by,omitempty"`      // the process that delivers; empty: none does
	Cursor  uint64   `json:"cursor"`            // a sequence of the stream
	Waiting []uint64 `json:"waiting,omitempty"` // ascending sequences up to Cursor; in JSON, each but the first is the difference from the previous one
	Gone    bool     `json:"gone,omitempty"`    // WATCH_FILE no longer has the target
}

func (p progress) MarshalJSON() ([]byte, error) {
	p.Waiting = slices.Clone(p.Waiting)
	for i := len(p.Waiting) - 1; i > 0; i-- {
		p.Waiting[i] -= p.Waiting[i-1]
	}
	type plain progress
	return json.Marshal(plain(p))
}

func (p *progress) UnmarshalJSON(data []byte) error {
	type plain progress
	err := json.Unmarshal(data, (*plain)(p))
	for i := 1; i < len(p.Waiting); i++ {
		p.Waiting[i] += p.Waiting[i-1]
	}
	return err
}

// lease is a target's progress as this process last read it: the process in By may deliver.
type lease struct {
	progress
	seq    uint64    // 0: the stream has no progress
	readAt time.Time // by this machine's clock
}

// giveUpRecord is a change that is no longer delivered to a target.
type giveUpRecord struct {
	Position uint64 `json:"position"`
	GivenUp
}

// stateStream is this process's copy of the stream: states, the last heartbeat, each target's progress. It may be
// old, so publishes name the message that they follow, and the server refuses them if there is a later one.
// Safe for concurrent use.
type stateStream struct {
	js        jetstream.JetStream
	namespace string
	onRecord  func(*entry)       // optional: it gets each record
	onGiveUp  func(giveUpRecord) // optional

	mu               sync.Mutex
	states           map[string]*entry // by subject; replaced, never changed
	heartbeatSeq     uint64            // the sequence of the last heartbeat
	heartbeat        heartbeat
	heartbeatReadAt  time.Time         // the last heartbeat of a process that reaches Redis, by this machine's clock
	leases           map[string]*lease // by target; replaced, never changed
	newestSeq        uint64            // the highest sequence that was taken
	rolledBack       bool              // the stream lacks a message that was taken
	serverTime       time.Time         // when the server stored the last message that was read
	serverTimeReadAt time.Time         // and when it was read, by this machine's clock
	sweptAt          time.Time         // when quiet keys were last forgotten, by the server's clock
	unpublished      map[string]*entry // see foresee
}

func newStateStream(js jetstream.JetStream, namespace string) *stateStream {
	return &stateStream{js: js, namespace: namespace, states: make(map[string]*entry), leases: make(map[string]*lease)}
}

// now returns the server's clock: the time of its last message plus the time since; zero before the first
// message. Ages of messages are compared with it alone, because this machine's clock may be wrong by days.
func (c *stateStream) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *stateStream) nowLocked() time.Time {
	if c.serverTime.IsZero() {
		return c.serverTime
	}
	return c.serverTime.Add(time.Since(c.serverTimeReadAt))
}

// apply applies a message unless a later one of its subject was applied. stored is the server's time; zero if
// this process has just published the message and will read it.
func (c *stateStream) apply(subject string, data []byte, seq uint64, stored time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newestSeq = max(c.newestSeq, seq)
	kind, about := c.splitSubject(subject)
	switch kind {
	case "seat":
		var b heartbeat
		if seq > c.heartbeatSeq && json.Unmarshal(data, &b) == nil {
			c.heartbeatSeq, c.heartbeat, c.unpublished = seq, b, nil
			if !b.NoRedis {
				c.heartbeatReadAt = time.Now()
			}
		}
		c.forgetIdleKeys(stored)
	case "delivery":
		if known := c.leases[about]; known == nil || known.seq < seq {
			read := &lease{seq: seq, readAt: time.Now()}
			_ = json.Unmarshal(data, &read.progress) // a foreign message leaves it empty
			c.leases[about] = read
		}
	case "given_up":
		var g giveUpRecord
		if c.onGiveUp != nil && json.Unmarshal(data, &g) == nil {
			c.onGiveUp(g)
		}
	case "state":
		known := c.states[subject]
		if known != nil && (known.seq > seq || known.seq == seq && stored.IsZero()) {
			return
		}
		e := &entry{seq: seq, stored: stored}
		if stored.IsZero() {
			e.stored = c.nowLocked()
		}
		if json.Unmarshal(data, &e.Record) != nil {
			e.Record = Record{} // a foreign message: the next evaluation overwrites it
		}
		c.states[subject] = e
		if c.onRecord != nil {
			c.onRecord(e)
		}
	}
}

const (
	// idleRetention is how long a process keeps the state of a key that has come and gone.
	idleRetention = time.Hour
	sweepInterval = time.Minute
)

// forgetIdleKeys removes keys that have been idle for idleRetention. The stream still has them, so a publish to one is
// refused, and then reread.
func (c *stateStream) forgetIdleKeys(now time.Time) {
	if now.Sub(c.sweptAt) < sweepInterval {
		return
	}
	c.sweptAt = now
	maps.DeleteFunc(c.states, func(_ string, e *entry) bool {
		return e.State.isIdle() && (e.Gone || e.Many) && now.Sub(e.stored) > idleRetention
	})
}

func (c *stateStream) copyStates() map[string]*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.states)
}

// collectLost returns the states to store again in a rolled-back stream: per key the later one of this copy and of
// previous, which earlier roll-backs lost.
func (c *stateStream) collectLost(previous []*entry) []*entry {
	known := c.copyStates()
	for _, lost := range previous {
		subject := stateSubject(c.namespace, lost.Rule, lost.Key)
		if current := known[subject]; current == nil || current.At.Before(lost.At) {
			known[subject] = lost
		}
	}
	return slices.Collect(maps.Values(known))
}

// setUnpublished keeps changes that NATS did not store, until the next heartbeat. Only Alertmanager gets them, because
// it must be notified at once and tolerates repetition.
func (c *stateStream) setUnpublished(drafts []draft) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unpublished = make(map[string]*entry, len(drafts))
	for _, d := range drafts {
		c.unpublished[d.subject] = &entry{d.Record, d.expectedSeq, c.nowLocked()}
	}
}

// expectedStates returns the states, with the unpublished changes applied.
func (c *stateStream) expectedStates() map[string]*entry {
	out := c.copyStates()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(out, c.unpublished)
	return out
}

func (c *stateStream) lastHeartbeat() (b heartbeat, seq uint64, readAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heartbeat, c.heartbeatSeq, c.heartbeatReadAt
}

func (c *stateStream) readLease(target string) lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	if held := c.leases[target]; held != nil {
		return *held
	}
	return lease{}
}

func (c *stateStream) listTargets() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.leases))
}

// splitSubject splits a subject into its kind, as in buildSubject, and the target, or rule and key.
func (c *stateStream) splitSubject(subject string) (kind, about string) {
	kind, about, _ = strings.Cut(strings.TrimPrefix(subject, buildSubject(c.namespace, "")), ".")
	return kind, about
}

// lastSeq returns the sequence of the subject's last applied message, or 0. The caller holds mu.
func (c *stateStream) lastSeq(subject string) uint64 {
	kind, about := c.splitSubject(subject)
	switch held := c.leases[about]; {
	case kind == "seat":
		return c.heartbeatSeq
	case kind == "delivery" && held != nil:
		return held.seq
	case c.states[subject] != nil:
		return c.states[subject].seq
	}
	return 0
}

func (c *stateStream) readNewestSeq() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newestSeq
}

// applyPublished applies a message that this process has published. If its sequence is not above newestBefore, the
// newest one when it was sent, the stream is an older copy.
func (c *stateStream) applyPublished(subject string, data []byte, seq, newestBefore uint64) {
	c.apply(subject, data, seq, time.Time{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rolledBack = c.rolledBack || seq <= newestBefore
}

// forgetSubject removes a subject that the stream, whose first sequence is first, lacks. It keeps a target's progress.
// If neither age nor the stream's limits can have removed the message, the stream is an older copy.
func (c *stateStream) forgetSubject(subject string, first uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.lastSeq(subject); known > 0 && known >= first {
		c.rolledBack = true
		return
	}
	delete(c.states, subject)
	kind, about := c.splitSubject(subject)
	switch held := c.leases[about]; {
	case kind == "seat":
		c.heartbeatSeq = 0
	case kind == "delivery" && held != nil:
		c.leases[about] = &lease{progress: held.progress, readAt: held.readAt}
	}
}

// follow reads the stream until ctx ends. It calls caughtUp once, after all messages stored before.
func (s *stateStream) follow(ctx context.Context, policy jetstream.DeliverPolicy, caughtUp func()) error {
	consumer, err := s.js.OrderedConsumer(ctx, StreamName(s.namespace), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{buildSubject(s.namespace, ">")}, DeliverPolicy: policy, InactiveThreshold: consumerTimeout,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", StreamName(s.namespace), err)
	}
	waiting := consumer.CachedInfo().NumPending
	if waiting == 0 {
		caughtUp()
	}
	return readMessages(ctx, consumer, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		s.apply(m.Subject(), m.Data(), meta.Sequence.Stream, meta.Timestamp)
		s.mu.Lock()
		s.serverTime, s.serverTimeReadAt = meta.Timestamp, time.Now()
		s.mu.Unlock()
		if waiting > 0 {
			if waiting--; waiting == 0 || meta.NumPending == 0 {
				waiting = 0
				caughtUp()
			}
		}
	})
}

// consumerTimeout is how long the server keeps an abandoned consumer.
const consumerTimeout = 30 * time.Second

func readMessages(ctx context.Context, consumer jetstream.Consumer, handle func(jetstream.Msg, *jetstream.MsgMetadata)) error {
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1000))
	if err != nil {
		return fmt.Errorf("read the stream of states: %w", err)
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			messages.Stop()
			return fmt.Errorf("read the stream of states: %w", err)
		}
		if meta, err := m.Metadata(); err == nil { // otherwise the message is not from a stream
			handle(m, meta)
		}
	}
}

// errRolledBack means that the stream lacks messages read before: it is an older copy, or power was lost.
var errRolledBack = errors.New("the stream is an older copy of itself")

// monitor returns when the stream is gone, replaced or rolled back.
func (s *stateStream) monitor(ctx context.Context, created time.Time) error {
	name := StreamName(s.namespace)
	ticker := time.NewTicker(streamCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		s.mu.Lock()
		newest, forgot := s.newestSeq, s.rolledBack
		s.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, streamCheckInterval)
		stream, err := s.js.Stream(bounded, name)
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("stream %s is gone: states restart", name)
		}
		if err != nil {
			continue
		}
		switch info := stream.CachedInfo(); {
		case !info.Created.Equal(created):
			return fmt.Errorf("stream %s was replaced: states restart", name)
		case forgot || info.State.LastSeq < newest:
			return errRolledBack
		}
	}
}

// reread reads the last message of a subject after the server has refused one.
func (s *stateStream) reread(ctx context.Context, subject string) error {
	stream, err := s.js.Stream(ctx, StreamName(s.namespace))
	if err != nil {
		return err
	}
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		s.forgetSubject(subject, stream.CachedInfo().State.FirstSeq)
		return nil
	}
	if err != nil {
		return err
	}
	s.apply(subject, m.Data, m.Sequence, m.Time)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rolledBack = s.rolledBack || s.lastSeq(subject) > m.Sequence
	return nil
}

var errConflict = errors.New("another process was first")

// newMessage returns a message that must follow this sequence on its subject, or with 0 be the first.
func (s *stateStream) newMessage(subject string, expectedSeq uint64, data []byte) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = data
	m.Header.Set(jetstream.ExpectedStreamHeader, StreamName(s.namespace))
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(expectedSeq, 10))
	return m
}

func asConflict(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return errConflict
	}
	return err
}

// replaceMessage publishes a message that replaces the subject's previous ones.
func (s *stateStream) replaceMessage(ctx context.Context, kind string, content any, expectedSeq uint64) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	m := s.newMessage(buildSubject(s.namespace, kind), expectedSeq, data)
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	newestBefore := s.readNewestSeq()
	ack, err := s.js.PublishMsg(ctx, m)
	if err = asConflict(err); err != nil {
		if errors.Is(err, errConflict) {
			err = errors.Join(err, s.reread(ctx, m.Subject))
		}
		return err
	}
	s.applyPublished(m.Subject, data, ack.Sequence, newestBefore)
	return nil
}

type draft struct {
	subject     string
	expectedSeq uint64
	Record
}

// publishRecords publishes each record with its expected sequence. It returns how many were stored, and for how many
// another process was first; it rereads these. After an error, the rest may be stored or not; the next
// evaluation continues from what the stream has.
func (s *stateStream) publishRecords(ctx context.Context, drafts []draft) (stored, conflicts int, err error) {
	futures, sent, newestBefore := make([]jetstream.PubAckFuture, len(drafts)), make([][]byte, len(drafts)), s.readNewestSeq()
	for i, d := range drafts {
		if sent[i], err = json.Marshal(d.Record); err != nil {
			return stored, conflicts, err
		}
		if futures[i], err = s.js.PublishMsgAsync(s.newMessage(d.subject, d.expectedSeq, sent[i])); err != nil {
			futures, drafts = futures[:i], drafts[:i]
			break
		}
	}
	for i, f := range futures {
		select {
		case ack := <-f.Ok():
			stored++
			s.applyPublished(drafts[i].subject, sent[i], ack.Sequence, newestBefore)
		case failure := <-f.Err():
			if failure = asConflict(failure); !errors.Is(failure, errConflict) {
				err = errors.Join(err, failure)
				continue
			}
			conflicts++
			if rereadErr := s.reread(ctx, drafts[i].subject); rereadErr != nil {
				err = errors.Join(err, rereadErr)
			}
		case <-ctx.Done():
			return stored, conflicts, ctx.Err()
		}
	}
	return stored, conflicts, err
}
