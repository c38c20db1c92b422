package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/rules"
	"tallyroll/internal/source"
	"tallyroll/internal/window"
)

const readConcurrency = 8

// standing is the resume plan, decided before the stream is read: above all where each shard continues.
type standing struct {
	state      source.State // of the stream, when the cursors were compared with it
	writers    []*shardWriter
	atOnce     int                   // shards that may be committed at the same time
	names      namings               // versions by which messages are read
	naming     string                // these, as all cursors of the session have them
	rules      *rules.Set            // the last version's; nil for none
	sets       map[string]*rules.Set // by fingerprint: those that the session will read by
	from       uint64                // the smallest cursor, after which reading begins; set by open
	registered time.Time             // when register was last tried
}

type shardWriter struct {
	*window.Writer
	position window.Cursor
	moved    time.Time
}

func (s *standing) positions() []window.Cursor {
	out := make([]window.Cursor, len(s.writers))
	for shard, w := range s.writers {
		out[shard] = w.position
	}
	return out
}

// resume reads all cursors, decides where each shard continues, and takes them, before any message is read.
func (s *session) resume(ctx context.Context) error {
	begin, err := s.judge(ctx)
	if err != nil {
		return err
	}
	s.standing, s.buffer = begin, newBuffer(s.layout, s.limits, begin.positions())
	if err := s.keepRules(ctx, begin); err != nil { // before a cursor names them
		return err
	}
	if err := s.take(ctx, begin); err != nil {
		return err
	}
	// Once more: if Redis lost the entries before the cursors were read, no cursor shows that.
	begin.registered, err = s.register(ctx, begin)
	return err
}

// judge compares the cursors with the stream. It writes only the entries by which readers find the cursors.
func (s *setup) judge(ctx context.Context) (*standing, error) {
	// A namespace recreated since the last session may have other spans. Later, register finds that.
	layout, err := s.store.OpenLayout(ctx, s.layout)
	if err != nil {
		return nil, err
	}
	s.layout = layout
	writers, err := s.openWriters(ctx)
	if err != nil {
		return nil, err
	}
	// Ask after the cursors are read: the state of an earlier incarnation would set the cursor back.
	state, err := source.Confirmed(ctx, s.source)
	if err != nil {
		return nil, err
	}
	if err := Refused(state); err != nil {
		return nil, fmt.Errorf("stream %s: %w", s.stream, err)
	}
	begin := &standing{state: state, writers: writers}
	if _, err := s.register(ctx, begin); err != nil {
		return nil, err
	}
	servers, err := s.store.Client.Servers(ctx)
	if err != nil {
		return nil, err
	}
	s.outage.over()
	begin.atOnce = commitConcurrency * servers
	if err := s.place(ctx, begin); err != nil {
		return nil, err
	}
	if err := s.name(ctx, begin); err != nil {
		return nil, err
	}
	return begin, nil
}

func (s *setup) openWriters(ctx context.Context) ([]*shardWriter, error) {
	writers := make([]*shardWriter, s.layout.Shards)
	err := eachShard(ctx, len(writers), readConcurrency, func(ctx context.Context, shard int) error {
		w, err := window.OpenWriter(ctx, s.store, s.layout, s.stream, shard)
		if err == nil {
			w.OnRetry = s.redisLost
			w.OnAdmit = s.admitted
			writers[shard] = &shardWriter{Writer: w}
		}
		return err
	})
	return writers, err
}

// redisLost logs an outage once. A commit that was cancelled because another shard failed proves none.
func (s *setup) redisLost(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.metrics.retries.Inc()
	s.outage.begin(err)
	s.waits.blame(s.stream, err)
}

// admit counts that the cursors report a loss, or a double count, and begins the log line about it.
func (s *setup) admit(why reason) *zerolog.Event {
	s.metrics.admissions.WithLabelValues(s.stream, string(why)).Inc()
	return s.log.Warn()
}

func (s *setup) admitted(err error) {
	why := tornFile
	if errors.Is(err, window.ErrClockFell) {
		why = redisClockFell
	}
	s.admit(why).Err(err).Msg("answers about this time say complete: false")
}

// register writes the entries by which readers find cursors, and the named rules. It returns when it tried.
func (s *setup) register(ctx context.Context, standing *standing) (time.Time, error) {
	err := s.store.EnsureLayout(ctx, s.layout)
	if err == nil {
		err = s.store.AddStreamSince(ctx, s.stream, standing.state.Since())
	}
	if err == nil {
		err = s.keepRules(ctx, standing)
	}
	return time.Now(), err
}

