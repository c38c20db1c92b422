package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/window"
)

// Why a session ends other than by the worker's shutdown.
var (
	errGap        = errors.New("messages were lost on the way")
	errStalled    = errors.New("the stream holds messages that are not delivered")
	errReconnect  = errors.New("NATS was reconnected")
	errIncarnated = errors.New("the stream was made anew")
	errRolledBack = errors.New("the stream was rolled back")
	errEdited     = errors.New("the stream's subjects were edited")
)

// limits are the bounds that a session keeps.
type limits struct {
	flushInterval time.Duration
	maxCommands   int
	splits        int // transactions that a shard's part of a flush may take
	maxAhead      time.Duration
	maxHits       int
	maxBuffered   int // commands in half a buffer, all shards together
}

const (
	// readConcurrency is how many shards' cursors are read at the same time.
	readConcurrency = 8
	// commitConcurrency is how many shards are committed at the same time, by each
	// server of Redis. Whatever arrives together is executed before anyone else is
	// heard: with 8, others' PING took 12.8 ms (p99), with 2 it takes 6, for 5 % of the speed.
	commitConcurrency = 2
)

// flushTransactions is the most transactions that a shard's part of a flush is
// split into. The larger a load, the more of its hits coalesce; this bounds its memory.
const flushTransactions = 25

// session is one attempt to keep a stream flowing.
type session struct {
	stream  string
	source  source
	store   *window.Store
	layout  window.Layout
	limits  limits
	metrics *metrics
	outage  *outage
	waits   *waits
	clocks  *clocks
	rejects *rejectLog
	log     zerolog.Logger

	progress Progress // may be nil
	maxIdle  int      // looks in a row that may find the reader idle, see stalledAfter
	// listed reports whether every stream made before the call is listed in Redis; nil for always.
	listed func(context.Context) bool

	info    streamState
	naming  string // of all cursors of this session, see namings
	writers []*shardWriter
	buffer  *buffer
	atOnce  int    // shards that are committed at the same time
	from    uint64 // the smallest cursor, after which reading begins

	registered time.Time // when register was last tried

	// Of the reader's goroutine alone.
	decode   *decoder
	names    namer
	expected uint64 // consumer sequence of the next message
	lost     bool   // a delivery was not understood: none after it is

	tail      tail
	committed committed
	fail      context.CancelCauseFunc
}

// tail is what the watch last learnt of the stream's end.
type tail struct {
	mu     sync.Mutex
	last   uint64
	stored int64         // of that message, Unix nanoseconds
	at     int64         // Unix milliseconds: when it was the end
	lag    time.Duration // of the reader: how much earlier the last message in memory had been stored
}

// While a stream is far behind, its loads gather in memory for longer than the flush
// interval: the larger a load, the more of its hits coalesce. After a crash that
// much is read again. No wait may starve another one, so:
//
//   - a load gathers only while it grows: one flush interval without a message ends
//     it, so it does not outwait the watch, which ends a session that stalls;
//   - the first load of a backlog gathers for one flush interval, each later one for
//     at most twice as long as the one before: a worker that is killed again and
//     again makes progress within the first second of each life;
//   - a session that ends commits what it has read first, whatever ended it but a
//     failed commit: a session that is ended again and again makes progress;
//   - a session that stalled without a message gives the next one twice the time.
const (
	// farBehind is a lag at which another second does not matter to anyone.
	farBehind = 5 * time.Second
	// gatherPart is the part of its lag that a load may gather for, at most maxGather.
	gatherPart = 5
	maxGather  = 5 * time.Second
)

func (t *tail) set(state streamState, lag time.Duration) {
	t.mu.Lock()
	t.last, t.stored, t.at, t.lag = state.last, state.endStored(), state.at, lag
	t.mu.Unlock()
}

// gather is how long a load may wait at this place for more; 0 where it is not far behind.
func (t *tail) gather(place uint64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lag <= farBehind || place >= t.last {
		return 0
	}
	return min(t.lag/gatherPart, maxGather)
}

// reached returns the moment at which a message was the stream's end, 0 where it
// was not. A later message with a number that has been read already is one of a
// stream that was rolled back, so the number alone does not tell.
func (t *tail) reached(seq uint64, stored int64) (at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq < t.last || stored < t.stored {
		return 0
	}
	return t.at
}

