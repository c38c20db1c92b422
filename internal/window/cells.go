package window

// CellHits are the hits of a batch in one cell of a counter.
type CellHits struct {
	Tier         int
	Cell         int64 // see Tier.CellAt
	Epoch, Field int64 // see Tier.EpochAndField
	N            int64
	First        bool // it is the first of the counter's cells in its hash
}

// Cells returns the cells of a counter whose slots are in order, tier by tier, without those in logs. It
// uses the memory of into.
func (s *ShardBatch) Cells(c *CounterHits, into []CellHits) []CellHits {
	into = into[:0]
	for i, t := range s.Layout.Tiers {
		first := true
		for _, h := range c.slots {
			if !h.slot.IsIn(i) || c.sparse && s.heldByAll(h.slot) {
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

// SegmentHits are the hits of a batch in a segment, by counter.
type SegmentHits struct {
	Segment
	Counters []Listing
}

// Add adds hits of a counter. All hits of one counter must be added in a row.
func (s *SegmentHits) Add(counter string, n int64) {
	if last := len(s.Counters) - 1; last >= 0 && s.Counters[last].Name == counter {
		s.Counters[last].Count = AddCounts(s.Counters[last].Count, n)
		return
	}
	s.Counters = append(s.Counters, Listing{counter, n})
}

// CellID is a cell of a counter: the index of its tier, and its number there since 1970.
type CellID struct {
	Tier int
	Cell int64
}

// AppendCells appends the cells in which a hit of a counter (with its HashCounter) counts: one in each tier
// that held its moment when the hit was stored. Moments are Unix milliseconds.
func (l Layout) AppendCells(to []CellID, counterHash uint64, at, stored int64) []CellID {
	for i, t := range l.Tiers {
		if holdsWhenStored(t, counterHash, at, stored) {
			to = append(to, CellID{i, t.CellAt(at)})
		}
	}
	return to
}

// CellStart returns the first moment of a cell, in Unix milliseconds.
func (l Layout) CellStart(c CellID) int64 { return l.Tiers[c.Tier].CellStart(c.Cell) }

// UniquesFrom returns a moment (Unix milliseconds) at now. Earlier unique cells may have other registers than
// the messages would set now, because tiers before a change rejected other hits as too late.
func (l Layout) UniquesFrom(now int64) int64 {
	t := l.Tiers[len(l.Tiers)-1]
	if t.Generation == 0 {
		return 0
	}
	return max(t.Since, now-t.Window.Milliseconds())
}

// Uniques returns the layout of unique cells, which are keys of their own. The Tier of its cells indexes
// UniqueTiers.
func (l Layout) Uniques() Layout { return Layout{Tiers: l.UniqueTiers, Shards: l.Shards} }

// CellExpires returns the Unix second at which the hash that holds a counter's cell expires.
func (l Layout) CellExpires(c CellID, counterHash uint64) int64 {
	t := l.Tiers[c.Tier]
	epoch, _ := t.EpochAndField(c.Cell)
	return t.Deadline(epoch, counterHash)
}

// HashAhead is how far ahead of Redis's clock (ms) hashes are looked for: the clock of NATS may be ahead.
const HashAhead = 60_000

// HashesPerCounter returns the most hashes of a counter that Read asks for. Unique cells count as an eighth
// of a hash: most counters have few, and Redis takes less time for one of 12 KiB than for a full hash.
func (l Layout) HashesPerCounter() (n int) {
	of := func(t Tier) int { return int((kept(t)+HashAhead)/t.EpochMillis()) + 2 }
	for _, t := range l.UniqueTiers {
		n += of(t)
	}
	n /= 8
	for _, t := range l.StoredTiers() {
		n += of(t)
	}
	return n
}
