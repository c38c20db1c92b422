package window

import (
	"iter"
	"slices"
)

// Parts splits a commit of cells that moves the cursor from one place to
// another into transactions of at most maxCommands each, in order. The cursor
// that goes with each says which counters it has taken to the new place, so that
// after a crash between two of them each counter goes on from where it is.
//
// A commit is not split while some counters are ahead already, nor where one
// counter alone needs more commands.
func (c *Cells) Parts(from, to Cursor, maxCommands int) iter.Seq2[*Cells, Cursor] {
	return func(yield func(*Cells, Cursor) bool) {
		if c.commands <= maxCommands || from.Ahead != (Ahead{}) || from.Created != to.Created {
			yield(c, to)
			return
		}
		count, parts := c.split(maxCommands)
		step := from
		step.IncompleteBefore = max(from.IncompleteBefore, to.IncompleteBefore)
		for i := range parts[:len(parts)-1] {
			step.Ahead = Ahead{Seq: to.Seq, Stored: to.Stored, Done: parts[i].number + 1, Parts: count}
			if !yield(&parts[i].Cells, step) {
				return
			}
		}
		yield(&parts[len(parts)-1].Cells, to)
	}
}

// numbered is a part that has counters.
type numbered struct {
	number int // see partOf
	Cells
}

// maxParts bounds how finely counters are told apart: beyond it a part may pass
// maxCommands, rather than that splitting has no end.
const maxParts = 1 << 20

// split divides the counters into as many parts as it takes for none of several
// counters to pass maxCommands, and returns those that have any.
func (c *Cells) split(maxCommands int) (count int, parts []numbered) {
	for count = (c.commands + maxCommands - 1) / maxCommands; ; count += count/8 + 1 {
		found, fits := make(map[int]*numbered), true
		for _, counter := range c.counters {
			number := partOf(counter.hash, count)
			p := found[number]
			if p == nil {
				p = &numbered{number, newCells(c.layout, c.grain)}
				found[number] = p
			}
			p.counters = append(p.counters, counter)
			p.commands += counter.commands
			for _, g := range counter.grains {
				p.hits += g.n
				p.commands += p.note(g.grain, g.tiers)
			}
			fits = fits && (p.commands <= maxCommands || len(p.counters) == 1)
		}
		if !fits && count < maxParts {
			continue
		}
		for _, p := range found {
			parts = append(parts, *p)
		}
		slices.SortFunc(parts, func(a, b numbered) int { return a.number - b.number })
		return count, parts
	}
}
