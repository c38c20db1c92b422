package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
	"tallyroll/internal/rules"
	"tallyroll/internal/trace"
	"tallyroll/internal/web"
)

// receipt is where JetStream has stored the hits of a request.
type receipt struct {
	Stored    int    `json:"stored" doc:"Hits of the request." example:"3"`
	Stream    string `json:"stream" doc:"The stream that has stored them." example:"HITS"`
	Sequence  uint64 `json:"sequence" doc:"The message's sequence in the stream. Requests that came together share one message." example:"812"`
	Duplicate bool   `json:"duplicate,omitempty" doc:"True if an earlier request with the same Idempotency-Key had stored them." example:"true"`
}

// accept stores hits and returns when JetStream has stored them: with an id as a message of their own with
// that Nats-Msg-Id, without in a shared one. The error is a *web.Problem: 503 if certainly not stored, 504 if
// unknown.
func (s *service) accept(ctx context.Context, hits []hit.Hit, id string) (receipt, error) {
	e := newEntry(&s.gate, hits, id)
	if e == nil {
		return receipt{}, noRoom("COLLECT_MAX_WAITING")
	}
	return s.store(ctx, e)
}

// store is accept for an encoded entry, of which it takes ownership.
func (s *service) store(ctx context.Context, e *entry) (receipt, error) {
	defer e.free()
	p := s.publisher.Load()
	if p == nil {
		return receipt{}, notStored("NATS has not answered yet: nothing of this request is stored; send it again in a second")
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
	if o.duplicate && e.id != "" {
		if p := s.sameAsFirst(ctx, e, o); p != nil {
			return receipt{}, p
		}
	}
	return receipt{Stored: e.hits, Stream: o.stream, Sequence: o.sequence, Duplicate: o.duplicate && e.id != ""}, nil
}

// newEvents takes CloudEvents unchanged. It returns nil if there is no room for them.
func newEvents(g *gate, body []byte, events int, header nats.Header, id string) *entry {
	e := newEntry(g, nil, id)
	if e == nil {
		return nil
	}
	e.lines, e.hits, e.alone, e.more = append(e.lines, body...), events, true, header
	if !e.held.resize(cap(e.lines)) {
		e.free()
		return nil
	}
	return e
}

// entry is the hits or CloudEvents of one request on their way to JetStream. The publisher owns it from
// publisher.store until it has put the outcome into done.
type entry struct {
	lines []byte      // the hits, one object per line; or CloudEvents as they came
	hits  int         // or events
	named string      // whose the id is, human-readable
	id    string      // Nats-Msg-Id; empty: any
	alone bool        // it shares no message with others
	more  nats.Header // on the message, if no other entry shares it: the event's of CloudEvents, and the trace
	since time.Time
	held  hold
	done  chan outcome
}

type outcome struct {
	stream    string
	sequence  uint64
	duplicate bool
	problem   *web.Problem // if it is not stored, or if that is unknown
}

var entries = sync.Pool{New: func() any { return &entry{done: make(chan outcome, 1)} }}

const mostPooled = 64 << 10

// newEntry encodes hits as the workers read them. It returns nil if there is no room for them.
func newEntry(g *gate, hits []hit.Hit, id string) *entry {
	e := entries.Get().(*entry)
	e.lines, e.hits, e.id, e.alone, e.more, e.named, e.since, e.held = e.lines[:0], len(hits), id, id != "", nil, keyHeader, time.Now(), hold{gate: g}
	for _, h := range hits {
		e.lines = append(h.AppendJSON(e.lines), '\n')
	}
	if !e.held.resize(cap(e.lines)) {
		e.free()
		return nil
	}
	return e
}

// size is the entry's bytes in a message, without its Nats-Msg-Id.
func (e *entry) size() int {
	n := len(e.lines)
	for name, values := range e.more {
		for _, v := range values {
			n += len(name) + len(": \r\n") + len(v)
		}
	}
	return n
}

func (e *entry) trace(parent string) {
	if e.more == nil {
		e.more = make(nats.Header, 1)
	}
	e.more.Set(trace.Header, parent)
}

// free returns the entry's memory. The entry must not be used afterwards.
func (e *entry) free() {
	e.held.resize(0)
	if cap(e.lines) > mostPooled {
		e.lines = nil
	}
	entries.Put(e)
}

// message is what JetStream stores at once: the hits of one request, or of several.
type message struct {
	outbox.Letter
	hits     int
	entries  []*entry
	deadline time.Time // of the entry that waits longest
}

var messages = sync.Pool{New: func() any { return new(message) }}

func newMessage(subject string) *message {
	m := messages.Get().(*message)
	*m = message{Letter: outbox.Letter{Subject: subject, Body: m.Body[:0]}, entries: m.entries[:0]}
	return m
}

func (m *message) add(e *entry, timeout time.Duration) {
	m.More = nil // of several requests, none's trace is the message's; an event is alone
	if len(m.entries) == 0 {
		m.deadline = e.since.Add(timeout)
		m.More = e.more
	}
	m.Body = append(m.Body, e.lines...)
	m.hits += e.hits
	m.entries = append(m.entries, e)
}

func (m *message) settle(o outcome) {
	for i, e := range m.entries {
		m.entries[i] = nil
		e.done <- o // it has room for one
	}
	m.free()
}

func (m *message) free() {
	m.entries = m.entries[:0]
	if cap(m.Body) > 4*mostPooled {
		m.Body = nil
	}
	messages.Put(m)
}

// codeNoMessage is JetStream's code for a sequence that no longer holds a message.
const codeNoMessage = 10037

var errGone = errors.New("the stream no longer has the message")

// sameAsFirst compares a request with the message that an earlier one, with its Idempotency-Key or its
// event's source and id, has stored. If that message is gone, nothing contradicts, and the key's request is
// stored.
func (s *service) sameAsFirst(ctx context.Context, e *entry, o outcome) *web.Problem {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settings.Timeout)
	defer cancel()
	header, first, err := s.message(bounded, o.stream, o.sequence)
	switch {
	case errors.Is(err, errGone):
		return nil
	case err != nil:
		s.failures.Warn().Ctx(ctx).Err(err).Str("stream", o.stream).Uint64("sequence", o.sequence).Msg("the first message of a repeated Idempotency-Key or CloudEvent cannot be read")
		return web.NewProblem(http.StatusGatewayTimeout, fmt.Sprintf(
			"%s: hits are stored under it (%s, sequence %d), but whether they are the hits of this request is unknown: JetStream does not show them; send the same request again",
			e.named, o.stream, o.sequence)).OfKind(web.StoredUnknown)
	case !bytes.Equal(first, e.lines) || !sameEvent(header, e.more):
		return keyReused(e.named, o)
	}
	return nil
}