func (s *setup) place(ctx context.Context, begin *standing) error {
	history := newHistory(s.source, begin.state)
	for _, w := range begin.writers {
		if c, exists := w.Cursor(); exists {
			history.cursors = append(history.cursors, c)
		}
	}
	var discarded uint64
	said := false
	for _, w := range begin.writers {
		c, exists := w.Cursor()
		r, err := history.resume(ctx, c, exists)
		if err != nil {
			return fmt.Errorf("stream %s: %w", s.stream, err)
		}
		w.position = r.cursor
		discarded = max(discarded, r.discarded) // the furthest shard may have counted its part of some of them
		if r.reason != "" && !said {
			said = true
			s.admit(r.reason).Uint64("cursor", c.Seq).Uint64("first", begin.state.First).Uint64("last", begin.state.Last).
				Uint64("from", r.cursor.Seq+1).Uint64("discarded", r.discarded).Msg(reasons[r.reason])
		}
	}
	if history.moved {
		// A cursor that goes back takes the time of a message that was read from the stream now. If the
		// stream was recreated since its state was read, that message is one of the new stream.
		if _, err := s.confirmSame(ctx, begin); err != nil {
			return err
		}
	}
	s.metrics.discarded.WithLabelValues(s.stream).Add(float64(discarded))
	return nil
}

// confirmSame returns the stream's current state, or errIncarnated if it was recreated since it was judged.
func (s *setup) confirmSame(ctx context.Context, judged *standing) (source.State, error) {
	state, err := source.Confirmed(ctx, s.source)
	if err == nil && state.Created != judged.state.Created {
		err = errIncarnated
	}
	return state, err
}

// take writes all cursors, also unchanged ones, so that workers and readers see at once where counting goes
// on. All are read before the first is written. So of two sessions that both succeed, one has read every
// cursor after the other had taken it. If each wrote only what it changes, sessions with different versions
// could each take some cursors.
func (s *session) take(ctx context.Context, begin *standing) error {
	return eachShard(ctx, len(begin.writers), readConcurrency, func(ctx context.Context, shard int) error {
		w := begin.writers[shard]
		err := w.Take(ctx, w.position)
		if err == nil {
			w.settle()
		}
		return err
	})
}

// verify checks, before anything is committed, that the stream being read is still the judged one. The
// watcher sees only later changes. After one before that, cursors would point to another stream's messages.
func (s *session) verify(ctx context.Context) error {
	state, err := s.confirmSame(ctx, s.standing)
	if err != nil {
		return err
	}
	history := newHistory(s.source, state)
	for _, w := range s.standing.writers {
		for _, at := range [...]mark{{w.position.Seq, w.position.Stored}, {w.position.Ahead.Seq, w.position.Ahead.Stored}} {
			if _, rolledBack, err := history.find(ctx, at, w.position.Latest); err != nil {
				return err
			} else if rolledBack {
				return errRolledBack
			}
		}
		// A discard may have hidden a roll-back.
		before, proven, err := history.sure(ctx, mark{w.position.Seq, w.position.Stored})
		if err != nil {
			return err
		}
		if until := before/1e6 + 1; !proven && until > w.position.IncompleteBefore && s.buffer.admit(until) {
			s.admit(unproven).Uint64("cursor", w.position.Seq).Uint64("first", state.First).Uint64("last", state.Last).Msg(reasons[unproven])
		}
	}
	return nil
}

// A session continues from a cursor in three steps (docs/design.md).
//
//  1. Identity. The stream is the cursor's if it has the same creation, or holds the cursor's message: the
//     same sequence, stored at the same nanosecond. A restored backup, and a mirror that is promoted or
//     recreated, have another creation and the same messages. A stream that was created after the cursor's
//     message and holds nothing older than itself is new. Any other is unidentified: see errUnidentified. If
//     nothing of a copy was applied, it counts from its first message. But if rejects of it may be stored, it
//     is taken for the same, so that the versions stay by which they were refused.
//  2. Place. Mostly it is the cursor's sequence. If the stream holds another message there, or ends before it,
//     it was rolled back, and reading continues after the messages that were applied.
//  3. Discard check. Messages between the place and the first message held will never be read.

// resumption is where a shard continues, and why hits may be missing because of that, if they may.
type resumption struct {
	cursor    window.Cursor // to go on from
	discarded uint64        // messages that will never be read; after a roll-back that hides their number, an upper bound
	reason    reason
}

// reason is why a session finds that hits may be missing. It is a label of a metric.
type reason string

