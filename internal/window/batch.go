package window

// Batch coalesces hits until they are committed, split by shard. A batch is not
// safe for concurrent use.
//
// It keeps one sum per counter and grain, the largest piece of time that lies in
// one cell of every tier; the cells of all tiers follow from it when they are sent.
type Batch struct {
	layout Layout
	shards []Cells
	all    uint16 // a bit for every tier
	newest int64  // hits at most this much older than their message are held by every tier, milliseconds
}

// Cells is the part of a batch that goes to one shard.
type Cells struct {
	layout   Layout
	grain    int64 // milliseconds
	counters []counterCells
	index    map[string]int // of counters, by name
	hits     int64
	commands int
	segments map[segment]struct{} // that the cells are in
	epochs   map[int64]struct{}   // of the coarsest tier
}

// counterCells are the hits of one counter, in the order of their first in each grain.
type counterCells struct {
	name     string
	hash     uint64
	grains   []grainCount
	commands int // of its cells and hashes
}

type grainCount struct {
	grain int64  // number since 1970
	tiers uint16 // bit i: tier i still held it when it was stored
	n     int64
}

// cellCount is a cell of a counter.
type cellCount struct {
	tier int
	cell int64 // see Tier.cellAt
	n    int64
}

// NewBatch is an empty batch.
func NewBatch(layout Layout) *Batch {
	b := &Batch{layout: layout, shards: make([]Cells, layout.Shards), newest: layout.Tiers[0].Window.Milliseconds()}
	grain := int64(0)
	for i, t := range layout.Tiers {
		b.all |= 1 << i
		b.newest = min(b.newest, t.Window.Milliseconds())
		grain = gcd(grain, t.cellMillis())
	}
	for i := range b.shards {
		b.shards[i] = newCells(layout, grain)
		b.shards[i].index = make(map[string]int)
	}
	return b
}

func newCells(layout Layout, grain int64) Cells {
	return Cells{layout: layout, grain: grain, segments: make(map[segment]struct{}), epochs: make(map[int64]struct{})}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	for i := range b.shards {
		s := &b.shards[i]
		s.counters = s.counters[:0]
		clear(s.index)
		clear(s.segments)
		clear(s.epochs)
		s.hits, s.commands = 0, 0
	}
}

// Shard is the part of the batch that belongs to a shard.
func (b *Batch) Shard(i int) *Cells { return &b.shards[i] }

// Commands is the most Redis commands that the shard's transaction can need:
// an increment per cell, an expiry per hash, two commands for the names of an
// epoch, and one per summary.
func (c *Cells) Commands() int { return c.commands }

// Hits is the sum of the hits in the cells, each counted once whatever the tiers.
func (c *Cells) Hits() int64 { return c.hits }

// End is a moment, Unix milliseconds, before which all hits in the cells lie.
func (c *Cells) End() (end int64) {
	for i := range c.counters {
		for _, g := range c.counters[i].grains {
			end = max(end, (g.grain+1)*c.grain)
		}
	}
	return end
}

// CommandsPerHit is the most commands that one more hit can add to a transaction.
func (l Layout) CommandsPerHit() int {
	n := 2*len(l.Tiers) + 2
	for i := range l.Tiers {
		if l.isLevel(i) {
			n++
		}
	}
	return n
}

// Add counts n hits of a counter (with its HashCounter) at the moment at in each
// tier that still held that moment when the hit was stored. Moments are Unix milliseconds.
func (b *Batch) Add(counter []byte, counterHash uint64, at, stored, n int64) {
	s := &b.shards[b.layout.ShardOf(counterHash)]
	c := s.counter(counter, counterHash)
	s.hits += n
	tiers, grain := b.heldBy(counterHash, at, stored), floorDiv(at, s.grain)
	for i := len(c.grains) - 1; i >= 0; i-- { // the newest is almost always the right one
		if g := &c.grains[i]; g.grain == grain && g.tiers == tiers {
			g.n += n
			return
		}
	}
	own := c.addedBy(s.layout, s.grain, grain, tiers)
	c.commands += own
	s.commands += own + s.note(grain, tiers)
	c.grains = append(c.grains, grainCount{grain, tiers, n})
}

