package window

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"tallyroll/internal/unique"
)

// Batch coalesces hits until they are committed, by shard: a sum per counter and time slot, from which all
// tiers' cells follow, and a sketch per slot of the unique tiers. If the layout has a sum of all hits,
// AllHits is one more counter of each shard. It is not safe for concurrent use.
type Batch struct {
	layout  Layout
	shards  []ShardBatch
	hits    kind
	uniques kind
	bytes   int // see Bytes
}

// timeSlot is the longest time within one cell of each tier that still held a hit's time when it was stored.
// So a slot of hits weeks late is a cell of the coarsest tier, and a counter has about as many slots as
// cells, whatever the times. The lower bits are these tiers (bit i: tier i), and whether AllHits leaves the
// hits out (excluded); the others are the slot's beginning in Unix milliseconds. Later slots are larger.
type timeSlot int64

const (
	excluded timeSlot = 1 << maxTiers
	slotBits          = maxTiers + 1 // below the beginning
)

func (t timeSlot) Begins() int64 { return int64(t >> slotBits) }

func (t timeSlot) IsIn(tier int) bool { return t>>tier&1 != 0 }

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
			if timeSlot(held).IsIn(i) {
				k.lengths[held] = gcd(k.lengths[held], t.CellMillis())
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
	return timeSlot(FloorDiv(at, length)*length<<slotBits | int64(held))
}

// heldBy returns a bit set of the tiers that still held the moment at when the hit was stored.
func (k *kind) heldBy(counterHash uint64, at, stored int64) (tiers int) {
	for i, t := range k.tiers {
		if holdsWhenStored(t, counterHash, at, stored) {
			tiers |= 1 << i
		}
	}
	return tiers
}

// ShardBatch is the part of a batch that belongs to one shard.
type ShardBatch struct {
	Layout   Layout
	Counters []CounterHits
	index    counterIndex
	hits     int64
	end      int64 // see End
	commands int
	inexact  bool                 // commands may be fewer: see note
	Segments map[Segment]struct{} // that its hits are in
	noted    [maxTiers]noted      // the last segment of each tier that noteSegment has added
	names    map[int64]struct{}   // the sets of names that its hits belong to; see Tier.NamesOf
	cells    []CellHits           // scratch
	extras   bool                 // a counter has some
	placed   bool                 // see Place
	Bounded  bool                 // its writer has moved the hits of names without room, see MoveHits

	NamesTier Tier // see Layout.NamesTier
}

// CounterHits are a counter's hits by time slot, in order of first occurrence. They fill a cache line.
type CounterHits struct {
	Name        string
	CounterHash uint64
	slots       []slotHits
	unordered   bool    // a slot is less than the one before it
	sparse      bool    // see Place
	folds       bool    // its log, see Place
	Extras      *extras // nil for most counters
}

type slotHits struct {
	slot timeSlot
	n    int64
}

// extras hold what only a counter with many slots out of order, or with unique values, needs.
type extras struct {
	places       slotIndex // of its slots; nil until one is looked for that is not among the last few
	Uniques      []SlotUniques
	uniquePlaces slotIndex // the same, of uniques
}

// SlotUniques are the unique values of a counter in a time slot.
type SlotUniques struct {
	Slot   timeSlot
	Sketch unique.Sketch
}

// slotIndex finds a slot among a counter's, so that the order of times does not affect a hit's cost.
type slotIndex map[timeSlot]int

// fewSlots are searched without an index. Most counters have no more in a load.
const fewSlots = 8

// NewBatch returns an empty batch.
func NewBatch(layout Layout) *Batch {
	b := &Batch{layout: layout, shards: make([]ShardBatch, layout.Shards), hits: kindOf(layout.Tiers),
		uniques: kindOf(layout.UniqueTiers)}
	for i := range b.shards {
		b.shards[i] = newShardBatch(layout)
	}
	return b
}

func newShardBatch(layout Layout) ShardBatch {
	return ShardBatch{Layout: layout, Segments: make(map[Segment]struct{}), names: make(map[int64]struct{}),
		NamesTier: layout.NamesTier()}
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
		for i := range s.Counters {
			if !s.extras {
				break
			}
			s.Counters[i].Extras = nil
		}
		s.extras, s.placed, s.Bounded, s.end = false, false, false, 0
		s.Counters = s.Counters[:0]
		clear(s.index)
		s.resetCounts()
	}
	b.bytes = 0
}

