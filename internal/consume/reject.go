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

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
)

// rejectedWindow is how long the server remembers the identity of a reject. A replay
// within this time stores no reject twice.
const rejectedWindow = time.Hour

// rejectedHit is a reject that waits for its flush. It owns its bytes.
type rejectedHit struct {
	stream string
	seq    uint64
	stored int64 // when the message was stored, Unix nanoseconds
	hit.Reject
	counter   string // of a hit that names none
	origin           // of a message that was read with rules
	namespace string // that refuses it; publishRejects knows it
}

func newRejectedHit(stream string, seq uint64, stored int64, r hit.Reject) rejectedHit {
	r.Body = bytes.Clone(r.Body)
	return rejectedHit{stream: stream, seq: seq, stored: stored, Reject: r}
}

// messages returns the messages that carry the reject: one, or several parts if the body and the
// headers together would be larger than the server takes. If the headers leave little room, it cuts
// the detail short, but never what identifies the reject.
func (r rejectedHit) messages(maxPayload int) ([]*nats.Msg, error) {
	const most = 99_999 // parts: the longest number that the measured header makes room for
	detail := headerText(r.Detail)
	if len(r.counter) > maxPayload/4 || hit.CheckName([]byte(r.counter)) != nil {
		r.counter = "" // no counter can have the name, or it leaves too little room for the rest
	}
	if r.origin.size > maxPayload/4 {
		r.origin = origin{} // likewise
	}
	room := maxPayload - headerSize(r.message("", most, most).Header)
	detail = clipText(detail, room/2)
	size := room - len(detail) // bytes of the body per part
	if size < 1 {
		return nil, fmt.Errorf("NATS takes messages of at most %d bytes, which leaves no room for a reject beside its headers (%d bytes): raise max_payload", maxPayload, maxPayload-room)
	}
	whole := r.message(detail, 1, 1)
	if headerSize(whole.Header)+len(r.Body) <= maxPayload {
		whole.Data = r.Body
		return []*nats.Msg{whole}, nil
	}
	var out []*nats.Msg
	parts := (len(r.Body) + size - 1) / size
	for i := range parts {
		m := r.message(detail, i+1, parts)
		m.Data = r.Body[i*size : min((i+1)*size, len(r.Body))]
		out = append(out, m)
	}
	return out, nil
}

// message is one part of a reject, without its share of the body.
func (r rejectedHit) message(detail string, part, parts int) *nats.Msg {
	m := nats.NewMsg(hit.RejectedSubject(r.namespace, r.stream))
	m.Header.Set(hit.HeaderNamespace, r.namespace)
	m.Header.Set(hit.HeaderReason, string(r.Reason))
	m.Header.Set(hit.HeaderDetail, detail)
	m.Header.Set(hit.HeaderStream, r.stream)
	m.Header.Set(hit.HeaderSequence, strconv.FormatUint(r.seq, 10))
	m.Header.Set(hit.HeaderItem, strconv.Itoa(r.Item))
	m.Header.Set(hit.HeaderStored, time.Unix(0, r.stored).UTC().Format(time.RFC3339Nano))
	if r.counter != "" {
		m.Header.Set(hit.HeaderCounter, r.counter)
	}
	if r.Kind != hit.OfHit {
		m.Header.Set(hit.HeaderKind, string(r.Kind))
	}
	r.origin.addTo(m.Header, r.Kind)
	id := fmt.Sprintf("%s:%d:%d", hit.ViewOf(r.namespace, r.stream), r.seq, r.Item)
	if parts > 1 {
		m.Header.Set(hit.HeaderPart, fmt.Sprintf("%d/%d", part, parts))
		if part > 1 {
			id = fmt.Sprintf("%s/%d", id, part)
		}
	}
	m.Header.Set(jetstream.MsgIDHeader, id)
	return m
}

// namesakeSuffix distinguishes a reject from one whose message had the same sequence earlier.
func namesakeSuffix(h nats.Header) string { return "@" + h.Get(hit.HeaderStored) }

// headerSize returns how many bytes of a message its headers take, including the suffix of a namesake.
func headerSize(h nats.Header) int {
	size := len("NATS/1.0\r\n") + len("\r\n") + len(namesakeSuffix(h))
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
}