// run keeps the stream flowing until ctx ends (nil), something asks for a new
// session, or the stream is gone (the reason). When ctx ends it commits what it has in memory first.
// opened is called once the stream is being read.
func (s *session) run(ctx context.Context, opened func()) error {
	within, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.fail = fail

	if err := s.resume(ctx); err != nil {
		return err
	}
	s.decode = newDecoder(s.layout, s.limits.maxAhead, s.limits.maxHits)
	reading, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := reading.release(); err != nil {
			s.log.Debug().Err(err).Msg("the consumer was left to expire")
		}
	}()
	lost := func(err error) { s.fail(s.orGone(ctx, err)) }
	if err := reading.start(s.read, lost); err != nil {
		return err
	}
	if err := s.verify(ctx); err != nil {
		s.buffer.close()
		reading.stop()
		return err
	}
	opened()

	var watching sync.WaitGroup
	watching.Go(func() { s.watch(within) })
	s.flushLoop(ctx, within, reading)
	fail(nil)
	watching.Wait()
	// A stream that is gone is let go by the fleet, too, perhaps before the last commit has ended.
	if err := context.Cause(within); ctx.Err() == nil || errors.Is(err, errNoStream) {
		return err
	}
	return nil
}

// orGone looks whether a reading was lost because the stream was deleted.
func (s *session) orGone(ctx context.Context, err error) error {
	if errors.Is(err, errReconnect) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, gone := s.source.look(ctx); errors.Is(gone, errNoStream) {
		return gone
	}
	return err
}

// unread reports whether the stream is known to have held messages that are not
// applied on every shard. It is for after run.
func (s *session) unread() bool {
	s.tail.mu.Lock()
	known := max(s.tail.last, s.info.last)
	s.tail.mu.Unlock()
	place, _, _ := s.buffer.place()
	known = max(known, place)
	return slices.ContainsFunc(s.writers, func(w *shardWriter) bool { return w.position.Seq < known })
}

// hasRead reports whether the session was given any message. It is for after run.
func (s *session) hasRead() bool {
	place, _, _ := s.buffer.place()
	return place > s.from
}

// eachShard calls do for every shard, so many at a time, and returns the first
// error, which cancels the others.
func eachShard(ctx context.Context, shards, atOnce int, do func(ctx context.Context, shard int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for shard := range shards {
		group.Go(func() error { return do(ctx, shard) })
	}
	return group.Wait()
}

// resume reads all cursors, decides where each shard goes on, and writes what
// has to change before anything is read.
func (s *session) resume(ctx context.Context) error {
	writers := make([]*shardWriter, s.layout.Shards)
	if err := eachShard(ctx, len(writers), readConcurrency, func(ctx context.Context, shard int) error {
		w, err := s.store.OpenWriter(ctx, s.layout, s.stream, shard)
		if err == nil {
			w.OnRetry = s.redisLost
			writers[shard] = &shardWriter{Writer: w}
		}
		return err
	}); err != nil {
		return err
	}
	// The state after the cursors: an older one could be of the stream before the
	// one that a cursor tells of, and would set it back.
	state, err := confirmed(ctx, s.source)
	if err != nil {
		return err
	}
	s.info = state
	if err := s.register(ctx); err != nil {
		return err
	}
	servers, err := s.store.Servers(ctx)
	if err != nil {
		return err
	}
	s.atOnce = commitConcurrency * servers
	s.writers = writers
	s.outage.over()

	resumed := make([]window.Cursor, s.layout.Shards)
	history := newHistory(s.source, state)
	var discarded uint64
	for shard, w := range s.writers {
		c, exists := w.Cursor()
		at, ahead, err := history.check(ctx, c, exists)
		if err != nil {
			return err
		}
		r := resume(c, exists, state, at, ahead)
		w.position = r.cursor
		w.changed = r.changed
		resumed[shard] = r.cursor
		if shard == 0 || r.discarded < discarded {
			discarded = r.discarded // what another shard had already read was not unread
		}
		if r.why != "" && shard == 0 {
			s.log.Warn().Uint64("cursor", c.Seq).Uint64("first", state.first).Uint64("last", state.last).
				Uint64("from", r.cursor.Seq+1).Uint64("discarded", r.discarded).Msg(r.why)
		}
	}
	s.metrics.discarded.WithLabelValues(s.stream).Add(float64(discarded))
	if err := s.name(resumed); err != nil {
		return err
	}
	s.buffer = newBuffer(s.layout, s.limits, resumed)
	if err := s.take(ctx); err != nil {
		return err
	}
	// Once more: what was lost between the first time and the cursors, no cursor tells of.
	return s.register(ctx)
}

// name decides how messages are named from the resumed cursors on.
func (s *session) name(resumed []window.Cursor) error {
	versions, err := namingsAfter(resumed, s.info.subjects)
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.stream, err)
	}
	if last := versions[len(versions)-1]; len(versions) > 1 && !slices.ContainsFunc(resumed, func(c window.Cursor) bool { return c.Furthest() >= last.From }) {
		s.log.Info().Uint64("from", last.From).Strs("subjects", last.Subjects).Msg("the stream's subjects were edited: counters are named by them from here on")
	}
	s.names, s.naming = newNamer(versions), versions.String()
	for _, w := range s.writers {
		if w.position.Naming != s.naming {
			w.position.Naming, w.changed = s.naming, true
		}
	}
	return nil
}

