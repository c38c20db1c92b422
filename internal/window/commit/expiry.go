package commit

// expiryMemory remembers the hashes whose expiry this writer has set, so that it sends EXPIREAT only with the
// first write to a hash (with every write: 225k instead of 405k commands per second). It holds two
// generations of hashes. Forgetting one costs only an EXPIREAT and a name. The writer drops it after an
// erasure, and ends if Redis has changed.
//
// A writer's second one remembers the sizes of logs. An erasure leaves it: whether a counter is busy stays
// known.
type expiryMemory struct{ young, old idSet }

// expiryGeneration is 7/8 of 1<<18 slots: two generations of up to 2 MiB each, per stream and shard.
const expiryGeneration = (1 << 18) / 8 * 7

func (m *expiryMemory) has(id uint64) bool {
	if m.young.has(id) {
		return true
	}
	if m.old.has(id) {
		m.add(id, m.old.size(id)) // still in use: keep it through the next change of generation
		return true
	}
	return false
}

// size returns the size that was added with an id, or 0.
func (m *expiryMemory) size(id uint64) int {
	if !m.has(id) {
		return 0
	}
	return int(m.young.size(id))
}

// add adds an id, with a size if that is not 0.
func (m *expiryMemory) add(id uint64, size uint16) {
	if m.young.len >= expiryGeneration {
		m.old, m.young = m.young, idSet{}
	}
	m.young.add(id, size)
}

// idSet is a set of well mixed numbers, with linear probing. A map would take three times the memory, and
// hash each number again.
type idSet struct {
	slots []uint64 // a power of two; 0 is an empty one
	sizes []uint16 // by slot; nil if none was added
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

// size returns the size of an id that it has.
func (s *idSet) size(id uint64) uint16 {
	if s.sizes == nil {
		return 0
	}
	return s.sizes[s.slot(id)]
}

func (s *idSet) add(id uint64, size uint16) {
	if id == 0 {
		return
	}
	if 8*(s.len+1) > 7*len(s.slots) {
		s.grow()
	}
	at := s.slot(id)
	if s.slots[at] == 0 {
		s.slots[at] = id
		s.len++
	}
	if size == 0 {
		return
	}
	if s.sizes == nil {
		s.sizes = make([]uint16, len(s.slots))
	}
	s.sizes[at] = size
}

func (s *idSet) grow() {
	before := *s
	*s = idSet{slots: make([]uint64, max(64, 2*len(before.slots)))}
	for _, id := range before.slots {
		if id != 0 {
			s.add(id, before.size(id))
		}
	}
}

// hashID identifies a hash of cells, mixed by multiplication with odd constants (two primes of xxhash).
func hashID(counterHash uint64, tier int, epoch int64) uint64 {
	id := counterHash ^ (uint64(epoch)*11400714785074694791 + uint64(tier)*14029467366897019727)
	id ^= id >> 32
	return id * 1609587929392839161
}
