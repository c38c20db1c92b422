package window

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/unique"
)

// Order puts the times of a counter's hits in order, however they came.
func TestSlotsOfACounterAreInOrder(t *testing.T) {
	t.Parallel()
	b := NewBatch(Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 2})
	rapid.Check(t, func(t *rapid.T) {
		b.Reset()
		const stored = 1_763_000_000_000
		ages := rapid.OneOf(rapid.Int64Range(-10_000, 10_000), rapid.Int64Range(0, 40*86_400_000))
		for range rapid.IntRange(0, 150).Draw(t, "hits") {
			name := []byte(fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "counter")))
			b.Add(name, HashCounter(name), stored-ages.Draw(t, "age"), stored, 1)
		}
		for shard := range 2 {
			for i := range b.Shard(shard).Counters {
				counter := &b.Shard(shard).Counters[i]
				counter.Order()
				if !slices.IsSortedFunc(counter.slots, func(a, b slotHits) int { return cmp.Compare(a.slot, b.slot) }) {
					t.Fatalf("counter %s has the slots %v in this order", counter.Name, counter.slots)
				}
			}
		}
	})
}

// A late hit takes no more memory than the cells that it goes into: 3,600 hits of the seconds of an hour are
// one sum if only the tier of hours still held them, and one sketch if only the tier of days did.
func TestLateHitsShareASlot(t *testing.T) {
	t.Parallel()
	uniques, err := ParseUniqueTiers(DefaultUniqueTiers)
	require.NoError(t, err)
	l := Layout{Tiers: mustTiers(t, DefaultTiers), UniqueTiers: uniques, Shards: 1}
	b, name := NewBatch(l), []byte("api")
	const stored, hour = 1_763_683_200_000, 3_600_000
	for i := range int64(3600) {
		at := stored - 20*24*hour + (i*7919%3600)*1000 // in no order
		b.Add(name, HashCounter(name), at, stored, 1)
		b.AddUnique(name, HashCounter(name), at, stored, unique.Of([]byte("visitor")))
	}
	// Two, since the hits are in AllHits, too.
	if want := len(name) + 2*(counterBytes+slotBytes) + sketchBytes + 4*4; b.Bytes() > want {
		t.Errorf("an hour of late hits takes %d bytes, want %d", b.Bytes(), want)
	}
	if s := b.Shard(0); s.Hits() != 3600 || s.End() > stored-20*24*hour+hour {
		t.Errorf("%d hits that end at %d", s.Hits(), s.End())
	}
}
