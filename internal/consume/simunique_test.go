package consume

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
)

// Some hits have a unique value. Whatever happens, a unique cell has the registers of hits that were stored,
// and no others; it has those of every hit that has to be counted, and of every hit that its other cells have
// counted.

// simUniques is how many unique values there are.
const simUniques = 60

func simUnique(n int) string { return fmt.Sprintf("visitor %d", n%simUniques) }

// simArguments are the registers that arguments of PFADD raise.
var simArguments = func() map[string]unique.Register {
	out := map[string]unique.Register{}
	for n := range simUniques {
		r := unique.Of([]byte(simUnique(n)))
		out[r.Argument()] = r
	}
	return out
}()

// simRegister is the register of a hit in a unique cell.
type simRegister struct {
	tier     int
	key      string
	register unique.Register
}

// registersOf are the registers that a hit with a unique value raises, if it is stored at a Unix millisecond:
// in the cells of the number ⌊t/c⌋.
func (w *simWorld) registersOf(h simHit, value string, stored int64) (out []simRegister) {
	for i, t := range w.layout.UniqueTiers {
		if w.holdsUnique(i, h, stored) {
			key := fmt.Sprintf("%s:{%d}:u:%s:%d:%s", simNamespace, h.shard, human.FormatDuration(t.Cell), floorTo(h.at, t.Cell.Milliseconds()), h.counter)
			out = append(out, simRegister{i, key, unique.Of([]byte(value))})
		}
	}
	return out
}

// holdsUnique reports whether a unique tier still holds a hit at a Unix millisecond, and notes if that is not
// as documented: a cell expires a window and the grace after its end, and no later than the longest jitter
// after that.
func (w *simWorld) holdsUnique(tier int, h simHit, at int64) bool {
	got := w.singleUnique[tier].Holds(h.hash, h.at, at)
	t := w.layout.UniqueTiers[tier]
	kept, latest := uniqueKept(t, floorTo(h.at, t.Cell.Milliseconds()))
	if got && at >= latest || !got && at < kept {
		w.holdProblem = fmt.Sprintf("the unique cell of a hit at %d in tier %s is there at %d: %v; it is to expire from %d to %d", h.at, t, at, got, kept, latest)
	}
	return got
}

// uniqueKept is from when on, and by when at the latest, a unique cell expires.
func uniqueKept(t window.Tier, cell int64) (from, to int64) {
	from = (cell+1)*t.Cell.Milliseconds() + (t.Window + simGrace(t)).Milliseconds()
	return from, from + min(t.Window.Milliseconds()/4, t.Cell.Milliseconds()) + 999
}

// isRaised reports whether a message's register has been raised: also if it was erased since. An erasure
// excuses nothing that was published after it.
func (w *simWorld) isRaised(m *simMessage, r simRegister) bool {
	if w.redis.get(r.key).rank(r.register) >= r.register.Rank() {
		return true
	}
	erased := w.redis.keys[simErased+r.key]
	return erased.rank(r.register) >= r.register.Rank() && m.createdAt.UnixNano() <= erased.number(simErasedAt+strconv.Itoa(r.register.Index()))
}

// checkUniques compares the registers of a hit with those in Redis. due says that it has to be counted.
func (w *simWorld) checkUniques(m *simMessage, h simHit, due bool, now int64) string {
	for _, r := range h.uniques {
		if !w.holdsUnique(r.tier, h, now) || w.foreignKeys[r.key] || w.isRaised(m, r) {
			continue
		}
		counted := slices.ContainsFunc(h.cells, func(c simCell) bool { return !h.shared && w.holds(c.tier, h, now) && w.count(c) > 0 })
		if w.isBounded(h) && !counted {
			if o, alive := w.overflowRegister(h, r, now); !alive || w.isRaised(m, o) {
				continue
			}
		}
		if due || counted {
			return fmt.Sprintf("%s: register %d of %s of %s is not raised to %d (due %v, counted %v, fate %d)",
				m, r.register.Index(), h.counter, r.key, r.register.Rank(), due, counted, m.fate)
		}
	}
	return ""
}

// simUniqueCell is what is known of a unique cell by the name of its key and by the messages so far.
type simUniqueCell struct {
	registers map[string]bool // those of hits
	from, to  int64           // when it is to expire
	counter   string
	listed    string // the key of the set that lists the counter
}

