package window

import (
	"iter"
	"slices"
)

// Split divides a commit into transactions of at most maxCommands each, in order. Each cursor lists which
// counters have reached the new position, so after a crash each counter continues from its own. It does not
// divide a commit while some counters are ahead, nor the commands of a single counter, which may be more.
func (s *ShardBatch) Split(from, to Cursor, maxCommands int) iter.Seq2[*ShardBatch, Cursor] {
	return func(yield func(*ShardBatch, Cursor) bool) {
		if s.inexact && s.commands > maxCommands {
			s.Recount()
		}
		if s.commands <= maxCommands || from.Ahead != (Ahead{}) || from.Created != to.Created {
			yield(s, to)
			return
		}
		count, parts := s.parts(maxCommands)
		step := from
		step.IncompleteBefore = max(from.IncompleteBefore, to.IncompleteBefore)
		step.Latest = max(from.Latest, to.Latest)
		for i := range parts[:len(parts)-1] {
			step.Ahead = Ahead{Seq: to.Seq, Stored: to.Stored, Done: parts[i].number + 1, Parts: count}
			if !yield(&parts[i].ShardBatch, step) {
				return
			}
		}
		yield(&parts[len(parts)-1].ShardBatch, to)
	}
}

type numberedPart struct {
	number  int // see partOf
	largest int // commands of a counter that needs more than maxCommands by itself
	ShardBatch
}

// maxParts bounds the number of parts, so that splitting always ends. Then a part may exceed maxCommands.
const maxParts = 1 << 20

// parts divides the counters so that no part exceeds maxCommands, except by one counter that does so alone.
// It returns the parts that have counters.
func (s *ShardBatch) parts(maxCommands int) (count int, parts []numberedPart) {
	for count = (s.commands + maxCommands - 1) / maxCommands; ; count += count/8 + 1 {
		found, fits := make(map[int]*numberedPart), true
		for i := range s.Counters {
			c := &s.Counters[i]
			if c.Name == AllHits {
				continue // each part has its share of it
			}
			number := partOf(c.CounterHash, count)
			p := found[number]
			if p == nil {
				p = &numberedPart{number: number, ShardBatch: newShardBatch(s.Layout)}
				p.Counters = []CounterHits{{Name: AllHits, CounterHash: HashCounter(nil)}}
				p.end, p.placed = s.end, s.placed
				found[number] = p
			}
			before := p.commands
			p.take(c)
			if alone := p.commands - before; alone > maxCommands && alone > p.largest {
				p.largest = alone
			}
			fits = fits && p.commands-p.largest <= maxCommands
		}
		if !fits && count < maxParts {
			continue
		}
		for _, p := range found {
			parts = append(parts, *p)
		}
		slices.SortFunc(parts, func(a, b numberedPart) int { return a.number - b.number })
		return count, parts
	}
}

// take adds a counter of another batch, and shares the memory of that counter's slots.
func (s *ShardBatch) take(c *CounterHits) {
	s.count(c)
	s.Counters = append(s.Counters, *c)
	for _, h := range c.slots {
		if h.slot&excluded == 0 {
			s.add(&s.Counters[0], h.slot, h.n)
		}
	}
}

// count adds the hits and the commands of a counter, and sorts its slots.
func (s *ShardBatch) count(c *CounterHits) {
	c.Order()
	slots := c.slots
	if c.sparse {
		slots = s.noteLogs(c)
	}
	if c.folds {
		s.commands += foldCommands
	}
	for i, h := range slots {
		s.note(c, slots[:i], h.slot)
	}
	if c.Name != AllHits {
		for _, h := range c.slots {
			s.hits += h.n
		}
	}
	if c.Extras == nil {
		return
	}
	for i := range c.Extras.Uniques {
		u := &c.Extras.Uniques[i]
		s.commands += 2*u.Slot.tiers() + s.weigh(u)
	}
}

// Recount counts the commands of all counters again, in order of time, so that none counts twice.
func (s *ShardBatch) Recount() {
	s.resetCounts()
	for i := range s.Counters {
		s.count(&s.Counters[i])
	}
}
