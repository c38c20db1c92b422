package commit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// attempt runs one transaction. nil means that the cursor is at next.
func (w *Writer) attempt(ctx context.Context, batch *window.ShardBatch, next *schema.CursorRecord, out *Commit) error {
	start := time.Now()
	applied := false
	watched := w.watch
	if out.Conflicts == 0 { // or another stream with the same counters could keep it from ever committing
		watched = slices.Concat(watched, w.logs.watch(batch, w.shard, w.store.Keys))
	} else {
		w.logs.folds = nil
	}
	err := w.store.Client.Watch(ctx, watched, func(tx *cluster.WatchedTx) (err error) {
		applied, err = w.transact(ctx, tx, batch, next, out)
		return err
	})
	out.Took = time.Since(start)
	if unlisted, ok := errors.AsType[*unlistedError](err); ok {
		if err := w.store.Overflows.List(ctx, unlisted.bound, unlisted.now); err != nil {
			return err
		}
		return w.attempt(ctx, batch, next, out)
	}
	if err == nil && !applied {
		// A client may return without having run the function.
		err = errors.New("the transaction was not run")
	}
	return err
}

// transact is attempt under the WATCH of cursor and erasures. It reports whether the cursor is at next.
func (w *Writer) transact(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch,
	next *schema.CursorRecord, out *Commit) (applied bool, err error) {
	tops := topChange{writer: w}
	at, err := w.readState(ctx, tx, batch, &tops, out)
	if err != nil {
		return false, err
	}
	found, exists, clock := at.CursorRecord, at.exists, at.clock
	if at.erased != w.erased {
		w.erased = at.erased
		w.forget() // what was known may be gone, and its name off the list
	}
	now := clock.Unix()
	latest, fell := w.store.LatestClocks.Observe(w.shard, clock, at.asked)
	if fell > clockMayFall && latest.After(w.suspected) {
		w.suspected = latest
		w.forget() // what was known may have expired meanwhile
	}
	if out.Attempts > 0 && exists && found.IsSameAs(*next) {
		return true, w.logs.check(ctx, tx, w.store.Keys.Erasure(w.shard), out) // the previous attempt applied it
	}
	if err := w.compare(found, exists); err != nil {
		return false, err
	}
	w.logs.suspect = w.logs.suspect[:0]
	if err := w.moveOverflow(ctx, tx, batch, clock, out); err != nil {
		return false, err
	}
	w.changes.compute(batch, w.shard, w.store.Keys, &w.logs.sizes, &w.registers, now)
	if exists && next.AsOf >= w.held.AsOf { // or as_of is to fall
		next.AsOf = max(next.AsOf, found.AsOf) // another idle worker may know more
	}
	w.reportLoss(found, clock, next, out)
	next.Opened = found.Opened + 1
	next.Closed = next.Opened
	if err := tops.merge(&w.changes); err != nil {
		return false, err
	}
	if err := w.logs.fold(ctx, tx, batch, w.shard, w.store, w.changes.logs, now); err != nil {
		return false, err
	}
	out.Attempts++
	out.under = w.erased
	err = w.exec(ctx, tx, &tops, *next, now, out)
	if redisconn.IsFull(err) || errors.Is(err, redis.TxFailedErr) {
		batch.Bounded = false // nothing was applied, and new names may have no room now
	}
	return err == nil, err
}

// forget drops what this writer remembers of Redis, except the cursor.
func (w *Writer) forget() {
	w.logs.sizes = sizeMemory{}
	w.registers.forget()
}

// clockMayFall is how far Redis's clock may fall, compared with what has passed, before a writer concludes
// that it was wrong before.
const clockMayFall = 2 * time.Second

// reportLoss marks in next what the cursor in Redis and Redis's clock show: hits counted twice, or not at
// all.
func (w *Writer) reportLoss(found schema.CursorRecord, clock time.Time, next *schema.CursorRecord, out *Commit) {
	doubt := func(before int64, why error) {
		if before > next.IncompleteBefore {
			next.IncompleteBefore = before
			out.losses = append(out.losses, why)
		}
	}
	if found.IsTorn() {
		doubt(max(clock.UnixMilli(), found.AsOf, next.AsOf, found.Latest/1e6, next.Latest/1e6)+1, ErrTorn)
	}
	// Hashes with a deadline before the latest moment that this clock has shown may have expired, and commits
	// left them out. Every stream marks this, also one of which nothing was committed meanwhile.
	if clock.Before(w.suspected) {
		doubt(w.suspected.UnixMilli()+1, ErrClockFell)
	}
}

type state struct {
	schema.CursorRecord
	exists bool      // the record
	clock  time.Time // of Redis
	asked  time.Time // when this process asked for it
	erased string    // see Keys.Erasure; empty if nothing was ever erased
}

