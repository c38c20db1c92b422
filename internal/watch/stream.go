package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
)

// The stream of a namespace, and its subjects. A rule's lane is the same for all of its keys: what is in one lane is
// told one after the other.
//
//	WATCH_<namespace>
//	tallyroll_watch.<namespace>.state.<lane>.<rule>.<hash of the key>   a Record
//	tallyroll_watch.<namespace>.seat                                    a beat
const (
	streamPrefix  = "WATCH_"
	subjectPrefix = "tallyroll_watch."
	lanes         = 8
)

// StreamName is the stream of a namespace.
func StreamName(namespace string) string { return streamPrefix + hit.NamespaceToken(namespace) }

func seatSubject(namespace string) string {
	return subjectPrefix + hit.NamespaceToken(namespace) + ".seat"
}

func stateSubjects(namespace, lane string) string {
	return subjectPrefix + hit.NamespaceToken(namespace) + ".state." + lane + ".>"
}

// subjectOf is the subject of a rule's key. A key can have any characters and 512 bytes, so it is hashed: its record has
// the key itself.
func subjectOf(namespace, rule, key string) string {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%s%s.state.%d.%s.%s", subjectPrefix, hit.NamespaceToken(namespace), laneOf(rule), rule, hex.EncodeToString(sum[:16]))
}

func laneOf(rule string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(rule))
	return int(h.Sum32() % lanes)
}

// identify returns the id of a change: where the stream has it, and since when. A stream that is restored or made anew
// may use a number again, but not for a message of the same nanosecond.
func identify(seq uint64, stored time.Time) string {
	return strconv.FormatInt(stored.UnixNano(), 36) + "-" + strconv.FormatUint(seq, 10)
}

// Keeping says how a stream that is made keeps changes.
type Keeping struct {
	Age      time.Duration
	PerKey   int64 // changes of one rule's key
	Replicas int
}

// openStream finds the stream of a namespace, or makes it, and returns when it was made. One that exists is left as it is.
func openStream(ctx context.Context, js jetstream.JetStream, namespace string, keep Keeping) (created time.Time, age time.Duration, err error) {
	name := StreamName(namespace)
	s, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Description: "tallyroll: states of rules, their history, and what targets are told",
			Subjects: []string{subjectPrefix + hit.NamespaceToken(namespace) + ".>"},
			MaxAge:   keep.Age, MaxMsgsPerSubject: keep.PerKey, Replicas: keep.Replicas,
			AllowRollup: true, AllowDirect: true,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process made it first, with other settings
			s, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return created, 0, fmt.Errorf("open stream %s: %w", name, err)
	}
	info := s.CachedInfo()
	return info.Created, info.Config.MaxAge, nil
}

// entry is a record, and where the stream has it.
type entry struct {
	Record
	seq    uint64
	stored time.Time
}

// beat is the sign of the process that evaluates.
type beat struct {
	By    string    `json:"by"`              // a name that no two processes have; empty: it has left
	At    time.Time `json:"at"`              // the evaluation, by Redis's clock
	File  string    `json:"file"`            // the print of its file
	Blind bool      `json:"blind,omitempty"` // it could not see Redis
	Rules int       `json:"rules"`
}

// log is the stream as this process knows it: every state, and the last beat. It is safe for concurrent use. What it
// knows may be old. Whoever publishes names the record that the new one follows, and the server refuses it if there is
// a later one.
type log struct {
	js        jetstream.JetStream
	namespace string

	mu     sync.Mutex
	states map[string]*entry // by subject; replaced, never changed
	last   entry             // of the seat: only seq
	beat   beat
	heard  time.Time // the last beat of a process that sees, by this machine's clock
	newest uint64    // the highest sequence that was taken
	forgot bool      // the stream lacks a message that was taken
	told   func(*entry)
}

func newLog(js jetstream.JetStream, namespace string) *log {
	return &log{js: js, namespace: namespace, states: make(map[string]*entry)}
}