// counter finds the counter or makes it, in the memory of an earlier one.
func (c *Cells) counter(name []byte, hash uint64) *counterCells {
	if i, ok := c.index[string(name)]; ok { // no allocation: the compiler knows this form
		return &c.counters[i]
	}
	i := len(c.counters)
	if i < cap(c.counters) {
		c.counters = c.counters[:i+1]
	} else {
		c.counters = append(c.counters, counterCells{})
	}
	at := &c.counters[i]
	*at = counterCells{name: string(name), hash: hash, grains: at.grains[:0]}
	c.index[at.name] = i
	return at
}

// heldBy is a bit for every tier that still held the moment at when the hit was stored.
func (b *Batch) heldBy(counterHash uint64, at, stored int64) (tiers uint16) {
	if stored-at <= b.newest {
		return b.all
	}
	for i, t := range b.layout.Tiers {
		if t.holds(counterHash, at, stored) {
			tiers |= 1 << i
		}
	}
	return tiers
}

// addedBy is how many commands a new grain adds: one for each new cell, and one for each new hash.
func (c *counterCells) addedBy(l Layout, grainMillis, grain int64, tiers uint16) (commands int) {
	for i, t := range l.Tiers {
		if tiers&(1<<i) == 0 {
			continue
		}
		cell := t.cellAt(grain * grainMillis)
		epoch, _ := t.place(cell)
		newCell, newHash := true, true
		for _, g := range c.grains {
			if g.tiers&(1<<i) == 0 {
				continue
			}
			have := t.cellAt(g.grain * grainMillis)
			haveEpoch, _ := t.place(have)
			newCell, newHash = newCell && have != cell, newHash && haveEpoch != epoch
		}
		if newCell {
			commands++
		}
		if newHash {
			commands++
		}
	}
	return commands
}

// note remembers which summaries and names a grain changes, and returns how
// many commands that adds to the transaction.
func (c *Cells) note(grain int64, tiers uint16) (commands int) {
	for i, t := range c.layout.Tiers {
		if tiers&(1<<i) == 0 {
			continue
		}
		cell := t.cellAt(grain * c.grain)
		if c.layout.isLevel(i) {
			before := len(c.segments)
			c.segments[segment{i, cell}] = struct{}{}
			commands += len(c.segments) - before
		}
		if i == len(c.layout.Tiers)-1 {
			before := len(c.epochs)
			epoch, _ := t.place(cell)
			c.epochs[epoch] = struct{}{}
			commands += 2 * (len(c.epochs) - before)
		}
	}
	return commands
}

// cells are the cells of a counter, tier by tier, in the memory of into.
func (c *Cells) cells(counter *counterCells, into []cellCount) []cellCount {
	into = into[:0]
	for i, t := range c.layout.Tiers {
		first := len(into)
	grains:
		for _, g := range counter.grains {
			if g.tiers&(1<<i) == 0 {
				continue
			}
			cell := t.cellAt(g.grain * c.grain)
			for j := len(into) - 1; j >= first; j-- {
				if into[j].cell == cell {
					into[j].n += g.n
					continue grains
				}
			}
			into = append(into, cellCount{i, cell, g.n})
		}
	}
	return into
}

// firstOfHash reports whether cell i is the first of those in its hash.
func firstOfHash(t Tier, cells []cellCount, i int) bool {
	epoch, _ := t.place(cells[i].cell)
	for j := i - 1; j >= 0 && cells[j].tier == cells[i].tier; j-- {
		if e, _ := t.place(cells[j].cell); e == epoch {
			return false
		}
	}
	return true
}
