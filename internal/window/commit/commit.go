package commit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// Writer commits one stream to one shard, only on top of its last cursor. It is not safe for concurrent use.
type Writer struct {
	store  *schema.Store
	layout window.Layout
	stream string
	shard  int
	key    string   // of the cursor
	watch  []string // that key, and Keys.Erasure

	id        string              // see CursorRecord.By; another one from each change of RareFields on
	held      schema.CursorRecord // what Redis last had, for compare-and-set
	exists    bool                // whether the record existed then
	salt      uint64              // see window.ShardBatch.Place
	logs      logs
	registers registerMemory
	erased    string // what Keys.Erasure held when logs and registers were remembered: see package erase
	changes   changes
	commands  commands

	// suspected is the moment that Redis's clock had shown before it fell; zero if it has not.
	suspected time.Time

	// OnRetry is called for each attempt whose outcome is unknown, before the pause. The first attempt
	// after a broken connection comes at once, and without a call.
	OnRetry func(error)
	// OnLoss is called with ErrTorn or ErrClockFell if a commit has detected that hits may be wrongly
	// counted. The cursor then has a later IncompleteBefore than the caller's.
	OnLoss func(why error)
}

var (
	// ErrFenced means that another worker has moved the cursor: drop the batch and release the stream.
	ErrFenced = errors.New("fenced: another worker has moved the cursor")
	// ErrRewound means that Redis has lost this writer's last commits: drop the batch and read the stream
	// again from the cursor.
	ErrRewound = errors.New("rewound: Redis has lost commits")
)

// Bounds of the pause before the writer checks a commit again whose outcome is unknown.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

var (
	// ErrTorn means that Redis has run a part of a transaction, so some hits may be counted twice.
	ErrTorn = errors.New("a part of a transaction was run next to whole ones (a torn append-only file of Redis, or a " +
		"refused MULTI): some hits may be counted twice")
	// ErrClockFell means that Redis's clock was ahead: keys may have expired, increments may be missing.
	ErrClockFell = errors.New("the clock of Redis was ahead for a while: keys may have expired too early")
)

// Commit is the outcome of one commit.
type Commit struct {
	Hits      int64         // counted
	Commands  int           // in the transaction, without MULTI and EXEC
	Attempts  int           // transactions tried; 0 if an earlier one had been applied
	Conflicts int           // EXECs refused because the cursor was touched, counters erased, or names added
	Took      time.Duration // of the last attempt
	// Overflowed is by prefix how many new names had no room.
	Overflowed map[string]int
	// MemoryHidden is why Redis did not say how full it is. Then memory bounds no names.
	MemoryHidden error
	// Ahead is how far Redis's clock is ahead of this process's (negative: behind), less what the round trip
	// may explain.
	Ahead time.Duration
	// Failed names the first key that could not be changed, and is a *window.ForeignError if another program
	// has written to it; it can be set together with an error. Hits are then missing from cells or summaries
	// although the cursor has passed them, because Redis does not roll back if a single command of a
	// transaction fails.
	Failed error

	under  string  // Writer.erased when the last transaction was sent
	losses []error // for Writer.OnLoss, once the commit is certain
}

// failed records the first key that caused a loss of hits. err is nil if no key did.
func (c *Commit) failed(err error) {
	if c.Failed == nil {
		c.Failed = err
	}
}

// OpenWriter reads the cursor of a stream on a shard.
func OpenWriter(ctx context.Context, s *schema.Store, layout window.Layout, stream string, shard int) (*Writer, error) {
	w := &Writer{
		store: s, layout: layout, stream: stream, shard: shard,
		key:   s.Keys.Cursor(shard, stream),
		watch: []string{s.Keys.Cursor(shard, stream), s.Keys.Erasure(shard)},
		salt:  window.HashCounter([]byte(stream)),
		id:    newWriterID(), registers: registerMemory{most: max(knownRegisters/layout.Shards, leastRegisters)},
		OnRetry: func(error) {}, OnLoss: func(error) {},
	}
	var err error
	read := s.Client.HMGet(ctx, w.key, slices.Concat(schema.CursorFields, schema.RareFields)...)
	if w.held, w.exists, err = schema.ParseCursor(w.key, read); err != nil {
		return nil, fmt.Errorf("read cursor %s: %w", w.key, err)
	}
	return w, nil
}

func newWriterID() string { return rand.Text()[:12] }

// Cursor returns the cursor that Redis last held, and whether there was one. AsOf may be later in Redis.
func (w *Writer) Cursor() (window.Cursor, bool) { return w.held.Cursor, w.exists }

