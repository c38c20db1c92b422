package collect

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/rules"
	"tallyroll/internal/web"
)

// storage stores the hits and CloudEvents of requests in JetStream, once there is a connection.
type storage struct {
	target    *target
	budget    *web.Budget
	timeout   time.Duration
	failures  zerolog.Logger                      // program.Sampled
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
	publisher atomic.Pointer[publisher]           // nil while there is no connection yet
}

// whyNotReady returns why no hit can be stored now. It is empty if hits can be, or if that is unknown.
func (s *storage) whyNotReady() string {
	js := s.js.Load()
	if js == nil {
		return "NATS has not answered yet"
	}
	return s.target.whyNotReady((*js).Conn())
}

// receipt is where JetStream has stored the hits of a request.
type receipt struct {
	Stored    int    `json:"stored" doc:"Hits of the request." example:"3"`
	Stream    string `json:"stream" doc:"The stream that has stored them." example:"HITS"`
	Sequence  uint64 `json:"sequence" doc:"The message's sequence in the stream. Requests that came together share one message." example:"812"`
	Duplicate bool   `json:"duplicate,omitempty" doc:"True if an earlier request with the same Idempotency-Key had stored them." example:"true"`
}

// storeHits stores hits, in a message that requests may share.
func (s *storage) storeHits(ctx context.Context, hits []hit.Hit) (receipt, *web.Problem) {
	e := newEntry(s.budget, hits, "")
	if e == nil {
		return receipt{}, noRoom("COLLECT_MAX_WAITING")
	}
	return s.store(ctx, e)
}

// store stores an entry, of which it takes ownership, and returns when JetStream has stored it. Its problem
// is a 503 if the entry is certainly not stored, a 504 if that is unknown.
func (s *storage) store(ctx context.Context, e *entry) (receipt, *web.Problem) {
	defer e.free()
	p := s.publisher.Load()
	if p == nil {
		return receipt{}, notStored("NATS has not answered yet: nothing of this request is stored; send it again in " +
			"a second")
	}
	most, bound := p.most()
	if e.size() > most {
		return receipt{}, tooLargeFor(bound)
	}
	if parent := trace.Of(ctx); parent != "" && e.size()+trace.Size <= most { // no hit is refused for its trace
		e.trace(parent)
	}
	o := p.store(e)
	if o.problem != nil {
		return receipt{}, o.problem
	}
	repeated := o.duplicate && e.id != ""
	if repeated {
		if p := s.compareWithFirst(ctx, e, o); p != nil {
			return receipt{}, p
		}
	}
	return receipt{Stored: e.hits, Stream: o.stream, Sequence: o.sequence, Duplicate: repeated}, nil
}

// compareWithFirst compares a request with the message that an earlier one, with its Idempotency-Key or its
// event's source and id, has stored. If that message is gone, nothing contradicts, and the key's request is
// stored.
func (s *storage) compareWithFirst(ctx context.Context, e *entry, o outcome) *web.Problem {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	header, first, found, err := s.readMessage(bounded, o.stream, o.sequence)
	switch {
	case err != nil:
		s.failures.Warn().Ctx(ctx).Err(err).Str("stream", o.stream).Uint64("sequence",
			o.sequence).Msg("the first message of a repeated Idempotency-Key or CloudEvent cannot be read")
		return web.NewProblem(http.StatusGatewayTimeout, fmt.Sprintf(
			"%s: hits are stored under it (%s, sequence %d), but whether they are the hits of this request is "+
				"unknown: JetStream does not show them; send the same request again",
			e.idSource, o.stream, o.sequence)).OfKind(web.StoredUnknown)
	case found && (!bytes.Equal(first, e.lines) || !sameEvent(header, e.header)):
		return keyReused(e.idSource, o)
	}
	return nil
}

// keyReused is the answer that draft-ietf-httpapi-idempotency-key-header asks for. Its 409, for a request
// still under way, is never needed: a repeat waits for the first and gets its answer.
func keyReused(named string, first outcome) *web.Problem {
	return web.NewProblem(http.StatusUnprocessableEntity, fmt.Sprintf(
		"%s: used for other hits (%s, sequence %d): nothing of this request is stored; new hits need a new one", named,
		first.stream, first.sequence)).OfKind(web.IdempotencyKeyReused)
}

// sameEvent reports whether the headers of two messages describe the same event. It ignores a tracer's
// attributes (the distributed tracing extension), which differ if the request is sent again.
func sameEvent(a, b nats.Header) bool {
	attributesOf := func(h nats.Header) map[string]string {
		out := make(map[string]string)
		for name, values := range h {
			if rules.IsEventHeader(name) && name != "ce-traceparent" && name != "ce-tracestate" {
				out[name] = strings.TrimSpace(values[0])
			}
		}
		return out
	}
	return maps.Equal(attributesOf(a), attributesOf(b))
}

// readMessage reads a message from the stream's leader, because a replica may not have it yet.
func (s *storage) readMessage(ctx context.Context, stream string,
	sequence uint64) (header nats.Header, body []byte, found bool, err error) {
	js := *s.js.Load()
	reply, err := js.Conn().RequestWithContext(ctx, natsconn.APISubject(js, "STREAM.MSG.GET."+stream),
		fmt.Appendf(nil, `{"seq":%d}`, sequence))
	if err != nil {
		return nil, nil, false, err
	}
	return outbox.StoredMessage(reply.Data)
}
