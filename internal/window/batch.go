package window

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"tallyroll/internal/unique"
)

// Batch coalesces hits until they are committed, by shard: a sum per counter and time slot, from which all
// tiers' cells follow, and a sketch per slot of the unique tiers. It is not safe for concurrent use.
type Batch struct {
	layout  Layout
	shards  []ShardBatch
	hits    kind
	uniques kind
	bytes   int // see Bytes
}

// timeSlot is the longest time within one cell of each tier that still held a hit's time when it was stored.
// So a slot of hits weeks late is a cell of the coarsest tier, and a counter has about as many slots as
// cells, whatever the times. The lower bits are these tiers (bit i: tier i), the others the slot's beginning
// in Unix milliseconds. Later slots are larger.
type timeSlot int64

func (t timeSlot) begins() int64      { return int64(t >> maxTiers) }
func (t timeSlot) isIn(tier int) bool { return t>>tier&1 != 0 }

func (t timeSlot) tiers() int { return bits.OnesCount8(uint8(t)) }

type kind struct {
	tiers   Tiers
	newest  int64   // milliseconds: every tier holds a hit that is at most this much older than its message
	lengths []int64 // of slots, in milliseconds, by the tiers that hold them
}

func kindOf(tiers Tiers) kind {
	k := kind{tiers: tiers, newest: math.MaxInt64, lengths: make([]int64, 1<<len(tiers))}
	for i, t := range tiers {
		k.newest = min(k.newest, t.Window.Milliseconds())
		for held := range k.lengths {
			if timeSlot(held).isIn(i) {
				k.lengths[held] = gcd(k.lengths[held], t.cellMillis())
			}
		}
	}
	k.lengths[0] = 1 // no tier holds them
	return k
}

func (k *kind) slotOf(counterHash uint64, at, stored int64) timeSlot {
	held := len(k.lengths) - 1
	if stored-at > k.newest {
		held = k.heldBy(counterHash, at, stored)
	}
	length := k.lengths[held]
	return timeSlot(floorDiv(at, length)*length<<maxTiers | int64(held))
}

// heldBy returns a bit set of the tiers that still held the moment at when the hit was stored.
func (k *kind) heldBy(counterHash uint64, at, stored int64) (tiers int) {
	for i, t := range k.tiers {
		if t.holds(counterHash, at, stored) {
			tiers |= 1 << i
		}
	}
	return tiers
}

// ShardBatch is the part of a batch that belongs to one shard.
type ShardBatch struct {
	layout   Layout
	counters []counterHits
	index    counterIndex
	hits     int64
	end      int64 // see End
	commands int
	inexact  bool                 // commands may be fewer: see note
	segments map[segment]struct{} // that its hits are in
	names    map[int64]struct{}   // the sets of names that its hits belong to; see Tier.namesOf
	extras   bool                 // a counter has some
}

// counterHits are a counter's hits by time slot, in order of first occurrence. They fill a cache line.
type counterHits struct {
	name        string
	counterHash uint64
	slots       []slotHits
	unordered   bool    // a slot is less than the one before it
	extras      *extras // nil for most counters
}

type slotHits struct {
	slot timeSlot
	n    int64
}

// extras hold what only a counter with many slots out of order, or with unique values, needs.
type extras struct {
	places       slotIndex // of its slots; nil until one is looked for that is not among the last few
	uniques      []slotUniques
	uniquePlaces slotIndex // the same, of uniques
}

type slotUniques struct {
	slot   timeSlot
	sketch unique.Sketch
}

// slotIndex finds a slot among a counter's, so that the order of times does not affect a hit's cost.
type slotIndex map[timeSlot]int

// fewSlots are searched without an index. Most counters have no more in a load.
const fewSlots = 8

// NewBatch returns an empty batch.
func NewBatch(layout Layout) *Batch {
	b := &Batch{layout: layout, shards: make([]ShardBatch, layout.Shards), hits: kindOf(layout.Tiers), uniques: kindOf(layout.UniqueTiers)}
	for i := range b.shards {
		b.shards[i] = newShardBatch(layout)
	}
	return b
}