// uniqueCell remembers what it finds: every check looks at every cell.
func (w *simWorld) uniqueCell(key string) *simUniqueCell {
	cell := w.uniqueCells[key]
	if cell == nil {
		parts := strings.SplitN(key, ":", 6)
		tier := slices.IndexFunc(w.layout.UniqueTiers, func(t window.Tier) bool { return human.FormatDuration(t.Cell) == parts[3] })
		number, _ := strconv.ParseInt(parts[4], 10, 64)
		cell = &simUniqueCell{registers: map[string]bool{}, counter: parts[5]}
		cell.from, cell.to = uniqueKept(w.layout.UniqueTiers[tier], number)
		cell.listed = fmt.Sprintf("%s:%s:unames:%d", parts[0], parts[1], w.uniqueSet(tier, number))
		w.uniqueCells[key] = cell
	}
	return cell
}

// noteRegisters notes the registers of the messages that were published since it was last called.
func (w *simWorld) noteRegisters() {
	note := func(h simHit) {
		for _, r := range h.uniques {
			w.uniqueCell(r.key).registers[strconv.Itoa(int(r.register))] = true
			if w.isBounded(h) {
				o, _ := w.overflowRegister(h, r, 0)
				w.uniqueCell(o.key).registers[strconv.Itoa(int(r.register))] = true
			}
		}
	}
	for ; w.noted < len(w.messages); w.noted++ {
		m := w.messages[w.noted]
		for _, h := range m.hits {
			note(h)
		}
		for _, way := range m.ways {
			for _, h := range way.hits {
				note(h)
			}
		}
	}
}

// checkRegisters: a unique cell expires when it has to, and has no registers but those of hits.
func (w *simWorld) checkRegisters() string {
	w.noteRegisters()
	for key := range w.redis.keys {
		if !w.meaning(key).uniques {
			continue
		}
		e := w.redis.get(key)
		if e == nil || e.isForeign() {
			continue
		}
		cell := w.uniqueCell(key)
		if e.expires < cell.from || e.expires > cell.to {
			return fmt.Sprintf("%s expires at %d, want %d to %d", key, e.expires, cell.from, cell.to)
		}
		if _, ok := w.redis.get(cell.listed).value(cell.counter); !ok && e.expires > w.redis.latest() {
			return fmt.Sprintf("%s is there, and its counter is not listed in %s", key, cell.listed)
		}
		for _, f := range e.fields {
			if !cell.registers[f.value] {
				return fmt.Sprintf("%s has register %s with %s, of no hit", key, f.name, f.value)
			}
		}
	}
	return ""
}

// uniqueSet is the number of the set that lists the counter of a unique cell: it holds two of the longest
// windows.
func (w *simWorld) uniqueSet(tier int, cell int64) int64 {
	tiers := w.layout.UniqueTiers
	return floorTo(cell*tiers[tier].Cell.Milliseconds(), 2*tiers[len(tiers)-1].Window.Milliseconds())
}

// lostUniques returns the hits whose registers met a foreign key, if the worker has had the time to report
// the loss; see lostToForeign.
func (w *simWorld) lostUniques(now int64) (hits []simHit) {
	if w.redis.erasures > 0 {
		return nil
	}
	for _, m := range w.messages {
		if !m.foreign || m.fate != simHeld || m.id < w.unreported {
			continue
		}
		for _, h := range m.hits {
			if slices.ContainsFunc(h.uniques, func(r simRegister) bool {
				return w.foreignKeys[r.key] && !w.redis.unheard[r.key] && !w.isRaised(m, r) && w.holdsUnique(r.tier, h, now)
			}) {
				hits = append(hits, h)
			}
		}
	}
	return hits
}

// pfadd raises registers of a key. A register is a field, and its value is the Register.
func (r *simRedis) pfadd(key string, arguments []string) (raised int64) {
	changed := r.get(key).copy()
	for _, argument := range arguments {
		register, ok := simArguments[argument]
		if !ok {
			panic(fmt.Sprintf("simulated Redis: PFADD of %q, which raises no register of a value", argument))
		}
		if changed.rank(register) < register.Rank() {
			changed.set(strconv.Itoa(register.Index()), strconv.Itoa(int(register)))
			raised = 1
		}
	}
	if raised > 0 {
		r.put(key, changed)
	}
	return raised
}

// rank is that of a register's index.
func (e *simEntry) rank(r unique.Register) int {
	return unique.Register(e.number(strconv.Itoa(r.Index()))).Rank()
}

// simHeader is how a HyperLogLog begins.
const simHeader = "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80"
