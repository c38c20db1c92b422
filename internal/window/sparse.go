package window

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Most counters are rare. A hit of one would create a hash per tier, each with an expiry, and touch all of
// them again each time. So a counter's hits of a load go either into one sparse log or into the tiers'
// hashes, as the writer decides (ShardBatch.Place), and readers add up both. Each hit is in exactly one of
// them, so nothing is ever moved. A log is a string: LogHeader, and then for each cell what AppendLogCell
// appends; a cell may repeat.
//
// Only hits that all tiers held when they were stored go there. Their slots are as short as a log's cells;
// the slot of a late hit is longer, and a log would date it too precisely.

const (
	// LogHeader is the text of a log without cells. No UTF-8 has that byte.
	LogHeader = "\xc1"
	// MaxLogBytes is the size up to which a log takes the hits of another load. docs/design.md has the
	// measurements.
	MaxLogBytes = 1024
	// logCellBytes is what most cells take.
	logCellBytes = 3
)

// SparseTier returns the pseudo tier of the logs; ok is false if the layout has none. Its cells are those
// of which all tiers' cells consist. Its epochs are whole epochs of the coarsest tier, and as long as its
// window or longer, so that a rare counter has two or three logs. Its hashes are the logs.
func (l Layout) SparseTier() (t Tier, ok bool) {
	coarsest := l.Tiers[len(l.Tiers)-1]
	if !l.Sparse || len(l.Tiers) == 1 {
		return Tier{}, false
	}
	cell := int64(coarsest.Cell)
	for _, finer := range l.Tiers[:len(l.Tiers)-1] {
		// A log must outlive the finer tiers' hashes of its time, whose epochs may begin in it and end
		// after it.
		if finer.EpochMillis()+finer.Window.Milliseconds() > coarsest.Window.Milliseconds() {
			return Tier{}, false
		}
		cell = gcd(cell, int64(finer.Cell))
	}
	t = Tier{Cell: time.Duration(cell), Window: coarsest.Window, Generation: coarsest.Generation, Sparse: true}
	epochs := -FloorDiv(-coarsest.Window.Milliseconds(), coarsest.EpochMillis())
	t.epoch = epochs * coarsest.EpochMillis() / t.CellMillis()
	return t, true
}

// StoredTiers returns the tiers by which a counter has keys: the layout's, and that of the logs.
func (l Layout) StoredTiers() Tiers {
	if t, ok := l.SparseTier(); ok {
		return append(slices.Clip(l.Tiers), t)
	}
	return l.Tiers
}

// NamesTier returns the tier for whose epochs names are listed (see Tier.NamesOf): that of the logs, which
// live longest, or the coarsest.
func (l Layout) NamesTier() Tier {
	if t, ok := l.SparseTier(); ok {
		return t
	}
	return l.Tiers[len(l.Tiers)-1]
}

// AppendLogCell appends n hits of a cell to the text of a log: 2·field, plus 1 if n > 1 follows, as
// unsigned varints.
func AppendLogCell(to []byte, field, n int64) []byte {
	if n == 1 {
		return binary.AppendUvarint(to, uint64(field)<<1)
	}
	return binary.AppendUvarint(binary.AppendUvarint(to, uint64(field)<<1|1), uint64(n))
}

// ParseLog parses the text of a log of the tier t.
func (t Tier) ParseLog(text string) ([]StoredCell, error) {
	if len(text) == 0 || text[:1] != LogHeader {
		return nil, errors.New("not a sparse log")
	}
	out := make([]StoredCell, 0, len(text)/logCellBytes)
	for text = text[1:]; text != ""; {
		cell, err := StoredCell{N: 1}, error(nil)
		if cell.Field, text, err = takeCount(text); err == nil && cell.Field&1 == 1 {
			if cell.N, text, err = takeCount(text); err == nil && cell.N < 2 {
				err = errors.New("has a number that is not a count")
			}
		}
		cell.Field >>= 1
		if err == nil && cell.Field >= t.CellsPerEpoch() {
			err = fmt.Errorf("has cell %d of %d", cell.Field, t.CellsPerEpoch())
		}
		if err != nil {
			return nil, fmt.Errorf("its sparse log %w", err)
		}
		out = append(out, cell)
	}
	return out, nil
}

