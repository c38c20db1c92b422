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
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/rejects"
)

// consumerIdle is how long the server keeps the consumer of a dead worker, if the stream allows as much.
const consumerIdle = 30 * time.Second

// maxPullOne bounds the bytes of large messages that are buffered, as does the worker's share.
const maxPullOne = 16 << 20

// JetStream is a stream of JetStream. One goroutine may use it; a feed that it opened has its own.
type JetStream struct {
	js            jetstream.JetStream
	namespace     string // of the reader
	name          string
	bytes         int                         // that it may buffer, at most maxPullOne
	handle        jetstream.Stream            // nil until the stream has been found
	CreateRejects func(context.Context) error // creates the stream of rejects; may be nil

	origin   *JetStream // the stream that a mirror copies; nil before the first check
	isOrigin bool       // a mirror copies this stream, and its own origins cannot be read
	begin    uint64     // see beginning; 0 if it is unknown
	// Description is the description of its consumers, if the reader is not a worker.
	Description string
	EndUnknown  func(error) // optional: called with why the end of a mirror is unknown, or nil if it is known
}

// New returns the stream of that name. namespace is the reader's; bytes bounds what a feed may buffer.
func New(js jetstream.JetStream, namespace, name string, bytes int) *JetStream {
	return &JetStream{js: js, namespace: namespace, name: name, bytes: min(bytes, maxPullOne)}
}

// wrap wraps an error with the stream and what failed.
func (j *JetStream) wrap(what string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = ErrNoStream
	}
	return fmt.Errorf("stream %s: %s: %w", j.name, what, err)
}

// Next sends a request to the stream's leader, because the library's request and a consumer may reach any
// replica.
func (j *JetStream) Next(ctx context.Context, from uint64) (uint64, int64, error) {
	return j.next(ctx, from, ">")
}

// next returns the first message of a subject, which may have wildcards, as Next does.
func (j *JetStream) next(ctx context.Context, from uint64, subject string) (uint64, int64, error) {
	what := fmt.Sprintf("get the message at or after %d", from)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q}`, from, subject)
	reply, err := j.js.Conn().RequestWithContext(ctx, natsconn.APISubject(j.js, "STREAM.MSG.GET."+j.name), request)
	if err != nil {
		return 0, 0, j.wrap(what, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq  uint64    `json:"seq"`
			Time time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, 0, j.wrap(what, err)
	}
	switch {
	case answer.Error == nil:
		return answer.Message.Seq, answer.Message.Time.UnixNano(), nil
	case answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return 0, 0, nil
	}
	return 0, 0, j.wrap(what, answer.Error)
}

// Reject stores rejects. It recreates their stream if it was deleted.
func (j *JetStream) Reject(ctx context.Context, refused []rejects.Reject) (int, error) {
	stored, err := rejects.Publish(ctx, j.js, j.namespace, refused)
	if errors.Is(err, jetstream.ErrNoStreamResponse) && j.CreateRejects != nil {
		err = j.CreateRejects(ctx)
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
	if most := j.handle.CachedInfo().Config.ConsumerLimits.InactiveThreshold; most > 0 {
		c.InactiveThreshold = min(c.InactiveThreshold, most)
	}
	c.MemoryStorage = true
	c.Replicas = 1
	return c
}
