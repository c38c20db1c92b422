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

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/rules"
	"tallyroll/internal/web"
)

// codeNoMessage is JetStream's code for a sequence that holds no message any more.
const codeNoMessage = 10037

var errGone = errors.New("the stream no longer has the message")

// sameAsFirst compares a request with the message that an earlier request with its Idempotency-Key, or with a
// CloudEvent of its source and id, has stored. If that message is gone, nothing contradicts, and what the key stands for
// is stored.
func (s *service) sameAsFirst(ctx context.Context, e *entry, o outcome) *web.Problem {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settings.Timeout)
	defer cancel()
	header, first, err := s.message(bounded, o.stream, o.sequence)
	switch {
	case errors.Is(err, errGone):
		return nil
	case err != nil:
		s.failures.Warn().Err(err).Str("stream", o.stream).Uint64("sequence", o.sequence).Msg("the first message of a repeated Idempotency-Key or CloudEvent cannot be read")
		return web.NewProblem(http.StatusGatewayTimeout, fmt.Sprintf(
			"%s: hits are stored under it (%s, sequence %d), but whether they are the hits of this request is unknown: JetStream does not show them; send the same request again",
			e.named, o.stream, o.sequence)).OfKind(web.StoredUnknown)
	case !bytes.Equal(first, e.lines) || !sameEvent(header, e.event):
		return keyReused(e.named, o)
	}
	return nil
}

// keyReused is the answer that draft-ietf-httpapi-idempotency-key-header asks for. Its 409, for a request that is still
// under way, is never needed: a repeat waits for the first and gets its answer.
func keyReused(named string, first outcome) *web.Problem {
	return web.NewProblem(http.StatusUnprocessableEntity, fmt.Sprintf(
		"%s: used for other hits (%s, sequence %d): nothing of this request is stored; new hits need a new one", named, first.stream, first.sequence)).OfKind(web.IdempotencyKeyReused)
}

// sameEvent reports whether the headers of two messages say the same of their events. What a tracer has noted of the
// request is not a part of it (the extension for distributed tracing): that differs if the request is sent again.
func sameEvent(a, b nats.Header) bool {
	attributesOf := func(h nats.Header) map[string]string {
		out := make(map[string]string)
		for name, values := range h {
			if rules.EventHeader(name) && name != "ce-traceparent" && name != "ce-tracestate" {
				out[name] = strings.TrimSpace(values[0])
			}
		}
		return out
	}
	return maps.Equal(attributesOf(a), attributesOf(b))
}

// message reads a message of a stream from the stream's leader: a replica may not have it yet.
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

// apiPrefix is where the API of this JetStream is, as the library makes it of its options.
func apiPrefix(o jetstream.JetStreamOptions) string {
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}