// resetCounts forgets what count has counted.
func (s *ShardBatch) resetCounts() {
	s.hits, s.commands, s.inexact, s.noted = 0, 0, false, [maxTiers]noted{}
	clear(s.Segments)
	clear(s.names)
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
// registers (see weigh). It may be too high if many slots of a counter are out of order (see note), and
// before Split for counters with logs, which need fewer (see Place).
func (s *ShardBatch) Commands() int { return s.commands }

// IsExact reports whether Commands is the number, and not only a bound, of a first transaction.
func (s *ShardBatch) IsExact() bool { return !s.inexact }

// Hits returns the number of hits, each counted once however many tiers hold it.
func (s *ShardBatch) Hits() int64 { return s.hits }

// End returns a moment (Unix milliseconds) before which all hits lie, also those of a Split's other parts.
func (s *ShardBatch) End() int64 { return s.end }

// CommandsPerHit returns the most commands that a hit with or without a unique value can add.
func (l Layout) CommandsPerHit(isUnique bool) int {
	n := 4*len(l.Tiers) + 2 // half of those of the tiers are of AllHits
	if isUnique {
		n += 3 * len(l.UniqueTiers)
	}
	for i := range l.Tiers {
		if l.HasSummaries(i) {
			n++
		}
	}
	return n
}

// Add counts n hits of a counter (with its HashCounter) at the moment at in each tier that still held that
// moment when the hit was stored. Moments are Unix milliseconds.
func (b *Batch) Add(counter []byte, counterHash uint64, at, stored, n int64) {
	b.addHits(counter, counterHash, b.hits.slotOf(counterHash, at, stored), at, n)
}

// AddExcluded is Add for hits that AllHits leaves out.
func (b *Batch) AddExcluded(counter []byte, counterHash uint64, at, stored, n int64) {
	b.addHits(counter, counterHash, b.hits.slotOf(counterHash, at, stored)|excluded, at, n)
}

func (b *Batch) addHits(counter []byte, counterHash uint64, slot timeSlot, at, n int64) {
	s := &b.shards[b.layout.ShardOf(counterHash)]
	s.hits += n
	s.end = max(s.end, at+1)
	if len(s.Counters) == 0 {
		s.counter(nil, HashCounter(nil))
	}
	if slot&excluded == 0 {
		b.bytes += s.add(&s.Counters[0], slot, n) // AllHits, which needs no search because it is the first
	}
	b.bytes += s.add(s.counter(counter, counterHash), slot, n)
}

// add adds hits to a counter's slot, and returns how many bytes of memory they take.
func (s *ShardBatch) add(c *CounterHits, slot timeSlot, n int64) (bytes int) {
	if last := len(c.slots) - 1; last >= 0 && c.slots[last].slot == slot { // it almost always is
		c.slots[last].n += n
		return 0
	}
	found, bytes := s.find(c, slot)
	if found != nil {
		found.n += n
		return bytes
	}
	if len(c.slots) == 0 {
		bytes += counterBytes + len(c.Name)
	}
	bytes += slotBytes
	if c.places() != nil {
		bytes += placeBytes
		c.Extras.places[slot] = len(c.slots)
	}
	c.unordered = c.unordered || len(c.slots) > 0 && slot < c.slots[len(c.slots)-1].slot
	s.note(c, c.slots, slot)
	c.slots = append(c.slots, slotHits{slot, n})
	return bytes
}

// find returns a counter's slot, or nil, and how many bytes of memory a new index takes.
func (s *ShardBatch) find(c *CounterHits, slot timeSlot) (found *slotHits, bytes int) {
	for i := len(c.slots) - 1; i >= 0 && c.places() == nil; i-- {
		h := &c.slots[i]
		if h.slot == slot {
			return h, 0
		}
		if h.slot < slot && !c.unordered {
			return nil, 0
		}
		if len(c.slots)-i == fewSlots {
			places := make(slotIndex, 2*len(c.slots))
			for place := range c.slots {
				places[c.slots[place].slot] = place
			}
			bytes = placeBytes * len(c.slots)
			s.extrasOf(c).places = places
		}
	}
	if place, ok := c.places()[slot]; ok {
		return &c.slots[place], bytes
	}
	return nil, bytes
}

func (c *CounterHits) places() slotIndex {
	if c.Extras == nil {
		return nil
	}
	return c.Extras.places
}

// extrasOf returns a counter's extras for writing; it creates them if needed.
func (s *ShardBatch) extrasOf(c *CounterHits) *extras {
	if c.Extras == nil {
		c.Extras, s.extras = new(extras), true
	}
	return c.Extras
}

// AddUnique counts the unique value of hits, whose register is r, after Add or AddExcluded.
func (b *Batch) AddUnique(counter []byte, counterHash uint64, at, stored int64, r unique.Register) {
	slot := b.uniques.slotOf(counterHash, at, stored)
	if slot.tiers() == 0 {
		return
	}
	s := &b.shards[b.layout.ShardOf(counterHash)]
	u, added := b.uniquesOf(s.extrasOf(s.counter(counter, counterHash)), slot)
	bytes, weight := u.Sketch.Bytes(), s.weigh(u)
	if added {
		bytes, weight = -sketchBytes, 0
		s.commands += 2 * slot.tiers() // in coarse tiers they may share a cell: at most as many
	}
	u.Sketch.Add(r)
	b.bytes += u.Sketch.Bytes() - bytes
	s.commands += s.weigh(u) - weight
}

func (b *Batch) uniquesOf(x *extras, slot timeSlot) (found *SlotUniques, added bool) {
	for i := len(x.Uniques) - 1; i >= 0 && x.uniquePlaces == nil; i-- { // the newest is almost always the right one
		if x.Uniques[i].Slot == slot {
			return &x.Uniques[i], false
		}
		if len(x.Uniques)-i == fewSlots {
			x.uniquePlaces = make(slotIndex, 2*len(x.Uniques))
			for place := range x.Uniques {
				x.uniquePlaces[x.Uniques[place].Slot] = place
			}
			b.bytes += placeBytes * len(x.Uniques)
		}
	}
	if place, ok := x.uniquePlaces[slot]; ok {
		return &x.Uniques[place], false
	}
	if x.uniquePlaces != nil {
		x.uniquePlaces[slot] = len(x.Uniques)
		b.bytes += placeBytes
	}
	x.Uniques = append(x.Uniques, SlotUniques{Slot: slot})
	return &x.Uniques[len(x.Uniques)-1], true
}

// weigh returns as how many commands the registers of a slot count. Redis searches a HyperLogLog of fewer
// than some 2000 registers from the beginning: one takes 0.1 µs if it is empty, and up to 2.6 µs, as much as
// an increment, if it is nearly full. Later ones take 0.03 to 0.06 µs (Redis 7.0).
func (s *ShardBatch) weigh(u *SlotUniques) int {
	const costly = 2000
	n := u.Sketch.Held()
	return u.Slot.tiers() * (min(n, costly) + max(0, n-costly)/16)
}

// counter finds the counter or adds it, reusing the memory of an earlier one.
func (s *ShardBatch) counter(name []byte, counterHash uint64) *CounterHits {
	if 2*len(s.Counters) >= len(s.index) {
		s.index = s.index.grown(s.Counters)
	}
	slot := s.index.slot(s.Counters, name, counterHash)
	if found := *slot; found != 0 {
		return &s.Counters[uint32(found)-1]
	}
	i := len(s.Counters)
	if i < cap(s.Counters) {
		s.Counters = s.Counters[:i+1]
	} else {
		s.Counters = append(s.Counters, CounterHits{})
	}
	at := &s.Counters[i]
	*at = CounterHits{Name: string(name), CounterHash: counterHash, slots: at.slots[:0]}
	*slot = indexEntry(counterHash, i)
	return at
}

// counterIndex finds a counter's place, with linear probing. A map of names would take three times the memory
// and hash each name again. A slot has the lower half of the counter's hash above its place plus one; 0 is
// empty. The number of slots is a power of two.
type counterIndex []uint64

func indexEntry(counterHash uint64, place int) uint64 { return counterHash<<32 | uint64(place+1) }

// slot returns the slot of a counter, or the empty one that it would take. At least one slot must be empty.
func (x counterIndex) slot(counters []CounterHits, name []byte, counterHash uint64) *uint64 {
	mask := uint64(len(x) - 1)
	for i := counterHash >> 32 & mask; ; i = (i + 1) & mask { // the lower half has chosen the shard
		slot := x[i]
		if slot == 0 || slot>>32 == counterHash&math.MaxUint32 && counters[uint32(slot)-1].Name == string(name) {
			return &x[i]
		}
	}
}

func (x counterIndex) grown(counters []CounterHits) counterIndex {
	larger := make(counterIndex, max(64, 2*len(x)))
	mask := uint64(len(larger) - 1)
	for place := range counters {
		i := counters[place].CounterHash >> 32 & mask
		for larger[i] != 0 {
			i = (i + 1) & mask
		}
		larger[i] = indexEntry(counters[place].CounterHash, place)
	}
	return larger
}

// note counts the commands that a new slot of a counter adds to the transaction: one per new cell and per new
// hash, and those for summaries and names that no other counter has changed yet; AllHits has neither.
// before are the counter's other slots. If they are unordered, note compares only the last few, and may count
// a cell or a hash again.
func (s *ShardBatch) note(c *CounterHits, before []slotHits, added timeSlot) {
	for i, t := range s.Layout.Tiers {
		if !added.IsIn(i) {
			continue
		}
		cell := t.CellAt(added.Begins())
		epoch, _ := t.EpochAndField(cell)
		newCell, newHash := true, true
		for n := len(before) - 1; n >= 0 && newCell; n-- {
			if c.unordered && len(before)-n > fewSlots {
				s.inexact = true
				break
			}
			if !before[n].slot.IsIn(i) {
				continue
			}
			have := t.CellAt(before[n].slot.Begins())
			haveEpoch, _ := t.EpochAndField(have)
			newCell, newHash = have != cell, newHash && haveEpoch != epoch
			if !c.unordered {
				break // the earlier ones lie in this cell and hash, or in earlier ones
			}
		}
		if !newCell {
			continue // its hash, summary and name are known too
		}
		s.commands++
		if c.Name != AllHits {
			s.noteSegment(i, cell)
		}
		if !newHash {
			continue
		}
		s.commands++
		if c.Name != AllHits && i == len(s.Layout.Tiers)-1 {
			s.noteNames(s.NamesTier.EpochAt(t.EpochStart(epoch)))
		}
	}
}

// noted is the number of a segment; the zero value: no segment.
type noted struct {
	number int64
	exists bool
}

func (s *ShardBatch) noteSegment(tier int, cell int64) {
	if !s.Layout.HasSummaries(tier) {
		return
	}
	segment := noted{s.Layout.Tiers[tier].SegmentOf(cell), true}
	if s.noted[tier] == segment { // as that of most cells
		return
	}
	s.noted[tier] = segment
	before := len(s.Segments)
	s.Segments[Segment{tier, segment.number}] = struct{}{}
	s.commands += len(s.Segments) - before
}

// noteNames counts the commands for the name of a counter with hits in an epoch of NamesTier.
func (s *ShardBatch) noteNames(epoch int64) {
	before := len(s.names)
	s.names[s.NamesTier.NamesOf(epoch)] = struct{}{}
	s.commands += 2 * (len(s.names) - before)
}

// Order sorts the slots by time, and drops their indexes.
func (c *CounterHits) Order() {
	x := c.Extras
	if c.unordered {
		slices.SortFunc(c.slots, func(a, b slotHits) int { return cmp.Compare(a.slot, b.slot) })
		if c.unordered = false; x != nil {
			x.places = nil
		}
	}
	bySlot := func(a, b SlotUniques) int { return cmp.Compare(a.Slot, b.Slot) }
	if x != nil && !slices.IsSortedFunc(x.Uniques, bySlot) {
		slices.SortFunc(x.Uniques, bySlot)
		x.uniquePlaces = nil
	}
}
