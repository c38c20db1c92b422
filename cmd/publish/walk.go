package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
)

const (
	// walkAhead is how many rejects are asked for at once: 32 of a megabyte each are bearable.
	walkAhead = 32
	// walkPause is the wait after nothing came, or after the server could not be asked.
	walkPause = 100 * time.Millisecond
)

// walk hands each reject of the namespace that is in HITS_REJECTED when it begins to each. What comes later, such as a
// reject that is refused again, is for the next run.
func (r *redriver) walk(ctx context.Context) error {
	filter := hit.RejectedSubject(r.namespace, cmp.Or(r.stream, "*"))
	info, err := r.rejected.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", hit.RejectedStream, err)
	}
	var total uint64
	for _, n := range info.State.Subjects {
		total += n
	}
	if total == 0 {
		return nil
	}
	r.out.expect(int64(total))
	messages := rejectReader{js: r.js, filter: filter, next: info.State.FirstSeq, last: info.State.LastSeq}
	defer messages.close()
	parts := assembly{namespace: r.namespace}
	for !messages.ended {
		got, err := messages.read(ctx)
		if err != nil {
			return err
		}
		for _, p := range got {
			whole, strange := parts.add(p)
			switch {
			case strange:
				r.count.found++
				r.count.matching++
				r.count.leave("not written by ingest in this namespace")
			case whole != nil:
				if err := r.each(ctx, whole); err != nil {
					return err
				}
			}
		}
	}
	return r.incomplete(ctx, &parts)
}

// rejectReader reads messages of HITS_REJECTED in order. It leaves none out: after a gap it begins again there.
type rejectReader struct {
	js         jetstream.JetStream
	filter     string
	next, last uint64 // sequences
	consumer   jetstream.Consumer
	delivered  uint64 // by this consumer
	ended      bool
}

// read returns the next messages. While the server cannot be asked, it waits.
func (r *rejectReader) read(ctx context.Context) ([]rejectPart, error) {
	for {
		got, err := r.try(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, fmt.Errorf("read stream %s: %w", hit.RejectedStream, err)
		case len(got) > 0 || r.ended:
			return got, nil
		case err != nil:
			r.close()
		}
		select {
		case <-time.After(walkPause):
		case <-ctx.Done():
		}
	}
}

func (r *rejectReader) try(ctx context.Context) (out []rejectPart, err error) {
	if r.next > r.last {
		r.ended = true
		return nil, nil
	}
	if r.consumer == nil {
		r.delivered = 0
		r.consumer, err = r.js.CreateConsumer(ctx, hit.RejectedStream, jetstream.ConsumerConfig{
			Description: "tallyroll publish", DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(1, r.next),
			FilterSubject: r.filter, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 30 * time.Second,
		})
		if err != nil {
			return nil, err
		}
	}
	batch, err := r.consumer.FetchNoWait(walkAhead)
	if err != nil {
		return nil, err
	}
	lost := false
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil || lost || meta.Sequence.Consumer != r.delivered+1 {
			lost = true // the rest of the batch is read again
			continue
		}
		r.delivered++
		if meta.Sequence.Stream > r.last {
			r.ended = true
			continue
		}
		r.next = meta.Sequence.Stream + 1
		r.ended = r.ended || meta.NumPending == 0
		out = append(out, rejectPart{header: m.Headers(), position: meta.Sequence.Stream, data: m.Data()})
	}
	if lost || batch.Error() != nil {
		r.close()
	}
	if len(out) == 0 && !r.ended && r.consumer != nil {
		info, err := r.consumer.Info(ctx)
		if err != nil {
			return nil, err
		}
		// Another publish may have removed the rest. Deliveries that did not arrive are read again.
		r.ended = info.NumPending == 0 && info.Delivered.Consumer == r.delivered
		if info.Delivered.Consumer != r.delivered {
			r.close()
		}
	}
	return out, nil
}

// close removes the consumer; if that fails, the server forgets it by itself.
func (r *rejectReader) close() {
	if r.consumer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.js.DeleteConsumer(ctx, hit.RejectedStream, r.consumer.CachedInfo().Name)
	r.consumer = nil
}

// incomplete deals with rejects of which not all parts are there. A removal that was interrupted is
// finished: it leaves the first part, and only what is stored is removed.
func (r *redriver) incomplete(ctx context.Context, parts *assembly) error {
	const why = "parts of it are missing"
	for _, name := range parts.order {
		w := parts.waiting[name]
		one := w.reject
		if r.stream != "" && one.stream != r.stream || len(r.reasons) > 0 && !slices.Contains(r.reasons, one.reason) {
			r.count.found++
			continue
		}
		r.count.found++
		r.count.matching++
		if w.bodies[0] == nil || r.dryRun {
			r.count.leave(why)
			continue
		}
		stored, err := r.stored(ctx, one)
		if err != nil {
			return err
		}
		if !stored {
			r.count.leave(why)
			continue
		}
		one.repeat.Store(1)
		r.count.sent(one)
		(&finisher{js: r.js, rejected: r.rejected, count: r.count}).remove(ctx, one)
	}
	r.count.found += parts.dropped
	r.count.matching += parts.dropped
	r.count.leaveSome("its parts are too far apart", parts.dropped)
	return nil
}

// stored reports whether the reject has been published again, as one message or as several.
func (r *redriver) stored(ctx context.Context, one *reject) (bool, error) {
	to, err := r.targets.of(ctx, one.stream)
	if err != nil || to.why != "" {
		return false, err
	}
	for _, of := range []int{1, 2} {
		first := address(one, to.pattern, 0, of)
		name, err := r.js.StreamNameBySubject(ctx, first.subject)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("find the stream of %s: %w", first.subject, err)
		}
		stream, err := r.js.Stream(ctx, name)
		if err != nil {
			return false, fmt.Errorf("look at stream %s: %w", name, err)
		}
		m, err := stream.GetLastMsgForSubject(ctx, first.subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("look for %s in stream %s: %w", first.subject, name, err)
		}
		return m.Header.Get(nats.MsgIdHdr) == first.id, nil
	}
	return false, nil
}
