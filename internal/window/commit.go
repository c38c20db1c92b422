package window

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrFenced says that another worker has moved the cursor: drop the batch and let the stream go.
	ErrFenced = errors.New("fenced: another worker has moved the cursor")
	// ErrRewound says that Redis is at an older commit than this writer's last:
	// drop the batch and read the stream again from the cursor.
	ErrRewound = errors.New("rewound: Redis has lost commits")
)

// The pause before a commit whose fate was unknown is looked at again.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// Writer commits one stream to one shard. It remembers the cursor that it wrote
// last and refuses to go on from another one. It is not safe for concurrent use.
type Writer struct {
	store  *Store
	layout Layout
	stream string
	shard  int
	key    string // of the cursor

	id       string // see record.by
	held     record // what Redis last said, for compare-and-set
	exists   bool   // whether the record existed then
	expiries expiryMemory
	prefixes map[tierEpoch]string
	commands commands

	// OnRetry is told of each attempt whose fate is unknown, before the pause.
	OnRetry func(error)
}

type tierEpoch struct {
	tier  int
	epoch int64
}

// Commit is what one commit did.
type Commit struct {
	Hits      int64         // counted
	Commands  int           // in the transaction, without MULTI and EXEC
	Attempts  int           // transactions tried; 0 where an earlier one had been applied
	Conflicts int           // EXECs refused because the cursor was touched
	Took      time.Duration // of the last attempt
	// Ahead is how much Redis's clock is ahead of this process's, less what the
	// round trip may explain; negative if it is behind.
	Ahead time.Duration
	// Failed names the first key that something else has written to, so that hits
	// of this batch are in no cell, or in no summary, though the cursor has passed them: Redis
	// does not roll back if a single command of a transaction fails. It can be set beside an error.
	Failed *ForeignError
}

// OpenWriter reads the cursor of a stream on a shard.
func (s *Store) OpenWriter(ctx context.Context, layout Layout, stream string, shard int) (*Writer, error) {
	w := &Writer{
		store: s, layout: layout, stream: stream, shard: shard,
		key:      s.keys.cursor(shard, stream),
		id:       rand.Text()[:12],
		prefixes: make(map[tierEpoch]string),
		OnRetry:  func(error) {},
	}
	var err error
	read := s.client.HMGet(ctx, w.key, append(slices.Clone(cursorFields), namingField)...)
	if w.held, w.exists, err = readRecord(w.key, read); err != nil {
		return nil, fmt.Errorf("read cursor %s: %w", w.key, err)
	}
	return w, nil
}

// Cursor is the cursor that Redis last held, and whether there was one.
func (w *Writer) Cursor() (Cursor, bool) { return w.held.Cursor, w.exists }

// Commit adds the cells and moves the cursor to the place to, both or neither, and
// returns when that is certain. It tries for as long as ctx lives. ErrFenced and
// ErrRewound mean that nothing of this batch was added that the cursor does not
// tell of, and that the writer is of no more use. So does a *ForeignError: the cursor cannot be read.
func (w *Writer) Commit(ctx context.Context, cells *Cells, to Cursor) (Commit, error) {
	var out Commit
	next := record{to, w.held.by}
	if cells.Hits() > 0 || !w.exists || !next.same(w.held) || next.Naming != w.held.Naming {
		next.by = w.id
	}
	if cells.Hits() > 0 && w.exists && next.Created == w.held.Created && next.Seq == w.held.Seq && next.Ahead == w.held.Ahead {
		return out, fmt.Errorf("commit shard %d of %s at %d: %d hits without moving the cursor", w.shard, w.stream, next.Seq, cells.Hits())
	}
	backoff := minBackoff
	for {
		err := w.attempt(ctx, cells, next, &out)
		switch {
		case err == nil:
			w.held, w.exists = next, true
			out.Hits = cells.Hits()
			return out, nil
		case errors.Is(err, ErrFenced), errors.Is(err, ErrRewound), isForeign(err):
			return out, fmt.Errorf("commit shard %d of %s at %d..%d: %w", w.shard, w.stream, w.held.Seq, next.Seq, err)
		case errors.Is(err, redis.TxFailedErr):
			out.Conflicts++
			continue // the cursor was touched: read it again at once
		}
		w.OnRetry(fmt.Errorf("commit shard %d of %s at %d..%d (%d commands): %w", w.shard, w.stream, w.held.Seq, next.Seq, cells.Commands(), err))
		select {
		case <-ctx.Done():
			return out, fmt.Errorf("commit shard %d of %s at %d..%d: %w", w.shard, w.stream, w.held.Seq, next.Seq, ctx.Err())
		case <-time.After(backoff):
		}
		w.store.findMasters(ctx)
		backoff = min(2*backoff, maxBackoff)
	}
}

