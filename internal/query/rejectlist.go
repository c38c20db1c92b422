package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
)

const (
	// maxSearched is how many of the newest rejects one request looks at.
	maxSearched = 1000
	// maxRejectBody is how much of a reject's body is shown.
	maxRejectBody = 512
)

// newestRejects are the newest messages of HITS_REJECTED, oldest first, without their bodies, which can be large.
type newestRejects struct {
	stored uint64 // how many messages the stream has
	found  []rejected
}

// pick returns the newest that are asked for, newest first.
func (n newestRejects) pick(limit int, reason, from string) []rejected {
	var out []rejected
	for _, r := range slices.Backward(n.found) {
		if len(out) < limit && (reason == "" || r.Reason == reason) && (from == "" || r.Stream == from) {
			out = append(out, r)
		}
	}
	return out
}

func readNewest(ctx context.Context, js jetstream.JetStream) (newestRejects, error) {
	stream, err := js.Stream(ctx, hit.RejectedStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return newestRejects{}, nil // nothing has ever been refused
	}
	if err != nil {
		return newestRejects{}, fmt.Errorf("look at stream %s: %w", hit.RejectedStream, err)
	}
	state := stream.CachedInfo().State
	out := newestRejects{stored: state.Msgs}
	if state.Msgs == 0 {
		return out, nil
	}
	out.found, err = readHeaders(ctx, stream, state)
	if err != nil {
		return newestRejects{}, fmt.Errorf("read stream %s: %w", hit.RejectedStream, err)
	}
	return out, nil
}

func readHeaders(ctx context.Context, stream jetstream.Stream, state jetstream.StreamState) ([]rejected, error) {
	first := state.FirstSeq
	if state.LastSeq-first >= maxSearched {
		first = state.LastSeq - maxSearched + 1
	}
	// The library's ordered consumer would try again without end if the stream went away meanwhile.
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: first, AckPolicy: jetstream.AckNonePolicy,
		HeadersOnly: true, MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	// If that fails, the server removes it after InactiveThreshold.
	defer func() { _ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) }()
	waiting := int(min(consumer.CachedInfo().NumPending, maxSearched))
	if waiting == 0 {
		return nil, nil // all of them have just expired
	}
	batch, err := consumer.FetchNoWait(waiting)
	if err != nil {
		return nil, err
	}
	var out []rejected
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		out = append(out, rejectedOf(m, meta))
	}
	if len(out) == 0 && batch.Error() == nil {
		return nil, fmt.Errorf("none of %d messages came", waiting) // the library gives up in silence
	}
	return out, batch.Error()
}

// withBodies reads the bodies of rejects.
func withBodies(ctx context.Context, js jetstream.JetStream, picked []rejected) ([]rejected, error) {
	out := []rejected{}
	if len(picked) == 0 {
		return out, nil
	}
	stream, err := js.Stream(ctx, hit.RejectedStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return out, nil // it has just been deleted
	}
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", hit.RejectedStream, err)
	}
	for _, r := range picked {
		message, err := stream.GetMsg(ctx, r.Position)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // it has just expired
		}
		if err != nil {
			return nil, fmt.Errorf("read message %d of stream %s: %w", r.Position, hit.RejectedStream, err)
		}
		r.Body, r.Bytes = clipBody(message.Data), len(message.Data)
		out = append(out, r)
	}
	return out, nil
}

func rejectedOf(m jetstream.Msg, meta *jetstream.MsgMetadata) rejected {
	h := m.Headers()
	out := rejected{
		Reason: h.Get(hit.HeaderReason), Detail: h.Get(hit.HeaderDetail), Stream: h.Get(hit.HeaderStream),
		Time: meta.Timestamp.UTC(), Position: meta.Sequence.Stream,
	}
	// What cannot be read stays 0: somebody else may write to the stream, too.
	out.Sequence, _ = strconv.ParseUint(h.Get(hit.HeaderSequence), 10, 64)
	out.Item, _ = strconv.Atoi(h.Get(hit.HeaderItem))
	stored, err := time.Parse(time.RFC3339Nano, h.Get(hit.HeaderStored))
	if err == nil {
		out.Time = stored
	}
	return out
}

func countReasons(found []rejected) []reasonCount {
	out := []reasonCount{}
	for _, r := range found {
		i := slices.IndexFunc(out, func(c reasonCount) bool { return c.Reason == r.Reason })
		if i < 0 {
			i, out = len(out), append(out, reasonCount{Reason: r.Reason})
		}
		out[i].Count++
		out[i].Newest = r.Time
	}
	slices.SortStableFunc(out, func(a, b reasonCount) int { return cmp.Compare(b.Count, a.Count) })
	return out
}

// clipBody returns the beginning of a body as valid text. It does not cut a character in two.
func clipBody(body []byte) string {
	clipped := body
	if len(body) > maxRejectBody {
		end := maxRejectBody
		for end > maxRejectBody-utf8.UTFMax && !utf8.RuneStart(body[end]) {
			end--
		}
		clipped = body[:end]
	}
	return strings.ToValidUTF8(string(clipped), string(utf8.RuneError))
}
