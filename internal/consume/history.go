package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
)

// A session continues from a cursor in three steps (docs/design.md).
//
//  1. Identity. The stream is the cursor's if it has the same creation, or holds the cursor's message: the
//     same sequence, stored at the same nanosecond. A restored backup, and a mirror that is promoted or
//     recreated, have another creation and the same messages. A stream that was created after the cursor's
//     message and holds nothing older than itself is new. Any other is unidentified: see errUnidentified. If
//     nothing of a copy was applied, it counts from its first message. But if rejects of it may be stored, it
//     counts as the same, so that the versions stay by which they were refused.
//  2. Position. Mostly it is the cursor's sequence. If the stream holds another message there, or ends before
//     it, it was rolled back, and reading continues after the messages that were applied.
//  3. Discard check. Messages between the position and the first message held will never be read. If
//     sequences may be missing for another reason (source.State.Gaps), only limits can show that no message
//     was discarded: those that the cursor has, and that still hold.

// resumption is where a shard continues, and why hits may be missing because of that.
type resumption struct {
	cursor    window.Cursor // to continue from
	discarded uint64        // messages that will never be read; an upper bound if a roll-back hides their number
	reason    reason        // empty: no hits are missing
}

// messageID identifies a message: its sequence, and when the stream stored it (Unix nanoseconds).
type messageID struct {
	seq    uint64
	stored int64
}

// errRolledBack means that the stream no longer holds messages that were read.
var errRolledBack = errors.New("the stream was rolled back")

// errUnidentified means that the stream may not be the one that was counted. It ends the session. The next
// one checks again: a mirror may not have received the cursor's message yet.
var errUnidentified = errors.New("cannot tell whether its messages were counted")

// history compares cursors, which are mostly equal, with the stream's messages. It reads each message once.
type history struct {
	source  source.Stream
	state   source.State
	cursors []window.Cursor      // of all shards
	found   map[uint64]messageID // by sequence: the first message from there on, see next
	moved   bool                 // a cursor goes back to a message that the stream holds
}

func newHistory(source source.Stream, state source.State) *history {
	return &history{source: source, state: state, found: map[uint64]messageID{}}
}

