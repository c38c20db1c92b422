package window

// expiryMemory remembers the hashes whose expiry this writer has set, so that
// EXPIREAT goes out on the first write to a hash and not on every one (which
// measured 225k instead of 405k commands a second).
//
// It holds at most two generations of expiryGeneration hashes; forgetting one
// costs an EXPIREAT and nothing else. It dies with its writer, which is replaced
// whenever Redis is found changed.
type expiryMemory struct{ young, old map[uint64]struct{} }

// expiryGeneration bounds the memory: about 40 bytes each, two generations, per stream and shard.
const expiryGeneration = 1 << 16

func (m *expiryMemory) has(id uint64) bool {
	if _, ok := m.young[id]; ok {
		return true
	}
	if _, ok := m.old[id]; ok {
		m.add(id) // still in use: keep it through the next change of generation
		return true
	}
	return false
}

func (m *expiryMemory) add(id uint64) {
	if m.young == nil || len(m.young) >= expiryGeneration {
		m.old, m.young = m.young, make(map[uint64]struct{})
	}
	m.young[id] = struct{}{}
}

// hashID identifies a hash of cells: counter, tier and epoch, mixed by
// multiplication with odd constants (two of the 64-bit primes of xxhash).
func hashID(counterHash uint64, tier int, epoch int64) uint64 {
	id := counterHash ^ (uint64(epoch)*11400714785074694791 + uint64(tier)*14029467366897019727)
	id ^= id >> 32
	return id * 1609587929392839161
}
