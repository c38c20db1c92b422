package consume

import (
	"errors"
	"fmt"
	"slices"

	"tallyroll/internal/consume/source"
)

// reader decodes deliveries, in order, into the buffer. Only the feed's goroutine uses it.
type reader struct {
	*setup
	decoder
	buffer    *buffer
	readAfter uint64      // reading began after this message: the plan has the versions of later ones
	expected  uint64      // number of the next delivery
	broken    bool        // a delivery was unexpected: the reader drops all later ones
	fail      func(error) // ends the session
}

func newReader(setup *setup, plan *resumePlan, buffer *buffer, fail func(error)) *reader {
	return &reader{
		setup: setup, buffer: buffer, readAfter: plan.readAfter, expected: 1, fail: fail,
		decoder: newDecoder(setup.stream, setup.Limits.HitLimits(setup.Layout), plan.namings, plan.ruleSets),
	}
}

// deliver handles one delivery. While it blocks, the feed stops, and the stream holds the rest.
func (r *reader) deliver(d source.Delivery) {
	switch {
	case r.broken: // a flush may still be under way: no message after the loss may join its load
		return
	case d.Nth != r.expected:
		r.broken = true
		r.fail(fmt.Errorf("%w: delivery %d of %s came instead of %d", errGap, d.Nth, r.stream, r.expected))
		return
	case d.Seq <= r.readAfter:
		r.broken = true
		r.fail(fmt.Errorf("%w: message %d of %s came, and reading began after %d", errGap, d.Seq, r.stream,
			r.readAfter))
		return
	}
	r.expected++
	m := message{seq: d.Seq, stored: d.Stored}
	skip := r.skipReason(d)
	if origin := r.newOrigin(d); skip == "" && origin != "" {
		r.broken = true
		r.Copies.add(r.stream, origin) // the next session begins a version that skips this message
		r.fail(fmt.Errorf("%w: %s", errNewOrigin, note(r.stream, origin)))
		return
	}
	if skip != "" {
		r.Metrics.skipped.WithLabelValues(r.stream, skip).Inc()
	} else {
		r.read(d, &m)
	}
	if err := r.buffer.add(r.stream, m); errors.Is(err, errGap) {
		r.broken = true
		r.fail(err)
	}
}

// newOrigin returns the stream in which a message counts, if it is a copy that the last version does not
// skip. By earlier versions, messages are read as they were before.
func (r *reader) newOrigin(d source.Delivery) string {
	if r.Copies == nil || len(r.names.later) > 0 {
		return ""
	}
	for _, origin := range source.OriginsOf(d.Header) {
		if origin != "" && origin != r.stream && !slices.Contains(r.names.origins, origin) && r.Copies.Counts(origin) {
			return origin
		}
	}
	return ""
}