func newShardBatch(layout Layout) ShardBatch {
	return ShardBatch{layout: layout, segments: make(map[segment]struct{}), names: make(map[int64]struct{})}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Reset empties the batch. It drops sketches and slot indexes: the next ones may be of other counters.
func (b *Batch) Reset() {
	for i := range b.shards {
		s := &b.shards[i]
		for i := range s.counters {
			if !s.extras {
				break
			}
			s.counters[i].extras = nil
		}
		s.extras = false
		s.counters = s.counters[:0]
		clear(s.index)
		clear(s.segments)
		clear(s.names)
		s.hits, s.end, s.commands, s.inexact = 0, 0, 0, false
	}
	b.bytes = 0
}

// Memory of a batch, including the spare capacity of its slices and maps.
const (
	counterBytes = 152 // of a counter, without its name
	slotBytes    = 24
	placeBytes   = 40 // of a slot in an index
	sketchBytes  = 96 // of a sketch, without its registers
)

// Bytes returns roughly the memory that the hits take.
func (b *Batch) Bytes() int { return b.bytes }

// Shard returns the part of the batch that belongs to a shard.
func (b *Batch) Shard(i int) *ShardBatch { return &b.shards[i] }

// Commands returns the most Redis commands that the shard's transaction can need: an increment per cell, an
// expiry per hash, two commands per set of names, one per summary, two per unique cell, and the weight of
// registers (see weigh). It may be too high if many slots of a counter are out of order (see note).
func (s *ShardBatch) Commands() int { return s.commands }

// Hits returns the number of hits, each counted once however many tiers hold it.
func (s *ShardBatch) Hits() int64 { return s.hits }

// End returns a moment (Unix milliseconds) before which all hits lie, also those of a Split's other parts.
func (s *ShardBatch) End() int64 { return s.end }

// CommandsPerHit returns the most commands that a hit with or without a unique value can add.
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

// Add counts n hits of a counter (with its HashCounter) at the moment at in each tier that still held that
// moment when the hit was stored. Moments are Unix milliseconds.
func (b *Batch) Add(counter []byte, counterHash uint64, at, stored, n int64) {
	s := &b.shards[b.layout.ShardOf(counterHash)]
	c := s.counter(counter, counterHash)
	s.hits += n
	s.end = max(s.end, at+1)
	slot := b.hits.slotOf(counterHash, at, stored)
	if last := len(c.slots) - 1; last >= 0 && c.slots[last].slot == slot { // it almost always is
		c.slots[last].n += n
		return
	}
	if found := b.find(s, c, slot); found != nil {
		found.n += n
		return
	}
	if len(c.slots) == 0 {
		b.bytes += counterBytes + len(counter)
	}
	b.bytes += slotBytes
	if c.places() != nil {
		b.bytes += placeBytes
		c.extras.places[slot] = len(c.slots)
	}
	c.unordered = c.unordered || len(c.slots) > 0 && slot < c.slots[len(c.slots)-1].slot
	s.note(c.slots, c.unordered, slot)
	c.slots = append(c.slots, slotHits{slot, n})
}

func (b *Batch) find(s *ShardBatch, c *counterHits, slot timeSlot) *slotHits {
	for i := len(c.slots) - 1; i >= 0 && c.places() == nil; i-- {
		h := &c.slots[i]
		if h.slot == slot {
			return h
		}
		if h.slot < slot && !c.unordered {
			return nil
		}
		if len(c.slots)-i == fewSlots {
			places := make(slotIndex, 2*len(c.slots))
			for place := range c.slots {
				places[c.slots[place].slot] = place
			}
			b.bytes += placeBytes * len(c.slots)
			s.extrasOf(c).places = places
		}
	}
	if place, ok := c.places()[slot]; ok {
		return &c.slots[place]
	}
	return nil
}

func (c *counterHits) places() slotIndex {
	if c.extras == nil {
		return nil
	}
	return c.extras.places
}

// extrasOf returns a counter's extras for writing; it creates them if needed.
func (s *ShardBatch) extrasOf(c *counterHits) *extras {
	if c.extras == nil {
		c.extras, s.extras = new(extras), true
	}
	return c.extras
}

// AddUnique is Add for hits with a unique value; r is the value's register.
func (b *Batch) AddUnique(counter []byte, counterHash uint64, at, stored, n int64, r unique.Register) {
	b.Add(counter, counterHash, at, stored, n)
	slot := b.uniques.slotOf(counterHash, at, stored)
	if slot.tiers() == 0 {
		return
	}
	s := &b.shards[b.layout.ShardOf(counterHash)]
	u, added := b.uniquesOf(s.extrasOf(s.counter(counter, counterHash)), slot)
	bytes, weight := u.sketch.Bytes(), s.weigh(u)
	if added {
		bytes, weight = -sketchBytes, 0
		s.commands += 2 * slot.tiers() // in coarse tiers they may share a cell: at most as many
	}
	u.sketch.Add(r)
	b.bytes += u.sketch.Bytes() - bytes
	s.commands += s.weigh(u) - weight
}

func (b *Batch) uniquesOf(x *extras, slot timeSlot) (found *slotUniques, added bool) {
	for i := len(x.uniques) - 1; i >= 0 && x.uniquePlaces == nil; i-- { // the newest is almost always the right one
		if x.uniques[i].slot == slot {
			return &x.uniques[i], false
		}
		if len(x.uniques)-i == fewSlots {
			x.uniquePlaces = make(slotIndex, 2*len(x.uniques))
			for place := range x.uniques {
				x.uniquePlaces[x.uniques[place].slot] = place
			}
			b.bytes += placeBytes * len(x.uniques)
		}
	}
	if place, ok := x.uniquePlaces[slot]; ok {
		return &x.uniques[place], false
	}
	if x.uniquePlaces != nil {
		x.uniquePlaces[slot] = len(x.uniques)
		b.bytes += placeBytes
	}
	x.uniques = append(x.uniques, slotUniques{slot: slot})
	return &x.uniques[len(x.uniques)-1], true
}

// weigh returns as how many commands the registers of a slot count. Redis searches a HyperLogLog of fewer
// than some 2000 registers from the beginning: one takes 0.1 µs if it is empty, and up to 2.6 µs, as much as
// an increment, if it is nearly full. Later ones take 0.03 to 0.06 µs (Redis 7.0).
func (s *ShardBatch) weigh(u *slotUniques) int {
	const costly = 2000
	n := u.sketch.Held()
	return u.slot.tiers() * (min(n, costly) + max(0, n-costly)/16)
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
	*at = counterHits{name: string(name), counterHash: counterHash, slots: at.slots[:0]}
	*slot = indexEntry(counterHash, i)
	return at
}

// counterIndex finds a counter's place, with linear probing. A map of names would take three times the memory
// and hash each name again. A slot has the lower half of the counter's hash above its place plus one; 0 is
// empty. The number of slots is a power of two.
type counterIndex []uint64

func indexEntry(counterHash uint64, place int) uint64 { return counterHash<<32 | uint64(place+1) }

// slot returns the slot of a counter, or the empty one that it would take. At least one slot must be empty.
func (x counterIndex) slot(counters []counterHits, name []byte, counterHash uint64) *uint64 {
	mask := uint64(len(x) - 1)
	for i := counterHash >> 32 & mask; ; i = (i + 1) & mask { // the lower half has chosen the shard
		slot := x[i]
		if slot == 0 || slot>>32 == counterHash&math.MaxUint32 && counters[uint32(slot)-1].name == string(name) {
			return &x[i]
		}
	}
}

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

// note counts the commands that a new slot of a counter adds to the transaction: one per new cell and per new
// hash, and those for summaries and names that no other counter has changed yet. before are the counter's
// other slots. If they are unordered, note compares only the last few, and may count a cell or a hash again.
func (s *ShardBatch) note(before []slotHits, unordered bool, added timeSlot) {
	for i, t := range s.layout.Tiers {
		if !added.isIn(i) {
			continue
		}
		cell := t.cellAt(added.begins())
		epoch, _ := t.place(cell)
		newCell, newHash := true, true
		for n := len(before) - 1; n >= 0 && newCell; n-- {
			if unordered && len(before)-n > fewSlots {
				s.inexact = true
				break
			}
			if !before[n].slot.isIn(i) {
				continue
			}
			have := t.cellAt(before[n].slot.begins())
			haveEpoch, _ := t.place(have)
			newCell, newHash = have != cell, newHash && haveEpoch != epoch
			if !unordered {
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

// order sorts the slots by time, and drops their indexes.
func (c *counterHits) order() {
	x := c.extras
	if c.unordered {
		slices.SortFunc(c.slots, func(a, b slotHits) int { return cmp.Compare(a.slot, b.slot) })
		if c.unordered = false; x != nil {
			x.places = nil
		}
	}
	bySlot := func(a, b slotUniques) int { return cmp.Compare(a.slot, b.slot) }
	if x != nil && !slices.IsSortedFunc(x.uniques, bySlot) {
		slices.SortFunc(x.uniques, bySlot)
		x.uniquePlaces = nil
	}
}