// resume decides where the shard of a cursor continues.
func (h *history) resume(ctx context.Context, c window.Cursor, exists bool) (resumption, error) {
	s := h.state
	start := window.Cursor{Created: s.Created, Seq: s.First - 1, AsOf: s.Since()}
	lost, lostBefore := h.lostAfter(s.BeforeFirst(), 0, false)
	if lostBefore > 0 && s.Gaps == "" {
		start.Stored = s.FirstStored - 1 // the message before the first was stored earlier than it
	}
	if s.Clock > 0 { // the clock of NATS may have been set back since
		start.AsOf, c.AsOf = min(start.AsOf, s.Clock), min(c.AsOf, s.Clock)
	}
	same := exists && c.Created == s.Created
	if exists && !same {
		var err error
		if same, err = h.isContinued(ctx, c); err != nil {
			return resumption{}, err
		}
	}
	r := resumption{cursor: start}
	reportLoss := func(before int64, why reason) {
		r.cursor.IncompleteBefore, r.reason = max(r.cursor.IncompleteBefore, before), cmp.Or(r.reason, why)
	}
	if !same {
		if s.Gaps == "" { // otherwise it is unknown whether there were any
			r.discarded = lost
		}
		if exists {
			r.cursor.IncompleteBefore = c.IncompleteBefore
			reportLoss(s.Created/1e6+1, recreated) // what the earlier stream still held
		}
		if before := max(lostBefore, h.uncopiedAfter(s.BeforeFirst(), 0)); before > 0 {
			reportLoss(before, discardedBefore)
		}
		return r, nil
	}

	r.cursor = c
	changes := s.ChangesSince(c.Settings)
	switch {
	case changes.Origin: // it may hold, before the cursor, what the mirror left out
		reportLoss(s.Seen, replaced)
	case c.Created != s.Created && !s.Mirror: // a mirror's origin still has what the mirror lacks
		reportLoss(s.Created/1e6+1, replaced)
	}
	if changes.Gaps && s.Deleted > 0 && c.Seq < s.Last { // a missing sequence was a message then
		reportLoss(s.Seen, discardedUnread)
	}
	r.cursor.Created = s.Created
	r.cursor.Latest, r.cursor.Ended = max(c.Latest, c.Stored), false
	located, back, err := h.locate(ctx, messageID{c.Seq, c.Stored}, r.cursor.Latest)
	if err != nil {
		return r, err
	}
	ahead, aheadBack, err := h.locate(ctx, messageID{c.Ahead.Seq, c.Ahead.Stored}, r.cursor.Latest)
	if err != nil {
		return r, err
	}
	if back || aheadBack {
		// If NATS's clock was set back, new messages may be among those that count as applied. What else the
		// stream has lost unread is unknown.
		reportLoss(max(s.Seen, s.Clock, r.cursor.Latest/1e6, s.LastStored/1e6)+1, rolledBack)
	}
	h.moved = h.moved || back || aheadBack
	if back {
		r.cursor.Seq, r.cursor.Stored = located.seq, located.stored
	}
	if aheadBack {
		r.cursor.Ahead.Seq, r.cursor.Ahead.Stored = ahead.seq, ahead.stored
	}
	known := r.cursor.Stored / 1e6
	if !back {
		known = max(known, c.AsOf)
	}
	from := r.cursor.Seq
	if !changes.Any {
		from = max(from, s.BeforeFirst())
	}
	if before := h.uncopiedAfter(from, known); before > 0 {
		reportLoss(before, discardedUnread)
	}
	lost, lostBefore = h.lostAfter(from, known, !changes.Any)
	if start.Seq > r.cursor.Seq {
		r.cursor.Seq, r.cursor.Stored = start.Seq, start.Stored
	}
	switch {
	case lostBefore > 0:
		r.discarded = lost
		reportLoss(lostBefore, discardedUnread)
	case !back:
		// If the cursor's message is gone, the stream may have been rolled back, and dropped what followed.
		before, proven, err := h.findProof(ctx, messageID{c.Seq, c.Stored}, !changes.Any)
		if err != nil {
			return r, err
		}
		if !proven && before/1e6+1 > r.cursor.IncompleteBefore {
			reportLoss(before/1e6+1, unproven)
		}
		if !proven && c.Seq == s.Last {
			r.cursor.Stored = s.LastStored // what the next session can compare
		}
	}
	if r.cursor.Ahead.Seq <= r.cursor.Seq {
		r.cursor.Ahead = window.Ahead{}
	}
	r.cursor.Refused = min(r.cursor.Refused, s.Last) // what comes after that was rolled away
	return r, nil
}

// lostAfter returns how many sequences after one are before the first one held, and the moment (Unix
// milliseconds) before which their hits were stored; 0 if none of them was a hit that went unread. Every hit
// stored before known (Unix milliseconds) is at or before seq. No hit counts later than it was stored.
// limited is whether the present limits have been in force since.
func (h *history) lostAfter(seq uint64, known int64, limited bool) (lost uint64, before int64) {
	s := h.state
	if seq+1 >= s.First {
		return 0, 0
	}
	lost, before = s.First-seq-1, s.FirstStored/1e6+1
	switch {
	case s.Gaps == "" || !limited:
		return lost, before
	case s.Dropped <= known: // what the limits have discarded was applied before
		return 0, 0
	}
	return lost, min(before, s.Dropped)
}

// uncopiedAfter returns the moment (Unix milliseconds) before which all was stored that a mirror's origin may
// have discarded before the mirror had copied it; 0 if it has discarded nothing since, or if the mirror's
// sequences would show it. The mirror has everything up to seq, and from before known (Unix milliseconds).
func (h *history) uncopiedAfter(seq uint64, known int64) int64 {
	s := h.state
	if s.Gaps == "" || s.OriginFirst <= seq+1 || s.OriginStored/1e6 < known {
		return 0
	}
	return s.OriginStored/1e6 + 1
}