// attempt runs one transaction. nil means that the cursor is at next.
func (w *Writer) attempt(ctx context.Context, cells *Cells, next record, out *Commit) error {
	start := time.Now()
	applied := false
	err := w.store.watch(ctx, w.key, func(tx *redis.Tx) error {
		var cursor *redis.SliceCmd
		var clock *redis.TimeCmd
		tops := topChange{writer: w}
		asked := time.Now()
		// The errors are those of the single commands, below: a foreign key has one of its own.
		_, _ = tx.Pipelined(ctx, func(p redis.Pipeliner) error {
			clock = p.Time(ctx)
			cursor = p.HMGet(ctx, w.key, cursorFields...)
			tops.read(ctx, p, cells)
			return nil
		})
		if err := clock.Err(); err != nil {
			return err
		}
		out.Ahead = ClockAhead(clock.Val(), asked, time.Now())
		found, exists, err := readRecord(w.key, cursor)
		if err != nil {
			return err
		}
		if out.Attempts > 0 && exists && found.same(next) {
			applied = true // by the attempt before, whose reply was lost
			return w.inspect(ctx, tx, cells, clock.Val().Unix(), out)
		}
		if err := w.compare(found, exists); err != nil {
			if out.Attempts > 0 && errors.Is(err, ErrFenced) && found.Created == next.Created && !found.behind(next.Cursor) {
				// The attempt before may have been applied, and another worker have gone on from there. If it was
				// not, that worker has counted these hits itself: they are in their cells in either case.
				if lost := w.inspect(ctx, tx, cells, clock.Val().Unix(), out); lost != nil {
					return lost // and look again
				}
			}
			return err
		}
		if exists {
			next.AsOf = max(next.AsOf, found.AsOf) // another idle worker may know more
		}
		if err := tops.add(cells); err != nil {
			return err
		}
		out.Attempts++
		if err := w.exec(ctx, tx, cells, &tops, next, clock.Val().Unix(), out); err != nil {
			return err
		}
		applied = true
		return nil
	})
	out.Took = time.Since(start)
	if err == nil && !applied {
		// A client may come back without having run the function.
		err = errors.New("the transaction was not run")
	}
	return err
}

// compare decides whether this writer may go on from the cursor in Redis.
func (w *Writer) compare(found record, exists bool) error {
	switch {
	case exists == w.exists && found.same(w.held):
		return nil
	case !exists, w.exists && found.Created == w.held.Created && found.behind(w.held.Cursor):
		return ErrRewound
	default:
		return ErrFenced
	}
}

// exec sends MULTI … EXEC. now is Redis's own clock in Unix seconds, so that a
// worker's wrong clock can neither drop cells nor leave a hash without expiry.
func (w *Writer) exec(ctx context.Context, tx *redis.Tx, cells *Cells, tops *topChange, next record, now int64, out *Commit) error {
	var trusted, set []hashExpiry // hashes whose expiry is taken to be set, and is set here
	names := make(newNames)
	var clock *redis.TimeCmd
	w.commands.reset()
	results, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
		var each []cellCount
		for k := range cells.counters {
			c := &cells.counters[k]
			each = cells.cells(c, each)
			for i, cell := range each {
				t := w.layout.Tiers[cell.tier]
				epoch, field := t.place(cell.cell)
				deadline := t.deadline(epoch, c.hash)
				if deadline <= now {
					continue // expired since the hit was stored
				}
				key := w.prefix(cell.tier, epoch) + c.name
				w.commands.increment(ctx, p, key, field, cell.n)
				if firstOfHash(t, each, i) {
					id := hashID(c.hash, cell.tier, epoch)
					h := hashExpiry{key, id, deadline}
					if w.expiries.has(id) && deadline-now >= trustSeconds {
						trusted = append(trusted, h)
					} else {
						set = append(set, h)
						if cell.tier == len(w.layout.Tiers)-1 {
							names[epoch] = append(names[epoch], redis.Z{Member: c.name})
						}
					}
				}
			}
		}
		// After all increments: past its deadline EXPIREAT deletes the hash, and an
		// increment behind it would make it anew without an expiry.
		for _, h := range set {
			w.commands.expireAt(ctx, p, h.key, h.deadline)
		}
		names.write(ctx, p, w)
		tops.write(ctx, p, now)
		p.HSet(ctx, w.key, next.values(w.held)...)
		p.Persist(ctx, w.key) // the cursor of a stream that was taken for ended had been given an expiry
		clock = p.Time(ctx)
		return nil
	})
	out.Commands = len(results) // with the two of the transaction left out by go-redis
	if err == nil || clock.Err() == nil && !clock.Val().IsZero() {
		// EXEC has run. An error now is one of a single command.
		out.failed(tops.foreign)
		if err == nil {
			w.remember(set)
		} else {
			for _, command := range results {
				out.failed(foreignCommand(command))
			}
		}
		return w.healExpiries(ctx, tx, trusted, clock.Val().Unix())
	}
	return err
}

// failed notes the first key that made hits of the batch get lost; nil is none.
func (c *Commit) failed(err *ForeignError) {
	if c.Failed == nil {
		c.Failed = err
	}
}

type hashExpiry struct {
	key      string
	id       uint64 // see hashID
	deadline int64
}

// trustSeconds is how long a hash must have to live for its expiry to be taken
// as set: longer than an EXEC can be on its way when the worker that sent it has
// died and cannot mend what it does.
const trustSeconds = 60

// healExpiries mends what a very long stall before EXEC can do: a hash whose
// expiry had been trusted passed its deadline, vanished, and was made anew
// without one. EXPIREAT in the past deletes it.
func (w *Writer) healExpiries(ctx context.Context, tx *redis.Tx, trusted []hashExpiry, execAt int64) error {
	_, err := tx.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, h := range trusted {
			if h.deadline <= execAt {
				p.ExpireAt(ctx, h.key, time.Unix(h.deadline, 0))
			}
		}
		return nil
	})
	return err
}

func (w *Writer) prefix(tier int, epoch int64) string {
	k := tierEpoch{tier, epoch}
	p, ok := w.prefixes[k]
	if !ok {
		if len(w.prefixes) > 1024 { // epochs pass; keep only the recent ones
			clear(w.prefixes)
		}
		p = w.store.keys.cellsPrefix(w.shard, w.layout.Tiers[tier], epoch)
		w.prefixes[k] = p
	}
	return p
}

func (w *Writer) remember(set []hashExpiry) {
	for _, h := range set {
		w.expiries.add(h.id)
	}
}
