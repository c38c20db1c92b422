package window

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An increment per tier and load is what a counter would cost, on hashes that are full after weeks. So a
// counter's hits of a load are appended to one log. Once a log is long, a commit folds it: it moves the
// oldest cells of the log into the tiers' hashes. Readers add up both. Each hit is in exactly one of them.
//
// A log is a string: LogHeader, and then for each cell what AppendLogCell appends; a cell may repeat.
//
// Only hits that all tiers held when they were stored go there. Their slots are as short as a log's cells;
// the slot of a late hit is longer, and a log would date it too precisely.

const (
	// LogHeader is the text of a log without cells. No UTF-8 has that byte.
	LogHeader = "\xc1"
	// MaxLogBytes is the most that a log takes before it is due to be folded, and the most of a load.
	MaxLogBytes = 512
	// logCellBytes is what most cells take.
	logCellBytes = 3
)

// SparseTier returns the pseudo tier of the logs; ok is false if the layout has none. Its cells are those
// of which all tiers' cells consist. Its epochs are whole epochs of the coarsest tier, and as long as its
// window or longer, so that a rare counter has two or three logs. Its hashes are the logs.
func (l Layout) SparseTier() (t Tier, ok bool) {
	coarsest := l.Tiers[len(l.Tiers)-1]
	if len(l.Tiers) == 1 {
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

// AppendFirstLogCell is AppendLogCell for the first cell that a load appends to a log. If the log is gone,
// the key begins with that cell, and so never with LogHeader.
func AppendFirstLogCell(to []byte, field, n int64) []byte {
	if n > 1 && byte(field)<<1|0x81 == LogHeader[0] {
		to, n = AppendLogCell(to, field, 1), n-1
	}
	return AppendLogCell(to, field, n)
}

// LogsBeginAlike reports whether two logs begin with the same cell, however many hits it has.
func LogsBeginAlike(a, b string) bool {
	field := func(log string) uint64 {
		cell, _ := binary.Uvarint([]byte(log[len(LogHeader):min(len(log), binary.MaxVarintLen64)]))
		return cell >> 1
	}
	return field(a) == field(b)
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

const (
	// foldCommands is as how many commands a fold counts. Its commands are few, but each of its hashes costs a
	// read and an HSET of several fields.
	foldCommands = 16
	// mostFolds is how many logs a commit may fold; one more per 16 counters.
	mostFolds = 32
	// unfoldedLogs is how many times MaxLogBytes a log takes while other logs are folded first.
	unfoldedLogs = 8
)

// Place decides, once, where the hits of each counter go: into its logs, unless those of one log alone exceed
// most bytes. It also chooses the logs that the commit folds. size returns what is known of a log's size.
// Commands, Split and Cells follow the decision.
//
// A fold can meet a commit of another stream with the same counters, so few commits fold, and then several
// logs. A commit does once a log exceeds its limit: the largest that are near it, and only some. The limit,
// at most most, depends on salt, which is the stream's: so one stream folds, and the others soon see smaller
// logs. A log that has grown far beyond takes no more hits.
func (s *ShardBatch) Place(most int, salt uint64, size func(counterHash uint64, epoch int64) int) {
	if s.placed || !s.NamesTier.Sparse {
		return
	}
	s.placed, s.inexact = true, true // so Split counts the commands again
	type nearLog struct {
		counter *CounterHits
		size    int
	}
	var near []nearLog
	limit := most - int(salt%uint64(most/4+1))
	folds := false
	for i := range s.Counters {
		c := &s.Counters[i]
		c.Order()
		if c.Name == AllHits {
			continue
		}
		epoch, bytes, fits := s.measureLogs(c, most)
		if c.sparse = fits; !fits {
			continue
		}
		if have := size(c.CounterHash, epoch); have > len(LogHeader) && have+bytes > limit*3/4 {
			near, folds = append(near, nearLog{c, have}), folds || have+bytes > limit
		}
	}
	slices.SortFunc(near, func(a, b nearLog) int { return cmp.Compare(b.size, a.size) })
	for i, n := range near {
		n.counter.folds = folds && i < mostFolds+len(s.Counters)/16
		n.counter.sparse = n.counter.folds || n.size <= unfoldedLogs*most
	}
}

// measureLogs returns the latest epoch in which a counter has hits for a log, and how many bytes they take
// there. fits is false without such hits, or if those of an epoch exceed most bytes.
func (s *ShardBatch) measureLogs(c *CounterHits, most int) (epoch int64, bytes int, fits bool) {
	var scratch [2 * binary.MaxVarintLen64]byte
	for _, h := range c.slots {
		if !s.heldByAll(h.slot) {
			continue
		}
		e, field := s.NamesTier.EpochAndField(s.NamesTier.CellAt(h.slot.Begins()))
		if e != epoch {
			epoch, bytes = e, 0
		}
		if bytes += len(AppendLogCell(scratch[:0], field, h.n)); bytes > most {
			return epoch, bytes, false
		}
	}
	return epoch, bytes, bytes > 0
}

// FoldedEpoch returns the epoch of the log of a counter that the commit folds: the latest in which it has
// hits.
func (s *ShardBatch) FoldedEpoch(c *CounterHits) (epoch int64, ok bool) {
	for i := len(c.slots) - 1; i >= 0 && c.folds; i-- {
		if h := c.slots[i]; s.heldByAll(h.slot) {
			return s.NamesTier.EpochAt(h.slot.Begins()), true
		}
	}
	return 0, false
}

// FoldLog divides what a counter's log of an epoch holds. The newest cells, of at most keep bytes, stay: kept
// is their text. The others are folded, as hits that all tiers held when they were stored. If any are, kept
// does not begin with the first cell of the log, so that readers see that it was folded (LogsBeginAlike).
func (s *ShardBatch) FoldLog(c *CounterHits, epoch int64, cells []StoredCell, keep int) (folded CounterHits,
	kept []byte) {
	first := slices.Clone(cells[:min(len(cells), 1)])
	slices.SortFunc(cells, func(a, b StoredCell) int { return cmp.Compare(a.Field, b.Field) })
	merged := cells[:0]
	for _, cell := range cells {
		if last := len(merged) - 1; last >= 0 && merged[last].Field == cell.Field {
			merged[last].N = AddCounts(merged[last].N, cell.N)
		} else {
			merged = append(merged, cell)
		}
	}
	var scratch [2 * binary.MaxVarintLen64]byte
	from := len(merged)
	for bytes := 0; from > 0; from-- {
		cell := merged[from-1]
		if bytes += len(AppendLogCell(scratch[:0], cell.Field, cell.N)); bytes > keep {
			break
		}
	}
	if from > 0 && from < len(merged) && merged[from].Field == first[0].Field {
		from++
	}
	for _, cell := range merged[from:] {
		kept = AppendLogCell(kept, cell.Field, cell.N)
	}
	folded = CounterHits{Name: c.Name, CounterHash: c.CounterHash}
	for _, cell := range merged[:from] {
		begins := s.NamesTier.CellStart(s.NamesTier.CellIn(epoch, cell.Field))
		folded.slots = append(folded.slots, slotHits{timeSlot(begins<<slotBits) | s.allTiers(), cell.N})
	}
	return folded, kept
}

// heldByAll reports whether all tiers held the hits of a slot when they were stored.
func (s *ShardBatch) heldByAll(slot timeSlot) bool { return slot&s.allTiers() == s.allTiers() }

func (s *ShardBatch) allTiers() timeSlot { return 1<<len(s.Layout.Tiers) - 1 }

// IsSparse reports whether the hits that LogCells returns go into logs. Cells returns the others.
func (c *CounterHits) IsSparse() bool { return c.sparse }

// LogCells returns the cells of a counter, whose slots are in order, that can be in logs. It uses the
// memory of into.
func (s *ShardBatch) LogCells(c *CounterHits, into []CellHits) []CellHits {
	t := s.NamesTier
	into = into[:0]
	for _, h := range c.slots {
		if !s.heldByAll(h.slot) {
			continue
		}
		cell := t.CellAt(h.slot.Begins()) // a slot is a cell; an excluded one may be the same
		epoch, field := t.EpochAndField(cell)
		first := len(into) == 0 || into[len(into)-1].Epoch != epoch
		into = append(into, CellHits{Cell: cell, Epoch: epoch, Field: field, N: h.n, First: first})
	}
	return into
}

// noteLogs counts the commands for the logs of a counter, and returns its other slots.
func (s *ShardBatch) noteLogs(c *CounterHits) (others []slotHits) {
	t := s.NamesTier
	s.cells = s.LogCells(c, s.cells)
	for _, cell := range s.cells {
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
