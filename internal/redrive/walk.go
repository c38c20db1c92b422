package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/rejects"
)

type reject struct {
	*rejects.Stored
	name string // a token of a subject
}

func newReject(stored *rejects.Stored) *reject { return &reject{Stored: stored, name: stored.Name()} }

// walk passes each of the namespace's rejects that HITS_REJECTED holds at the start to each. Later ones, such
// as a reject that is refused again, are for the next run.
func (r *redriver) walk(ctx context.Context) error {
	filter := rejects.Subject(r.namespace, cmp.Or(r.stream, "*"))
	info, err := r.rejected.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", rejects.Stream, err)
	}
	var total uint64
	for _, n := range info.State.Subjects {
		total += n
	}
	if total == 0 {
		return nil
	}
	r.out.Expect(int64(total))
	messages := rejects.NewReader(r.rejected, filter, info.State)
	var assembly rejects.Assembly
	for {
		m, more, err := messages.Read(ctx)
		switch {
		case err != nil:
			return err
		case !more:
			return r.incomplete(ctx, &assembly)
		case !m.Known || m.Namespace != r.namespace:
			r.count.found++
			r.count.matching++
			r.count.leave("not written by ingest in this namespace")
			continue
		}
		if whole := assembly.Add(m); whole != nil {
			if err := r.each(ctx, newReject(whole)); err != nil {
				return err
			}
		}
	}
}

// incomplete handles rejects with missing parts. It finishes an interrupted removal, which leaves the first
// part: only what is stored is removed.
func (r *redriver) incomplete(ctx context.Context, assembly *rejects.Assembly) error {
	const why = "parts of it are missing"
	for stored, hasFirst := range assembly.Incomplete() {
		one := newReject(stored)
		if r.stream != "" && one.Stream != r.stream || len(r.reasons) > 0 && !slices.Contains(r.reasons, one.Reason) {
			r.count.found++
			continue
		}
		r.count.found++
		r.count.matching++
		if !hasFirst || r.dryRun {
			r.count.leave(why)
			continue
		}
		sent, err := r.stored(ctx, one)
		if err != nil {
			return err
		}
		if !sent {
			r.count.leave(why)
			continue
		}
		r.count.sent(true)
		(&finisher{js: r.js, rejected: r.rejected, count: r.count}).remove(ctx, one)
	}
	r.count.found += assembly.Dropped
	r.count.matching += assembly.Dropped
	r.count.leaveSome("its parts are too far apart", assembly.Dropped)
	return nil
}

// stored reports whether the reject has been published again.
func (r *redriver) stored(ctx context.Context, one *reject) (bool, error) {
	to, err := r.targets.find(ctx, one.Stream)
	if err != nil || to.why != "" {
		return false, err
	}
	first := address(one, to.pattern)
	name, err := r.js.StreamNameBySubject(ctx, first.Subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the stream of %s: %w", first.Subject, err)
	}
	stream, err := r.js.Stream(ctx, name)
	if err != nil {
		return false, fmt.Errorf("look at stream %s: %w", name, err)
	}
	m, err := stream.GetLastMsgForSubject(ctx, first.Subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s in stream %s: %w", first.Subject, name, err)
	}
	return m.Header.Get(nats.MsgIdHdr) == first.ID, nil
}