// headerText turns a text into one printable line.
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

// clip cuts a text to at most n bytes, not counting the ellipsis that it adds.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// publishRejects stores the rejects and returns when all of them are acknowledged. If it
// fails, it returns how many of them were. If they are stored again within rejectedWindow, the
// server drops them.
func publishRejects(ctx context.Context, js jetstream.JetStream, namespace string, rejects []rejectedHit) (stored int, err error) {
	const chunk = 500 // acknowledgements, or requests for stored messages, under way at once
	maxPayload := int(js.Conn().MaxPayload())
	for start := 0; start < len(rejects); start += chunk {
		var messages []*nats.Msg
		for _, r := range rejects[start:min(start+chunk, len(rejects))] {
			r.namespace = namespace
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
		again, err := namesakes(ctx, js, duplicates)
		if err != nil {
			return start, err
		}
		if _, err := publishAll(ctx, js, again); err != nil {
			return start, err
		}
	}
	return len(rejects), nil
}

// duplicate is a message that the server has dropped because it holds one with the same identity.
type duplicate struct {
	*nats.Msg
	of uint64 // the sequence of the one it holds
}

// publishAll stores messages. Once all are acknowledged, it returns those that were duplicates.
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
			if wanted := js.Options().Domain; wanted != "" && got.Domain != wanted {
				return nil, fmt.Errorf("publish a reject to %s: the stream %s of the domain %q took it before %s of the domain %q: let no two domains that share subjects have this subject",
					ack.Msg().Subject, got.Stream, got.Domain, hit.RejectedStream, wanted)
			}
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

// namesakes looks at the stored rejects of which the server took these for duplicates. Usually a
// stored reject is the same one. But a stream that was made anew or rolled back numbers its messages
// again, and then the stored reject belongs to another message, and the new one must be stored under
// an identity of its own. namesakes sends all requests at once, because a replay brings every reject
// of an hour again.
func namesakes(ctx context.Context, js jetstream.JetStream, duplicates []duplicate) (again []*nats.Msg, err error) {
	if len(duplicates) == 0 {
		return nil, nil
	}
	conn := js.Conn()
	inbox, look := conn.NewInbox(), boot.JetStreamSubject(js, "STREAM.MSG.GET."+hit.RejectedStream)
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
		if err := conn.PublishRequest(look, inbox+"."+strconv.Itoa(i), request); err != nil {
			return nil, fmt.Errorf("look at message %d of %s: %w", d.of, hit.RejectedStream, err)
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
		stored, err := headerOf(answer)
		if err != nil {
			return nil, fmt.Errorf("look at message %d of %s: %w", d.of, hit.RejectedStream, err)
		}
		if stored.Get(hit.HeaderStored) == d.Header.Get(hit.HeaderStored) && stored.Get(hit.HeaderNamespace) == d.Header.Get(hit.HeaderNamespace) {
			continue // the same reject
		}
		// If the stored one has been removed since (publish --from-rejects does that), nobody can tell whose it
		// was. Stored again, the same reject does no harm: it is known by its name when it is sent again.
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

// headerOf reads the headers of a stored reject. It returns none if the stream no longer holds that reject.
func headerOf(answer *nats.Msg) (nats.Header, error) {
	if len(answer.Data) == 0 {
		return nil, fmt.Errorf("no answer: %s", answer.Header.Get("Status"))
	}
	var got struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Header []byte `json:"hdrs"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil {
		return nil, err
	}
	if got.Error != nil {
		if got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil
		}
		return nil, got.Error
	}
	if len(got.Message.Header) == 0 {
		return nil, nil // no worker wrote it
	}
	return nats.DecodeHeadersMsg(got.Message.Header)
}

// ensureRejected makes the stream of rejects if it is missing.
func ensureRejected(ctx context.Context, js jetstream.JetStream, replicas int, maxAge time.Duration) error {
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        hit.RejectedStream,
		Description: "hits that could not be counted, with the reason in their headers",
		Subjects:    []string{hit.RejectedSubjects},
		Replicas:    replicas,
		MaxAge:      maxAge,
		Duplicates:  min(rejectedWindow, maxAge),
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("create stream %s: %w", hit.RejectedStream, err)
	}
	return nil
}