// readState reads the cursor, Redis's clock, the last erasure, and the summaries that the batch changes.
func (w *Writer) readState(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch, tops *topChange,
	out *Commit) (at state, err error) {
	var cursor *redis.SliceCmd
	var clock *redis.TimeCmd
	var erased *redis.StringCmd
	at.asked = time.Now()
	err = tx.Read(ctx, func(p redis.Pipeliner) {
		clock = p.Time(ctx)
		cursor = p.HMGet(ctx, w.key, schema.CursorFields...)
		erased = p.Get(ctx, w.store.Keys.Erasure(w.shard))
		w.logs.queueReads(ctx, p)
		tops.queueReads(ctx, p, batch)
	})
	if err == nil {
		err = clock.Err()
	}
	if err == nil {
		at.erased, err = schema.ParseErasure(erased)
	}
	if err != nil {
		return state{}, err
	}
	at.clock = clock.Val()
	out.Ahead = window.ClockAhead(at.clock, at.asked, time.Now())
	at.CursorRecord, at.exists, err = schema.ParseCursor(w.key, cursor)
	return at, err
}

// compare decides whether this writer may continue from the cursor in Redis.
func (w *Writer) compare(found schema.CursorRecord, exists bool) error {
	switch {
	case exists == w.exists && found.IsSameAs(w.held):
		return nil
	case !exists, w.exists && found.Created == w.held.Created && found.IsBehind(w.held.Cursor):
		return ErrRewound
	default:
		return ErrFenced
	}
}

// exec sends MULTI … EXEC with the writer's changes. now is Redis's clock in Unix seconds, so a worker with a
// wrong clock can neither drop cells nor leave a hash without an expiry.
func (w *Writer) exec(ctx context.Context, tx *cluster.WatchedTx, tops *topChange, next schema.CursorRecord, now int64,
	out *Commit) error {
	var clock *redis.TimeCmd
	results, err := tx.Exec(ctx, func(p redis.Pipeliner) {
		p.HIncrBy(ctx, w.key, "opened", 1) // first, and "closed" last: see CursorRecord.IsTorn
		if !w.exists {                     // an eraser may not know of the stream yet
			p.Set(ctx, w.store.Keys.Erasure(w.shard), w.erased+" "+w.id, 0)
		}
		w.commands.queue(ctx, p, &w.changes, w.layout.NamesTier(), now)
		w.commands.queueUpdates(ctx, p, w.changes.updates.list)
		w.listNames(ctx, p)
		tops.write(ctx, p, now)
		w.commands.queueFolds(ctx, p, w.logs.folds)
		p.Persist(ctx, w.key) // if the stream was wrongly taken for ended, its cursor had been given an expiry
		clock = p.Time(ctx)
		p.HSet(ctx, w.key, next.Values(w.held)...)
	})
	out.Commands = len(results) // go-redis leaves out MULTI and EXEC
	if err != nil && (clock.Err() != nil || clock.Val().IsZero()) {
		if !errors.Is(err, redis.TxFailedErr) {
			w.registers.forget() // Redis may not be what it was
		}
		return err
	}
	// EXEC has run. Any error from here on is that of a single command.
	out.failed(tops.foreign)
	if err != nil {
		err = firstFailed(results)
		out.failed(err)
	}
	w.logs.learn(&w.changes, err == nil, out)
	if err == nil {
		for _, r := range w.changes.updates.list {
			w.registers.add(r.uniqueCell, r.registers)
		}
	}
	if err = w.logs.check(ctx, tx, w.store.Keys.Erasure(w.shard), out); err != nil {
		// Redis may have lost this transaction since, with what is remembered. Then the next attempt finds the
		// cursor where it was, and goes on from there.
		w.forget()
	}
	return err
}

func firstFailed(results []redis.Cmder) error {
	for _, command := range results {
		if err := cluster.FindFailed(command); err != nil {
			return err
		}
	}
	return nil
}

// commands builds the HINCRBY, APPEND and EXPIREAT commands, most of what a worker sends. The client takes
// interface values, which cost five allocations per command, so the arguments point into the changes. The
// next transaction reuses their memory.
type commands struct{ args []any }

// queue queues the logs and the increments, and after those of a hash its expiry: past the deadline, EXPIREAT
// deletes the hash, and a later increment would recreate it without one. No command that was queued before
// may still be in use.
func (c *commands) queue(ctx context.Context, p redis.Pipeliner, changes *changes, t window.Tier, now int64) {
	c.args = c.args[:0]
	c.queueLogs(ctx, p, changes.logs, t, now)
	for i := range changes.increments {
		inc := &changes.increments[i]
		_ = p.Process(ctx, redis.NewIntCmd(ctx, c.arguments("hincrby", &inc.key, &inc.field, &inc.n)...)) // queues it
		if inc.deadline > 0 {
			_ = p.Process(ctx, redis.NewBoolCmd(ctx, c.arguments("expireat", &inc.key, &inc.deadline)...))
		}
	}
}

func (c *commands) arguments(args ...any) []any {
	first := len(c.args)
	c.args = append(c.args, args...)
	return c.args[first:len(c.args):len(c.args)]
}
