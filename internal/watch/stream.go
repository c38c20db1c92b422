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
//	tallyroll_watch.<namespace>.given_up.<target>                a givenUp
const (
	streamPrefix  = "WATCH_"
	subjectPrefix = "tallyroll_watch."
)

// StreamName is the stream of a namespace.
func StreamName(namespace string) string { return streamPrefix + hit.NamespaceToken(namespace) }

// subjectFor returns the subject of a kind: seat, or state, delivery or given_up with what follows.
func subjectFor(namespace, kind string) string {
	return subjectPrefix + hit.NamespaceToken(namespace) + "." + kind
}

// subjectOf returns a rule's key's subject. It hashes the key, which can have any characters and 512 bytes.
func subjectOf(namespace, rule, key string) string {
	sum := sha256.Sum256([]byte(key))
	return subjectFor(namespace, "state."+rule+"."+hex.EncodeToString(sum[:16]))
}

// identify returns a change's id, from its sequence and time in the stream. A restored or recreated stream
// may reuse a sequence, but not for a message of the same nanosecond.
func identify(seq uint64, stored time.Time) string {
	return strconv.FormatInt(stored.UnixNano(), 36) + "-" + strconv.FormatUint(seq, 10)
}

// Keeping configures retention in a stream that openStream creates.
type Keeping struct {
	Age      time.Duration
	PerKey   int64 // changes of one rule's key
	Replicas int
}

// openStream finds or creates the stream of a namespace. It leaves an existing one as it is.
func openStream(ctx context.Context, js jetstream.JetStream, namespace string, keep Keeping) (*jetstream.StreamInfo, error) {
	name := StreamName(namespace)
	s, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Description: "tallyroll: states of rules, their history, and what targets are told",
			Subjects: []string{subjectFor(namespace, ">")},
			MaxAge:   keep.Age, MaxMsgsPerSubject: keep.PerKey, Replicas: keep.Replicas,
			AllowRollup: true, AllowDirect: true,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process made it first, with other settings
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

// beat is the leader's heartbeat.
type beat struct {
	By    string    `json:"by"`              // a name that no two processes have; empty: it has left
	At    time.Time `json:"at"`              // the evaluation, by Redis's clock
	File  string    `json:"file"`            // the print of its file
	Blind bool      `json:"blind,omitempty"` // it could not see Redis
	Rules int       `json:"rules"`
}

// progress is how far a target was notified: of every change up to Cursor, except Waiting. The last message
// of a target's subject counts: a process that publishes the next one after it may deliver.
type progress struct {
	By      string   `json:"by,omitempty"`      // the process that delivers; empty: none does
	Cursor  uint64   `json:"cursor"`            // a sequence of the stream
	Waiting []uint64 `json:"waiting,omitempty"` // sequences up to Cursor, in ascending order; in JSON each but the first is the distance from the one before
	Gone    bool     `json:"gone,omitempty"`    // the target is not in WATCH_FILE any more
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

// lease is a target's progress as this process last read it. It says who may deliver.
type lease struct {
	progress
	seq   uint64    // 0: the stream has none
	heard time.Time // by this machine's clock
}

// givenUp is a change that is no longer delivered to a target.
type givenUp struct {
	Position uint64 `json:"position"`
	GivenUp
}

// log is this process's copy of the stream: states, the last heartbeat, each target's progress. It may be
// old, so publishes name the message that they follow, and the server refuses them if there is a later one.
// Safe for concurrent use.
type log struct {
	js        jetstream.JetStream
	namespace string
	told      func(*entry)  // optional: it gets each record
	gaveUp    func(givenUp) // optional

	mu       sync.Mutex
	states   map[string]*entry // by subject; replaced, never changed
	last     uint64            // the sequence of the last heartbeat
	beat     beat
	heard    time.Time         // the last heartbeat of a process that reaches Redis, by this machine's clock
	leases   map[string]*lease // by target; replaced, never changed
	newest   uint64            // the highest sequence that was taken
	forgot   bool              // the stream lacks a message that was taken
	clock    time.Time         // when the server stored the last message that was read
	clockAt  time.Time         // and when it was read, by this machine's clock
	swept    time.Time         // when quiet keys were last forgotten, by the server's clock
	foreseen map[string]*entry // see foresee
}

func newLog(js jetstream.JetStream, namespace string) *log {
	return &log{js: js, namespace: namespace, states: make(map[string]*entry), leases: make(map[string]*lease)}
}

// now returns the server's clock: the time of its last message plus the time since; zero before the first
// message. Ages of messages are compared with it alone, because this machine's clock may be wrong by days.
func (l *log) now() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nowLocked()
}

func (l *log) nowLocked() time.Time {
	if l.clock.IsZero() {
		return l.clock
	}
	return l.clock.Add(time.Since(l.clockAt))
}

// take keeps a message unless it has a later one of its subject. stored is the server's time; zero if this
// process has just published the message and will read it.
func (l *log) take(subject string, data []byte, seq uint64, stored time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.newest = max(l.newest, seq)
	kind, about := l.kindOf(subject)
	switch kind {
	case "seat":
		var b beat
		if seq > l.last && json.Unmarshal(data, &b) == nil {
			l.last, l.beat, l.foreseen = seq, b, nil
			if !b.Blind {
				l.heard = time.Now()
			}
		}
		l.sweep(stored)
	case "delivery":
		if known := l.leases[about]; known == nil || known.seq < seq {
			held := &lease{seq: seq, heard: time.Now()}
			_ = json.Unmarshal(data, &held.progress) // a foreign message leaves it empty
			l.leases[about] = held
		}
	case "given_up":
		var g givenUp
		if l.gaveUp != nil && json.Unmarshal(data, &g) == nil {
			l.gaveUp(g)
		}
	case "state":
		before := l.states[subject]
		if before != nil && (before.seq > seq || before.seq == seq && stored.IsZero()) {
			return
		}
		e := &entry{seq: seq, stored: stored}
		if stored.IsZero() {
			e.stored = l.nowLocked()
		}
		if json.Unmarshal(data, &e.Record) != nil {
			e.Record = Record{} // a foreign message: the next evaluation overwrites it
		}
		l.states[subject] = e
		if l.told != nil {
			l.told(e)
		}
	}
}

const (
	// idleFor is how long a process remembers a key that has come and gone.
	idleFor    = time.Hour
	sweepEvery = time.Minute
)

// sweep forgets long idle keys. The stream has them, so a publish to one is refused, and read again.
func (l *log) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = now
	maps.DeleteFunc(l.states, func(_ string, e *entry) bool {
		return e.State.calm() && (e.Gone || e.Many) && now.Sub(e.stored) > idleFor
	})
}

