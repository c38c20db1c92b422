package consume

import (
	"context"
	"errors"
	"time"

	"tallyroll/internal/rules"
	"tallyroll/internal/window"
)

// readConcurrency is how many shards' cursors are read at the same time.
const readConcurrency = 8

// standing is what a session finds out before it reads, above all where each shard goes on.
type standing struct {
	state      streamState // of the stream, when the cursors were compared with it
	writers    []*shardWriter
	atOnce     int                   // shards that may be committed at the same time
	names      namings               // versions by which messages are read
	naming     string                // these, as all cursors of the session have them
	rules      *rules.Set            // the last version's; nil for none
	sets       map[string]*rules.Set // by fingerprint: those that the session will read by
	from       uint64                // the smallest cursor, after which reading begins; set by open
	registered time.Time             // when register was last tried
}

// shardWriter is a shard's writer and the shard's position.
type shardWriter struct {
	*window.Writer
	position window.Cursor
	moved    time.Time
}

// positions returns the cursors from which the shards go on.
func (s *standing) positions() []window.Cursor {
	out := make([]window.Cursor, len(s.writers))
	for shard, w := range s.writers {
		out[shard] = w.position
	}
	return out
}

// resume reads all cursors, decides where each shard goes on, and takes the cursors,
// all before any message is read.
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
	// Once more: if Redis lost it after the first time and before the cursors were read, no cursor
	// shows that.
	begin.registered, err = s.register(ctx, begin)
	return err
}

// judge compares the cursors with the stream. It writes only the entries by which readers find the cursors.
func (s *setup) judge(ctx context.Context) (*standing, error) {
	// The namespace may have been made anew since the last session, with hashes that span other times.
	// If that happens later, register finds it.
	layout, err := s.store.OpenLayout(ctx, s.layout)
	if err != nil {
		return nil, err
	}
	s.layout = layout
	writers, err := s.openWriters(ctx)
	if err != nil {
		return nil, err
	}
	// Ask for the state after reading the cursors. A state from before could be that of an earlier
	// incarnation than the cursor's, and would set the cursor back.
	state, err := confirmed(ctx, s.source)
	if err != nil {
		return nil, err
	}
	begin := &standing{state: state, writers: writers}
	if _, err := s.register(ctx, begin); err != nil {
		return nil, err
	}
	servers, err := s.store.Servers(ctx)
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
		w, err := s.store.OpenWriter(ctx, s.layout, s.stream, shard)
		if err == nil {
			w.OnRetry = s.redisLost
			writers[shard] = &shardWriter{Writer: w}
		}
		return err
	})
	return writers, err
}

// redisLost logs once that Redis does not answer. If a commit is cancelled because another
// shard's commit has failed, that says nothing about Redis.
func (s *setup) redisLost(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.metrics.retries.Inc()
	s.outage.begin(err)
	s.waits.because(s.stream, err)
}

// register writes the entries by which readers find the cursors, and the rules that the cursors name. It
// returns when it tried to.
func (s *setup) register(ctx context.Context, of *standing) (time.Time, error) {
	err := s.store.EnsureLayout(ctx, s.layout)
	if err == nil {
		err = s.store.AddStreamSince(ctx, s.stream, of.state.since())
	}
	if err == nil {
		err = s.keepRules(ctx, of)
	}
	return time.Now(), err
}

// place decides where each shard goes on.
func (s *setup) place(ctx context.Context, begin *standing) error {
	history := newHistory(s.source, begin.state)
	var discarded uint64
	for shard, w := range begin.writers {
		c, exists := w.Cursor()
		at, ahead, err := history.check(ctx, c, exists)
		if err != nil {
			return err
		}
		r := resumeFrom(c, exists, begin.state, at, ahead)
		w.position = r.cursor
		if shard == 0 || r.discarded < discarded {
			discarded = r.discarded // the smallest number: what any shard has read was not discarded unread
		}
		if r.why != "" && shard == 0 {
			s.log.Warn().Uint64("cursor", c.Seq).Uint64("first", begin.state.first).Uint64("last", begin.state.last).
				Uint64("from", r.cursor.Seq+1).Uint64("discarded", r.discarded).Msg(r.why)
		}
	}
	s.metrics.discarded.WithLabelValues(s.stream).Add(float64(discarded))
	return nil
}

// take writes all cursors, also those that stay as they are, so that other workers and the readers of Redis see
// at once where counting goes on. All cursors have been read before the first is written. So of two sessions that
// both succeed, one has read every cursor after the other one had taken it, and knows all that the other can do.
// If each wrote only what it had to change, two sessions with different versions could each take some cursors.
func (s *session) take(ctx context.Context, begin *standing) error {
	return eachShard(ctx, len(begin.writers), readConcurrency, func(ctx context.Context, shard int) error {
		w := begin.writers[shard]
		return w.Take(ctx, w.position)
	})
}

// verify checks, before anything is committed, that the stream being read is still the one that
// was judged. The watcher sees any later change and ends the session. But nobody else would see
// a change between the judgement and the reading, and cursors would point to another stream's messages.
func (s *session) verify(ctx context.Context) error {
	state, err := confirmed(ctx, s.source)
	if err != nil {
		return err
	}
	if state.created != s.standing.state.created {
		return errIncarnated
	}
	history := newHistory(s.source, state)
	for _, w := range s.standing.writers {
		at, ahead, err := history.check(ctx, w.position, true)
		if err != nil {
			return err
		}
		if at.found || ahead.found {
			return errRolledBack
		}
	}
	return nil
}

