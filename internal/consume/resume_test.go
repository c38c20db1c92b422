package consume

import (
	"testing"

	"tallyroll/internal/window"
)

func TestResume(t *testing.T) {
	const (
		ms      = int64(1e6) // in nanoseconds
		created = 1_000_000 * ms
	)
	state := func(first, last uint64) streamState {
		return streamState{created: created, first: first, last: last, firstStored: 2_000_000 * ms, at: 3_000_000}
	}
	cursor := window.Cursor{Created: created, Seq: 40, Stored: 1_500_000 * ms, AsOf: 1_500_123, IncompleteBefore: 7}
	other := cursor
	other.Created = 900_000 * ms
	partly := cursor
	partly.Ahead = window.Ahead{Seq: 60, Stored: 1_600_000 * ms, Done: 1, Parts: 3}
	changed := func(c window.Cursor, by func(*window.Cursor)) window.Cursor { by(&c); return c }

	for _, test := range []struct {
		name       string
		cursor     window.Cursor
		exists     bool
		state      streamState
		rolledBack bool
		afterTime  uint64
		ahead      rollBack

		want      window.Cursor
		discarded uint64
		said      bool
	}{
		{
			name: "no cursor, new stream", state: streamState{created: created, first: 1, firstStored: 3_000_000 * ms, at: 3_000_000},
			want: window.Cursor{Created: created, AsOf: 1_000_000},
		},
		{
			name: "no cursor, stream with all its messages", state: state(1, 50),
			want: window.Cursor{Created: created, AsOf: 1_000_000},
		},
		{
			name: "no cursor, first messages gone", state: state(31, 50),
			want:      window.Cursor{Created: created, Seq: 30, Stored: 2_000_000*ms - 1, AsOf: 1_000_000, IncompleteBefore: 2_000_001},
			discarded: 30, said: true,
		},
		{name: "same place", cursor: cursor, exists: true, state: state(1, 50), want: cursor},
		{name: "at the end", cursor: cursor, exists: true, state: state(1, 40), want: cursor},
		{name: "everything applied is gone, nothing more", cursor: cursor, exists: true, state: state(41, 40), want: cursor},
		{name: "everything applied is gone, the next is there", cursor: cursor, exists: true, state: state(41, 50), want: cursor},
		{
			name: "one message discarded unread", cursor: cursor, exists: true, state: state(42, 50),
			want: changed(cursor, func(c *window.Cursor) {
				c.Seq, c.Stored, c.IncompleteBefore = 41, 2_000_000*ms-1, 2_000_001
			}),
			discarded: 1, said: true,
		},
		{
			name: "all discarded unread", cursor: cursor, exists: true, state: state(91, 90),
			want: changed(cursor, func(c *window.Cursor) {
				c.Seq, c.Stored, c.IncompleteBefore = 90, 2_000_000*ms-1, 2_000_001
			}),
			discarded: 50, said: true,
		},
		{
			name:   "incomplete until later already",
			cursor: changed(cursor, func(c *window.Cursor) { c.IncompleteBefore = 9_000_000 }), exists: true, state: state(42, 50),
			want: changed(cursor, func(c *window.Cursor) {
				c.Seq, c.Stored, c.IncompleteBefore = 41, 2_000_000*ms-1, 9_000_000
			}),
			discarded: 1, said: true,
		},
		{
			name: "new incarnation, empty", cursor: other, exists: true, state: state(1, 0),
			want: window.Cursor{Created: created, AsOf: 1_000_000, IncompleteBefore: 1_000_001}, said: true,
		},
		{
			name: "new incarnation that is longer than the cursor", cursor: other, exists: true, state: state(1, 99),
			want: window.Cursor{Created: created, AsOf: 1_000_000, IncompleteBefore: 1_000_001}, said: true,
		},
		{
			name: "new incarnation, first messages gone", cursor: other, exists: true, state: state(6, 99),
			want:      window.Cursor{Created: created, Seq: 5, Stored: 2_000_000*ms - 1, AsOf: 1_000_000, IncompleteBefore: 2_000_001},
			discarded: 5, said: true,
		},
		{
			name:   "new incarnation keeps what was incomplete",
			cursor: changed(other, func(c *window.Cursor) { c.IncompleteBefore = 9_000_000 }), exists: true, state: state(6, 99),
			want:      window.Cursor{Created: created, Seq: 5, Stored: 2_000_000*ms - 1, AsOf: 1_000_000, IncompleteBefore: 9_000_000},
			discarded: 5, said: true,
		},
		{
			name: "rolled back", cursor: cursor, exists: true, state: state(1, 35), rolledBack: true, afterTime: 33,
			want: changed(cursor, func(c *window.Cursor) { c.Seq = 33 }), said: true,
		},
		{
			name: "rolled back and grown past the cursor", cursor: cursor, exists: true, state: state(1, 80), rolledBack: true, afterTime: 33,
			want: changed(cursor, func(c *window.Cursor) { c.Seq = 33 }), said: true,
		},
		{
			name: "rolled back and its first messages gone", cursor: cursor, exists: true, state: state(36, 38), rolledBack: true, afterTime: 33,
			want: changed(cursor, func(c *window.Cursor) { c.Seq = 35 }), said: true,
		},
		{name: "some counters ahead", cursor: partly, exists: true, state: state(1, 70), want: partly},
		{
			name: "some counters ahead, rolled back under them", cursor: partly, exists: true, state: state(1, 50), ahead: rollBack{true, 48},
			want: changed(partly, func(c *window.Cursor) { c.Ahead.Seq = 48 }), said: true,
		},
		{
			name: "some counters ahead, rolled back under all", cursor: partly, exists: true, state: state(1, 80), rolledBack: true, afterTime: 33, ahead: rollBack{true, 39},
			want: changed(partly, func(c *window.Cursor) { c.Seq, c.Ahead.Seq = 33, 39 }), said: true,
		},
		{
			name: "some counters ahead, rolled back to the same place", cursor: partly, exists: true, state: state(1, 33), rolledBack: true, afterTime: 33, ahead: rollBack{true, 33},
			want: changed(cursor, func(c *window.Cursor) { c.Seq = 33 }), said: true,
		},
		{
			name: "some counters ahead, discarded between", cursor: partly, exists: true, state: state(51, 70),
			want: changed(partly, func(c *window.Cursor) {
				c.Seq, c.Stored, c.IncompleteBefore = 50, 2_000_000*ms-1, 2_000_001
			}),
			discarded: 10, said: true,
		},
		{
			name: "some counters ahead, discarded past them", cursor: partly, exists: true, state: state(61, 70),
			want: changed(cursor, func(c *window.Cursor) {
				c.Seq, c.Stored, c.IncompleteBefore = 60, 2_000_000*ms-1, 2_000_001
			}),
			discarded: 20, said: true,
		},
		{
			name:   "some counters ahead, new incarnation",
			cursor: changed(partly, func(c *window.Cursor) { c.Created = other.Created }), exists: true, state: state(1, 99),
			want: window.Cursor{Created: created, AsOf: 1_000_000, IncompleteBefore: 1_000_001}, said: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := resumeFrom(test.cursor, test.exists, test.state, rollBack{test.rolledBack, test.afterTime}, test.ahead)
			if r.cursor != test.want {
				t.Errorf("cursor %+v\nwant   %+v", r.cursor, test.want)
			}
			if r.discarded != test.discarded || (r.why != "") != test.said {
				t.Errorf("discarded %d, why %q; want %d, said: %v", r.discarded, r.why, test.discarded, test.said)
			}
		})
	}
}