// findProof reports whether the stream still proves that a message is the one that was applied, because it
// holds that message, or had it last. If not, all messages up to this sequence were stored no later than
// before (Unix nanoseconds). limited is as for lostAfter.
func (h *history) findProof(ctx context.Context, message messageID,
	limited bool) (before int64, proven bool, err error) {
	if message.stored == 0 || message.seq == h.state.Last && message.stored == h.state.LastStored {
		return 0, true, nil // nothing was applied, or it is the last
	}
	if h.state.Gaps == source.GapsOfSchedules && limited && h.state.Dropped <= message.stored/1e6 {
		return 0, true, nil // it was a schedule, or it is held
	}
	if message.seq >= h.state.First {
		if stored, err := h.storedAt(ctx, message.seq); err != nil || stored == message.stored {
			return 0, true, err
		}
	}
	later, err := h.next(ctx, message.seq+1)
	switch {
	case later.seq > 0:
		return later.stored, false, err
	case h.state.LastStored > message.stored: // an emptied stream has the time of the purge
		return h.state.LastStored, false, err
	}
	return max(h.state.Seen, h.state.Clock) * 1e6, false, err // the stream was rolled back
}

// isContinued reports whether a stream with another creation than a cursor's continues the cursor's stream. A
// new stream does not. The error is errUnidentified if it cannot be decided.
func (h *history) isContinued(ctx context.Context, c window.Cursor) (bool, error) {
	proven, err := h.holdsApplied(ctx, c.Created)
	if err != nil {
		return false, err
	}
	s := h.state
	// Only a copy holds messages older than itself. A clock set back before its creation can hide that.
	old := s.First <= s.Last && (s.FirstStored < s.Created || s.Created <= max(c.Latest, c.Stored))
	switch {
	case proven:
		return true, nil
	case old && c.Furthest() < s.First && h.lastRefused(c.Created) >= s.First:
		// Nothing that the stream holds was applied, but its rejects may be stored. Their versions must stay,
		// because other versions would count an event that was refused.
		return true, nil
	case !s.Mirror && !old, c.Furthest() < s.First: // nothing that the stream holds was applied
		return false, nil
	case s.Mirror:
		return false, fmt.Errorf("the mirror was created at %s, and does not hold the message that was applied last "+
			"(%d, stored at %s): %w: it may still be on its way; if this is a mirror of another stream, give it "+
			"another name",
			moment(s.Created), c.Seq, moment(c.Stored), errUnidentified)
	}
	return false, fmt.Errorf("created at %s, holds messages %d to %d, of which the first was stored at %s, "+
		"and not the one that was applied last (%d, stored at %s), so it may be an older backup or a copy of another "+
		"stream: "+
		"%w: restore a backup that holds that message; or purge the messages that were counted before "+
		"(nats stream purge NAME --seq=N, where N is the first one that was not); "+
		"or, if none of them was, delete the stream's cursors in Redis",
		moment(s.Created), s.First, s.Last, moment(s.FirstStored), c.Seq, moment(c.Stored), errUnidentified)
}

// lastRefused returns the last message of a creation's stream of which rejects may be stored.
func (h *history) lastRefused(created int64) (seq uint64) {
	for _, c := range h.cursors {
		if c.Created == created {
			seq = max(seq, c.Refused)
		}
	}
	return seq
}

func moment(nano int64) string { return time.Unix(0, nano).UTC().Format(time.RFC3339Nano) }

