package commit

import (
	"cmp"
	"context"
	"errors"
	"math"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// logChange is what a transaction appends to a sparse log (see window.Layout.SparseTier).
type logChange struct {
	hashExpiry
	create   bool // SET comes first, because the log may be missing
	from, to int  // of changes.logBytes
	text     string

	created  *redis.BoolCmd // nil without create
	appended *redis.IntCmd
}

// busyCounter is a counter whose hits go into the tiers, and the bytes that its log would have taken.
type busyCounter struct {
	id    uint64 // of the log
	bytes int
}

// addLogs lists what goes into the logs of a counter, like compute.
func (c *changes) addLogs(batch *window.ShardBatch, counter *window.CounterHits, shard int, keys schema.Keys,
	known *expiryMemory, now int64) {
	layout, t := batch.Layout, batch.NamesTier
	c.cells = batch.LogCells(counter, c.cells)
	if !counter.IsSparse() {
		if last := len(c.cells) - 1; last >= 0 {
			id := hashID(counter.CounterHash, len(layout.Tiers), c.cells[last].Epoch)
			c.busy = append(c.busy, busyCounter{id, counter.LogBytes()})
		}
		return
	}
	for _, cell := range c.cells {
		deadline := t.Deadline(cell.Epoch, counter.CounterHash)
		if deadline <= now {
			continue
		}
		for i, level := range layout.Tiers {
			if layout.HasSummaries(i) {
				number := level.SegmentOf(level.CellAt(t.CellStart(cell.Cell)))
				c.segment(window.Segment{Tier: i, Number: number}).Add(counter.Name, cell.N)
			}
		}
		if cell.First {
			key := keys.Hash(window.CellHash{Shard: shard, Counter: counter.Name, Tier: t, Epoch: cell.Epoch})
			h := hashExpiry{key, hashID(counter.CounterHash, len(layout.Tiers), cell.Epoch), deadline}
			l := logChange{hashExpiry: h, from: len(c.logBytes), create: !known.has(h.id)}
			if deadline-now < window.TrustSeconds { // SET alone would not do: see commands.queue
				l.create = true
				c.set = append(c.set, h)
			} else {
				c.trusted = append(c.trusted, h)
			}
			if l.create {
				set := t.NamesOf(cell.Epoch)
				c.names[set] = append(c.names[set], counter.Name)
			}
			c.logs = append(c.logs, l)
		}
		c.logBytes = window.AppendLogCell(c.logBytes, cell.Field, cell.N)
		c.logs[len(c.logs)-1].to = len(c.logBytes)
	}
}

// finishLogs builds the texts; call it last.
func (c *changes) finishLogs() {
	text := string(c.logBytes)
	for i := range c.logs {
		l := &c.logs[i]
		l.text = text[l.from:l.to]
	}
}

func (c *commands) queueLogs(ctx context.Context, p redis.Pipeliner, list []logChange) {
	for i := range list {
		l := &list[i]
		if l.create {
			l.created = redis.NewBoolCmd(ctx,
				c.arguments("set", &l.key, window.LogHeader, "nx", "exat", &l.deadline)...)
			_ = p.Process(ctx, l.created) // queues it
		}
		l.appended = redis.NewIntCmd(ctx, c.arguments("append", &l.key, &l.text)...)
		_ = p.Process(ctx, l.appended)
	}
}

// logSize is what expiryMemory can hold of a log's size. A log that large is appended to no more.
func logSize[T int | int64](bytes T) uint16 { return uint16(min(bytes, math.MaxUint16)) }

// learnSizes remembers how large logs are after EXEC, or would be. It returns the logs that have another
// length than this writer's last one and what it appended: another stream has hits of the counter, or
// something else writes there.
func (w *Writer) learnSizes() (unexpected []*logChange) {
	for i := range w.changes.logs {
		l := &w.changes.logs[i]
		before, length := w.sizes.size(l.id), l.appended.Val()
		if l.create && l.created.Val() {
			before = len(window.LogHeader)
		}
		if before == 0 || int64(before+len(l.text)) != length {
			unexpected = append(unexpected, l)
		}
		w.sizes.add(l.id, logSize(length))
		w.expiries.add(l.id, 0)
	}
	for _, b := range w.changes.busy {
		w.sizes.add(b.id, logSize(w.sizes.size(b.id)+b.bytes))
	}
	return unexpected
}

// checkHeaders checks that keys are logs. A log that another program has deleted, or that has expired
// because the clock of Redis was ahead, has no header now, and holds only what was appended. It is deleted,
// so that later hits count.
//
// If a key is gone by now, its hits are lost, unless it has expired or was erased since: an operator may have
// deleted what another program had written there. A loss is missed only if the key is a log again by now, or
// anything was erased on this shard since.
func (w *Writer) checkHeaders(ctx context.Context, tx *cluster.WatchedTx, list []*logChange, out *Commit) error {
	if len(list) == 0 {
		return nil
	}
	replies := make([]*redis.StringCmd, len(list))
	var clock *redis.TimeCmd
	var last *redis.StringCmd
	_, _ = tx.Pipelined(ctx, func(p redis.Pipeliner) error { // the errors are those of the single commands
		for i, l := range list {
			replies[i] = p.GetRange(ctx, l.key, 0, int64(len(window.LogHeader)-1))
		}
		clock, last = p.Time(ctx), p.Get(ctx, w.store.Keys.Erasure(w.shard)) // they explain what is gone
		return nil
	})
	erased, err := schema.ParseErasure(last)
	if err = cmp.Or(err, clock.Err()); err != nil {
		return err
	}
	for i, l := range list {
		switch text, err := replies[i].Result(); {
		case err != nil && !cluster.IsAboutValue(err):
			return err
		case text == window.LogHeader,
			err == nil && text == "" && (erased != out.under || l.deadline <= clock.Val().Unix()):
			continue
		case int64(len(l.text)) == l.appended.Val():
			if err := tx.Del(ctx, l.key).Err(); err != nil {
				return err
			}
			w.forget()
		}
		out.failed(&window.ForeignError{Key: l.key, Err: errors.New("not a sparse log")})
	}
	return nil
}