const (
	discardedBefore reason = "discarded_before_counting"
	discardedUnread reason = "discarded_unread"
	recreated       reason = "stream_recreated"
	replaced        reason = "stream_replaced"
	rolledBack      reason = "stream_rolled_back"
	unproven        reason = "last_message_gone"
	tornFile        reason = "torn_file"        // of Redis: a commit finds it
	redisClockFell  reason = "redis_clock_fell" // the same
)

var reasons = map[reason]string{
	discardedBefore: "messages were discarded before counting began",
	discardedUnread: "messages were discarded before they were read",
	recreated:       "the stream was recreated: counting it from its first message",
	replaced:        "the stream was replaced by a copy with the same messages (a restored backup, or a mirror): going on after the last message applied; what the copy lacks is missing",
	rolledBack:      "the stream was rolled back: going on after the messages that were applied; what it lost since is missing",
	unproven:        "the message that was applied last is gone, and so is the proof that none was discarded after it",
	tornFile:        window.ErrTorn.Error(),
	redisClockFell:  window.ErrClockFell.Error(),
}

// mark identifies a message: its sequence, and when the stream stored it (Unix nanoseconds).
type mark struct {
	seq    uint64
	stored int64
}

// errUnidentified means that the stream may not be the one that was counted. It ends the session. The next
// one checks again: a mirror may not have received the cursor's message yet.
var errUnidentified = errors.New("it is not known whether its messages were counted")

// ErrRetention means that a stream deletes messages that were delivered to a worker but are not committed.
var ErrRetention = errors.New("its retention is not limits: the server deletes messages when they are delivered, before they are counted: set it to limits, or let INGEST_STREAMS not match it")

// ErrIncrements means that a header of the stream's messages holds how much they count.
var ErrIncrements = errors.New("it has allow_msg_counter: each message would count as one hit, whatever its Nats-Incr says: publish hits to a stream without it, or let INGEST_STREAMS not match this one")

// Refused returns why a stream in this state cannot be counted, or nil.
func Refused(state source.State) error {
	switch {
	case state.Retention != jetstream.LimitsPolicy:
		return ErrRetention
	case state.Increments:
		return ErrIncrements
	}
	return nil
}

// history compares cursors, which are mostly equal, with the stream's messages. It asks once per sequence.
type history struct {
	source  source.Stream
	state   source.State
	cursors []window.Cursor  // of all shards
	proven  map[int64]bool   // by creation: the stream holds a message that one of its cursors names
	stored  map[uint64]int64 // by sequence; 0 if the stream no longer holds the message
	before  map[uint64]mark  // by sequence: the last message that is held before it
	after   map[mark]uint64  // by limit and stored time
	moved   bool             // a cursor goes back to a message that the stream holds
}

func newHistory(source source.Stream, state source.State) *history {
	return &history{source: source, state: state, proven: map[int64]bool{}, stored: map[uint64]int64{}, before: map[uint64]mark{}, after: map[mark]uint64{}}
}

