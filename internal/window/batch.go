package window

// Batch coalesces hits until they are committed, split by shard. A batch is not
// safe for concurrent use.
//
// It keeps one sum per counter and grain. A grain is the largest piece of time that always lies
// within one cell of every tier, so the cells of all tiers follow from the grains at commit.
type Batch struct {
	layout Layout
	shards []ShardBatch
	all    uint16 // one bit per tier, all set
	newest int64  // milliseconds: every tier holds a hit that is at most this much older than its message
}

// ShardBatch is the part of a batch that belongs to one shard.
type ShardBatch struct {
	layout   Layout
	grain    int64 // milliseconds
	counters []counterHits
	index    map[string]int // of counters, by name
	hits     int64
	commands int
	segments map[segment]struct{} // that its hits are in
	names    map[int64]struct{}   // the sets of names that its hits belong to; see Tier.namesOf
}

// counterHits are the hits of one counter by grain, in the order in which the grains first occurred.
type counterHits struct {
	name        string
	counterHash uint64
	grains      []grainHits
}

type grainHits struct {
	grain int64  // its number, counted from 1970
	tiers uint16 // bit i: tier i still held it when it was stored
	n     int64
}

// NewBatch returns an empty batch.
func NewBatch(layout Layout) *Batch {
	b := &Batch{layout: layout, shards: make([]ShardBatch, layout.Shards), newest: layout.Tiers[0].Window.Milliseconds()}
	grain := int64(0)
	for i, t := range layout.Tiers {
		b.all |= 1 << i
		b.newest = min(b.newest, t.Window.Milliseconds())
		grain = gcd(grain, t.cellMillis())
	}
	for i := range b.shards {
		b.shards[i] = newShardBatch(layout, grain)
		b.shards[i].index = make(map[string]int)
	}
	return b
}

func newShardBatch(layout Layout, grain int64) ShardBatch {
	return ShardBatch{layout: layout, grain: grain, segments: make(map[segment]struct{}), names: make(map[int64]struct{})}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Reset empties the batch, and keeps its memory for the next hits.
func (b *Batch) Reset() {
	for i := range b.shards {
		s := &b.shards[i]
		s.counters = s.counters[:0]
		clear(s.index)
		clear(s.segments)
		clear(s.names)
		s.hits, s.commands = 0, 0
	}
}

// Shard returns the part of the batch that belongs to a shard.
func (b *Batch) Shard(i int) *ShardBatch { return &b.shards[i] }

// Commands is the most Redis commands that the shard's transaction can need:
// an increment per cell, an expiry per hash, two commands per set of names,
// and one per summary.
func (s *ShardBatch) Commands() int { return s.commands }

// Hits is the number of hits, each counted once however many tiers hold it.
func (s *ShardBatch) Hits() int64 { return s.hits }

// End is a moment in Unix milliseconds. All hits in the cells lie before it.
func (s *ShardBatch) End() (end int64) {
	for i := range s.counters {
		for _, g := range s.counters[i].grains {
			end = max(end, (g.grain+1)*s.grain)
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
	added := grainHits{grain, tiers, n}
	s.note(c, added)
	c.grains = append(c.grains, added)
}

// counter finds the counter or adds it, reusing the memory of an earlier one.
func (s *ShardBatch) counter(name []byte, counterHash uint64) *counterHits {
	if i, ok := s.index[string(name)]; ok { // no allocation: the compiler knows this form
		return &s.counters[i]
	}
	i := len(s.counters)
	if i < cap(s.counters) {
		s.counters = s.counters[:i+1]
	} else {
		s.counters = append(s.counters, counterHits{})
	}
	at := &s.counters[i]
	*at = counterHits{name: string(name), counterHash: counterHash, grains: at.grains[:0]}
	s.index[at.name] = i
	return at
}

// heldBy has a bit set for every tier that still held the moment at when the hit was stored.
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

// note counts the commands that a new grain of a counter adds to the transaction: one per new
// cell and per new hash, and those for the summaries and names that no other counter has changed yet.
func (s *ShardBatch) note(c *counterHits, added grainHits) {
	for i, t := range s.layout.Tiers {
		if added.tiers&(1<<i) == 0 {
			continue
		}
		cell := t.cellAt(added.grain * s.grain)
		epoch, _ := t.place(cell)
		newCell, newHash := true, true
		for _, g := range c.grains {
			if g.tiers&(1<<i) == 0 {
				continue
			}
			have := t.cellAt(g.grain * s.grain)
			haveEpoch, _ := t.place(have)
			newCell, newHash = newCell && have != cell, newHash && haveEpoch != epoch
		}
		if !newCell {
			continue // its hash, summary and name are known too
		}
		s.commands++
		if s.layout.isLevel(i) {
			before := len(s.segments)
			s.segments[segment{i, t.segmentOf(cell)}] = struct{}{}
			s.commands += len(s.segments) - before
		}
		if !newHash {
			continue
		}
		s.commands++
		if i == len(s.layout.Tiers)-1 {
			before := len(s.names)
			s.names[t.namesOf(epoch)] = struct{}{}
			s.commands += 2 * (len(s.names) - before)
		}
	}
}
