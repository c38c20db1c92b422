package commit

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// changes are what a transaction adds to a shard. This file computes them without Redis, and Writer.exec
// sends them. The next transaction reuses their memory.
type changes struct {
	increments []increment
	logs       []logChange
	names      map[int64][]string // by set (see Tier.NamesOf), the counters to list
	listed     []uint64           // the logs of these counters, and of these sets
	segments   []window.SegmentHits
	updates    registerUpdates

	index    map[window.Segment]int // of segments
	cells    []window.CellHits      // of the current counter
	logBytes []byte
}

type increment struct {
	key      string
	field, n int64
	deadline int64 // of the hash (Unix seconds), if this is the last of its increments; 0 otherwise
}

// compute computes what a batch changes at now (Redis's clock, Unix seconds), without cells that have expired
// meanwhile. known are the logs, raised the registers that are in Redis.
func (c *changes) compute(batch *window.ShardBatch, shard int, keys schema.Keys, known *sizeMemory,
	raised *registerMemory, now int64) {
	c.reset()
	layout := batch.Layout
	for i := range batch.Counters {
		counter := &batch.Counters[i]
		counter.Order()
		if counter.Extras != nil {
			c.updates.compute(layout, shard, keys, counter, raised, now)
		}
		c.cells = batch.Cells(counter, c.cells)
		for k, cell := range c.cells {
			t := layout.Tiers[cell.Tier]
			deadline := t.Deadline(cell.Epoch, counter.CounterHash)
			if deadline <= now {
				continue
			}
			inc := increment{field: cell.Field, n: min(cell.N, window.Saturated)}
			if cell.First {
				inc.key = keys.Hash(window.CellHash{Shard: shard, Counter: counter.Name, Tier: t, Epoch: cell.Epoch})
			} else {
				inc.key = c.increments[len(c.increments)-1].key
			}
			if k == len(c.cells)-1 || c.cells[k+1].First {
				inc.deadline = deadline
			}
			c.increments = append(c.increments, inc)
			if counter.Name == window.AllHits {
				continue
			}
			if layout.HasSummaries(cell.Tier) {
				c.segment(window.Segment{Tier: cell.Tier, Number: t.SegmentOf(cell.Cell)}).Add(counter.Name, cell.N)
			}
			if cell.First && cell.Tier == len(layout.Tiers)-1 {
				epoch := batch.NamesTier.EpochAt(t.EpochStart(cell.Epoch))
				c.list(batch.NamesTier, counter, epoch, known)
			}
		}
		if counter.Name != window.AllHits && counter.IsSparse() {
			c.addLogs(batch, counter, shard, keys, known, now)
		}
	}
	c.finishLogs()
	c.updates.finish()
}

// list lists a counter with hits in an epoch, unless it is known to be listed.
func (c *changes) list(t window.Tier, counter *window.CounterHits, epoch int64, known *sizeMemory) {
	id := logID(counter.CounterHash, epoch)
	if _, listed := known.size(id); listed || len(c.listed) > 0 && c.listed[len(c.listed)-1] == id {
		return
	}
	c.names[t.NamesOf(epoch)] = append(c.names[t.NamesOf(epoch)], counter.Name)
	c.listed = append(c.listed, id)
}

// reset drops the previous changes. None of them may still be in use.
func (c *changes) reset() {
	clear(c.increments)
	clear(c.logs)
	for i := range c.segments {
		clear(c.segments[i].Counters)
	}
	c.updates.reset()
	c.increments, c.segments, c.listed = c.increments[:0], c.segments[:0], c.listed[:0]
	c.logs, c.logBytes = c.logs[:0], c.logBytes[:0]
	c.names, c.index = make(map[int64][]string), make(map[window.Segment]int)
}

// segment finds the segment or adds it, reusing the memory of an earlier one.
func (c *changes) segment(s window.Segment) *window.SegmentHits {
	i, ok := c.index[s]
	if !ok {
		i = len(c.segments)
		c.index[s] = i
		if i < cap(c.segments) {
			c.segments = c.segments[:i+1]
		} else {
			c.segments = append(c.segments, window.SegmentHits{})
		}
		c.segments[i] = window.SegmentHits{Segment: s, Counters: c.segments[i].Counters[:0]}
	}
	return &c.segments[i]
}

func (c *changes) hits(s window.Segment) []window.Listing {
	if i, ok := c.index[s]; ok {
		return c.segments[i].Counters
	}
	return nil
}

// listNames queues the names of the changes, and their sets' expiries. These must be last in the transaction.
func (w *Writer) listNames(ctx context.Context, p redis.Pipeliner) {
	t := w.layout.NamesTier()
	for set, names := range w.changes.names {
		slices.Sort(names) // Redis then inserts them in 0.7 to 0.85 of the time, most of what a new counter costs
		List(ctx, p, w.store.Keys.Names(w.shard, t, set), names, t.NamesDeadline(set))
	}
	for set, names := range w.changes.updates.names {
		List(ctx, p, w.store.Keys.UniqueNames(w.shard, set), names, w.layout.UniqueNamesDeadline(set))
	}
}

// List queues names for a set, and its expiry (Unix seconds).
func List(ctx context.Context, p redis.Pipeliner, set string, names []string, deadline int64) {
	members := make([]redis.Z, len(names))
	for i := range names {
		members[i].Member = names[i]
	}
	p.ZAdd(ctx, set, members...)
	p.ExpireAt(ctx, set, time.Unix(deadline, 0))
}