func (l *log) snapshot() map[string]*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.states)
}

// recalled returns what is to be stored again in an older copy of the stream: the latest states among those of this log
// and those that the copies before lacked.
func (l *log) recalled(before []*entry) []*entry {
	known := l.snapshot()
	for _, lost := range before {
		subject := subjectOf(l.namespace, lost.Rule, lost.Key)
		if now := known[subject]; now == nil || now.At.Before(lost.At) {
			known[subject] = lost
		}
	}
	return slices.Collect(maps.Values(known))
}

// foresee keeps what this process would have stored if NATS had taken it, until the next heartbeat. It is for
// Alertmanager only, which must be notified at once and tolerates repetition.
func (l *log) foresee(drafts []draft) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.foreseen = make(map[string]*entry, len(drafts))
	for _, d := range drafts {
		l.foreseen[d.subject] = &entry{d.Record, d.follows, l.nowLocked()}
	}
}

// expected returns snapshot with what is foreseen.
func (l *log) expected() map[string]*entry {
	out := l.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(out, l.foreseen)
	return out
}

func (l *log) seat() (b beat, seq uint64, heard time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beat, l.last, l.heard
}

func (l *log) lease(target string) lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.leases[target]; held != nil {
		return *held
	}
	return lease{}
}

func (l *log) targets() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.leases))
}

// kindOf returns what a message of a subject is, as subjectFor names it: "seat", or a kind and what it is about.
func (l *log) kindOf(subject string) (kind, about string) {
	kind, about, _ = strings.Cut(strings.TrimPrefix(subject, subjectFor(l.namespace, "")), ".")
	return kind, about
}

// takenOf returns the sequence of the last message of a subject that was taken; 0 if none was. It needs mu.
func (l *log) takenOf(subject string) uint64 {
	kind, about := l.kindOf(subject)
	switch held := l.leases[about]; {
	case kind == "seat":
		return l.last
	case kind == "delivery" && held != nil:
		return held.seq
	case l.states[subject] != nil:
		return l.states[subject].seq
	}
	return 0
}

func (l *log) newestTaken() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest
}

// published takes a message of this process. If the stream gave it a sequence that another message had before it was
// sent, the stream is an older copy.
func (l *log) published(subject string, data []byte, seq, before uint64) {
	l.take(subject, data, seq, time.Time{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgot = l.forgot || seq <= before
}

// forget drops a subject that the stream, which begins at first, lacks. A target's progress is kept. If neither age nor
// the stream's limits can have removed the message, the stream is an older copy.
func (l *log) forget(subject string, first uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.takenOf(subject); known > 0 && known >= first {
		l.forgot = true
		return
	}
	delete(l.states, subject)
	kind, about := l.kindOf(subject)
	switch held := l.leases[about]; {
	case kind == "seat":
		l.last = 0
	case kind == "delivery" && held != nil:
		l.leases[about] = &lease{progress: held.progress, heard: held.heard}
	}
}

// follow reads the stream until ctx ends. It calls caughtUp once, after everything stored before.
func (l *log) follow(ctx context.Context, policy jetstream.DeliverPolicy, caughtUp func()) error {
	consumer, err := l.js.OrderedConsumer(ctx, StreamName(l.namespace), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subjectFor(l.namespace, ">")}, DeliverPolicy: policy, InactiveThreshold: readerGone,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", StreamName(l.namespace), err)
	}
	waiting := consumer.CachedInfo().NumPending
	if waiting == 0 {
		caughtUp()
	}
	return readAll(ctx, consumer, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		l.take(m.Subject(), m.Data(), meta.Sequence.Stream, meta.Timestamp)
		l.mu.Lock()
		l.clock, l.clockAt = meta.Timestamp, time.Now()
		l.mu.Unlock()
		if waiting > 0 {
			if waiting--; waiting == 0 || meta.NumPending == 0 {
				waiting = 0
				caughtUp()
			}
		}
	})
}

