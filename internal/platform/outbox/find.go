package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/platform/cause"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/setting"
)

const (
	probeToken  = "tallyroll-probe"
	probeStream = "no stream has a name with spaces"
	probeWithin = 2 * time.Second
)

// Errors of FindStream in addition to ErrNoStream.
var (
	ErrNotPermitted = errors.New("this user may not publish there")
	ErrNoAnswer     = errors.New("nothing has answered")
	ErrProbeStored  = errors.New("the message was stored")
)

// FindStream returns the stream of a subject, which may have wildcards. It sends a message that no stream can
// store, because it expects a stream with an impossible name: the stream refuses it and names itself. The
// message goes through the server's mappings, as every other does. An error has its cause, if JetStream shows
// it.
func FindStream(ctx context.Context, js jetstream.JetStream, subject string) (string, error) {
	stream, err := probeSubject(ctx, js.Conn(), subject)
	bounded, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	switch {
	case errors.Is(err, ErrNoStream):
		_, none := js.AccountInfo(bounded)
		if none = natsconn.ExplainJetStream(js, none); errors.As(none, new(setting.UsageError)) {
			return "", none
		}
	case errors.Is(err, ErrNoAnswer):
		name, _ := js.StreamNameBySubject(bounded, subject)
		handle, unknown := js.Stream(bounded, name)
		if unknown == nil && handle.CachedInfo().Config.NoAck {
			return "", cause.NoAck.Of(fmt.Errorf("%s: %w", name, err))
		}
	}
	return stream, err
}

func probeSubject(ctx context.Context, conn *nats.Conn, subject string) (string, error) {
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" {
			tokens[i] = probeToken
		}
	}
	m := nats.NewMsg(strings.Join(tokens, "."))
	m.Header.Set(jetstream.ExpectedStreamHeader, probeStream)
	bounded, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	reply, err := conn.RequestMsgWithContext(bounded, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "", ErrNoStream
	case err != nil:
		last := conn.LastError()
		if errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), m.Subject) {
			return "", ErrNotPermitted
		}
		return "", errors.Join(ErrNoAnswer, err)
	}
	answer, ok := parseBody(reply.Data)
	switch {
	case !ok || answer.Stream == "":
		return "", fmt.Errorf("%w: something that is no stream did", ErrNoAnswer) // a service that listens there
	case answer.Refusal == nil:
		return answer.Stream, ErrProbeStored
	}
	return answer.Stream, nil
}
