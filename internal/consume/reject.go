package consume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The stream of hits that could not be counted.
const (
	rejectedStream  = "HITS_REJECTED"
	rejectedSubject = "hits_rejected."
	// rejectedWindow is how long the server remembers the identity of a reject: a
	// replay within it stores none twice.
	rejectedWindow = time.Hour
)

// rejectedHit is a reject that waits for its flush; it owns its bytes.
type rejectedHit struct {
	stream string
	seq    uint64
	reject
}

func newRejectedHit(stream string, seq uint64, r reject) rejectedHit {
	r.body = bytes.Clone(r.body)
	return rejectedHit{stream, seq, r}
}

// rejectOverhead is more than the headers of a reject take of a message's largest size.
const rejectOverhead = 4 << 10

// messages are the messages that carry the reject: one, or several parts where
// the body and the new headers together would be larger than the server takes.
func (r rejectedHit) messages(maxPayload int64) []*nats.Msg {
	size := max(int(maxPayload)-rejectOverhead, rejectOverhead)
	parts := max(1, (len(r.body)+size-1)/size)
	out := make([]*nats.Msg, parts)
	for i := range out {
		m := nats.NewMsg(rejectedSubject + r.stream)
		m.Data = r.body[i*size : min((i+1)*size, len(r.body))]
		m.Header.Set("Tallyroll-Reason", r.reason)
		m.Header.Set("Tallyroll-Detail", headerText(r.detail))
		m.Header.Set("Tallyroll-Stream", r.stream)
		m.Header.Set("Tallyroll-Sequence", strconv.FormatUint(r.seq, 10))
		m.Header.Set("Tallyroll-Item", strconv.Itoa(r.item))
		id := fmt.Sprintf("%s:%d:%d", r.stream, r.seq, r.item)
		if parts > 1 {
			m.Header.Set("Tallyroll-Part", fmt.Sprintf("%d/%d", i+1, parts))
			if i > 0 {
				id = fmt.Sprintf("%s/%d", id, i+1)
			}
		}
		m.Header.Set(jetstream.MsgIDHeader, id)
		out[i] = m
	}
	return out
}

// headerText makes one printable line of a text.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return clip(s, 300)
}

// publishRejects stores the rejects and returns when all of them are
// acknowledged, or how many of them were. Stored again within rejectedWindow they
// are dropped by the server.
func publishRejects(ctx context.Context, js jetstream.JetStream, rejects []rejectedHit) (stored int, err error) {
	const chunk = 500 // acknowledgements under way at once
	maxPayload := js.Conn().MaxPayload()
	for start := 0; start < len(rejects); start += chunk {
		var acks []jetstream.PubAckFuture
		for _, r := range rejects[start:min(start+chunk, len(rejects))] {
			for _, m := range r.messages(maxPayload) {
				ack, err := js.PublishMsgAsync(m)
				if err != nil {
					return start, fmt.Errorf("publish a reject of %s: %w", r.stream, err)
				}
				acks = append(acks, ack)
			}
		}
		for _, ack := range acks {
			select {
			case <-ack.Ok():
			case err := <-ack.Err():
				return start, fmt.Errorf("publish a reject: %w", err)
			case <-ctx.Done():
				return start, ctx.Err()
			}
		}
	}
	return len(rejects), nil
}

// ensureRejected makes the stream of rejects where it is missing.
func ensureRejected(ctx context.Context, js jetstream.JetStream, replicas int, maxAge time.Duration) error {
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        rejectedStream,
		Description: "hits that could not be counted, with the reason in their headers",
		Subjects:    []string{rejectedSubject + ">"},
		Replicas:    replicas,
		MaxAge:      maxAge,
		Duplicates:  min(rejectedWindow, maxAge),
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("create stream %s: %w", rejectedStream, err)
	}
	return nil
}
