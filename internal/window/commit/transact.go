package commit

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// attempt runs one transaction. nil means that the cursor is at next.
func (w *Writer) attempt(ctx context.Context, batch *window.ShardBatch, next *schema.CursorRecord, out *Commit) error {
	start := time.Now()
	applied := false
	err := w.store.Client.Watch(ctx, w.watch, func(tx *cluster.WatchedTx) (err error) {
		applied, err = w.transact(ctx, tx, batch, next, out)
		return err
	})
	out.Took = time.Since(start)
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
	now, latest := clock.Unix(), w.store.LatestClocks.Observe(w.shard, clock)
	if latest.After(w.suspected) && clock.Add(clockMayFall).Before(latest) {
		w.suspected = latest
		w.forget() // what was known may have expired meanwhile
	}
	w.changes.compute(batch, w.shard, w.store.Keys, &w.expiries, &w.registers, now)
	if out.Attempts > 0 && exists && found.IsSameAs(*next) {
		// the previous attempt applied it, but its reply was lost
		return true, w.verifyApplied(ctx, tx, batch, now, out)
	}
	if err := w.compare(found, exists); err != nil {
		if out.Attempts > 0 && errors.Is(err, ErrFenced) && found.Created == next.Created &&
			!found.IsBehind(next.Cursor) {
			// The previous attempt may have been applied, and another worker may have gone on from there. If
			// not, that worker has counted these hits itself: they are in their cells either way.
			if lost := w.verifyApplied(ctx, tx, batch, now, out); lost != nil {
				return false, lost // the caller looks again
			}
		}
		return false, err
	}
	if exists && next.AsOf >= w.held.AsOf { // or as_of is to fall
		next.AsOf = max(next.AsOf, found.AsOf) // another idle worker may know more
	}
	w.reportLoss(found, clock, next, out)
	next.Opened = found.Opened + 1
	next.Closed = next.Opened
	if err := tops.merge(&w.changes); err != nil {
		return false, err
	}
	out.Attempts++
	out.under = w.erased
	err = w.exec(ctx, tx, &tops, *next, now, out)
	return err == nil, err
}

// forget drops what this writer remembers of Redis, except the cursor.
func (w *Writer) forget() {
	w.expiries = expiryMemory{}
	w.registers.forget()
}

// clockMayFall is how far Redis's clock may fall before a writer concludes that it was wrong before.
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
	erased string    // see Keys.Erasure; empty if nothing was ever erased
}

// readState reads the cursor, Redis's clock, the last erasure, and the summaries that the batch changes.
func (w *Writer) readState(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch, tops *topChange,
	out *Commit) (at state, err error) {
	var cursor *redis.SliceCmd
	var clock *redis.TimeCmd
	var erased *redis.StringCmd
	asked := time.Now()
	err = tx.Read(ctx, func(p redis.Pipeliner) {
		clock = p.Time(ctx)
		cursor = p.HMGet(ctx, w.key, schema.CursorFields...)
		erased = p.Get(ctx, w.store.Keys.Erasure(w.shard))
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
	out.Ahead = window.ClockAhead(at.clock, asked, time.Now())
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
		w.commands.queue(ctx, p, &w.changes)
		w.commands.queueUpdates(ctx, p, w.changes.updates.list)
		w.listNames(ctx, p)
		tops.write(ctx, p, now)
		p.Persist(ctx, w.key) // if the stream was wrongly taken for ended, its cursor had been given an expiry
		clock = p.Time(ctx)
		p.HSet(ctx, w.key, next.Values(w.held)...)
	})
	out.Commands = len(results) // go-redis leaves out MULTI and EXEC
	if err != nil && (clock.Err() != nil || clock.Val().IsZero()) {
		if !errors.Is(err, redis.TxFailedErr) {
			w.unverified = append(w.unverified, w.changes.trusted...)
			w.registers.forget() // Redis may not be what it was
		}
		return err
	}
	// EXEC has run. Any error from here on is that of a single command.
	out.failed(tops.foreign)
	var unexpected []*logChange
	if err == nil {
		for _, h := range w.changes.set {
			w.expiries.add(h.id, 0)
		}
		unexpected = w.learnSizes()
		for _, r := range w.changes.updates.list {
			w.registers.add(r.uniqueCell, r.registers)
		}
	} else {
		for _, command := range results {
			out.failed(cluster.FindForeign(command))
		}
	}
	if err = w.healExpiries(ctx, tx, w.changes.trusted, clock.Val().Unix()); err == nil {
		err = w.checkHeaders(ctx, tx, unexpected, out)
	}
	if err == nil {
		err = w.healUnverified(ctx, tx, clock.Val().Unix())
	}
	if err != nil {
		// Redis may have lost this transaction since, with the expiries and registers that are remembered. Then
		// the next attempt finds the cursor where it was, and goes on from there.
		w.forget()
		w.unverified = append(w.unverified, w.changes.trusted...)
	}
	return err
}

