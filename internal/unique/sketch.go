package unique

import (
	"iter"
	"math"
	"slices"
)

// Sketch is a HyperLogLog: the largest rank of each register. The zero value is empty. It takes 4 bytes per
// register while few are set, then 16 KiB. It is not safe for concurrent use, even by readers.
type Sketch struct {
	list   []Register        // if dense is nil; may have a register repeatedly
	sorted int               // how many of list have rising indexes
	dense  *[Registers]uint8 // ranks
	set    int               // how many of dense are not 0
}

const (
	// denseFrom bounds the registers in a list: a longer one would take more than half of the memory.
	denseFrom = Registers / 8
	leastList = 4
)

// Add updates a register to a rank, if it is lower.
func (s *Sketch) Add(r Register) {
	if s.dense != nil {
		s.update(r)
		return
	}
	if n := len(s.list); n > 0 && s.list[n-1] == r {
		return
	}
	if len(s.list) == cap(s.list) {
		s.compact()
		if s.dense == nil && 2*len(s.list) >= cap(s.list) {
			s.list = slices.Grow(s.list, max(leastList, len(s.list)+1))
		}
		if s.dense != nil {
			s.update(r)
			return
		}
	}
	s.list = append(s.list, r)
}

func (s *Sketch) update(r Register) {
	if have := &s.dense[r.Index()]; int(*have) < r.Rank() {
		if *have == 0 {
			s.set++
		}
		*have = uint8(r.Rank())
	}
}

// compact keeps each register once, and makes the sketch dense if these are more than denseFrom.
func (s *Sketch) compact() {
	if s.dense == nil && s.sorted < len(s.list) {
		slices.Sort(s.list)
		kept := s.list[:0]
		for _, r := range s.list {
			if n := len(kept); n > 0 && kept[n-1].Index() == r.Index() {
				kept[n-1] = r // the higher one
			} else {
				kept = append(kept, r)
			}
		}
		s.list, s.sorted = kept, len(kept)
	}
	if s.dense == nil && len(s.list) > denseFrom {
		s.makeDense()
	}
}

func (s *Sketch) makeDense() {
	list := s.list
	s.list, s.sorted, s.dense = nil, 0, new([Registers]uint8)
	for _, r := range list {
		s.update(r)
	}
}

// Merge adds what another sketch holds.
func (s *Sketch) Merge(other *Sketch) {
	if other.dense != nil && s.dense == nil {
		s.makeDense()
	}
	for r := range other.All() {
		s.Add(r)
	}
}

// Clone returns a copy.
func (s *Sketch) Clone() *Sketch {
	out := &Sketch{list: slices.Clone(s.list), sorted: s.sorted, set: s.set}
	if s.dense != nil {
		ranks := *s.dense
		out.dense = &ranks
	}
	return out
}

// All yields the registers that are set, by rising index.
func (s *Sketch) All() iter.Seq[Register] {
	return func(yield func(Register) bool) {
		s.compact()
		for _, r := range s.list {
			if !yield(r) {
				return
			}
		}
		if s.dense == nil {
			return
		}
		for i, rank := range s.dense {
			if rank > 0 && !yield(newRegister(i, int(rank))) {
				return
			}
		}
	}
}

// Len returns how many registers are set.
func (s *Sketch) Len() int {
	s.compact()
	return len(s.list) + s.set
}

// Held returns at least Len in constant time: it may count a register repeatedly that was added repeatedly.
func (s *Sketch) Held() int { return len(s.list) + s.set }

// AppendAbove appends the registers that are higher than in another sketch, by rising index.
func (s *Sketch) AppendAbove(to []Register, other *Sketch) []Register {
	s.compact()
	other.compact()
	if s.dense != nil && other.dense != nil {
		for i, rank := range s.dense {
			if rank > other.dense[i] {
				to = append(to, newRegister(i, int(rank)))
			}
		}
		return to
	}
	rest := other.list
	for r := range s.All() {
		if other.dense != nil {
			if r.Rank() > int(other.dense[r.Index()]) {
				to = append(to, r)
			}
			continue
		}
		for len(rest) > 0 && rest[0].Index() < r.Index() {
			rest = rest[1:]
		}
		if len(rest) == 0 || rest[0] < r || rest[0].Index() > r.Index() {
			to = append(to, r)
		}
	}
	return to
}

// Equal reports whether both hold the same.
func (s *Sketch) Equal(other *Sketch) bool {
	return s.Len() == other.Len() && len(s.AppendAbove(nil, other)) == 0 && len(other.AppendAbove(nil, s)) == 0
}

// Bytes returns the memory that the registers take, without the Sketch itself.
func (s *Sketch) Bytes() int {
	if s.dense != nil {
		return Registers
	}
	return cap(s.list) * 4
}

// Estimate returns the number of unique values, as Redis estimates it: with a relative standard error of
// 0.81 % (O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6).
func (s *Sketch) Estimate() float64 {
	var registers [MaxRank + 1]float64 // how many registers have a rank
	for r := range s.All() {
		registers[r.Rank()]++
	}
	registers[0] = Registers - float64(s.Len())
	if registers[0] == Registers {
		return 0
	}
	z := Registers * tau(1-registers[MaxRank]/Registers)
	for rank := MaxRank - 1; rank >= 1; rank-- {
		z = (z + registers[rank]) / 2
	}
	z += Registers * sigma(registers[0]/Registers)
	return Registers / (2 * math.Ln2) * (Registers / z)
}

// sigma returns x + Σ x^(2^k) 2^(k-1), and infinite for 1.
func sigma(x float64) float64 {
	if x == 1 {
		return math.Inf(1)
	}
	sum := x
	for weight, before := 1.0, math.Inf(-1); sum != before; weight *= 2 {
		x *= x
		before, sum = sum, sum+x*weight
	}
	return sum
}

// tau returns (1 - x - Σ (1 - x^(2^-k))² 2^-k) / 3.
func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	sum := 1 - x
	for weight, before := 1.0, math.Inf(-1); sum != before; {
		x = math.Sqrt(x)
		weight /= 2
		before, sum = sum, sum-(1-x)*(1-x)*weight
	}
	return sum / 3
}
