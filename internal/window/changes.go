package window

// changes are what a transaction adds to a shard. This file computes them without Redis, Writer.exec sends
// them, and Writer.inspect looks for them in Redis. The next transaction reuses their memory.
type changes struct {
	increments []increment
	set        []hashExpiry       // to be set, after all increments
	trusted    []hashExpiry       // assumed to be set already
	names      map[int64][]string // by set (see Tier.namesOf), the counters whose expiry the transaction sets
	segments   []segmentHits
	raises     raises

	index map[segment]int // of segments
	cells []cellHits      // of the current counter
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

type segmentHits struct {
	segment
	counters []listing
}

type cellHits struct {
	tier         int
	cell         int64 // see Tier.cellAt
	epoch, field int64 // see Tier.place
	n            int64
	first        bool // it is the first of the counter's cells in its hash
}

// trustSeconds is how long a hash must still live for its expiry to be assumed set. An EXEC is never on its
// way that long: a worker that has died cannot repair what its last EXEC does.
const trustSeconds = 60

// workOut computes what a batch changes at now (Redis's clock, Unix seconds), without cells that have expired
// meanwhile. known are the hashes whose expiry was set, raised the registers that are in Redis.
func (c *changes) workOut(batch *ShardBatch, shard int, keys keys, known *expiryMemory, raised *registerMemory, now int64) {
	c.reset()
	layout := batch.layout
	for i := range batch.counters {
		counter := &batch.counters[i]
		counter.order()
		if counter.extras != nil {
			c.raises.workOut(layout, shard, keys, counter, raised, now)
		}
		c.cells = batch.cells(counter, c.cells)
		for _, cell := range c.cells {
			t := layout.Tiers[cell.tier]
			deadline := t.deadline(cell.epoch, counter.counterHash)
			if deadline <= now {
				continue
			}
			key := keys.hash(cellHash{shard: shard, counter: counter.name, tier: t, epoch: cell.epoch})
			c.increments = append(c.increments, increment{key, cell.field, cell.n, deadline})
			if layout.isLevel(cell.tier) {
				c.segment(segment{cell.tier, t.segmentOf(cell.cell)}).add(counter.name, cell.n)
			}
			if !cell.first {
				continue
			}
			h := hashExpiry{key, hashID(counter.counterHash, cell.tier, cell.epoch), deadline}
			if known.has(h.id) && deadline-now >= trustSeconds {
				c.trusted = append(c.trusted, h)
				continue
			}
			c.set = append(c.set, h)
			if cell.tier == len(layout.Tiers)-1 {
				set := t.namesOf(cell.epoch)
				c.names[set] = append(c.names[set], counter.name)
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
		clear(c.segments[i].counters)
	}
	c.raises.reset()
	c.increments, c.set, c.trusted, c.segments = c.increments[:0], c.set[:0], c.trusted[:0], c.segments[:0]
	c.names, c.index = make(map[int64][]string), make(map[segment]int)
}

// segment finds the segment or adds it, reusing the memory of an earlier one.
func (c *changes) segment(s segment) *segmentHits {
	i, ok := c.index[s]
	if !ok {
		i = len(c.segments)
		c.index[s] = i
		if i < cap(c.segments) {
			c.segments = c.segments[:i+1]
		} else {
			c.segments = append(c.segments, segmentHits{})
		}
		c.segments[i] = segmentHits{s, c.segments[i].counters[:0]}
	}
	return &c.segments[i]
}

// add adds hits of a counter. All hits of one counter must be added in a row.
func (s *segmentHits) add(counter string, n int64) {
	if last := len(s.counters) - 1; last >= 0 && s.counters[last].name == counter {
		s.counters[last].count = addCounts(s.counters[last].count, n)
		return
	}
	s.counters = append(s.counters, listing{counter, n})
}

func (c *changes) hits(s segment) []listing {
	if i, ok := c.index[s]; ok {
		return c.segments[i].counters
	}
	return nil
}

// cells returns the cells of a counter whose slots are in order, tier by tier. It uses the memory of into.
func (s *ShardBatch) cells(c *counterHits, into []cellHits) []cellHits {
	into = into[:0]
	for i, t := range s.layout.Tiers {
		first := true
		for _, h := range c.slots {
			if !h.slot.isIn(i) {
				continue
			}
			cell := t.cellAt(h.slot.begins())
			last := len(into) - 1
			if !first && into[last].cell == cell {
				into[last].n += h.n
				continue
			}
			epoch, field := t.place(cell)
			into = append(into, cellHits{i, cell, epoch, field, h.n, first || into[last].epoch != epoch})
			first = false
		}
	}
	return into
}