// holdsApplied reports whether the stream holds the very message that a cursor with this creation names. One
// cursor is enough, because all cursors with one creation are about the same stream. Cursors can have
// different creations: if Redis was rolled back while a session acquired a new stream, only some are about
// the new one.
func (h *history) holdsApplied(ctx context.Context, created int64) (bool, error) {
	for _, c := range h.cursors {
		if c.Created != created {
			continue
		}
		for _, message := range [...]messageID{{c.Seq, c.Stored}, {c.Ahead.Seq, c.Ahead.Stored}} {
			if message.seq < max(h.state.First, 1) || message.seq > h.state.Last || message.stored == 0 {
				continue
			}
			if stored, err := h.storedAt(ctx, message.seq); err != nil || stored == message.stored {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// locate searches for a message that was applied. It returns the position after which messages were not
// applied, and whether the stream was rolled back, so that this is another position. latest is when the
// latest applied message was stored. locate relies only on the state and on messages that it finds, because a
// lagging server may not have a message yet: a missing one proves nothing.
//
// The position is never before the true one, or hits would count twice. It can be after the true one only
// after a roll-back, which the caller reports, or if the clock of NATS was also set back.
func (h *history) locate(ctx context.Context, message messageID,
	latest int64) (position messageID, back bool, err error) {
	if message.seq < h.state.First || message.stored == 0 {
		return message, false, nil // nothing to compare
	}
	limit := h.state.Last // the last sequence that can be the position
	if message.seq <= h.state.Last {
		stored, err := h.storedAt(ctx, message.seq)
		if err != nil || stored == message.stored {
			return message, false, err
		}
		limit = message.seq - 1
		if stored == 0 { // deleted: it is no older than the one before it, unless a clock was set back
			before, err := h.lastBefore(ctx, message.seq)
			if err != nil || before.stored <= message.stored {
				return message, false, err
			}
			limit = message.seq
		}
	}
	after, err := h.lastUpTo(ctx, max(latest, message.stored), limit)
	if err != nil || after == message.seq {
		return message, false, err
	}
	if after < h.state.First { // no applied message is left, so the roll-back has no known position
		return messageID{}, true, nil
	}
	position, err = h.lastBefore(ctx, after+1)
	// Unless messages were deleted since the state was read, the last one before the position was applied.
	// With the time of another message, or no time, the next session could not find the position again.
	if err == nil && (position.seq == 0 || position.stored > max(latest, message.stored)) {
		err = errRolledBack
	}
	position.seq = after
	return position, true, err
}

// next returns the first message from a sequence on; the zero value if the stream has none.
func (h *history) next(ctx context.Context, seq uint64) (messageID, error) {
	if m, known := h.found[seq]; known {
		return m, nil
	}
	found, stored, err := h.source.Next(ctx, seq)
	if err != nil {
		return messageID{}, err
	}
	h.found[seq] = messageID{found, stored}
	return h.found[seq], nil
}

// storedAt returns when a message was stored (Unix nanoseconds); 0 if the stream does not hold it.
func (h *history) storedAt(ctx context.Context, seq uint64) (int64, error) {
	m, err := h.next(ctx, seq)
	if err != nil || m.seq != seq {
		return 0, err
	}
	return m.stored, nil
}

// lastBefore returns the last message that is held before a sequence; the zero value if the stream has none.
func (h *history) lastBefore(ctx context.Context, seq uint64) (out messageID, err error) {
	for low, high := h.state.First, seq; low < high; {
		middle := low + (high-low)/2
		m, err := h.next(ctx, middle)
		if err != nil {
			return messageID{}, err
		}
		if m.seq == 0 || m.seq >= seq {
			high = middle
		} else {
			out, low = m, m.seq+1
		}
	}
	return out, nil
}

// lastUpTo returns a sequence up to limit before a message stored after a moment (Unix nanoseconds), or
// limit. It bisects, so after NATS's clock was set back there may be several. If all messages from the first
// to some sequence were stored up to the moment, it never returns one before that.
func (h *history) lastUpTo(ctx context.Context, moment int64, limit uint64) (uint64, error) {
	later := limit + 1 // a message known to be later
	for low, high := h.state.First, later; low < high; {
		middle := low + (high-low)/2
		m, err := h.next(ctx, middle)
		switch {
		case err != nil:
			return 0, err
		case m.seq == 0 || m.seq > limit: // no further message
			high = middle
		case m.stored > moment:
			high, later = middle, m.seq
		default:
			low = m.seq + 1
		}
	}
	return later - 1, nil
}
