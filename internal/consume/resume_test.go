package consume

import (
	"cmp"
	"context"
	"errors"
	"math"
	"testing"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
)

// heldSource is a stream that holds these messages, in the order of their sequences.
type heldSource struct {
	source.Stream
	held []messageID
}

func (h heldSource) Next(_ context.Context, from uint64) (uint64, int64, error) {
	for _, m := range h.held {
		if m.seq >= from {
			return m.seq, m.stored, nil
		}
	}
	return 0, 0, nil
}

// row is messages that were stored one after another, a second apart.
func row(first, last uint64, stored int64) (out []messageID) {
	for seq := first; seq <= last; seq++ {
		out = append(out, messageID{seq, stored + int64(seq-first)*1e9})
	}
	return out
}

func TestReadingResumesAtTheMarkThatTheStreamStillHas(t *testing.T) {
	t.Parallel()
	const (
		second  = int64(1e9)
		created = 1_000_000 * second // of the stream
		late    = 1_000_500 * second // when later messages were stored
		now     = 1_001_000_000      // Unix milliseconds
	)
	type stream struct {
		created    int64
		held       []messageID
		last       uint64 // if no message at it is held
		lastStored int64
		mirror     bool
		begin      uint64 // first_seq
		gaps       string
		dropped    int64 // see source.State
		deleted    uint64
		limits     string // empty: "limits"
		origin     string // what a mirror copies
		kept       uint64 // the first sequence that its origin still holds
	}
	join := func(rows ...[]messageID) (out []messageID) {
		for _, r := range rows {
			out = append(out, r...)
		}
		return out
	}
	without := func(seq uint64, held []messageID) (out []messageID) {
		for _, m := range held {
			if m.seq != seq {
				out = append(out, m)
			}
		}
		return out
	}
	stored := func(seq uint64) int64 { return created + int64(seq)*second } // of the messages that were counted
	counted := func(first, last uint64) []messageID { return row(first, last, stored(first)) }
	cursor := window.Cursor{Created: created, Seq: 40, Stored: stored(40), Latest: stored(40), AsOf: stored(40) / 1e6, IncompleteBefore: 7}
	partly := cursor
	partly.Ahead, partly.Latest = window.Ahead{Seq: 60, Stored: stored(60), Done: 1, Parts: 3}, stored(60)
	earlier := cursor // of a stream that was replaced
	earlier.Created, earlier.Stored, earlier.Latest, earlier.AsOf = 900_000*second, 900_040*second, 900_040*second, 900_040_000
	changed := func(c window.Cursor, by func(*window.Cursor)) window.Cursor { by(&c); return c }
	incomplete := func(c window.Cursor, before int64) window.Cursor { c.IncompleteBefore = before; return c }
	under := func(settings string) window.Cursor {
		return changed(cursor, func(c *window.Cursor) { c.Settings = settings })
	}
	scheduled, filtered, whole := under("- schedules limits"), under("origin filter limits"), under("- none limits")
	resumed := func(c window.Cursor, before int64) window.Cursor { // at the first message held, number 50
		return changed(incomplete(c, before), func(c *window.Cursor) { c.Seq, c.Stored = 49, 0 })
	}
	began := under("origin none limits") // before a mirror had its first message
	began.Seq, began.Stored, began.Latest, began.AsOf = 0, 0, 0, 0

	for _, test := range []struct {
		name   string
		stream stream
		cursor window.Cursor
		others []window.Cursor // of other shards
		none   bool            // there is no cursor

		want         window.Cursor
		discarded    uint64
		reason       reason
		unidentified bool // errUnidentified
	}{
		// Without a cursor.
		{name: "no cursor, new stream", none: true, want: window.Cursor{Created: created, AsOf: created / 1e6}},
		{name: "no cursor, stream with all its messages", none: true, stream: stream{held: counted(1, 50)}, want: window.Cursor{Created: created, AsOf: created / 1e6}},
		{
			name: "no cursor, first messages gone", none: true, stream: stream{held: counted(31, 50)},
			want:      window.Cursor{Created: created, Seq: 30, Stored: stored(31) - 1, AsOf: created / 1e6, IncompleteBefore: stored(31)/1e6 + 1},
			discarded: 30, reason: discardedBefore,
		},
		{name: "no cursor, begins later", none: true, stream: stream{held: counted(31, 50), begin: 31}, want: window.Cursor{Created: created, Seq: 30, AsOf: created / 1e6}},
		{
			name: "no cursor, begins later, first messages gone", none: true, stream: stream{held: counted(31, 50), begin: 21},
			want:      window.Cursor{Created: created, Seq: 30, Stored: stored(31) - 1, AsOf: created / 1e6, IncompleteBefore: stored(31)/1e6 + 1},
			discarded: 10, reason: discardedBefore,
		},
		{
			name: "no cursor, gaps", none: true, stream: stream{held: counted(31, 50), gaps: source.GapsOfFilter},
			want: window.Cursor{Created: created, Seq: 30, AsOf: created / 1e6, IncompleteBefore: stored(31)/1e6 + 1}, reason: discardedBefore,
		},
		{
			name: "no cursor, gaps, an age that is longer now", none: true, stream: stream{held: counted(31, 50), gaps: source.GapsOfFilter, dropped: stored(5) / 1e6},
			want: window.Cursor{Created: created, Seq: 30, AsOf: created / 1e6, IncompleteBefore: stored(31)/1e6 + 1}, reason: discardedBefore,
		},
		{
			name: "no cursor, gaps, all that the origin ever held is there", none: true, stream: stream{held: counted(31, 50), gaps: source.GapsOfFilter, begin: 31, origin: "origin", kept: 1},
			want: window.Cursor{Created: created, Seq: 30, AsOf: created / 1e6},
		},
		{
			name: "no cursor, gaps, the origin may have discarded what was not copied", none: true, stream: stream{held: counted(1, 50), gaps: source.GapsOfFilter, origin: "origin", kept: 20},
			want: window.Cursor{Created: created, AsOf: created / 1e6, IncompleteBefore: stored(20)/1e6 + 1}, reason: discardedBefore,
		},
		// The same stream.
		{
			name: "gaps, nothing was dropped since", cursor: scheduled, stream: stream{held: counted(50, 60), gaps: source.GapsOfSchedules, dropped: stored(40) / 1e6},
			want: resumed(scheduled, 7),
		},
		{
			name: "gaps, the limits were edited", cursor: scheduled, stream: stream{held: counted(50, 60), gaps: source.GapsOfSchedules, dropped: stored(40) / 1e6, limits: "others"},
			want: resumed(scheduled, stored(50)/1e6+1), discarded: 9, reason: discardedUnread,
		},
		{
			name: "gaps, the limits were removed", cursor: filtered, stream: stream{held: counted(50, 60), gaps: source.GapsOfFilter, origin: "origin", kept: 1, limits: "none"},
			want: resumed(filtered, stored(50)/1e6+1), discarded: 9, reason: discardedUnread,
		},
		{
			name: "gaps, the limits are unknown, as in cursors of earlier versions", cursor: cursor, stream: stream{held: counted(50, 60), gaps: source.GapsOfFilter},
			want: resumed(cursor, stored(50)/1e6+1), discarded: 9, reason: discardedUnread,
		},
		{name: "gaps, the limits were edited, and the next message is there", cursor: scheduled, stream: stream{held: counted(30, 60), gaps: source.GapsOfSchedules, limits: "others"}, want: scheduled},
		{name: "gaps, the schedule applied last was due", cursor: scheduled, stream: stream{held: without(40, counted(1, 50)), gaps: source.GapsOfSchedules}, want: scheduled},
		{
			name: "gaps, the message applied last is gone, and the limits were edited", cursor: scheduled, stream: stream{held: without(40, counted(1, 50)), gaps: source.GapsOfSchedules, limits: "others"},
			want: incomplete(scheduled, stored(41)/1e6+1), reason: unproven,
		},
		{
			name: "gaps, unread messages may have been dropped", cursor: filtered, stream: stream{held: counted(50, 60), gaps: source.GapsOfFilter, origin: "origin", dropped: stored(45) / 1e6},
			want: resumed(filtered, stored(45)/1e6), discarded: 9, reason: discardedUnread,
		},
		{
			name: "gaps, a full stream", cursor: filtered, stream: stream{held: counted(50, 60), gaps: source.GapsOfFilter, origin: "origin", dropped: math.MaxInt64},
			want: resumed(filtered, stored(50)/1e6+1), discarded: 9, reason: discardedUnread,
		},
		// Missing sequences were messages when the cursor was written.
		{name: "it got schedules, and nothing is missing", cursor: whole, stream: stream{held: counted(1, 50), gaps: source.GapsOfSchedules}, want: whole},
		{
			name: "it got schedules after it had lost messages", cursor: whole, stream: stream{held: without(45, counted(1, 50)), gaps: source.GapsOfSchedules, deleted: 1},
			want: incomplete(whole, now+1), reason: discardedUnread,
		},
		{
			name: "it got schedules after it had lost its first messages", cursor: whole, stream: stream{held: counted(50, 60), gaps: source.GapsOfSchedules},
			want: resumed(whole, stored(50)/1e6+1), discarded: 9, reason: discardedUnread,
		},
		// A mirror, and its origin.
		{name: "the origin has everything since", cursor: filtered, stream: stream{held: without(41, counted(1, 50)), gaps: source.GapsOfFilter, origin: "origin", kept: 41}, want: filtered},
		{
			name: "the origin has everything since the moment up to which all was applied", cursor: changed(filtered, func(c *window.Cursor) { c.AsOf = stored(45)/1e6 + 1 }),
			stream: stream{held: without(41, counted(1, 50)), gaps: source.GapsOfFilter, origin: "origin", kept: 45}, want: changed(filtered, func(c *window.Cursor) { c.AsOf = stored(45)/1e6 + 1 }),
		},
		{
			name: "the origin may have discarded what was not copied", cursor: filtered, stream: stream{held: without(41, counted(1, 50)), gaps: source.GapsOfFilter, origin: "origin", kept: 45},
			want: incomplete(filtered, stored(45)/1e6+1), reason: discardedUnread,
		},
		{
			name: "a mirror was promoted", cursor: filtered, stream: stream{held: counted(1, 50)},
			want: incomplete(filtered, now+1), reason: replaced,
		},
		{
			name: "a mirror was recreated with another filter", cursor: filtered, stream: stream{created: late, held: counted(1, 50), mirror: true, gaps: source.GapsOfFilter, origin: "another"},
			want: changed(incomplete(filtered, now+1), func(c *window.Cursor) { c.Created = late }), reason: replaced,
		},
		{
			name: "a mirror has begun where it was configured to", cursor: began, stream: stream{held: counted(50, 60), mirror: true, origin: "origin", begin: 50},
			want: changed(began, func(c *window.Cursor) { c.Seq = 49 }),
		},
		{
			name: "where a mirror begins was edited", cursor: began, stream: stream{held: counted(50, 60), mirror: true, origin: "origin", begin: 50, limits: "others"},
			want: changed(incomplete(began, stored(50)/1e6+1), func(c *window.Cursor) { c.Seq = 49 }), discarded: 49, reason: discardedUnread,
		},
		{name: "same place", cursor: cursor, stream: stream{held: counted(1, 50)}, want: cursor},
		{name: "at the end", cursor: cursor, stream: stream{held: counted(1, 40)}, want: cursor},
		{name: "all have expired", cursor: cursor, stream: stream{last: 40, lastStored: stored(40)}, want: cursor},
		{
			name: "it was deleted", cursor: cursor, stream: stream{held: without(40, counted(1, 50))},
			want: incomplete(cursor, stored(41)/1e6+1), reason: unproven,
		},
		{name: "the last one was deleted", cursor: cursor, stream: stream{held: counted(1, 39), last: 40, lastStored: stored(40)}, want: cursor},
		{
			name: "all were purged", cursor: cursor, stream: stream{last: 40, lastStored: late},
			want: changed(incomplete(cursor, late/1e6+1), func(c *window.Cursor) { c.Stored = late }), reason: unproven,
		},
		{
			name: "all were purged, as was found before", cursor: changed(incomplete(cursor, late/1e6+1), func(c *window.Cursor) { c.Stored, c.Latest = late, late }),
			stream: stream{last: 40, lastStored: late}, want: changed(incomplete(cursor, late/1e6+1), func(c *window.Cursor) { c.Stored, c.Latest = late, late }),
		},
		{
			name: "what was applied is gone, and the next is there", cursor: cursor, stream: stream{held: counted(41, 50)},
			want: incomplete(cursor, stored(41)/1e6+1), reason: unproven,
		},
		{
			name: "one message discarded unread", cursor: cursor, stream: stream{held: counted(42, 50)},
			want:      changed(incomplete(cursor, stored(42)/1e6+1), func(c *window.Cursor) { c.Seq, c.Stored = 41, stored(42)-1 }),
			discarded: 1, reason: discardedUnread,
		},
		{
			name: "all discarded unread", cursor: cursor, stream: stream{last: 90, lastStored: late},
			want:      changed(incomplete(cursor, now+2), func(c *window.Cursor) { c.Seq, c.Stored = 90, (now+1)*1e6-1 }),
			discarded: 50, reason: discardedUnread,
		},
		{
			name: "incomplete until later already", cursor: incomplete(cursor, now), stream: stream{held: counted(42, 50)},
			want:      changed(incomplete(cursor, now), func(c *window.Cursor) { c.Seq, c.Stored = 41, stored(42)-1 }),
			discarded: 1, reason: discardedUnread,
		},
		// Rolled back.
		{
			name: "rolled back", cursor: cursor, stream: stream{held: counted(1, 33)},
			want: changed(incomplete(cursor, now+2), func(c *window.Cursor) { c.Seq, c.Stored = 33, stored(33) }), reason: rolledBack,
		},
		{
			name: "rolled back and grown past the cursor", cursor: cursor, stream: stream{held: join(counted(1, 33), row(34, 80, late))},
			want: changed(incomplete(cursor, now+2), func(c *window.Cursor) { c.Seq, c.Stored = 33, stored(33) }), reason: rolledBack,
		},
		{
			name: "rolled back and grown past the cursor, whose number was deleted", cursor: cursor, stream: stream{held: join(counted(1, 33), row(34, 39, late), row(41, 80, late+60*second))},
			want: changed(incomplete(cursor, now+2), func(c *window.Cursor) { c.Seq, c.Stored = 33, stored(33) }), reason: rolledBack,
		},
		{
			name: "rolled back and its first messages gone: what came between may be gone, too", cursor: cursor, stream: stream{held: row(36, 38, late)},
			want:      changed(incomplete(cursor, now+2), func(c *window.Cursor) { c.Seq, c.Stored = 35, late-1 }),
			discarded: 35, reason: rolledBack,
		},
		{name: "some counters ahead", cursor: partly, stream: stream{held: counted(1, 70)}, want: partly},
		{
			name: "some counters ahead, rolled back under them", cursor: partly, stream: stream{held: counted(1, 48)},
			want: changed(incomplete(partly, now+2), func(c *window.Cursor) { c.Ahead.Seq, c.Ahead.Stored = 48, stored(48) }), reason: rolledBack,
		},
		{
			name: "some counters ahead, rolled back under all", cursor: partly, stream: stream{held: join(counted(1, 33), row(34, 80, late))},
			want: changed(incomplete(partly, now+2), func(c *window.Cursor) { c.Seq, c.Stored, c.Ahead = 33, stored(33), window.Ahead{} }), reason: rolledBack,
		},
		{
			name: "some counters ahead, discarded between", cursor: partly, stream: stream{held: counted(51, 70)},
			want:      changed(incomplete(partly, stored(51)/1e6+1), func(c *window.Cursor) { c.Seq, c.Stored = 50, stored(51)-1 }),
			discarded: 10, reason: discardedUnread,
		},
		{
			name: "some counters ahead, discarded past them", cursor: partly, stream: stream{held: counted(61, 70)},
			want: changed(incomplete(partly, stored(61)/1e6+1), func(c *window.Cursor) {
				c.Seq, c.Stored, c.Ahead = 60, stored(61)-1, window.Ahead{}
			}),
			discarded: 20, reason: discardedUnread,
		},
		// The clock of NATS was set back.
		{
			name: "set back before the cursor, whose message was deleted", cursor: changed(cursor, func(c *window.Cursor) { c.Latest = late }),
			stream: stream{held: join(counted(1, 20), row(21, 30, late-9*second), counted(31, 39), counted(41, 50))},
			want:   changed(incomplete(cursor, stored(41)/1e6+1), func(c *window.Cursor) { c.Latest = late }), reason: unproven,
		},
		{
			name: "set back between the cursor's message, which was deleted, and the one before", cursor: changed(cursor, func(c *window.Cursor) { c.Latest = late }),
			stream: stream{held: join(row(1, 39, late-38*second), counted(41, 50))},
			want:   changed(incomplete(cursor, stored(41)/1e6+1), func(c *window.Cursor) { c.Latest = late }), reason: unproven,
		},
		{
			name: "set back before the cursor, and rolled back before that", cursor: changed(cursor, func(c *window.Cursor) { c.Latest = late }),
			stream: stream{held: row(1, 30, late-29*second)},
			want:   changed(incomplete(cursor, now+2), func(c *window.Cursor) { c.Seq, c.Stored, c.Latest = 30, late, late }), reason: rolledBack,
		},
		{
			name: "as_of lies after the clock", cursor: changed(cursor, func(c *window.Cursor) { c.AsOf = now + 60_000 }), stream: stream{held: counted(1, 40)},
			want: changed(cursor, func(c *window.Cursor) { c.AsOf = now + 1 }),
		},
		// Created at another moment: a new stream.
		{
			name: "recreated, empty", cursor: earlier,
			want: window.Cursor{Created: created, AsOf: created / 1e6, IncompleteBefore: created/1e6 + 1}, reason: recreated,
		},
		{
			name: "recreated, longer than the cursor", cursor: earlier, stream: stream{held: row(1, 99, late)},
			want: window.Cursor{Created: created, AsOf: created / 1e6, IncompleteBefore: created/1e6 + 1}, reason: recreated,
		},
		{
			name: "recreated, first messages gone", cursor: incomplete(earlier, now), stream: stream{held: row(6, 99, late)},
			want:      window.Cursor{Created: created, Seq: 5, Stored: late - 1, AsOf: created / 1e6, IncompleteBefore: now},
			discarded: 5, reason: recreated,
		},
		{name: "recreated after the clock was set back: maybe it was not", cursor: cursor, stream: stream{created: stored(39), held: row(1, 50, late)}, unidentified: true},
		// Created at another moment, with the same messages: a restored backup, or a promoted mirror.
		{
			name: "restored", cursor: cursor, stream: stream{created: late, held: counted(1, 70)},
			want: changed(incomplete(cursor, late/1e6+1), func(c *window.Cursor) { c.Created = late }), reason: replaced,
		},
		{
			name: "restored, its first messages gone, unread ones among them; another shard is further on", cursor: cursor, stream: stream{created: late, held: counted(45, 70)},
			others: []window.Cursor{changed(cursor, func(c *window.Cursor) { c.Seq, c.Stored = 50, stored(50) })},
			want: changed(incomplete(cursor, late/1e6+1), func(c *window.Cursor) {
				c.Created, c.Seq, c.Stored = late, 44, stored(45)-1
			}),
			discarded: 4, reason: replaced,
		},
		{
			name: "an older backup, which another shard's cursor proves", cursor: partly, stream: stream{created: late, held: counted(1, 39)},
			others: []window.Cursor{changed(cursor, func(c *window.Cursor) { c.Seq, c.Stored = 30, stored(30) })},
			want: changed(incomplete(partly, now+2), func(c *window.Cursor) {
				c.Created, c.Seq, c.Stored, c.Ahead = late, 39, stored(39), window.Ahead{}
			}),
			reason: replaced,
		},
		{name: "an older backup", cursor: cursor, stream: stream{created: late, held: counted(1, 39)}, unidentified: true},
		{name: "an older backup that has grown", cursor: cursor, stream: stream{created: late, held: join(counted(1, 30), row(31, 70, late+second))}, unidentified: true},
		{name: "a copy of another stream", cursor: cursor, stream: stream{created: late, held: row(1, 70, created+second/2)}, unidentified: true},
		{
			name: "nothing of a copy was applied", cursor: cursor, stream: stream{created: late, held: counted(42, 70)},
			want:      window.Cursor{Created: late, Seq: 41, Stored: stored(42) - 1, AsOf: stored(42) / 1e6, IncompleteBefore: late/1e6 + 1},
			discarded: 41, reason: recreated,
		},
		{name: "a recreated mirror, on its way to the cursor", cursor: cursor, stream: stream{created: late, held: counted(1, 20), mirror: true}, unidentified: true},
		{name: "a recreated mirror, empty yet", cursor: cursor, stream: stream{created: late, mirror: true}, unidentified: true},
		{
			name: "a recreated mirror", cursor: cursor, stream: stream{created: late, held: counted(1, 40), mirror: true},
			want: changed(cursor, func(c *window.Cursor) { c.Created = late }),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := source.State{Created: max(test.stream.created, created), Mirror: test.stream.mirror, Last: test.stream.last, LastStored: test.stream.lastStored, At: now, Seen: now + 1, Clock: now + 1}
			s.Begin, s.Gaps, s.Dropped, s.Deleted = test.stream.begin, test.stream.gaps, test.stream.dropped, test.stream.deleted
			s.Limits, s.Copy = cmp.Or(test.stream.limits, "limits"), test.stream.origin
			s.OriginFirst, s.OriginStored = test.stream.kept, stored(test.stream.kept)
			if test.stream.mirror {
				s.Clock = 0
			}
			s.First, s.FirstStored = s.Last+1, s.Seen*1e6
			if held := test.stream.held; len(held) > 0 {
				s.First, s.FirstStored = held[0].seq, held[0].stored
				if end := held[len(held)-1]; end.seq > s.Last {
					s.Last, s.LastStored = end.seq, end.stored
				}
			}
			h := newHistory(heldSource{held: test.stream.held}, s)
			h.cursors = append(test.others, test.cursor)
			r, err := h.resume(t.Context(), test.cursor, !test.none)
			if errors.Is(err, errUnidentified) != test.unidentified || err != nil && !test.unidentified {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				return
			}
			if r.cursor != test.want {
				t.Errorf("cursor %+v\nwant   %+v", r.cursor, test.want)
			}
			if r.discarded != test.discarded || r.reason != test.reason {
				t.Errorf("discarded %d, reason %q; want %d, %q", r.discarded, r.reason, test.discarded, test.reason)
			}
		})
	}
}