// take keeps a message unless a later one of its subject is known.
func (l *log) take(subject string, data []byte, seq uint64, stored time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.newest = max(l.newest, seq)
	if strings.HasSuffix(subject, ".seat") {
		var b beat
		if seq > l.last.seq && json.Unmarshal(data, &b) == nil {
			l.last.seq, l.beat = seq, b
			if !b.Blind {
				l.heard = time.Now()
			}
		}
		return
	}
	e := &entry{seq: seq, stored: stored}
	if json.Unmarshal(data, &e.Record) != nil {
		e.Record = Record{} // somebody else has published it: the next evaluation writes the state over it
	}
	if before := l.states[subject]; before == nil || before.seq < seq {
		l.states[subject] = e
		if l.told != nil {
			l.told(e)
		}
	}
}

// snapshot returns every entry by its subject.
func (l *log) snapshot() map[string]*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.states)
}

func (l *log) seat() (b beat, seq uint64, heard time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beat, l.last.seq, l.heard
}

// forget drops a subject of which the stream has nothing.
func (l *log) forget(subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.states, subject)
	if strings.HasSuffix(subject, ".seat") {
		l.last = entry{}
	}
}

// follow reads the stream until ctx ends. It calls caughtUp once, when everything that was stored before has been taken.
func (l *log) follow(ctx context.Context, policy jetstream.DeliverPolicy, caughtUp func()) error {
	consumer, err := l.js.OrderedConsumer(ctx, StreamName(l.namespace), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{stateSubjects(l.namespace, "*"), seatSubject(l.namespace)},
		DeliverPolicy:  policy, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", StreamName(l.namespace), err)
	}
	waiting := consumer.CachedInfo().NumPending
	if waiting == 0 {
		caughtUp()
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1000))
	if err != nil {
		return fmt.Errorf("read stream %s: %w", StreamName(l.namespace), err)
	}
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	for {
		m, err := messages.Next()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			messages.Stop()
			return fmt.Errorf("read stream %s: %w", StreamName(l.namespace), err)
		}
		meta, err := m.Metadata()
		if err != nil {
			continue // no message of a stream
		}
		l.take(m.Subject(), m.Data(), meta.Sequence.Stream, meta.Timestamp)
		if waiting > 0 {
			if waiting--; waiting == 0 || meta.NumPending == 0 {
				waiting = 0
				caughtUp()
			}
		}
	}
}

// errRolledBack means that the stream has forgotten messages that this process knows: the server came back with an older
// copy of it, or lost power.
var errRolledBack = errors.New("the stream is an older copy of itself")

// guard watches until the stream is gone, or another one than that which was read, or an older copy of it.
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
		l.forget(subject)
		return nil
	}
	if err != nil {
		return err
	}
	l.take(subject, m.Data, m.Sequence, m.Time)
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.states[subject]; e != nil && e.seq > m.Sequence {
		l.forgot = true
	}
	return nil
}

// errOvertaken means that somebody else has published on the subject.
var errOvertaken = errors.New("another process was first")

// message is one that must follow another on its subject: the one with this number, or none if it is 0.
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

// takeSeat publishes a beat if nobody else has since the one with this number. The stream keeps the last one alone.
func (l *log) takeSeat(ctx context.Context, b beat, follows uint64) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	m := l.message(seatSubject(l.namespace), follows, data)
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	ack, err := l.js.PublishMsg(ctx, m)
	if err = overtaken(err); err != nil {
		if errors.Is(err, errOvertaken) {
			err = errors.Join(err, l.lookAgain(ctx, m.Subject))
		}
		return err
	}
	l.take(m.Subject, data, ack.Sequence, time.Now())
	return nil
}

// draft is a record to be published.
type draft struct {
	subject string
	follows uint64
	Record
}

// publish publishes records, each if nobody else has published on its subject since the one that it follows. It returns
// how many the stream has taken. Of the others, those that were overtaken are read again; an error is about the rest: they
// may be stored or not, and the next evaluation finds out.
func (l *log) publish(ctx context.Context, drafts []draft) (stored, lost int, err error) {
	futures, sent := make([]jetstream.PubAckFuture, len(drafts)), make([][]byte, len(drafts))
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
			l.take(drafts[i].subject, sent[i], ack.Sequence, time.Now())
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
