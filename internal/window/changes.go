package window

// changes are what a transaction adds to a shard. This file computes them without Redis, Writer.exec sends
// them, and Writer.inspect looks for them in Redis. The next transaction reuses their memory.
type changes struct {
	increments []increment
	set        []hashExpiry       // to be set, after all increments
	trusted    []hashExpiry       // assumed to be set already
	names      map[int64][]string // by set (see Tier.NamesOf), the counters whose expiry the transaction sets
	segments   []SegmentHits
	raises     raises

	index map[Segment]int // of segments
	cells []CellHits      // of the current counter
}

type increment struct {
	key      string
	field, n int64
	deadline int64 // of the hash, Unix seconds
}

type hashExpiry struct {
	key      string
	id       uint64 // see hashID
	deadline int64  // Unix seconds
}

type SegmentHits struct {
	Segment
	Counters []Listing
}

type CellHits struct {
	Tier         int
	Cell         int64 // see Tier.CellAt
	Epoch, Field int64 // see Tier.place
	N            int64
	First        bool // it is the first of the counter's cells in its hash
}

// TrustSeconds is how long a hash must still live for its expiry to be assumed set. An EXEC is never on its
// way that long: a worker that has died cannot repair what its last EXEC does.
const TrustSeconds = 60

// workOut computes what a batch changes at now (Redis's clock, Unix seconds), without cells that have expired
// meanwhile. known are the hashes whose expiry was set, raised the registers that are in Redis.
func (c *changes) workOut(batch *ShardBatch, shard int, keys Keys, known *expiryMemory, raised *registerMemory, now int64) {
	c.reset()
	layout := batch.Layout
	for i := range batch.Counters {
		counter := &batch.Counters[i]
		counter.Order()
		if counter.Extras != nil {
			c.raises.workOut(layout, shard, keys, counter, raised, now)
		}
		c.cells = batch.Cells(counter, c.cells)
		for _, cell := range c.cells {
			t := layout.Tiers[cell.Tier]
			deadline := t.Deadline(cell.Epoch, counter.CounterHash)
			if deadline <= now {
				continue
			}
			key := keys.Hash(CellHash{Shard: shard, Counter: counter.Name, Tier: t, Epoch: cell.Epoch})
			c.increments = append(c.increments, increment{key, cell.Field, cell.N, deadline})
			if layout.HasSummaries(cell.Tier) {
				c.segment(Segment{cell.Tier, t.SegmentOf(cell.Cell)}).Add(counter.Name, cell.N)
			}
			if !cell.First {
				continue
			}
			h := hashExpiry{key, hashID(counter.CounterHash, cell.Tier, cell.Epoch), deadline}
			if known.has(h.id) && deadline-now >= TrustSeconds {
				c.trusted = append(c.trusted, h)
				continue
			}
			c.set = append(c.set, h)
			if cell.Tier == len(layout.Tiers)-1 {
				set := t.NamesOf(cell.Epoch)
				c.names[set] = append(c.names[set], counter.Name)
			}
		}
	}
	c.raises.finish()
}

// reset drops the previous changes. None of them may still be in use.
func (c *changes) reset() {
	clear(c.increments)
	clear(c.set)
	clear(c.trusted)
	for i := range c.segments {
		clear(c.segments[i].Counters)
	}
	c.raises.reset()
	c.increments, c.set, c.trusted, c.segments = c.increments[:0], c.set[:0], c.trusted[:0], c.segments[:0]
	c.names, c.index = make(map[int64][]string), make(map[Segment]int)
}

// segment finds the segment or adds it, reusing the memory of an earlier one.
func (c *changes) segment(s Segment) *SegmentHits {
	i, ok := c.index[s]
	if !ok {
		i = len(c.segments)
		c.index[s] = i
		if i < cap(c.segments) {
			c.segments = c.segments[:i+1]
		} else {
			c.segments = append(c.segments, SegmentHits{})
		}
		c.segments[i] = SegmentHits{s, c.segments[i].Counters[:0]}
	}
	return &c.segments[i]
}

// Add adds hits of a counter. All hits of one counter must be added in a row.
func (s *SegmentHits) Add(counter string, n int64) {
	if last := len(s.Counters) - 1; last >= 0 && s.Counters[last].Name == counter {
		s.Counters[last].Count = AddCounts(s.Counters[last].Count, n)
		return
	}
	s.Counters = append(s.Counters, Listing{counter, n})
}

func (c *changes) hits(s Segment) []Listing {
	if i, ok := c.index[s]; ok {
		return c.segments[i].Counters
	}
	return nil
}

// Cells returns the cells of a counter whose slots are in order, tier by tier. It uses the memory of into.
func (s *ShardBatch) Cells(c *CounterHits, into []CellHits) []CellHits {
	into = into[:0]
	for i, t := range s.Layout.Tiers {
		first := true
		for _, h := range c.slots {
			if !h.slot.IsIn(i) {
				continue
			}
			cell := t.CellAt(h.slot.Begins())
			last := len(into) - 1
			if !first && into[last].Cell == cell {
				into[last].N += h.n
				continue
			}
			epoch, field := t.EpochAndField(cell)
			into = append(into, CellHits{i, cell, epoch, field, h.n, first || into[last].Epoch != epoch})
			first = false
		}
	}
	return into
}
