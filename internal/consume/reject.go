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
	stored int64 // the message, Unix nanoseconds
	reject
}

func newRejectedHit(stream string, seq uint64, stored int64, r reject) rejectedHit {
	r.body = bytes.Clone(r.body)
	return rejectedHit{stream, seq, stored, r}
}

// storedHeader says when the message of a reject was stored.
const storedHeader = "Tallyroll-Stored"

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
		m.Header.Set(storedHeader, time.Unix(0, r.stored).UTC().Format(time.RFC3339Nano))
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
			case got := <-ack.Ok():
				if !got.Duplicate {
					continue
				}
				if err := storeNamesake(ctx, js, ack.Msg(), got.Sequence); err != nil {
					return start, err
				}
			case err := <-ack.Err():
				return start, fmt.Errorf("publish a reject: %w", err)
			case <-ctx.Done():
				return start, ctx.Err()
			}
		}
	}
	return len(rejects), nil
}

// storeNamesake looks at a reject that the server has dropped as a duplicate of
// the message at seq. Mostly it is one. But a stream that was made anew or rolled
// back numbers its messages again, and then it is another message's reject: it
// is stored under an id of its own.
func storeNamesake(ctx context.Context, js jetstream.JetStream, m *nats.Msg, seq uint64) error {
	handle, err := js.Stream(ctx, rejectedStream)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", rejectedStream, err)
	}
	have, err := handle.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil // it was there and has been removed since
	}
	if err != nil {
		return fmt.Errorf("message %d of %s: %w", seq, rejectedStream, err)
	}
	stored := m.Header.Get(storedHeader)
	if have.Header.Get(storedHeader) == stored {
		return nil
	}
	again := nats.NewMsg(m.Subject)
	again.Data = m.Data
	for name, values := range m.Header {
		again.Header[name] = values
	}
	again.Header.Set(jetstream.MsgIDHeader, m.Header.Get(jetstream.MsgIDHeader)+"@"+stored)
	if _, err := js.PublishMsg(ctx, again); err != nil {
		return fmt.Errorf("publish a reject: %w", err)
	}
	return nil
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
