package consume

import (
	"tallyroll/internal/window"
)

// resumption is where a shard goes on in a stream, and why not from its cursor.
type resumption struct {
	cursor    window.Cursor // to go on from; written at once where changed
	changed   bool
	discarded uint64 // messages that will never be read
	why       string // for the log; empty where nothing unusual was found
}

// rollBack is what history has found of a place in a cursor: whether the stream
// no longer holds, at its sequence, the message that was applied there, and then
// the sequence of the last message stored no later than that one.
type rollBack struct {
	found     bool
	afterTime uint64
}

// resume decides where a shard goes on; at is about the cursor's sequence, ahead
// about the one that some of its counters have reached.
func resume(c window.Cursor, exists bool, s streamState, at, ahead rollBack) resumption {
	r := resumption{cursor: c}
	start := window.Cursor{Created: s.created, Seq: s.first - 1, AsOf: s.since()}
	if s.first > 1 {
		start.Stored = s.firstStored - 1 // the message before the first was stored earlier than it
	}
	// No hit counts later than it was stored, so the discarded ones are from before these moments.
	unread, replaced := s.firstStored/1e6+1, s.created/1e6+1
	switch {
	case !exists:
		r.cursor, r.changed, r.discarded = start, true, s.first-1
		if r.discarded > 0 {
			r.cursor.IncompleteBefore = unread
			r.why = "messages were discarded before counting began"
		}
	case c.Created != s.created:
		r.cursor, r.changed, r.discarded = start, true, s.first-1
		r.cursor.IncompleteBefore = max(replaced, c.IncompleteBefore)
		if r.discarded > 0 {
			r.cursor.IncompleteBefore = max(r.cursor.IncompleteBefore, unread)
		}
		r.why = "the stream was made anew: counting it from its first message"
	case at.found || ahead.found:
		// Messages that were lost had been applied; those stored since are later than the cursor's.
		if at.found {
			r.cursor.Seq = max(at.afterTime, start.Seq)
		}
		if ahead.found {
			r.cursor.Ahead.Seq = ahead.afterTime
		}
		r.changed = true
		r.why = "the stream was rolled back: going on after the time of the last message applied"
	case s.first > c.Seq+1:
		r.cursor.Seq, r.cursor.Stored, r.changed = start.Seq, start.Stored, true
		r.cursor.IncompleteBefore = max(c.IncompleteBefore, unread)
		r.discarded = s.first - 1 - c.Seq
		r.why = "messages were discarded before they were read"
	}
	if r.cursor.Ahead.Seq <= r.cursor.Seq {
		r.cursor.Ahead = window.Ahead{}
	}
	return r
}