// Commit adds a batch and moves the cursor to to, or does neither, and returns when the outcome is certain. A
// later AsOf in Redis at the same position stays, unless AsOf is to fall. It tries for as long as ctx lives.
// ErrFenced and ErrRewound mean that no hit was added unless the cursor shows it, and that the writer is
// unusable. *ForeignError (the cursor cannot be read) means that no hit was added. window.ErrBare means that
// any hit may have been added; the cursor shows it as torn.
func (w *Writer) Commit(ctx context.Context, batch *window.ShardBatch, to window.Cursor) (Commit, error) {
	next := schema.CursorRecord{Cursor: to, By: w.held.By}
	if !next.HasSameRare(w.held) {
		w.id = newWriterID() // if Redis loses this change, what is left must differ from it
	}
	if batch.Hits() > 0 || !w.exists || !next.IsSameAs(w.held) || !next.HasSameRare(w.held) {
		next.By = w.id
	}
	return w.commit(ctx, batch, next)
}

// Place decides which hits of a batch go into logs, and which logs it folds. Call it before Split; Commit
// calls it, too.
func (w *Writer) Place(batch *window.ShardBatch) {
	batch.Place(w.store.MaxLogBytes, w.salt, func(counterHash uint64, epoch int64) int {
		size, _ := w.logs.sizes.size(logID(counterHash, epoch))
		return size.bytes()
	})
}

// Write writes the cursor and adds nothing. It fails like Commit.
func (w *Writer) Write(ctx context.Context, to window.Cursor) error {
	_, err := w.Commit(ctx, w.emptyBatch(), to)
	return err
}

// Acquire is a Write that fences every other writer, also with an equal cursor. Call it before the first
// Commit.
func (w *Writer) Acquire(ctx context.Context, to window.Cursor) error {
	_, err := w.commit(ctx, w.emptyBatch(), schema.CursorRecord{Cursor: to, By: w.id})
	return err
}

func (w *Writer) emptyBatch() *window.ShardBatch { return &window.ShardBatch{Layout: w.layout} }

func (w *Writer) commit(ctx context.Context, batch *window.ShardBatch, next schema.CursorRecord) (Commit, error) {
	var out Commit
	if batch.Hits() > 0 && w.exists && next.Created == w.held.Created && next.Seq == w.held.Seq &&
		next.Ahead == w.held.Ahead {
		return out, fmt.Errorf("commit shard %d of %s at %d: %d hits without moving the cursor", w.shard, w.stream,
			next.Seq, batch.Hits())
	}
	w.Place(batch)
	backoff := minBackoff
	for {
		err := redisconn.Repeat(ctx, true, func() error { return w.attempt(ctx, batch, &next, &out) })
		if errors.Is(err, window.ErrBare) {
			err = errors.Join(err, w.markTorn(ctx))
		}
		switch {
		case err == nil:
			w.held, w.exists = next, true
			for _, why := range out.losses {
				w.OnLoss(why)
			}
			out.Hits = batch.Hits()
			return out, nil
		case errors.Is(err, ErrFenced), errors.Is(err, ErrRewound), errors.Is(err, window.ErrBare),
			window.IsForeign(err) && out.Attempts == 0:
			return out, fmt.Errorf("commit shard %d of %s at %d..%d: %w", w.shard, w.stream, w.held.Seq, next.Seq, err)
		case errors.Is(err, redis.TxFailedErr):
			out.Conflicts++
			continue // another writer changed the cursor, or what the commit rests on: read it again at once
		}
		w.OnRetry(fmt.Errorf("commit shard %d of %s at %d..%d (%d commands): %w", w.shard, w.stream, w.held.Seq,
			next.Seq, batch.Commands(), err))
		if err := wait.Sleep(ctx, backoff); err != nil {
			return out, fmt.Errorf("commit shard %d of %s at %d..%d: %w", w.shard, w.stream, w.held.Seq, next.Seq, err)
		}
		w.store.Client.RefreshMasters(ctx)
		backoff = min(2*backoff, maxBackoff)
	}
}

// markTorn lets the cursor show that Redis may have run a part of a transaction, until a commit reports it.
// Whatever Redis still runs of that part, opened is then too high. It tries for as long as ctx lives.
func (w *Writer) markTorn(ctx context.Context) error {
	for {
		err := w.store.MarkTorn(ctx, w.key)
		if err == nil {
			return nil
		}
		w.OnRetry(err)
		if wait.Sleep(ctx, maxBackoff) != nil {
			return err
		}
	}
}
