package rejects

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/outbox"
)

// duplicateWindow is how long the server remembers a reject's identity. A replay within it stores none twice.
const duplicateWindow = time.Hour

// Create creates the stream of rejects if it is missing.
func Create(ctx context.Context, js jetstream.JetStream, replicas int, maxAge time.Duration) error {
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        Stream,
		Description: "hits that could not be counted, with the reason in their headers",
		Subjects:    []string{Subjects},
		Replicas:    replicas,
		MaxAge:      maxAge,
		Duplicates:  min(duplicateWindow, maxAge),
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("create stream %s: %w", Stream, err)
	}
	return nil
}

// Publish stores rejects of a namespace and returns when all are acknowledged. After an error, it returns how
// many were. The server drops repeats within deduplicated.
func Publish(ctx context.Context, js jetstream.JetStream, namespace string, rejects []Reject) (stored int, err error) {
	const chunk = 500 // acknowledgements, or requests for stored messages, under way at once
	maxPayload := int(js.Conn().MaxPayload())
	for start := 0; start < len(rejects); start += chunk {
		var messages []*nats.Msg
		for _, r := range rejects[start:min(start+chunk, len(rejects))] {
			r.Namespace = namespace
			m, err := r.Message(maxPayload)
			if err != nil {
				return start, err
			}
			messages = append(messages, m)
		}
		duplicates, err := publishAll(ctx, js, messages)
		if err != nil {
			return start, err
		}
		again, err := withoutNamesakes(ctx, js, duplicates)
		if err != nil {
			return start, err
		}
		if _, err := publishAll(ctx, js, again); err != nil {
			return start, err
		}
	}
	return len(rejects), nil
}

type duplicate struct {
	*nats.Msg
	of uint64 // the sequence of the one it holds
}

// publishAll stores messages. Once all are acknowledged, it returns the duplicates.
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
			if domain := js.Options().Domain; domain != "" && got.Domain != domain {
				return nil, fmt.Errorf("publish a reject to %s: the stream %s of the domain %q took it before %s of "+
					"the domain %q: let no two domains that share subjects have this subject",
					ack.Msg().Subject, got.Stream, got.Domain, Stream, domain)
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

// withoutNamesakes reads the stored rejects of duplicates. Usually they are the same. But a stream that was
// recreated or rolled back reuses sequences: then the stored one belongs to another message, and the new one
// needs its own identity. It sends all requests at once, because a replay repeats every reject of an hour.
func withoutNamesakes(ctx context.Context, js jetstream.JetStream,
	duplicates []duplicate) (again []*nats.Msg, err error) {
	if len(duplicates) == 0 {
		return nil, nil
	}
	conn := js.Conn()
	inbox, subject := conn.NewInbox(), natsconn.APISubject(js, "STREAM.MSG.GET."+Stream)
	answers, err := conn.SubscribeSync(inbox + ".*")
	if err != nil {
		return nil, fmt.Errorf("read stored rejects: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }() // a closed connection has none
	if err := answers.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("read stored rejects: %w", err)
	}
	for i, d := range duplicates {
		request := fmt.Appendf(nil, `{"seq":%d}`, d.of)
		if err := conn.PublishRequest(subject, inbox+"."+strconv.Itoa(i), request); err != nil {
			return nil, fmt.Errorf("read message %d of %s: %w", d.of, Stream, err)
		}
	}
	for range duplicates {
		answer, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("read stored rejects: %w", err)
		}
		i, err := strconv.Atoi(answer.Subject[len(inbox)+1:])
		if err != nil || i < 0 || i >= len(duplicates) {
			return nil, fmt.Errorf("read stored rejects: an answer on %s", answer.Subject)
		}
		d := duplicates[i]
		stored, err := headerOf(answer)
		if err != nil {
			return nil, fmt.Errorf("read message %d of %s: %w", d.of, Stream, err)
		}
		if stored.Get(HeaderStored) == d.Header.Get(HeaderStored) &&
			stored.Get(HeaderNamespace) == d.Header.Get(HeaderNamespace) {
			continue // the same reject
		}
		// If the stored one has been removed since (redrive does that), its message is unknown. Storing the
		// same reject again does no harm: redrive recognises it by its name.
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

// headerOf parses a stored reject's headers: none if the stream no longer holds it, or no worker wrote it.
func headerOf(answer *nats.Msg) (nats.Header, error) {
	if len(answer.Data) == 0 {
		return nil, fmt.Errorf("no answer: %s", answer.Header.Get("Status"))
	}
	header, _, _, err := outbox.StoredMessage(answer.Data)
	return header, err
}
