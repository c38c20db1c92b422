package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/watch/history"
)

// stateStream reads and publishes the stream's messages, and keeps the cache up to date.
type stateStream struct {
	cache
	js      jetstream.JetStream
	created time.Time // when the stream was created

	leaderMu sync.Mutex
	leader   jetstream.Stream // reads from the stream's leader; nil until it is needed
}

func newStateStream(js jetstream.JetStream, namespace string) *stateStream {
	return &stateStream{cache: cache{namespace: namespace, states: make(map[string]*entry),
		leases: make(map[string]*lease)}, js: js}
}

var (
	// errConflict means that the subject's last message is not the expected one.
	errConflict = errors.New("another process was first")
	// errRolledBack means that the stream lacks messages read before: it is an older copy, or power was lost.
	errRolledBack = errors.New("the stream is an older copy of itself: continuing with it")
)

// Retention configures retention in a stream that openStream creates.
type Retention struct {
	Age      time.Duration
	PerKey   int64 // changes of one rule's key
	Replicas int
}

// openStream finds or creates the stream of a namespace. It leaves an existing one as it is.
func openStream(ctx context.Context, js jetstream.JetStream, namespace string,
	keep Retention) (*jetstream.StreamInfo, error) {
	name := history.StreamName(namespace)
	s, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Description: "tallyroll: states of rules, their history, and what targets receive",
			Subjects: []string{history.Subject(namespace, ">")},
			MaxAge:   keep.Age, MaxMsgsPerSubject: keep.PerKey, Replicas: keep.Replicas,
			AllowRollup: true, AllowDirect: true,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process created it, with other settings
			s, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, natsconn.ExplainJetStream(js, err))
	}
	return s.CachedInfo(), nil
}

// follow reads the stream until ctx ends. It calls caughtUp once, after all messages stored before.
func (s *stateStream) follow(ctx context.Context, policy jetstream.DeliverPolicy, caughtUp func()) error {
	consumer, err := s.js.OrderedConsumer(ctx, history.StreamName(s.namespace), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{history.Subject(s.namespace, ">")}, DeliverPolicy: policy,
		InactiveThreshold: history.ConsumerTimeout,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", history.StreamName(s.namespace), err)
	}
	waiting := consumer.CachedInfo().NumPending
	if waiting == 0 {
		caughtUp()
	}
	return history.Read(ctx, consumer, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		s.apply(m.Subject(), m.Data(), meta.Sequence.Stream, meta.Timestamp)
		s.setNow(meta.Timestamp)
		if waiting > 0 {
			if waiting--; waiting == 0 || meta.NumPending == 0 {
				waiting = 0
				caughtUp()
			}
		}
	})
}

// monitor follows the stream's settings and first sequence. It returns when the stream is gone, replaced or
// rolled back.
func (s *stateStream) monitor(ctx context.Context) error {
	name := history.StreamName(s.namespace)
	ticker := time.NewTicker(history.CheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		newestSeq, rolledBack := s.check()
		bounded, cancel := context.WithTimeout(ctx, history.CheckInterval)
		stream, err := s.js.Stream(bounded, name)
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("stream %s is gone: states restart", name)
		}
		if err != nil {
			continue
		}
		switch info := stream.CachedInfo(); {
		case !info.Created.Equal(s.created):
			return fmt.Errorf("stream %s was replaced: states restart", name)
		case rolledBack || info.State.LastSeq < newestSeq:
			return errRolledBack
		default:
			s.setStreamInfo(info)
		}
	}
}

// reread reads the last message of a subject from the stream's leader: a lagging follower would look like a
// roll-back.
func (s *stateStream) reread(ctx context.Context, subject string) error {
	leader, err := s.openLeader(ctx)
	if err != nil {
		return err
	}
	m, err := leader.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		s.removeSubject(subject)
		return nil
	}
	if err == nil {
		s.applyReread(subject, m.Data, m.Sequence, m.Time)
	}
	return err
}

func (s *stateStream) openLeader(ctx context.Context) (jetstream.Stream, error) {
	s.leaderMu.Lock()
	defer s.leaderMu.Unlock()
	if s.leader == nil {
		stream, err := s.js.Stream(ctx, history.StreamName(s.namespace))
		if err != nil {
			return nil, err
		}
		stream.CachedInfo().Config.AllowDirect = false // so that the client asks the leader
		s.leader = stream
	}
	return s.leader, nil
}

// newMessage returns a message that must follow this sequence on its subject, or with 0 be the first.
func (s *stateStream) newMessage(subject string, expectedSeq uint64, data []byte) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = data
	m.Header.Set(jetstream.ExpectedStreamHeader, history.StreamName(s.namespace))
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(expectedSeq, 10))
	return m
}

// asConflict returns errConflict if the server has refused a message because of its expected sequence.
func asConflict(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return errConflict
	}
	return err
}

// replaceMessage publishes a message that replaces the subject's previous ones. In a stream that is known to
// be an older copy it replaces nothing: a progress that covers lost messages would hide those in their place.
func (s *stateStream) replaceMessage(ctx context.Context, kind string, content any, expectedSeq uint64) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	m := s.newMessage(history.Subject(s.namespace, kind), expectedSeq, data)
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	newestBefore, rolledBack := s.check()
	if rolledBack {
		return errRolledBack
	}
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

// publishRecords publishes each record with its expected sequence. It returns how many were stored, and for
// how many another process was first; it rereads these. After an error, the rest may be stored or not; the
// next evaluation continues from what the stream has.
func (s *stateStream) publishRecords(ctx context.Context, drafts []draft) (stored, conflicts int, err error) {
	futures, sent := make([]jetstream.PubAckFuture, len(drafts)), make([][]byte, len(drafts))
	newestBefore, _ := s.check()
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
