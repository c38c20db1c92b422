package commit

import (
	"math/rand/v2"
	"testing"
)

// What was added is there, with its last size, until two generations have passed, and nothing else ever is.
// What is in use stays.
func TestSizeMemory(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var m sizeMemory
	has := func(id uint64) bool { _, ok := m.size(id); return ok }
	const used, large = 12345, 54321
	m.add(used, 7)
	known := map[uint64]bool{used: true}
	recent := make([]uint64, 0, 3*sizeGeneration)
	for i := range 3 * sizeGeneration {
		id := random.Uint64()
		if has(id) {
			t.Fatalf("%d is there before it was added", id)
		}
		m.add(id, logSizeOf(int64(i%200), i%7 == 0))
		if i%3 == 0 {
			m.add(id, logSizeOf(5, i%7 == 0))
		}
		known[id] = true
		recent = append(recent, id)
		if size, ok := m.size(id); !ok || size.isShared() != (i%7 == 0) || i%3 == 0 && size.bytes() != 5 || i%3 != 0 && size.bytes() != i%200 {
			t.Fatalf("%d has size %d (%v)", id, size, ok)
		}
		if i == 5 {
			m.add(large, logSizeOf(largeLog+1, false))
			known[large] = true
		}
		if size, _ := m.size(used); i%1000 == 0 && size != 7 {
			t.Fatalf("what is in use has size %d after %d others", size, i)
		}
	}
	for _, id := range recent[len(recent)-sizeGeneration+2:] { // what is in use, and what is large, were added, too
		if !has(id) {
			t.Fatalf("%d was forgotten within a generation", id)
		}
	}
	if size, _ := m.size(large); size.bytes() != largeLog+1 {
		t.Errorf("the large log has size %d: it was forgotten unfolded", size.bytes())
	}
	for _, set := range []idSizes{m.young, m.old} {
		if set.len > sizeGeneration || len(set.slots) > 1<<18 {
			t.Errorf("%d ids in %d slots", set.len, len(set.slots))
		}
		for _, id := range set.slots {
			if id != 0 && !known[id] {
				t.Errorf("%d was never added", id)
			}
		}
	}
	if m.add(0, 0); has(0) {
		t.Error("0 is there: it marks an empty slot")
	}
}
