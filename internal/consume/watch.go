package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/window"
)

const (
	watchEvery = time.Second
	// stalledAfter is how many looks in a row may find the reader idle before messages that it has not been given.
	stalledAfter = 3
)

// inspect asks a stream for its state. The moment at which the state held is the
// server's time less the time the answer took: nothing stored before it can be
// missing from the state, whichever of the two the server took first.
func inspect(ctx context.Context, handle jetstream.Stream) (*jetstream.StreamInfo, streamState, error) {
	began := time.Now()
	info, err := handle.Info(ctx)
	if err != nil {
		return nil, streamState{}, fmt.Errorf("state of the stream: %w", err)
	}
	at := info.TimeStamp.Add(-time.Since(began)).UnixMilli()
	s := streamState{
		created: info.Created.UnixNano(),
		first:   info.State.FirstSeq, last: info.State.LastSeq,
		firstStored: info.State.FirstTime.UnixNano(),
		lastStored:  info.State.LastTime.UnixNano(),
		at:          at,
	}
	if info.State.Msgs == 0 {
		s.first, s.firstStored = s.last+1, at*1e6
	}
	return info, s, nil
}

// watch looks at the stream every second: where its end is, whether it is still
// the same stream, and whether the reader gets what is there.
func (s *session) watch(ctx context.Context, handle jetstream.Stream) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var seen uint64
	idle := 0
	for {
		// The place first: read afterwards it can be beyond the end that the state tells of.
		place, stored, waiting := s.buffer.place()
		_, state, err := inspect(ctx, handle)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			s.fail(err)
			return
		case err != nil: // NATS is away; the connection's own handlers say so
		case state.created != s.info.created:
			s.fail(errIncarnated)
			return
		case state.last < place:
			s.fail(fmt.Errorf("%w: it ends at %d, and %d had been read", errRolledBack, state.last, place))
			return
		default:
			s.tail.set(state.last, state.at)
			s.observeLag(place, stored, state)
			if place < state.last && place == seen && !waiting {
				idle++
			} else {
				idle = 0
			}
			if seen = place; idle >= stalledAfter {
				s.fail(fmt.Errorf("%w: at %d of %d", errStalled, place, state.last))
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *session) observeLag(place uint64, stored int64, state streamState) {
	s.metrics.lagMessages.WithLabelValues(s.stream).Set(float64(state.last - place))
	lag := 0.0
	if place < state.last {
		lag = max(0, float64(state.at-stored/1e6)/1000)
	}
	s.metrics.lagSeconds.WithLabelValues(s.stream).Set(lag)
}

// history compares cursors with the messages that the stream holds; the shards'
// cursors are mostly the same, so it asks about each sequence once.
type history struct {
	handle jetstream.Stream
	stored map[uint64]int64 // by sequence; 0 where the stream no longer holds it
	after  map[int64]uint64 // by stored time
}

func newHistory(handle jetstream.Stream) *history {
	return &history{handle, map[uint64]int64{}, map[int64]uint64{}}
}

// check reports whether the stream was rolled back under a cursor, and if so the
// last sequence stored no later than the cursor's message.
func (h *history) check(ctx context.Context, c window.Cursor, exists bool, s streamState) (rolledBack bool, afterTime uint64, err error) {
	if !exists || c.Created != s.created || c.Seq == 0 {
		return false, 0, nil
	}
	if c.Seq <= s.last {
		if c.Seq < s.first || c.Stored == 0 {
			return false, 0, nil // nothing to compare
		}
		stored, err := h.storedAt(ctx, c.Seq)
		if err != nil || stored == 0 || stored == c.Stored {
			return false, 0, err
		}
	}
	afterTime, err = h.lastUpTo(ctx, c.Stored)
	return true, afterTime, err
}

func (h *history) storedAt(ctx context.Context, seq uint64) (int64, error) {
	if stored, ok := h.stored[seq]; ok {
		return stored, nil
	}
	msg, err := h.handle.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		h.stored[seq] = 0
	case err != nil:
		return 0, fmt.Errorf("message %d: %w", seq, err)
	default:
		h.stored[seq] = msg.Time.UnixNano()
	}
	return h.stored[seq], nil
}

// lastUpTo is the last sequence that was stored no later than a moment: what a
// consumer that starts after that moment has behind it.
func (h *history) lastUpTo(ctx context.Context, stored int64) (uint64, error) {
	if seq, ok := h.after[stored]; ok {
		return seq, nil
	}
	start := time.Unix(0, stored+1)
	probe, err := h.handle.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Description:       "tallyroll ingest: where to go on after a roll-back",
		DeliverPolicy:     jetstream.DeliverByStartTimePolicy,
		OptStartTime:      &start,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: consumerIdle,
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		return 0, fmt.Errorf("find the messages after %s: %w", start, err)
	}
	info := probe.CachedInfo()
	h.after[stored] = info.Delivered.Stream
	return info.Delivered.Stream, h.handle.DeleteConsumer(ctx, info.Name)
}