// keyReused is the answer that draft-ietf-httpapi-idempotency-key-header asks for. Its 409, for a request
// still under way, is never needed: a repeat waits for the first and gets its answer.
func keyReused(named string, first outcome) *web.Problem {
	return web.NewProblem(http.StatusUnprocessableEntity, fmt.Sprintf(
		"%s: used for other hits (%s, sequence %d): nothing of this request is stored; new hits need a new one", named, first.stream, first.sequence)).OfKind(web.IdempotencyKeyReused)
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

// message reads a message from the stream's leader, because a replica may not have it yet.
func (s *service) message(ctx context.Context, stream string, sequence uint64) (nats.Header, []byte, error) {
	js := *s.js.Load()
	reply, err := js.Conn().RequestWithContext(ctx, apiPrefix(js.Options())+"STREAM.MSG.GET."+stream, fmt.Appendf(nil, `{"seq":%d}`, sequence))
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		Message *struct {
			Header []byte `json:"hdrs"`
			Data   []byte `json:"data"`
		} `json:"message"`
		Error *struct {
			ErrCode     int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, nil, err
	}
	switch {
	case answer.Error != nil && answer.Error.ErrCode == codeNoMessage:
		return nil, nil, errGone
	case answer.Error != nil:
		return nil, nil, fmt.Errorf("%s (%d)", answer.Error.Description, answer.Error.ErrCode)
	case answer.Message == nil:
		return nil, nil, errors.New("an answer without a message")
	}
	header, err := nats.DecodeHeadersMsg(answer.Message.Header)
	return header, answer.Message.Data, err
}

func apiPrefix(o jetstream.JetStreamOptions) string {
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}