// resumption is where a shard goes on in a stream, and, if that is not its cursor, the reason.
type resumption struct {
	cursor    window.Cursor // to go on from
	discarded uint64        // messages that will never be read
	why       string        // for the log; empty if nothing unusual was found
}

// rollBack is what history has found out about a place in a cursor: whether the stream
// holds, at its sequence, another message than the one applied there. If so, it also
// has the sequence of the last message stored no later than the applied one.
type rollBack struct {
	found     bool
	afterTime uint64
}

// resumeFrom decides where a shard goes on. at is about the cursor's sequence, ahead
// about the sequence that some of its counters have reached.
func resumeFrom(c window.Cursor, exists bool, s streamState, at, ahead rollBack) resumption {
	r := resumption{cursor: c}
	start := window.Cursor{Created: s.created, Seq: s.first - 1, AsOf: s.since()}
	if s.first > 1 {
		start.Stored = s.firstStored - 1 // the message before the first was stored earlier than it
	}
	// No hit counts later than it was stored, so the discarded hits are from before these moments.
	unread, replaced := s.firstStored/1e6+1, s.created/1e6+1
	switch {
	case !exists:
		r.cursor, r.discarded = start, s.first-1
		if r.discarded > 0 {
			r.cursor.IncompleteBefore = unread
			r.why = "messages were discarded before counting began"
		}
	case c.Created != s.created:
		r.cursor, r.discarded = start, s.first-1
		r.cursor.IncompleteBefore = max(replaced, c.IncompleteBefore)
		if r.discarded > 0 {
			r.cursor.IncompleteBefore = max(r.cursor.IncompleteBefore, unread)
		}
		r.why = "the stream was made anew: counting it from its first message"
	case at.found || ahead.found:
		// The lost messages had been applied. Those stored since are later than the cursor's message.
		if at.found {
			r.cursor.Seq = max(at.afterTime, start.Seq)
		}
		if ahead.found {
			r.cursor.Ahead.Seq = ahead.afterTime
		}
		r.why = "the stream was rolled back: going on after the time of the last message applied"
	case s.first > c.Seq+1:
		r.cursor.Seq, r.cursor.Stored = start.Seq, start.Stored
		r.cursor.IncompleteBefore = max(c.IncompleteBefore, unread)
		r.discarded = s.first - 1 - c.Seq
		r.why = "messages were discarded before they were read"
	}
	if r.cursor.Ahead.Seq <= r.cursor.Seq {
		r.cursor.Ahead = window.Ahead{}
	}
	r.cursor.Refused = min(r.cursor.Refused, s.last) // what comes after that was rolled away
	return r
}

// history compares cursors with the messages that the stream holds. The shards' cursors
// are mostly the same, so it asks about each sequence only once.
type history struct {
	source source
	state  streamState
	stored map[uint64]int64 // by sequence; 0 if the stream no longer holds the message
	after  map[int64]uint64 // by stored time
}

func newHistory(source source, state streamState) *history {
	return &history{source, state, map[uint64]int64{}, map[int64]uint64{}}
}

// check reports whether the stream was rolled back under a cursor, at the cursor's sequence and
// at the one that some of its counters have reached. It relies only on the state and on messages
// that are found: a lagging server may not have a message yet, so a missing one proves nothing.
func (h *history) check(ctx context.Context, c window.Cursor, exists bool) (at, ahead rollBack, err error) {
	if !exists || c.Created != h.state.created {
		return rollBack{}, rollBack{}, nil
	}
	if at, err = h.checkAt(ctx, c.Seq, c.Stored); err != nil {
		return at, ahead, err
	}
	ahead, err = h.checkAt(ctx, c.Ahead.Seq, c.Ahead.Stored)
	return at, ahead, err
}

func (h *history) checkAt(ctx context.Context, seq uint64, stored int64) (rollBack, error) {
	if seq == 0 {
		return rollBack{}, nil
	}
	if seq <= h.state.last {
		if seq < h.state.first || stored == 0 {
			return rollBack{}, nil // nothing to compare
		}
		found, err := h.storedAt(ctx, seq)
		if err != nil || found == stored {
			return rollBack{}, err
		}
		// The stream holds another message, or the message was deleted (0) and may have been another.
	}
	afterTime, err := h.lastUpTo(ctx, stored)
	return rollBack{afterTime < seq, afterTime}, err
}

// storedAt returns when a message was stored (Unix nanoseconds), or 0 if the stream does not hold it.
func (h *history) storedAt(ctx context.Context, seq uint64) (int64, error) {
	if stored, asked := h.stored[seq]; asked {
		return stored, nil
	}
	found, stored, err := h.source.next(ctx, seq)
	if err != nil {
		return 0, err
	}
	if found != seq {
		stored = 0
	}
	h.stored[seq] = stored
	return stored, nil
}

// lastUpTo returns the sequence before the first message that was stored after a moment
// (Unix nanoseconds), or the stream's last sequence if there is none. Times do not decrease
// within a stream, so a binary search finds it, even among deleted messages.
func (h *history) lastUpTo(ctx context.Context, moment int64) (uint64, error) {
	if seq, asked := h.after[moment]; asked {
		return seq, nil
	}
	later := h.state.last + 1 // the first later message known
	for low, high := h.state.first, later; low < high; {
		middle := low + (high-low)/2
		seq, stored, err := h.source.next(ctx, middle)
		switch {
		case err != nil:
			return 0, err
		case seq == 0 || seq > h.state.last: // no further message in the state
			high = middle
		case stored > moment:
			high, later = middle, seq
		default:
			low = seq + 1
		}
	}
	h.after[moment] = later - 1
	return later - 1, nil
}
