package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
	"tallyroll/internal/natsconn"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
)

// consumerIdle is how long the server keeps a dead worker's consumer.
const consumerIdle = 30 * time.Second

type JetStream struct {
	js        jetstream.JetStream
	namespace string // for which it is read
	name      string
	bytes     int                         // bytes that it may buffer, at most maxPullOne
	handle    jetstream.Stream            // nil until the stream has been found
	Remake    func(context.Context) error // makes the stream of rejects; may be nil

	origin *JetStream // the stream that a mirror copies; nil before it has been asked
	far    bool       // a mirror copies this stream, whose own origins are out of reach
	// Description is that of its consumers, if the reader is no worker.
	Description string
	Unsure      func(error) // optional: called with why the end of a mirror is unknown, or nil if it is known
}

func New(js jetstream.JetStream, namespace, name string, bytes int) *JetStream {
	return &JetStream{js: js, namespace: namespace, name: name, bytes: min(bytes, maxPullOne)}
}

// Look asks the stream's leader. At is the server's time less the time that the answer took. Nothing stored
// before it can be missing from the state, whether the server read its clock or the state first.
func (j *JetStream) Look(ctx context.Context) (Check, error) {
	if j.handle == nil {
		finding, cancel := context.WithTimeout(ctx, LookWithin)
		defer cancel()
		handle, err := j.js.Stream(finding, j.name)
		if err != nil {
			return Check{}, j.failed("find it", err)
		}
		j.handle = handle
	}
	origin := j.askOrigin(ctx) // has a time limit of its own: a copy can be read while its origin is away
	ctx, cancel := context.WithTimeout(ctx, LookWithin)
	defer cancel()
	asked := time.Now()
	info, err := j.handle.Info(ctx)
	if err != nil {
		return Check{}, j.failed("ask for its state", err)
	}
	answered := time.Now()
	s := State{
		Subjects: info.Config.Subjects,
		Created:  info.Created.UnixNano(),
		First:    info.State.FirstSeq, Last: info.State.LastSeq,
		FirstStored: info.State.FirstTime.UnixNano(),
		LastStored:  info.State.LastTime.UnixNano(),
		At:          info.TimeStamp.Add(-answered.Sub(asked)).UnixMilli(),
		Seen:        info.TimeStamp.UnixMilli() + 1,
		Ahead:       window.ClockAhead(info.TimeStamp, asked, answered),
		Retention:   info.Config.Retention,
		Increments:  info.Config.AllowMsgCounter,
	}
	s.Clock = s.Seen
	if info.State.Msgs == 0 {
		s.First, s.FirstStored = s.Last+1, s.Seen*1e6
	}
	j.bound(&s, info, origin)
	return Check{State: s, Reign: newReign(info.Cluster), Asked: asked, Answered: answered}, nil
}

func (j *JetStream) failed(what string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = ErrNoStream
	}
	return fmt.Errorf("stream %s: %s: %w", j.name, what, err)
}

// Next asks the stream's leader, because the library's request and a consumer may reach any replica.
func (j *JetStream) Next(ctx context.Context, from uint64) (uint64, int64, error) {
	what := fmt.Sprintf("get the message at or after %d", from)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, from)
	reply, err := j.js.Conn().RequestWithContext(ctx, natsconn.APISubject(j.js, "STREAM.MSG.GET."+j.name), request)
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

// Reject stores rejects. It recreates their stream if that was deleted.
func (j *JetStream) Reject(ctx context.Context, refused []rejects.Reject) (int, error) {
	stored, err := rejects.Publish(ctx, j.js, j.namespace, refused)
	if errors.Is(err, jetstream.ErrNoStreamResponse) && j.Remake != nil {
		err = j.Remake(ctx)
		if err == nil {
			var more int
			more, err = rejects.Publish(ctx, j.js, j.namespace, refused[stored:])
			stored += more
		}
	}
	return stored, err
}

// ephemeral turns c into a consumer without acknowledgements that expires by itself. The position is in Redis
// with the counts, and acknowledgements would cost two thirds of the speed.
func (j *JetStream) ephemeral(c jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	c.Description = cmp.Or(j.Description, hit.WorkerDescription(j.namespace))
	c.AckPolicy = jetstream.AckNonePolicy
	c.InactiveThreshold = consumerIdle
	c.MemoryStorage = true
	c.Replicas = 1
	return c
}