func (h *history) resume(ctx context.Context, c window.Cursor, exists bool) (resumption, error) {
	s := h.state
	start := window.Cursor{Created: s.Created, Seq: s.First - 1, AsOf: s.Since()}
	if s.First > 1 {
		start.Stored = s.FirstStored - 1 // the message before the first was stored earlier than it
	}
	if s.Clock > 0 { // the clock of NATS may have been set back since
		start.AsOf, c.AsOf = min(start.AsOf, s.Clock), min(c.AsOf, s.Clock)
	}
	same := exists && c.Created == s.Created
	if exists && !same {
		var err error
		if same, err = h.continues(ctx, c); err != nil {
			return resumption{}, err
		}
	}
	r := resumption{cursor: start}
	admit := func(before int64, why reason) {
		r.cursor.IncompleteBefore, r.reason = max(r.cursor.IncompleteBefore, before), cmp.Or(r.reason, why)
	}
	// No hit counts later than it was stored, so the discarded hits are from before this moment.
	unread := s.FirstStored/1e6 + 1
	if !same {
		r.discarded = s.First - 1
		if exists {
			r.cursor.IncompleteBefore = c.IncompleteBefore
			admit(s.Created/1e6+1, recreated) // what the earlier stream still held
		}
		if r.discarded > 0 {
			admit(unread, discardedBefore)
		}
		return r, nil
	}

	r.cursor = c
	if c.Created != s.Created {
		r.cursor.Created = s.Created
		if !s.Mirror { // a mirror's origin still has what the mirror lacks
			admit(s.Created/1e6+1, replaced)
		}
	}
	r.cursor.Latest, r.cursor.Ended = max(c.Latest, c.Stored), false
	at, back, err := h.find(ctx, mark{c.Seq, c.Stored}, r.cursor.Latest)
	if err != nil {
		return r, err
	}
	ahead, aheadBack, err := h.find(ctx, mark{c.Ahead.Seq, c.Ahead.Stored}, r.cursor.Latest)
	if err != nil {
		return r, err
	}
	if back || aheadBack {
		// If NATS's clock was set back, new messages may be among those taken for applied. What else the
		// stream has lost unread is unknown.
		admit(max(s.Seen, s.Clock, r.cursor.Latest/1e6, s.LastStored/1e6)+1, rolledBack)
	}
	h.moved = h.moved || back || aheadBack
	if back {
		r.cursor.Seq, r.cursor.Stored = at.seq, at.stored
	}
	if aheadBack {
		r.cursor.Ahead.Seq, r.cursor.Ahead.Stored = ahead.seq, ahead.stored
	}
	switch {
	case start.Seq > r.cursor.Seq:
		r.discarded = start.Seq - r.cursor.Seq
		r.cursor.Seq, r.cursor.Stored = start.Seq, start.Stored
		admit(unread, discardedUnread)
	case !back:
		// If the cursor's message is gone, the stream may have been rolled back, and dropped what followed.
		before, proven, err := h.sure(ctx, mark{c.Seq, c.Stored})
		if err != nil {
			return r, err
		}
		if !proven && before/1e6+1 > r.cursor.IncompleteBefore {
			admit(before/1e6+1, unproven)
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

// sure reports whether the stream still proves that a message is the one that was applied: it holds it, or
// had it last. If not, all messages up to this sequence were stored no later than before (Unix nanoseconds).
func (h *history) sure(ctx context.Context, at mark) (before int64, proven bool, err error) {
	if at.seq == 0 || at.seq == h.state.Last && at.stored == h.state.LastStored {
		return 0, true, nil
	}
	if at.seq >= h.state.First {
		if stored, err := h.storedAt(ctx, at.seq); err != nil || stored == at.stored {
			return 0, true, err
		}
	}
	found, stored, err := h.source.Next(ctx, at.seq+1)
	if found == 0 {
		// An emptied stream has the time of that. If it is older, the stream was rolled back to before.
		if stored = h.state.LastStored; stored <= at.stored {
			stored = max(h.state.Seen, h.state.Clock) * 1e6
		}
	}
	return stored, false, err
}

// continues reports whether a stream with another creation than a cursor's continues the cursor's stream;
// false if it is new. The error is errUnidentified if that cannot be decided.
func (h *history) continues(ctx context.Context, c window.Cursor) (bool, error) {
	proven, asked := h.proven[c.Created]
	if !asked {
		var err error
		if proven, err = h.prove(ctx, c.Created); err != nil {
			return false, err
		}
		h.proven[c.Created] = proven
	}
	s := h.state
	// Only a copy holds older messages than itself. A clock set back before its creation can hide that.
	old := s.First <= s.Last && (s.FirstStored < s.Created || s.Created <= max(c.Latest, c.Stored))
	switch {
	case proven:
		return true, nil
	case old && c.Furthest() < s.First && h.refused(c.Created) >= s.First:
		// Nothing that it holds was applied, but rejects of it may be stored. The versions by which it was
		// judged must stay, because other versions would count an event that was refused.
		return true, nil
	case !s.Mirror && !old, c.Furthest() < s.First: // nothing that it holds was applied
		return false, nil
	case s.Mirror:
		return false, fmt.Errorf("the mirror was created at %s, and does not hold the message that was applied last (%d, stored at %s): %w: it may still be on its way; if this is a mirror of another stream, give it another name",
			moment(s.Created), c.Seq, moment(c.Stored), errUnidentified)
	}
	return false, fmt.Errorf("it was created at %s, holds messages %d to %d, of which the first was stored at %s, and not the one that was applied last (%d, stored at %s), so it may be an older backup or a copy of another stream: %w: restore a backup that holds that message; or purge the messages that were counted before (nats stream purge NAME --seq=N, where N is the first one that was not); or, if none of them was, delete the stream's cursors in Redis",
		moment(s.Created), s.First, s.Last, moment(s.FirstStored), c.Seq, moment(c.Stored), errUnidentified)
}

// refused returns the last message of a creation's stream of which rejects may be stored.
func (h *history) refused(created int64) (seq uint64) {
	for _, c := range h.cursors {
		if c.Created == created {
			seq = max(seq, c.Refused)
		}
	}
	return seq
}

func moment(nano int64) string { return time.Unix(0, nano).UTC().Format(time.RFC3339Nano) }

// prove reports whether the stream holds the very message that a cursor of a creation names. One cursor is
// enough, because all of a creation are about the same stream. Those of another creation are not: if Redis
// was rolled back while a new stream was taken, only some cursors are about the new one.
func (h *history) prove(ctx context.Context, created int64) (bool, error) {
	for _, c := range h.cursors {
		if c.Created != created {
			continue
		}
		for _, at := range [...]mark{{c.Seq, c.Stored}, {c.Ahead.Seq, c.Ahead.Stored}} {
			if at.seq < max(h.state.First, 1) || at.seq > h.state.Last {
				continue
			}
			if stored, err := h.storedAt(ctx, at.seq); err != nil || stored == at.stored {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// find looks for a message that was applied. It returns the place after which messages were not applied, and
// whether the stream was rolled back, so that this is another place. latest is when the latest applied
// message was stored. find relies only on the state and on messages that it finds, because a lagging server
// may not have a message yet: a missing one proves nothing.
//
// The place is never before the true one, or hits would count twice. It can be after the true one only after a
// roll-back, which the caller reports, or if the clock of NATS was set back too.
func (h *history) find(ctx context.Context, at mark, latest int64) (place mark, back bool, err error) {
	if at.seq < h.state.First || at.stored == 0 {
		return at, false, nil // nothing to compare
	}
	limit := h.state.Last // the last message that can be the place
	if at.seq <= h.state.Last {
		stored, err := h.storedAt(ctx, at.seq)
		if err != nil || stored == at.stored {
			return at, false, err
		}
		limit = at.seq - 1
		if stored == 0 { // it was deleted: it and the one before it came in the order of their times, unless a clock was set back
			before, err := h.lastBefore(ctx, at.seq)
			if err != nil || before.stored <= at.stored {
				return at, false, err
			}
			limit = at.seq
		}
	}
	after, err := h.lastUpTo(ctx, max(latest, at.stored), limit)
	if err != nil || after == at.seq {
		return at, false, err
	}
	if after < h.state.First { // nothing of what was applied is left, so it is unknown how far it went
		return mark{}, true, nil
	}
	place, err = h.lastBefore(ctx, after+1)
	// Unless messages were deleted since the state was read, the last one before the place was applied. With
	// the time of any other message, or none, the next session could not find the place again.
	if err == nil && (place.seq == 0 || place.stored > max(latest, at.stored)) {
		err = errRolledBack
	}
	place.seq = after
	return place, true, err
}

// storedAt returns when a message was stored (Unix nanoseconds); 0 if the stream does not hold it.
func (h *history) storedAt(ctx context.Context, seq uint64) (int64, error) {
	if stored, asked := h.stored[seq]; asked {
		return stored, nil
	}
	found, stored, err := h.source.Next(ctx, seq)
	if err != nil {
		return 0, err
	}
	if found != seq {
		stored = 0
	}
	h.stored[seq] = stored
	return stored, nil
}

// lastBefore returns the last message that is held before a sequence; the zero value if there is none.
func (h *history) lastBefore(ctx context.Context, seq uint64) (out mark, err error) {
	if out, asked := h.before[seq]; asked {
		return out, nil
	}
	for low, high := h.state.First, seq; low < high; {
		middle := low + (high-low)/2
		found, stored, err := h.source.Next(ctx, middle)
		if err != nil {
			return mark{}, err
		}
		if found == 0 || found >= seq {
			high = middle
		} else {
			out, low = mark{found, stored}, found+1
		}
	}
	h.before[seq] = out
	return out, nil
}

// lastUpTo returns a sequence up to limit before a message stored after a moment (Unix nanoseconds), or
// limit. It bisects, so after NATS's clock was set back there may be several. If all messages from the first
// to some sequence were stored up to the moment, it never returns one before that.
func (h *history) lastUpTo(ctx context.Context, moment int64, limit uint64) (uint64, error) {
	key := mark{limit, moment}
	if seq, asked := h.after[key]; asked {
		return seq, nil
	}
	later := limit + 1 // a message that is known to be later
	for low, high := h.state.First, later; low < high; {
		middle := low + (high-low)/2
		seq, stored, err := h.source.Next(ctx, middle)
		switch {
		case err != nil:
			return 0, err
		case seq == 0 || seq > limit: // no further message
			high = middle
		case stored > moment:
			high, later = middle, seq
		default:
			low = seq + 1
		}
	}
	h.after[key] = later - 1
	return later - 1, nil
}
