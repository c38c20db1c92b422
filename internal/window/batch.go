package window

// Batch coalesces hits into cells until they are committed: the sum per counter
// and cell, split by shard. A batch is not safe for concurrent use.
type Batch struct {
	layout Layout
	shards []Cells
}

// Cells is the part of a batch that goes to one shard.
type Cells struct {
	counters map[string]*counterCells
	hits     int64
	commands int
}

// counterCells are the cells of one counter, in the order of their first hit.
type counterCells struct {
	name     string
	hash     uint64
	cells    []cellCount
	hits     int64
	commands int
}

type cellCount struct {
	tier int
	cell int64 // see Tier.cellAt
	n    int64
}

// NewBatch is an empty batch.
func NewBatch(layout Layout) *Batch {
	b := &Batch{layout: layout, shards: make([]Cells, layout.Shards)}
	for i := range b.shards {
		b.shards[i].counters = make(map[string]*counterCells)
	}
	return b
}

// Reset empties the batch and keeps its memory of how large it was.
func (b *Batch) Reset() {
	for i := range b.shards {
		s := &b.shards[i]
		clear(s.counters)
		s.hits, s.commands = 0, 0
	}
}

// Shard is the part of the batch that belongs to a shard.
func (b *Batch) Shard(i int) *Cells { return &b.shards[i] }

// Commands is the most Redis commands that the shard's transaction can need:
// an increment per cell and an expiry per hash.
func (c *Cells) Commands() int { return c.commands }

// Hits is the sum of the hits in the cells, each counted once whatever the tiers.
func (c *Cells) Hits() int64 { return c.hits }

// CommandsPerHit is the most commands that one more hit can add to a transaction.
func (l Layout) CommandsPerHit() int { return 2 * len(l.Tiers) }

// Add counts n hits of a counter (with its HashCounter) at the moment at in each
// tier that still held that moment when the hit was stored. Moments are Unix milliseconds.
func (b *Batch) Add(counter []byte, counterHash uint64, at, stored, n int64) {
	s := &b.shards[b.layout.ShardOf(counterHash)]
	c := s.counters[string(counter)] // no allocation: the compiler knows this form
	if c == nil {
		c = &counterCells{name: string(counter), hash: counterHash, cells: make([]cellCount, 0, len(b.layout.Tiers))}
		s.counters[c.name] = c
	}
	s.hits += n
	c.hits += n
	for i, t := range b.layout.Tiers {
		if t.holds(counterHash, at, stored) {
			commands := c.add(t, i, t.cellAt(at), n)
			s.commands += commands
			c.commands += commands
		}
	}
}

// add returns how many commands the hit adds to the transaction. It searches from
// the newest cell, which is almost always the right one.
func (c *counterCells) add(t Tier, tier int, cell, n int64) int {
	newHash := true
	epoch, _ := t.place(cell)
	for i := len(c.cells) - 1; i >= 0; i-- {
		have := &c.cells[i]
		if have.tier != tier {
			continue
		}
		if have.cell == cell {
			have.n += n
			return 0
		}
		if e, _ := t.place(have.cell); e == epoch {
			newHash = false
		}
	}
	c.cells = append(c.cells, cellCount{tier, cell, n})
	if newHash {
		return 2
	}
	return 1
}
