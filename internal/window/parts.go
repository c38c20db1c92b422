package window

import "iter"

// Parts splits a commit of cells that moves the cursor from one place to
// another into transactions of at most maxCommands each, in order. The cursor
// that goes with each says which counters it has taken to the new place, so that
// after a crash between two of them each counter goes on from where it is.
//
// A commit is not split while some counters are ahead already, nor where one
// counter alone needs more commands.
func (c *Cells) Parts(from, to Cursor, maxCommands int) iter.Seq2[*Cells, Cursor] {
	return func(yield func(*Cells, Cursor) bool) {
		parts := c.split(maxCommands)
		if from.Ahead != (Ahead{}) || from.Created != to.Created || len(parts) == 1 {
			yield(c, to)
			return
		}
		for i := range parts[:len(parts)-1] {
			step := from
			step.IncompleteBefore = max(from.IncompleteBefore, to.IncompleteBefore)
			step.Ahead = Ahead{Seq: to.Seq, Stored: to.Stored, Done: i + 1, Parts: len(parts)}
			if !yield(&parts[i], step) {
				return
			}
		}
		yield(&parts[len(parts)-1], to)
	}
}

// split makes as many parts as it takes for none of several counters to pass maxCommands.
func (c *Cells) split(maxCommands int) []Cells {
	n := (c.commands + maxCommands - 1) / maxCommands
	for n > 1 {
		parts, fits := make([]Cells, n), true
		for i := range parts {
			parts[i] = newCells(c.layout, c.grain)
		}
		for _, counter := range c.counters {
			p := &parts[partOf(counter.hash, n)]
			p.counters = append(p.counters, counter)
			p.commands += counter.commands
			for _, g := range counter.grains {
				p.hits += g.n
				p.commands += p.note(g.grain, g.tiers)
			}
			fits = fits && (p.commands <= maxCommands || len(p.counters) == 1)
		}
		if fits {
			return parts
		}
		n += n/8 + 1
	}
	return []Cells{*c}
}
