package commit

// expiryMemory remembers the hashes whose expiry this writer has set, so that it sends EXPIREAT only with the
// first write to a hash (with every write: 225k instead of 405k commands per second). It holds two
// generations of hashes. Forgetting one costs only an EXPIREAT and a name. The writer drops it after an
// erasure, and ends if Redis has changed.
type expiryMemory struct{ young, old idSet }

// expiryGeneration is 7/8 of 1<<18 slots: two generations of up to 2 MiB each, per stream and shard.
const expiryGeneration = (1 << 18) / 8 * 7

func (m *expiryMemory) has(id uint64) bool {
	if m.young.has(id) {
		return true
	}
	if m.old.has(id) {
		m.add(id) // still in use: keep it through the next change of generation
		return true
	}
	return false
}

func (m *expiryMemory) add(id uint64) {
	if m.young.len >= expiryGeneration {
		m.old, m.young = m.young, idSet{}
	}
	m.young.add(id)
}

// idSet is a set of well mixed numbers, with linear probing. A map would take three times the memory, and
// hash each number again.
type idSet struct {
	slots []uint64 // a power of two; 0 is an empty one
	len   int
}

func (s *idSet) slot(id uint64) int {
	mask := len(s.slots) - 1
	i := int(id) & mask
	for s.slots[i] != 0 && s.slots[i] != id {
		i = (i + 1) & mask
	}
	return i
}

// has never finds 0, because no slot can hold it. The caller then treats it as new.
func (s *idSet) has(id uint64) bool {
	return s.len > 0 && id != 0 && s.slots[s.slot(id)] == id
}

func (s *idSet) add(id uint64) {
	if id == 0 {
		return
	}
	if 8*(s.len+1) > 7*len(s.slots) {
		s.grow()
	}
	if at := &s.slots[s.slot(id)]; *at == 0 {
		*at = id
		s.len++
	}
}

func (s *idSet) grow() {
	before := s.slots
	s.slots = make([]uint64, max(64, 2*len(before)))
	for _, id := range before {
		if id != 0 {
			s.slots[s.slot(id)] = id
		}
	}
}

// hashID identifies a hash of cells, mixed by multiplication with odd constants (two primes of xxhash).
func hashID(counterHash uint64, tier int, epoch int64) uint64 {
	id := counterHash ^ (uint64(epoch)*11400714785074694791 + uint64(tier)*14029467366897019727)
	id ^= id >> 32
	return id * 1609587929392839161
}
