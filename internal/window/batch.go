package window

import (
	"math"
	"math/bits"

	"tallyroll/internal/unique"
)

// Batch coalesces hits until they are committed, split by shard. A batch is not
// safe for concurrent use.
//
// It keeps one sum per counter and grain. A grain is the largest piece of time that always lies
// within one cell of every tier, so the cells of all tiers follow from the grains at commit. Likewise it keeps one sketch
// per counter and grain of the unique tiers.
type Batch struct {
	layout  Layout
	shards  []ShardBatch
	hits    kind
	uniques kind
	bytes   int // see Bytes
}

// kind is what a batch has to know of tiers, or of unique tiers.
type kind struct {
	tiers  Tiers
	grain  int64  // milliseconds
	all    uint16 // one bit per tier, all set
	newest int64  // milliseconds: every tier holds a hit that is at most this much older than its message
}

func kindOf(tiers Tiers) kind {
	k := kind{tiers: tiers, newest: math.MaxInt64, all: 1<<len(tiers) - 1}
	for _, t := range tiers {
		k.newest = min(k.newest, t.Window.Milliseconds())
		k.grain = gcd(k.grain, t.cellMillis())
	}
	return k
}

// ShardBatch is the part of a batch that belongs to one shard.
type ShardBatch struct {
	layout   Layout
	grain    int64 // milliseconds
	unique   int64 // the grain of unique tiers, milliseconds
	counters []counterHits
	index    counterIndex
	hits     int64
	commands int
	segments map[segment]struct{} // that its hits are in
	names    map[int64]struct{}   // the sets of names that its hits belong to; see Tier.namesOf
	sketches bool                 // a counter has some
}

// counterHits are the hits of one counter by grain, in the order in which the grains first occurred.
type counterHits struct {
	name        string
	counterHash uint64
	grains      []grainHits
	unordered   bool            // a grain is earlier than the one before it
	uniques     *[]grainUniques // nil if none of the hits has a unique value
}

type grainHits struct {
	grain int64  // its number, counted from 1970
	tiers uint16 // bit i: tier i still held it when it was stored
	n     int64
}

// grainUniques are the unique values of the hits of a counter in a grain.
type grainUniques struct {
	grain  int64
	tiers  uint16 // like those of grainHits, of unique tiers
	sketch unique.Sketch
}

// NewBatch returns an empty batch.
func NewBatch(layout Layout) *Batch {
	b := &Batch{layout: layout, shards: make([]ShardBatch, layout.Shards), hits: kindOf(layout.Tiers), uniques: kindOf(layout.UniqueTiers)}
	for i := range b.shards {
		b.shards[i] = newShardBatch(layout, b.hits.grain, b.uniques.grain)
	}
	return b
}