// Place decides, once, whether the hits of each counter go into its logs: unless the counter is busy,
// because a log would exceed most bytes, or would have done so in the epoch before. size returns what is
// known of a log's size, also of one that the hits would have had. Commands, Split and Cells follow the
// decision.
func (s *ShardBatch) Place(most int, size func(counterHash uint64, epoch int64) int) {
	if s.placed || !s.NamesTier.Sparse {
		return
	}
	s.placed, s.inexact = true, true // so Split counts the commands again
	for i := range s.Counters {
		s.place(&s.Counters[i], most, size)
	}
}

func (s *ShardBatch) place(c *CounterHits, most int, size func(counterHash uint64, epoch int64) int) {
	c.Order()
	if c.Name == AllHits {
		return
	}
	var scratch [2 * binary.MaxVarintLen64]byte
	epoch, bytes := int64(0), 0
	fits := func() bool {
		return bytes == 0 || size(c.CounterHash, epoch)+bytes <= most && size(c.CounterHash, epoch-1) <= most
	}
	c.sparse = true
	for _, h := range c.slots {
		if !s.heldByAll(h.slot) {
			continue
		}
		e, field := s.NamesTier.EpochAndField(s.NamesTier.CellAt(h.slot.Begins()))
		if e != epoch {
			c.sparse = c.sparse && fits()
			epoch, bytes = e, 0
		}
		if bytes += len(AppendLogCell(scratch[:0], field, h.n)); bytes > most {
			break // whatever else there is
		}
	}
	c.sparse = c.sparse && bytes > 0 && fits()
	c.logBytes = uint16(min(bytes, math.MaxUint16))
}

// heldByAll reports whether all tiers held the hits of a slot when they were stored.
func (s *ShardBatch) heldByAll(slot timeSlot) bool {
	all := timeSlot(1<<len(s.Layout.Tiers) - 1)
	return slot&all == all
}

// IsSparse reports whether the hits that LogCells returns go into logs. Cells returns the others.
func (c *CounterHits) IsSparse() bool { return c.sparse }

// Dense returns the counter as if all of its hits went into the tiers.
func (c CounterHits) Dense() *CounterHits {
	c.sparse = false
	return &c
}

// LogBytes returns the bytes that the hits of a placed counter take, or would take, in its latest log.
func (c *CounterHits) LogBytes() int { return int(c.logBytes) }

// LogCells returns the cells of a counter, whose slots are in order, that can be in logs. It uses the
// memory of into.
func (s *ShardBatch) LogCells(c *CounterHits, into []CellHits) []CellHits {
	t := s.NamesTier
	into = into[:0]
	for _, h := range c.slots {
		if !s.heldByAll(h.slot) {
			continue
		}
		cell := t.CellAt(h.slot.Begins()) // a slot is a cell
		epoch, field := t.EpochAndField(cell)
		first := len(into) == 0 || into[len(into)-1].Epoch != epoch
		into = append(into, CellHits{Cell: cell, Epoch: epoch, Field: field, N: h.n, First: first})
	}
	return into
}

// noteLogs counts the commands for the logs of a counter, and returns its other slots.
func (s *ShardBatch) noteLogs(c *CounterHits) (others []slotHits) {
	t := s.NamesTier
	for _, cell := range s.LogCells(c, nil) {
		for i, level := range s.Layout.Tiers {
			s.noteSegment(i, level.CellAt(t.CellStart(cell.Cell)))
		}
		if cell.First {
			s.commands += 2 // and an EXPIREAT if it is about to expire
			s.noteNames(cell.Epoch)
		}
	}
	for _, h := range c.slots {
		if !s.heldByAll(h.slot) {
			others = append(others, h)
		}
	}
	return others
}
