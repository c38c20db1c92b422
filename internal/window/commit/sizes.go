package commit

import "tallyroll/internal/window"

// sizeMemory remembers how large the logs are that this writer has written to, and so for which of them the
// shard lists the counter's name. It holds two generations of logs, and large ones for longer, or they would
// never be folded. Forgetting one costs a SET, a name and a question. The writer drops all of it after an
// erasure, and ends if Redis has changed.
type sizeMemory struct{ young, old idSizes }

// largeLog is less than the size from which on a log may be folded.
const largeLog = window.MaxLogBytes / 2

// sizeGeneration is 7/8 of 1<<18 slots: two generations of up to 2.5 MiB each, per stream and shard.
const sizeGeneration = (1 << 18) / 8 * 7

// logSize is a log's size in bytes, and whether another stream has hits of the counter, too. 0 means that the
// key may be no log.
type logSize uint16

const sharedLog logSize = 1 << 15 // which is far above any size

func (s logSize) bytes() int { return int(s &^ sharedLog) }

func (s logSize) isShared() bool { return s&sharedLog != 0 }

func logSizeOf(bytes int64, shared bool) logSize {
	size := logSize(min(bytes, int64(sharedLog-1)))
	if shared {
		size |= sharedLog
	}
	return size
}

// size returns the size of a log, and whether its counter is listed for certain.
func (m *sizeMemory) size(id uint64) (size logSize, listed bool) {
	if size, listed = m.young.size(id); listed {
		return size, true
	}
	if size, listed = m.old.size(id); listed {
		m.add(id, size) // still in use: keep it through the next change of generation
	}
	return size, listed
}

// add adds a log, or changes its size.
func (m *sizeMemory) add(id uint64, size logSize) {
	if m.young.len >= sizeGeneration {
		dropped := m.old
		m.old, m.young = m.young, idSizes{}
		for i, size := range dropped.sizes {
			_, used := m.old.size(dropped.slots[i])
			if size.bytes() > largeLog && !used && m.young.len < sizeGeneration/2 {
				m.young.add(dropped.slots[i], size)
			}
		}
	}
	m.young.add(id, size)
}

// idSizes has a size for each of a set of well mixed numbers, with linear probing. A map would take three
// times the memory, and hash each number again.
type idSizes struct {
	slots []uint64  // a power of two; 0 is an empty one
	sizes []logSize // by slot
	len   int
}

func (s *idSizes) slot(id uint64) int {
	mask := len(s.slots) - 1
	i := int(id) & mask
	for s.slots[i] != 0 && s.slots[i] != id {
		i = (i + 1) & mask
	}
	return i
}

// size never finds 0, because no slot can hold it. The caller then treats it as new.
func (s *idSizes) size(id uint64) (size logSize, ok bool) {
	if s.len == 0 || id == 0 {
		return 0, false
	}
	at := s.slot(id)
	return s.sizes[at], s.slots[at] == id
}

func (s *idSizes) add(id uint64, size logSize) {
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
	s.sizes[at] = size
}

func (s *idSizes) grow() {
	before, length := *s, max(64, 2*len(s.slots))
	*s = idSizes{slots: make([]uint64, length), sizes: make([]logSize, length)}
	for i, id := range before.slots {
		if id != 0 {
			s.add(id, before.sizes[i])
		}
	}
}

// logID identifies a log of a counter, mixed by multiplication with odd constants (two primes of xxhash).
func logID(counterHash uint64, epoch int64) uint64 {
	id := counterHash ^ uint64(epoch)*11400714785074694791
	id ^= id >> 32
	return id * 1609587929392839161
}