// readerGone is how long the server keeps an abandoned consumer.
const readerGone = 30 * time.Second

func readAll(ctx context.Context, consumer jetstream.Consumer, take func(jetstream.Msg, *jetstream.MsgMetadata)) error {
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
		if meta, err := m.Metadata(); err == nil { // else it is no message of a stream
			take(m, meta)
		}
	}
}

// errRolledBack means that the stream lacks messages read before: it is an older copy, or power was lost.
var errRolledBack = errors.New("the stream is an older copy of itself")

// guard returns when the stream is gone, replaced or rolled back.
func (l *log) guard(ctx context.Context, created time.Time) error {
	name := StreamName(l.namespace)
	ticker := time.NewTicker(lookAtStream)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		l.mu.Lock()
		newest, forgot := l.newest, l.forgot
		l.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, lookAtStream)
		stream, err := l.js.Stream(bounded, name)
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("stream %s is gone: states begin anew", name)
		}
		if err != nil {
			continue
		}
		switch info := stream.CachedInfo(); {
		case !info.Created.Equal(created):
			return fmt.Errorf("stream %s is another one: states begin anew", name)
		case forgot || info.State.LastSeq < newest:
			return errRolledBack
		}
	}
}

// lookAgain reads the last message of a subject after the server has refused one.
func (l *log) lookAgain(ctx context.Context, subject string) error {
	stream, err := l.js.Stream(ctx, StreamName(l.namespace))
	if err != nil {
		return err
	}
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		l.forget(subject, stream.CachedInfo().State.FirstSeq)
		return nil
	}
	if err != nil {
		return err
	}
	l.take(subject, m.Data, m.Sequence, m.Time)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgot = l.forgot || l.takenOf(subject) > m.Sequence
	return nil
}

var errOvertaken = errors.New("another process was first")

// message returns a message that must follow this sequence on its subject, or with 0 be the first.
func (l *log) message(subject string, follows uint64, data []byte) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = data
	m.Header.Set(jetstream.ExpectedStreamHeader, StreamName(l.namespace))
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(follows, 10))
	return m
}

func overtaken(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return errOvertaken
	}
	return err
}

// replace publishes a subject's only stored message, if none has followed the one with this sequence.
func (l *log) replace(ctx context.Context, kind string, content any, follows uint64) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	m := l.message(subjectFor(l.namespace, kind), follows, data)
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	before := l.newestTaken()
	ack, err := l.js.PublishMsg(ctx, m)
	if err = overtaken(err); err != nil {
		if errors.Is(err, errOvertaken) {
			err = errors.Join(err, l.lookAgain(ctx, m.Subject))
		}
		return err
	}
	l.published(m.Subject, data, ack.Sequence, before)
	return nil
}

type draft struct {
	subject string
	follows uint64
	Record
}

// publish publishes records, each if none has followed its predecessor, and returns how many were stored. It
// reads overtaken ones again. An error is about the rest: stored or not, which the next evaluation finds out.
func (l *log) publish(ctx context.Context, drafts []draft) (stored, lost int, err error) {
	futures, sent, before := make([]jetstream.PubAckFuture, len(drafts)), make([][]byte, len(drafts)), l.newestTaken()
	for i, d := range drafts {
		if sent[i], err = json.Marshal(d.Record); err != nil {
			return stored, lost, err
		}
		if futures[i], err = l.js.PublishMsgAsync(l.message(d.subject, d.follows, sent[i])); err != nil {
			futures, drafts = futures[:i], drafts[:i]
			break
		}
	}
	for i, f := range futures {
		select {
		case ack := <-f.Ok():
			stored++
			l.published(drafts[i].subject, sent[i], ack.Sequence, before)
		case failed := <-f.Err():
			if failed = overtaken(failed); !errors.Is(failed, errOvertaken) {
				err = errors.Join(err, failed)
				continue
			}
			lost++
			if again := l.lookAgain(ctx, drafts[i].subject); again != nil {
				err = errors.Join(err, again)
			}
		case <-ctx.Done():
			return stored, lost, ctx.Err()
		}
	}
	return stored, lost, err
}
