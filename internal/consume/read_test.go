package consume

import (
	"context"
	"errors"
	"testing"

	"tallyroll/internal/window"
)

// A consumer that begins anew counts its deliveries from 1 again: sooner or later
// one has the number that was expected, and its message must not be taken.
func TestNothingBehindALossIsRead(t *testing.T) {
	t.Parallel()
	layout := testLayout
	life, end := context.WithCancelCause(t.Context())
	limits := testLimits(100)
	limits.maxHits = 10
	begin := &standing{names: namings{{From: 1, Subjects: []string{"hits.>"}}}}
	buffer := newBuffer(layout, limits, make([]window.Cursor, layout.Shards))
	r := newReader(&setup{stream: "HITS", layout: layout, limits: limits}, begin, buffer, end)
	for _, d := range []delivery{{seq: 1, nth: 1}, {seq: 2, nth: 2}, {seq: 3, nth: 1}, {seq: 4, nth: 2}, {seq: 5, nth: 3}} {
		d.subject, d.stored = "hits.c", testStored*1e6
		r.deliver(d)
	}
	if err := context.Cause(life); !errors.Is(err, errGap) {
		t.Errorf("the session ends with %v, want %v", err, errGap)
	}
	if seq, _, _ := buffer.place(); seq != 2 {
		t.Errorf("message %d is in memory, want none behind 2", seq)
	}
}

// When deleted messages had been stored nobody knows: after the last that is
// held, and before the stream was asked.
func TestDeletedTailIsDatedByTheMomentItWasSeen(t *testing.T) {
	t.Parallel()
	layout := testLayout
	state := streamState{first: 1, last: 5, lastStored: 1000 * 1e6, at: 8000, seen: 9000}
	buffer := newBuffer(layout, testLimits(100), make([]window.Cursor, layout.Shards))
	buffer.pass(0, 3, 0, 0)
	buffer.give(buffer.take())
	w := newWatcher(&setup{stream: "HITS", source: emptied{state: state}}, &standing{state: state}, buffer, nil, nil, nil)
	if err := w.passDeletedTail(t.Context(), 3, 0); err != nil {
		t.Fatal(err)
	}
	if got := buffer.take(); got.seq != 5 || got.discarded != 2 || got.incompleteBefore != 9000 {
		t.Errorf("at %d with %d discarded, incomplete before %d; want 5, 2, 9000", got.seq, got.discarded, got.incompleteBefore)
	}
}

// emptied holds no message after any.
type emptied struct {
	source
	state streamState
}

func (e emptied) look(context.Context) (streamCheck, error) { return streamCheck{state: e.state}, nil }

func (emptied) next(context.Context, uint64) (seq uint64, stored int64, err error) { return 0, 0, nil }