func newShardBatch(layout Layout, grain, unique int64) ShardBatch {
	return ShardBatch{layout: layout, grain: grain, unique: unique, segments: make(map[segment]struct{}), names: make(map[int64]struct{})}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Reset empties the batch, and keeps its memory for the next hits, but not that of sketches: the next ones may be of
// other counters.
func (b *Batch) Reset() {
	for i := range b.shards {
		s := &b.shards[i]
		for i := range s.counters {
			if !s.sketches {
				break
			}
			s.counters[i].uniques = nil
		}
		s.sketches = false
		s.counters = s.counters[:0]
		clear(s.index)
		clear(s.segments)
		clear(s.names)
		s.hits, s.commands = 0, 0
	}
	b.bytes = 0
}

// What a batch takes in memory, with what its slices and maps have to spare.
const (
	counterBytes = 152 // of a counter, beside its name
	grainBytes   = 36
	sketchBytes  = 96 // of a sketch, beside its registers
)

// Bytes is roughly the memory that the hits take.
func (b *Batch) Bytes() int { return b.bytes }

// Shard returns the part of the batch that belongs to a shard.
func (b *Batch) Shard(i int) *ShardBatch { return &b.shards[i] }

// Commands is the most Redis commands that the shard's transaction can need:
// an increment per cell, an expiry per hash, two commands per set of names,
// one per summary, and two per unique cell. The registers of unique cells count, too: see weigh.
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

// CommandsPerHit is the most commands that one more hit can add to a transaction, if it has a unique value or if it has
// none.
func (l Layout) CommandsPerHit(isUnique bool) int {
	n := 2*len(l.Tiers) + 2
	if isUnique {
		n += 3 * len(l.UniqueTiers)
	}
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
	tiers, grain := b.hits.heldBy(counterHash, at, stored), floorDiv(at, s.grain)
	for i := len(c.grains) - 1; i >= 0; i-- { // the newest is almost always the right one
		g := &c.grains[i]
		if g.grain == grain && g.tiers == tiers {
			g.n += n
			return
		}
		if g.grain < grain && !c.unordered {
			break
		}
	}
	if len(c.grains) == 0 {
		b.bytes += counterBytes + len(counter)
	}
	b.bytes += grainBytes
	s.append(c, grainHits{grain, tiers, n})
}

// AddUnique is Add for hits with a unique value, of which it gets the register.
func (b *Batch) AddUnique(counter []byte, counterHash uint64, at, stored, n int64, r unique.Register) {
	b.Add(counter, counterHash, at, stored, n)
	tiers := b.uniques.heldBy(counterHash, at, stored)
	if tiers == 0 {
		return
	}
	s := &b.shards[b.layout.ShardOf(counterHash)]
	g, added := s.counter(counter, counterHash).uniquesOf(floorDiv(at, s.unique), tiers)
	bytes, weight := g.sketch.Bytes(), s.weigh(g)
	if added {
		s.sketches, bytes, weight = true, -sketchBytes, 0
		s.commands += 2 * bits.OnesCount16(tiers) // in coarse tiers they may share a cell: at most as many
	}
	g.sketch.Add(r)
	b.bytes += g.sketch.Bytes() - bytes
	s.commands += s.weigh(g) - weight
}

// uniquesOf finds the sketch of a grain, or adds it.
func (c *counterHits) uniquesOf(grain int64, tiers uint16) (g *grainUniques, added bool) {
	if c.uniques == nil {
		c.uniques = new([]grainUniques)
	}
	all := *c.uniques
	for i := len(all) - 1; i >= 0; i-- { // the newest is almost always the right one
		if g := &all[i]; g.grain == grain && g.tiers == tiers {
			return g, false
		}
	}
	*c.uniques = append(all, grainUniques{grain: grain, tiers: tiers})
	return &(*c.uniques)[len(all)], true
}

// weigh returns as how many commands the registers of a grain count. While a HyperLogLog has fewer than some 2000
// registers, Redis looks for each from the beginning: one takes 0.1 to 2.4 µs, as much as an increment. A later one takes
// 0.03 to 0.06 µs (7.0).
func (s *ShardBatch) weigh(g *grainUniques) int {
	const costly = 2000
	n := g.sketch.Held()
	return bits.OnesCount16(g.tiers) * (min(n, costly) + max(0, n-costly)/16)
}

// append gives a counter a new grain.
func (s *ShardBatch) append(c *counterHits, added grainHits) {
	s.note(c, added)
	if n := len(c.grains); n > 0 && added.grain < c.grains[n-1].grain {
		c.unordered = true
	}
	c.grains = append(c.grains, added)
}

// counter finds the counter or adds it, reusing the memory of an earlier one.
func (s *ShardBatch) counter(name []byte, counterHash uint64) *counterHits {
	if 2*len(s.counters) >= len(s.index) {
		s.index = s.index.grown(s.counters)
	}
	slot := s.index.slot(s.counters, name, counterHash)
	if found := *slot; found != 0 {
		return &s.counters[uint32(found)-1]
	}
	i := len(s.counters)
	if i < cap(s.counters) {
		s.counters = s.counters[:i+1]
	} else {
		s.counters = append(s.counters, counterHits{})
	}
	at := &s.counters[i]
	*at = counterHits{name: string(name), counterHash: counterHash, grains: at.grains[:0]}
	*slot = indexEntry(counterHash, i)
	return at
}

// counterIndex finds a counter's place among a shard's counters: a table with linear probing. A map of names would
// take three times the memory and hash each name again. The upper half of a slot is the lower one of the counter's
// hash, the lower half its place plus one. An empty slot is 0. The number of slots is a power of two.
type counterIndex []uint64

func indexEntry(counterHash uint64, place int) uint64 { return counterHash<<32 | uint64(place+1) }

// slot returns the slot of a counter, or the empty one that it would take. One slot at least must be empty.
func (x counterIndex) slot(counters []counterHits, name []byte, counterHash uint64) *uint64 {
	mask := uint64(len(x) - 1)
	for i := counterHash >> 32 & mask; ; i = (i + 1) & mask { // the lower half has chosen the shard
		slot := x[i]
		if slot == 0 || slot>>32 == counterHash&math.MaxUint32 && counters[uint32(slot)-1].name == string(name) {
			return &x[i]
		}
	}
}

// grown returns an index of the counters with twice as many slots.
func (x counterIndex) grown(counters []counterHits) counterIndex {
	larger := make(counterIndex, max(64, 2*len(x)))
	mask := uint64(len(larger) - 1)
	for place := range counters {
		i := counters[place].counterHash >> 32 & mask
		for larger[i] != 0 {
			i = (i + 1) & mask
		}
		larger[i] = indexEntry(counters[place].counterHash, place)
	}
	return larger
}

// heldBy has a bit set for every tier that still held the moment at when the hit was stored.
func (k *kind) heldBy(counterHash uint64, at, stored int64) (tiers uint16) {
	if stored-at <= k.newest {
		return k.all
	}
	for i, t := range k.tiers {
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
		for n := len(c.grains) - 1; n >= 0; n-- {
			g := &c.grains[n]
			if g.tiers&(1<<i) == 0 {
				continue
			}
			have := t.cellAt(g.grain * s.grain)
			haveEpoch, _ := t.place(have)
			newCell, newHash = newCell && have != cell, newHash && haveEpoch != epoch
			if !c.unordered && added.grain >= g.grain {
				break // the earlier ones lie in this cell and hash, or in earlier ones
			}
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
