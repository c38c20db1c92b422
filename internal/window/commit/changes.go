package commit

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// changes are what a transaction adds to a shard. This file computes them without Redis, Writer.exec sends
// them, and Writer.inspect looks for them in Redis. The next transaction reuses their memory.
type changes struct {
	increments []increment
	logs       []logChange
	set        []hashExpiry       // to be set, after all increments
	trusted    []hashExpiry       // assumed to be set already, or set by SET
	names      map[int64][]string // by set (see Tier.NamesOf), the counters whose expiry the transaction sets
	segments   []window.SegmentHits
	updates    registerUpdates
	busy       []busyCounter

	index    map[window.Segment]int // of segments
	cells    []window.CellHits      // of the current counter
	logBytes []byte
}

type increment struct {
	key      string
	field, n int64
}

type hashExpiry struct {
	key      string
	id       uint64 // see hashID
	deadline int64  // Unix seconds
}

// compute computes what a batch changes at now (Redis's clock, Unix seconds), without cells that have expired
// meanwhile. known are the hashes whose expiry was set, raised the registers that are in Redis.
func (c *changes) compute(batch *window.ShardBatch, shard int, keys schema.Keys, known *expiryMemory,
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
		for _, cell := range c.cells {
			t := layout.Tiers[cell.Tier]
			deadline := t.Deadline(cell.Epoch, counter.CounterHash)
			if deadline <= now {
				continue
			}
			key := keys.Hash(window.CellHash{Shard: shard, Counter: counter.Name, Tier: t, Epoch: cell.Epoch})
			c.increments = append(c.increments, increment{key, cell.Field, cell.N})
			if counter.Name != window.AllHits && layout.HasSummaries(cell.Tier) {
				c.segment(window.Segment{Tier: cell.Tier, Number: t.SegmentOf(cell.Cell)}).Add(counter.Name, cell.N)
			}
			if !cell.First {
				continue
			}
			h := hashExpiry{key, hashID(counter.CounterHash, cell.Tier, cell.Epoch), deadline}
			if known.has(h.id) && deadline-now >= window.TrustSeconds {
				c.trusted = append(c.trusted, h)
				continue
			}
			c.set = append(c.set, h)
			if counter.Name != window.AllHits && cell.Tier == len(layout.Tiers)-1 {
				set := batch.NamesTier.NamesOf(batch.NamesTier.EpochAt(t.EpochStart(cell.Epoch)))
				c.names[set] = append(c.names[set], counter.Name)
			}
		}
		if counter.Name != window.AllHits && batch.NamesTier.Sparse {
			c.addLogs(batch, counter, shard, keys, known, now)
		}
	}
	c.finishLogs()
	c.updates.finish()
}

// reset drops the previous changes. None of them may still be in use.
func (c *changes) reset() {
	clear(c.increments)
	clear(c.set)
	clear(c.trusted)
	clear(c.logs)
	for i := range c.segments {
		clear(c.segments[i].Counters)
	}
	c.updates.reset()
	c.increments, c.set, c.trusted, c.segments = c.increments[:0], c.set[:0], c.trusted[:0], c.segments[:0]
	c.logs, c.busy, c.logBytes = c.logs[:0], c.busy[:0], c.logBytes[:0]
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