// take writes the cursors that resume has changed, so that readers of Redis and
// other workers see at once where counting goes on.
func (s *session) take(ctx context.Context) error {
	empty := window.NewBatch(s.layout)
	return eachShard(ctx, len(s.writers), readConcurrency, func(ctx context.Context, shard int) error {
		w := s.writers[shard]
		if !w.changed {
			return nil
		}
		_, err := w.Commit(ctx, empty.Shard(shard), w.position)
		return err
	})
}

// register writes what readers find the cursors by.
func (s *session) register(ctx context.Context) error {
	err := s.store.EnsureLayout(ctx, s.layout)
	if err == nil {
		err = s.store.AddStreamSince(ctx, s.stream, s.info.since())
	}
	s.registered = time.Now()
	return err
}

// open begins at the smallest cursor.
func (s *session) open(ctx context.Context) (reading, error) {
	smallest := slices.MinFunc(s.writers, func(a, b *shardWriter) int { return cmp.Compare(a.position.Seq, b.position.Seq) })
	stored := smallest.position.Stored
	s.from = smallest.position.Seq
	if s.from == s.info.last {
		// What was stored last is applied or gone, also if that is another message than the cursor's.
		stored = max(stored, s.info.endStored())
	}
	s.expected = 1
	s.buffer.filling.seq, s.buffer.filling.stored = s.from, stored
	s.committed.set(s.from, stored)
	reading, err := s.source.open(ctx, s.from+1)
	if err != nil {
		return nil, err
	}
	s.log.Info().Uint64("from", s.from+1).Uint64("last", s.info.last).Uint64("pending", reading.pending()).Msg("stream taken")
	return reading, nil
}

// verify looks, before anything is committed, whether the stream that is being
// read is still the one that resume has judged. A later change ends the reading;
// one between the two would go unseen, and cursors would name another stream's messages.
func (s *session) verify(ctx context.Context) error {
	state, err := confirmed(ctx, s.source)
	if err != nil {
		return err
	}
	if state.created != s.info.created {
		return errIncarnated
	}
	history := newHistory(s.source, state)
	for _, w := range s.writers {
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

// read handles one message, on the reading's goroutine. Blocking here stops the
// reading: the stream holds the rest.
func (s *session) read(d delivery) {
	switch {
	case s.lost: // a flush may still be on its way: nothing behind the loss may join it, whatever its number
		return
	case d.nth != s.expected:
		s.lost = true
		s.fail(fmt.Errorf("%w: delivery %d of %s came instead of %d", errGap, d.nth, s.stream, s.expected))
		return
	}
	s.expected++
	m := message{seq: d.seq, stored: d.stored}
	if d.marker {
		s.metrics.skipped.WithLabelValues(s.stream, skippedMarker).Inc()
	} else {
		s.decode.decode(s.names.counter(d.seq, d.subject), d.stored/1e6, d.data)
		m.hits, m.rejects = s.decode.hits, s.decode.rejects
	}
	if err := s.buffer.add(s.stream, m); errors.Is(err, errGap) {
		s.lost = true
		s.fail(err)
	}
}

// redisLost says once that Redis does not answer. A commit that is given up because
// another shard's has failed tells nothing of Redis.
func (s *session) redisLost(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.metrics.retries.Inc()
	s.outage.begin(err)
	s.waits.because(s.stream, err)
}
