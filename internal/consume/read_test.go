package consume

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/source"
	"tallyroll/internal/window"
)

// A recreated consumer counts its deliveries from 1 again: sooner or later
// one has the number that was expected, and its message must not be taken.
func TestNothingBehindALossIsRead(t *testing.T) {
	t.Parallel()
	layout := testLayout
	life, end := context.WithCancelCause(t.Context())
	limits := testLimits(100)
	limits.MaxHits = 10
	begin := &resumePlan{namings: namings{{From: 1, Subjects: []string{"hits.>"}}}}
	buffer := newBuffer(layout, limits, make([]window.Cursor, layout.Shards))
	r := newReader(&setup{Config: Config{Layout: layout, Limits: limits}, stream: "HITS"}, begin, buffer, end)
	for _, d := range []source.Delivery{{Seq: 1, Nth: 1}, {Seq: 2, Nth: 2}, {Seq: 3, Nth: 1}, {Seq: 4, Nth: 2}, {Seq: 5, Nth: 3}} {
		d.Subject, d.Stored = "hits.c", testStored*1e6
		r.deliver(d)
	}
	if err := context.Cause(life); !errors.Is(err, errGap) {
		t.Errorf("the session ends with %v, want %v", err, errGap)
	}
	if seq, _, _ := buffer.position(); seq != 2 {
		t.Errorf("message %d is in memory, want none behind 2", seq)
	}
}

// When deleted messages had been stored is unknown: after the last that is
// held, and before the stream was asked.
func TestDeletedTailIsDatedByTheMomentItWasSeen(t *testing.T) {
	t.Parallel()
	layout := testLayout
	state := source.State{First: 1, Last: 5, LastStored: 1000 * 1e6, At: 8000, Seen: 9000}
	buffer := newBuffer(layout, testLimits(100), make([]window.Cursor, layout.Shards))
	buffer.skip(0, 3, 3, 0, 0)
	buffer.recycle(buffer.drain())
	w := newWatcher(&setup{stream: "HITS", source: emptied{state: state}}, &resumePlan{state: state}, buffer, nil, nil, nil)
	require.NoError(t, w.skipDeletedTail(t.Context(), 3, 0))
	if got := buffer.drain(); got.seq != 5 || got.discarded != 2 || got.incompleteBefore != 9000 {
		t.Errorf("at %d with %d discarded, incomplete before %d; want 5, 2, 9000", got.seq, got.discarded, got.incompleteBefore)
	}
}

// emptied holds no message after any.
type emptied struct {
	source.Stream
	state source.State
}

func (e emptied) Check(context.Context) (source.Check, error) {
	return source.Check{State: e.state}, nil
}

func (emptied) Next(context.Context, uint64) (seq uint64, stored int64, err error) { return 0, 0, nil }
