package consume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
)

// consumerIdle is how long the server keeps a consumer after its worker has died.
const consumerIdle = 30 * time.Second

// jetStreamSource is a stream of a NATS server.
type jetStreamSource struct {
	js        jetstream.JetStream
	namespace string // for which it is read
	name      string
	bytes     int                         // bytes that it may buffer, at most maxPullOne
	handle    jetstream.Stream            // nil until the stream has been found
	remake    func(context.Context) error // makes the stream of rejects; may be nil

	origin *jetStreamSource // the stream that a mirror copies; nil before it has been asked
	far    bool             // a mirror copies this stream, whose own origins are out of reach
	unsure func(error)      // is told why the end of a mirror is not known, or nil if it is known; may be nil
}

func newJetStreamSource(js jetstream.JetStream, namespace, name string, bytes int) *jetStreamSource {
	return &jetStreamSource{js: js, namespace: namespace, name: name, bytes: min(bytes, maxPullOne)}
}

// look asks the stream's leader. The moment at which the state was true is the server's
// time less the time that the answer took. Nothing stored before that moment can be
// missing from the state, whether the server read its clock or the state first.
func (j *jetStreamSource) look(ctx context.Context) (streamCheck, error) {
	if j.handle == nil {
		finding, cancel := context.WithTimeout(ctx, lookWithin)
		defer cancel()
		handle, err := j.js.Stream(finding, j.name)
		if err != nil {
			return streamCheck{}, j.failed("find it", err)
		}
		j.handle = handle
	}
	origin := j.askOrigin(ctx) // has a time limit of its own: a copy can be read while its origin is away
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	asked := time.Now()
	info, err := j.handle.Info(ctx)
	if err != nil {
		return streamCheck{}, j.failed("ask for its state", err)
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
		ahead:       window.ClockAhead(info.TimeStamp, asked, answered),
		retention:   info.Config.Retention,
	}
	s.clock = s.seen
	if info.State.Msgs == 0 {
		s.first, s.firstStored = s.last+1, s.seen*1e6
	}
	j.bound(&s, info, origin)
	return streamCheck{state: s, reign: newReign(info.Cluster), asked: asked, answered: answered}, nil
}

func (j *jetStreamSource) failed(what string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = errNoStream
	}
	return fmt.Errorf("stream %s: %s: %w", j.name, what, err)
}

// next asks the stream's leader, too. The client library's own request may go to any
// replica, and a consumer may live on any.
func (j *jetStreamSource) next(ctx context.Context, from uint64) (uint64, int64, error) {
	what := fmt.Sprintf("get the message at or after %d", from)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, from)
	reply, err := j.js.Conn().RequestWithContext(ctx, boot.JetStreamSubject(j.js, "STREAM.MSG.GET."+j.name), request)
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

// transient reports whether waiting can mend an error: a cluster gives such answers, or
// none, while it elects leaders or has too few servers.
func transient(err error) bool {
	var answer *jetstream.APIError
	if errors.As(err, &answer) {
		return answer.Code == http.StatusServiceUnavailable || answer.ErrorCode == noPeers
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders)
}

// awaitLeader calls try until it succeeds or fails for a reason that does not pass. It logs
// what it waits for. A lack of servers passes within placeWithin, or not at all.
func awaitLeader(ctx context.Context, log zerolog.Logger, try func(context.Context) error) (failed error) {
	began := time.Now()
	what := fmt.Sprintf("a leader of JetStream, and up to %v for enough servers", placeWithin)
	err := boot.WaitFor(ctx, log, what, func(ctx context.Context) error {
		failed = try(ctx)
		var answer *jetstream.APIError
		if errors.As(failed, &answer) && answer.ErrorCode == noPeers && time.Since(began) > placeWithin {
			return nil
		}
		if transient(failed) {
			return failed
		}
		return nil
	})
	if err != nil {
		return err
	}
	return failed
}

// reject stores rejects, and first makes their stream again if somebody has deleted it.
func (j *jetStreamSource) reject(ctx context.Context, refused []rejects.Reject) (int, error) {
	stored, err := rejects.Publish(ctx, j.js, j.namespace, refused)
	if errors.Is(err, jetstream.ErrNoStreamResponse) && j.remake != nil {
		err = j.remake(ctx)
		if err == nil {
			var more int
			more, err = rejects.Publish(ctx, j.js, j.namespace, refused[stored:])
			stored += more
		}
	}
	return stored, err
}

// ephemeral turns c into a consumer without acknowledgements that the server forgets by itself. The
// position lives with the counts in Redis, and acknowledgements cost two thirds of the speed.
func (j *jetStreamSource) ephemeral(c jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	c.Description = hit.WorkerDescription(j.namespace)
	c.AckPolicy = jetstream.AckNonePolicy
	c.InactiveThreshold = consumerIdle
	c.MemoryStorage = true
	c.Replicas = 1
	return c
}
