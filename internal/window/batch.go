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
	segments map[segment]struct{} // that the cells are in
	epochs   map[int64]struct{}   // of the coarsest tier
}

// counterCells are the cells of one counter, in the order of their first hit.
type counterCells struct {
	name  string
	hash  uint64
	cells []cellCount
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
		b.shards[i] = Cells{
			counters: make(map[string]*counterCells),
			segments: make(map[segment]struct{}), epochs: make(map[int64]struct{}),
		}
	}
	return b
}

// Reset empties the batch and keeps its memory of how large it was.
func (b *Batch) Reset() {
	for i := range b.shards {
		s := &b.shards[i]
		clear(s.counters)
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
	c := s.counters[string(counter)] // no allocation: the compiler knows this form
	if c == nil {
		c = &counterCells{name: string(counter), hash: counterHash, cells: make([]cellCount, 0, len(b.layout.Tiers))}
		s.counters[c.name] = c
	}
	s.hits += n
	for i, t := range b.layout.Tiers {
		if t.holds(counterHash, at, stored) {
			cell := t.cellAt(at)
			if added := c.add(t, i, cell, n); added > 0 {
				s.commands += added + s.note(b.layout, i, cell)
			}
		}
	}
}

// note remembers which summaries and names a new cell changes, and returns how
// many commands that adds to the transaction.
func (c *Cells) note(l Layout, tier int, cell int64) (commands int) {
	if l.isLevel(tier) {
		before := len(c.segments)
		c.segments[segment{tier, cell}] = struct{}{}
		commands += len(c.segments) - before
	}
	if tier == len(l.Tiers)-1 {
		before := len(c.epochs)
		epoch, _ := l.Tiers[tier].place(cell)
		c.epochs[epoch] = struct{}{}
		commands += 2 * (len(c.epochs) - before)
	}
	return commands
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