// verifyApplied does what the lost reply of an applied transaction would have led to.
func (w *Writer) verifyApplied(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch, now int64,
	out *Commit) error {
	if err := w.inspect(ctx, tx, batch, now, out); err != nil {
		return err
	}
	return w.healUnverified(ctx, tx, now)
}

// healUnverified repairs what attempts with lost replies did. The cursor has moved: none can be applied
// later.
func (w *Writer) healUnverified(ctx context.Context, tx *cluster.WatchedTx, now int64) error {
	err := w.healExpiries(ctx, tx, w.unverified, now)
	if err == nil {
		w.unverified = w.unverified[:0]
	}
	return err
}

// healExpiries repairs what a long stall before EXEC can cause: a hash whose expiry was trusted expired, and
// EXEC recreated it without one. EXPIREAT with a time in the past deletes it.
func (w *Writer) healExpiries(ctx context.Context, tx *cluster.WatchedTx, trusted []hashExpiry, execAt int64) error {
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

// commands builds the HINCRBY, APPEND and EXPIREAT commands, most of what a worker sends. The client takes
// interface values, which cost five allocations per command, so the arguments point into the changes. The
// next transaction reuses their memory.
type commands struct{ args []any }

// queue queues the logs and the increments, and then the expiries: past a hash's deadline, EXPIREAT deletes
// it, and a later increment would recreate it without an expiry. No command that was queued before may
// still be in use.
func (c *commands) queue(ctx context.Context, p redis.Pipeliner, changes *changes) {
	c.args = c.args[:0]
	c.queueLogs(ctx, p, changes.logs)
	for i := range changes.increments {
		inc := &changes.increments[i]
		_ = p.Process(ctx, redis.NewIntCmd(ctx, c.arguments("hincrby", &inc.key, &inc.field, &inc.n)...)) // queues it
	}
	for i := range changes.set {
		h := &changes.set[i]
		_ = p.Process(ctx, redis.NewBoolCmd(ctx, c.arguments("expireat", &h.key, &h.deadline)...)) // queues it
	}
}

func (c *commands) arguments(args ...any) []any {
	first := len(c.args)
	c.args = append(c.args, args...)
	return c.args[first:len(c.args):len(c.args)]
}

// inspectedCell is a cell of a batch, and what Redis has of it.
type inspectedCell struct {
	window.CellHits
	key      string
	deadline int64 // of its hash, Unix seconds
	reply    *redis.StringCmd
}

// inspect checks the cells and unique cells of a transaction whose reply was lost although the cursor has
// moved, for what the reply would have shown: single commands that failed. now is Redis's clock (Unix
// seconds) for which the changes were computed. If counters were erased since, a missing cell proves nothing.
// A failed command is missed only if an operator has repaired the key, and the very same cell has then got a
// hit, or anything was erased on this shard.
//
// Another worker may have gone on and counted these hits itself. It may have put them into logs where this
// writer put them into the tiers, or the other way round. So a cell may be in either.
func (w *Writer) inspect(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch, now int64,
	out *Commit) error {
	cells := make([][]inspectedCell, len(batch.Counters))           // by counter
	logs := make([]map[int64]*redis.StringCmd, len(batch.Counters)) // by counter and epoch
	raises := w.changes.updates.list
	var raised []*redis.StringCmd
	var last *redis.StringCmd
	_, _ = tx.Pipelined(ctx, func(p redis.Pipeliner) error { // the errors are those of the single commands
		for i := range batch.Counters {
			cells[i], logs[i] = w.queueInspection(ctx, p, batch, &batch.Counters[i], now)
		}
		raised = readRegisters(ctx, p, raises)
		last = p.Get(ctx, w.store.Keys.Erasure(w.shard)) // after the cells: an erasure that they show has changed it
		return nil
	})
	erased, err := schema.ParseErasure(last)
	if err != nil {
		return err
	}
	for i := range cells {
		logged, foreign, err := parseLogs(batch.NamesTier, logs[i])
		if err != nil {
			return err
		}
		for _, c := range cells[i] {
			t := w.layout.Tiers[c.Tier]
			if at := t.CellStart(c.Cell); slices.ContainsFunc(logged, func(start int64) bool {
				return at <= start && start < at+t.CellMillis()
			}) {
				continue
			}
			have, err := c.reply.Int64()
			switch {
			case errors.Is(err, redis.Nil):
				// Otherwise it may have expired since the clock was asked.
				if c.deadline-now > 1 && erased == out.under {
					out.failed(foreign)
					out.failed(&window.ForeignError{Key: c.key, Err: errors.New("hits that were added are not in it")})
				}
			case c.reply.Err() != nil:
				if err := cluster.WrapForeign(c.key, c.reply.Err()); !window.IsForeign(err) {
					return err
				}
				out.failed(&window.ForeignError{Key: c.key, Err: c.reply.Err()})
			case err != nil:
				out.failed(&window.ForeignError{Key: c.key, Err: err})
			case have > math.MaxInt64-c.N:
				out.failed(&window.ForeignError{Key: c.key, Err: errors.New("one more hit would overflow it")})
			}
		}
	}
	for i := range raises {
		failed, err := checkRegister(&raises[i], raised[i], raises[i].deadline-now <= 1 || erased != out.under)
		if err != nil {
			return err
		}
		if failed != nil {
			out.failed(failed)
		}
	}
	return nil
}

// queueInspection queries the cells of a counter in the tiers, and the logs in which they can be, by epoch.
func (w *Writer) queueInspection(ctx context.Context, p redis.Pipeliner, batch *window.ShardBatch,
	counter *window.CounterHits, now int64) (cells []inspectedCell, logs map[int64]*redis.StringCmd) {
	hash := func(t window.Tier, epoch int64) string {
		return w.store.Keys.Hash(window.CellHash{Shard: w.shard, Counter: counter.Name, Tier: t, Epoch: epoch})
	}
	for _, cell := range batch.Cells(counter.Dense(), nil) {
		t := w.layout.Tiers[cell.Tier]
		c := inspectedCell{CellHits: cell, key: hash(t, cell.Epoch)}
		if c.deadline = t.Deadline(cell.Epoch, counter.CounterHash); c.deadline > now {
			c.reply = redis.NewStringCmd(ctx, "hget", c.key, cell.Field)
			_ = p.Process(ctx, c.reply) // queues it
			cells = append(cells, c)
		}
	}
	if !batch.NamesTier.Sparse {
		return cells, nil
	}
	logs = make(map[int64]*redis.StringCmd)
	for _, cell := range batch.LogCells(counter, nil) {
		if cell.First {
			logs[cell.Epoch] = p.GetRange(ctx, hash(batch.NamesTier, cell.Epoch), 0, -1) // empty for none
		}
	}
	return cells, logs
}

// parseLogs returns when the cells in logs of a counter begin, and foreign for a log that another program
// has written to. Any error means that the outcome is unknown.
func parseLogs(t window.Tier, logs map[int64]*redis.StringCmd) (starts []int64, foreign *window.ForeignError,
	err error) {
	for epoch, reply := range logs {
		var cells []window.StoredCell
		text, err := reply.Result()
		switch {
		case err != nil && !cluster.IsAboutValue(err):
			return nil, nil, err
		case err == nil && text != "":
			cells, err = t.ParseLog(text)
		}
		if err != nil {
			foreign = &window.ForeignError{Key: reply.Args()[1].(string), Err: err}
		}
		for _, c := range cells {
			starts = append(starts, t.CellStart(t.CellIn(epoch, c.Field)))
		}
	}
	return starts, foreign, nil
}
