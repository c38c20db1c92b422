package consume

import (
	"bytes"
	"context"
	"encoding/json"
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

// messages are the messages that carry the reject: one, or several parts if the
// body and the headers together would be larger than the server takes. Where that
// leaves little room the detail is cut short; what identifies the reject never is.
func (r rejectedHit) messages(maxPayload int) ([]*nats.Msg, error) {
	const most = 99_999 // parts, by whose number their header is measured
	detail := headerText(r.detail)
	room := maxPayload - headerSize(r.message("", most, most).Header)
	detail = clipText(detail, room/2)
	size := room - len(detail) // of a part's share of the body
	if size < 1 {
		return nil, fmt.Errorf("a message of NATS may have %d bytes, which leaves no room for a reject beside its headers (%d bytes): raise max_payload", maxPayload, maxPayload-room)
	}
	whole := r.message(detail, 1, 1)
	if headerSize(whole.Header)+len(r.body) <= maxPayload {
		whole.Data = r.body
		return []*nats.Msg{whole}, nil
	}
	var out []*nats.Msg
	parts := (len(r.body) + size - 1) / size
	for i := range parts {
		m := r.message(detail, i+1, parts)
		m.Data = r.body[i*size : min((i+1)*size, len(r.body))]
		out = append(out, m)
	}
	return out, nil
}

// message is one part of a reject, without its share of the body.
func (r rejectedHit) message(detail string, part, parts int) *nats.Msg {
	m := nats.NewMsg(rejectedSubject + r.stream)
	m.Header.Set("Tallyroll-Reason", r.reason)
	m.Header.Set("Tallyroll-Detail", detail)
	m.Header.Set("Tallyroll-Stream", r.stream)
	m.Header.Set("Tallyroll-Sequence", strconv.FormatUint(r.seq, 10))
	m.Header.Set("Tallyroll-Item", strconv.Itoa(r.item))
	m.Header.Set(storedHeader, time.Unix(0, r.stored).UTC().Format(time.RFC3339Nano))
	id := fmt.Sprintf("%s:%d:%d", r.stream, r.seq, r.item)
	if parts > 1 {
		m.Header.Set("Tallyroll-Part", fmt.Sprintf("%d/%d", part, parts))
		if part > 1 {
			id = fmt.Sprintf("%s/%d", id, part)
		}
	}
	m.Header.Set(jetstream.MsgIDHeader, id)
	return m
}

// namesakeSuffix is what identifies a reject whose number another message has had.
func namesakeSuffix(h nats.Header) string { return "@" + h.Get(storedHeader) }

// headerSize is how many bytes of a message its headers take, with the suffix of a namesake.
func headerSize(h nats.Header) int {
	size := len("NATS/1.0\r\n") + len("\r\n") + len(namesakeSuffix(h))
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
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

// clipText makes a text at most n bytes long.
func clipText(s string, n int) string {
	switch {
	case len(s) <= n:
		return s
	case n < len("…"):
		return ""
	}
	return clip(s, n-len("…"))
}

// publishRejects stores the rejects and returns when all of them are
// acknowledged, or how many of them were. Stored again within rejectedWindow they
// are dropped by the server.
func publishRejects(ctx context.Context, js jetstream.JetStream, rejects []rejectedHit) (stored int, err error) {
	const chunk = 500 // acknowledgements, or looks, under way at once
	maxPayload := int(js.Conn().MaxPayload())
	for start := 0; start < len(rejects); start += chunk {
		var messages []*nats.Msg
		for _, r := range rejects[start:min(start+chunk, len(rejects))] {
			parts, err := r.messages(maxPayload)
			if err != nil {
				return start, err
			}
			messages = append(messages, parts...)
		}
		duplicates, err := publishAll(ctx, js, messages)
		if err != nil {
			return start, err
		}
		again, err := namesakes(ctx, js.Conn(), duplicates)
		if err != nil {
			return start, err
		}
		if _, err := publishAll(ctx, js, again); err != nil {
			return start, err
		}
	}
	return len(rejects), nil
}

// duplicate is a message that the server has dropped, since it holds one of the same identity.
type duplicate struct {
	*nats.Msg
	of uint64 // the sequence of that one
}

// publishAll stores messages and returns those that were duplicates, once all are acknowledged.
func publishAll(ctx context.Context, js jetstream.JetStream, messages []*nats.Msg) (duplicates []duplicate, err error) {
	acks := make([]jetstream.PubAckFuture, len(messages))
	for i, m := range messages {
		if acks[i], err = js.PublishMsgAsync(m); err != nil {
			return nil, fmt.Errorf("publish a reject to %s: %w", m.Subject, err)
		}
	}
	for _, ack := range acks {
		select {
		case got := <-ack.Ok():
			if got.Duplicate {
				duplicates = append(duplicates, duplicate{ack.Msg(), got.Sequence})
			}
		case err := <-ack.Err():
			return nil, fmt.Errorf("publish a reject to %s: %w", ack.Msg().Subject, err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return duplicates, nil
}

// namesakes looks at what the server took duplicates for. Mostly it is the same
// reject. But a stream that was made anew or rolled back numbers its messages
// again, and then it is another message's: that one is to be stored under an
// identity of its own. All are asked about at once: a replay brings every reject of an hour again.
func namesakes(ctx context.Context, conn *nats.Conn, duplicates []duplicate) (again []*nats.Msg, err error) {
	if len(duplicates) == 0 {
		return nil, nil
	}
	inbox := conn.NewInbox()
	answers, err := conn.SubscribeSync(inbox + ".*")
	if err != nil {
		return nil, fmt.Errorf("look at rejects: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }() // a closed connection has none
	if err := answers.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("look at rejects: %w", err)
	}
	for i, d := range duplicates {
		request := fmt.Appendf(nil, `{"seq":%d}`, d.of)
		if err := conn.PublishRequest(jetstream.DefaultAPIPrefix+"STREAM.MSG.GET."+rejectedStream, inbox+"."+strconv.Itoa(i), request); err != nil {
			return nil, fmt.Errorf("look at message %d of %s: %w", d.of, rejectedStream, err)
		}
	}
	for range duplicates {
		answer, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("look at rejects: %w", err)
		}
		i, err := strconv.Atoi(answer.Subject[len(inbox)+1:])
		if err != nil || i < 0 || i >= len(duplicates) {
			return nil, fmt.Errorf("look at rejects: an answer on %s", answer.Subject)
		}
		d := duplicates[i]
		stored, err := storedOf(answer)
		if err != nil {
			return nil, fmt.Errorf("look at message %d of %s: %w", d.of, rejectedStream, err)
		}
		if stored == "" || stored == d.Header.Get(storedHeader) {
			continue // the same, or one that was there and has been removed since
		}
		m := nats.NewMsg(d.Subject)
		m.Data = d.Data
		for name, values := range d.Header {
			m.Header[name] = values
		}
		m.Header.Set(jetstream.MsgIDHeader, d.Header.Get(jetstream.MsgIDHeader)+namesakeSuffix(d.Header))
		again = append(again, m)
	}
	return again, nil
}

// storedOf reads when the message of a stored reject had been stored; empty if
// the stream does not hold that reject any more.
func storedOf(answer *nats.Msg) (string, error) {
	if len(answer.Data) == 0 {
		return "", fmt.Errorf("no answer: %s", answer.Header.Get("Status"))
	}
	var got struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Header []byte `json:"hdrs"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil {
		return "", err
	}
	if got.Error != nil {
		if got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return "", nil
		}
		return "", got.Error
	}
	h, err := nats.DecodeHeadersMsg(got.Message.Header)
	if err != nil {
		return "", err
	}
	if stored := h.Get(storedHeader); stored != "" {
		return stored, nil
	}
	return "?", nil // of an earlier version, or not one of ours
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
