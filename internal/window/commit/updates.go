package commit

import (
	"context"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// Unique values are counted in HyperLogLogs (docs/design.md). PFADD keeps the maximum, so applying a hit
// again changes nothing. But a missing register stays missing, so a writer leaves out only registers that it
// knows to be in Redis (registerMemory).
//
// An EXPIREAT directly follows each PFADD: if the cell has expired when EXEC runs, it deletes what PFADD has
// created. So, unlike for hashes, no expiry has to be remembered or repaired.

// registerUpdates are those of a transaction. The next transaction reuses their memory.
type registerUpdates struct {
	list []registerUpdate
	// by set (see Layout.UniqueNamesOf), the counters of cells of which no register is known
	names     map[int64][]string
	registers []unique.Register
	arguments []string
	bytes     []byte
}

// registerUpdate is a cell of a unique tier, and the registers that a transaction updates in it.
type registerUpdate struct {
	uniqueCell
	key       string
	deadline  int64 // Unix seconds
	registers []unique.Register
	arguments []string // of PFADD, one per register
}

// uniqueCell has the counter's name: counters with the same hash would hide each other's registers.
type uniqueCell struct {
	counter string
	tier    int // of Layout.UniqueTiers
	cell    int64
}

func (r *registerUpdates) reset() {
	clear(r.list)
	clear(r.arguments)
	r.names = make(map[int64][]string)
	r.list, r.registers, r.arguments, r.bytes = r.list[:0], r.registers[:0], r.arguments[:0], r.bytes[:0]
}

// compute lists a counter's register updates at now (Redis's clock, Unix seconds), without expired cells and
// registers known to be in Redis. A cell can be listed twice, if hits in other tiers lie between.
func (r *registerUpdates) compute(layout window.Layout, shard int, keys schema.Keys, c *window.CounterHits,
	known *registerMemory, now int64) {
	for i, t := range layout.UniqueTiers {
		for rest := c.Extras.Uniques; len(rest) > 0; {
			if !rest[0].Slot.IsIn(i) {
				rest = rest[1:]
				continue
			}
			var sketch *unique.Sketch
			cell := t.CellAt(rest[0].Slot.Begins())
			sketch, rest = firstCell(rest, i, t)
			deadline := t.Deadline(cell, c.CounterHash)
			if deadline <= now {
				continue
			}
			at := uniqueCell{c.Name, i, cell}
			from := len(r.registers)
			there := known.of(at)
			r.registers = sketch.AppendAbove(r.registers, there)
			if len(r.registers) > from {
				set := layout.UniqueNamesOf(t.CellStart(cell))
				if names := r.names[set]; there.Held() == 0 && (len(names) == 0 || names[len(names)-1] != c.Name) {
					r.names[set] = append(names, c.Name)
				}
				r.list = append(r.list, registerUpdate{uniqueCell: at, key: keys.Unique(shard, t, cell, c.Name),
					deadline: deadline, registers: r.registers[from:]})
			}
		}
	}
}

// firstCell merges the first slots, up to one that is not in the same cell of a tier, and returns the rest.
func firstCell(slots []window.SlotUniques, tier int, t window.Tier) (sketch *unique.Sketch, rest []window.SlotUniques) {
	sketch, cell, merged := &slots[0].Sketch, t.CellAt(slots[0].Slot.Begins()), false
	for i := 1; i < len(slots); i++ {
		u := &slots[i]
		if !u.Slot.IsIn(tier) || t.CellAt(u.Slot.Begins()) != cell {
			return sketch, slots[i:]
		}
		if !merged {
			sketch, merged = sketch.Clone(), true
		}
		sketch.Merge(&u.Sketch)
	}
	return sketch, nil
}

// finish builds the arguments; call it last.
func (r *registerUpdates) finish() {
	for _, register := range r.registers {
		r.bytes = register.AppendArgument(r.bytes)
	}
	text := string(r.bytes)
	for len(text) > 0 {
		r.arguments = append(r.arguments, text[:unique.ArgumentSize])
		text = text[unique.ArgumentSize:]
	}
	from := 0
	for i := range r.list {
		to := from + len(r.list[i].registers)
		r.list[i].registers, r.list[i].arguments = r.registers[from:to], r.arguments[from:to]
		from = to
	}
}

func (c *commands) queueUpdates(ctx context.Context, p redis.Pipeliner, list []registerUpdate) {
	for i := range list {
		r := &list[i]
		first := len(c.args)
		c.args = append(c.args, "pfadd", &r.key)
		for j := range r.arguments {
			c.args = append(c.args, &r.arguments[j])
		}
		_ = p.Process(ctx, redis.NewIntCmd(ctx, c.args[first:len(c.args):len(c.args)]...)) // queues it
		_ = p.Process(ctx, redis.NewBoolCmd(ctx, c.arguments("expireat", &r.key, &r.deadline)...))
	}
}

// knownRegisters bounds the memory of a stream's writers for registers known to be in Redis (bytes).
const knownRegisters = 8 << 20

// leastRegisters is the least that each of them may take.
const leastRegisters = unique.Registers

// registerMemory remembers the registers that this writer has updated, so that it sends only those that can
// update one: of a million unique values of a counter, 1 in 16. They are in Redis, or in an expired cell,
// because only a transaction known to have been applied adds to it, and any unknown outcome empties it
// (Writer.forget). It has two generations of cells: a used cell stays, and of the others the older half is
// dropped.
type registerMemory struct {
	young, old map[uniqueCell]*unique.Sketch
	bytes      int // of young
	most       int // of both
}

// cellMemoryBytes is the memory of a cell in addition to its registers and its counter's name.
const cellMemoryBytes = 160

// of returns the known registers of a cell, read-only.
func (m *registerMemory) of(at uniqueCell) *unique.Sketch {
	if s := m.young[at]; s != nil {
		return s
	}
	if s := m.old[at]; s != nil {
		delete(m.old, at)
		m.keep(at, s)
		return s
	}
	return &unique.Sketch{}
}

func (m *registerMemory) add(at uniqueCell, registers []unique.Register) {
	s := m.young[at]
	if s == nil {
		if s = m.old[at]; s == nil {
			s = new(unique.Sketch)
		}
		delete(m.old, at)
		m.keep(at, s)
	}
	before := s.Bytes()
	for _, r := range registers {
		s.Add(r)
	}
	m.bytes += s.Bytes() - before
}

func (m *registerMemory) keep(at uniqueCell, s *unique.Sketch) {
	if m.bytes > m.most/2 {
		m.old, m.young, m.bytes = m.young, nil, 0
	}
	if m.young == nil {
		m.young = make(map[uniqueCell]*unique.Sketch)
	}
	m.young[at] = s
	m.bytes += cellMemoryBytes + len(at.counter) + s.Bytes()
}

func (m *registerMemory) forget() { m.young, m.old, m.bytes = nil, nil, 0 }
