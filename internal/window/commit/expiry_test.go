package commit

import (
	"math/rand/v2"
	"testing"
)

// What was added is there until two generations have passed, and nothing else ever is. What is in use stays.
func TestExpiryMemory(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var m expiryMemory
	const used = 12345
	m.add(used, 0)
	known := map[uint64]bool{used: true}
	recent := make([]uint64, 0, 3*expiryGeneration)
	for i := range 3 * expiryGeneration {
		id := random.Uint64()
		if m.has(id) {
			t.Fatalf("%d is there before it was added", id)
		}
		m.add(id, 0)
		known[id] = true
		if recent = append(recent, id); !m.has(id) {
			t.Fatalf("%d is not there", id)
		}
		if i%1000 == 0 && !m.has(used) {
			t.Fatalf("what is in use was forgotten after %d others", i)
		}
	}
	for _, id := range recent[len(recent)-expiryGeneration+1:] { // what is in use was added, too
		if !m.has(id) {
			t.Fatalf("%d was forgotten within a generation", id)
		}
	}
	for _, set := range []idSet{m.young, m.old} {
		if set.len > expiryGeneration || len(set.slots) > 1<<18 {
			t.Errorf("%d ids in %d slots", set.len, len(set.slots))
		}
		for _, id := range set.slots {
			if id != 0 && !known[id] {
				t.Errorf("%d was never added", id)
			}
		}
	}
	if m.add(0, 0); m.has(0) {
		t.Error("0 is there: it marks an empty slot")
	}
}
