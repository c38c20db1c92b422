package window

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestABatchKeepsEveryHit(t *testing.T) {
	l := Layout{Tiers: mustTiers(t, defaultTiers), Shards: 8}
	b := NewBatch(l)
	rapid.Check(t, func(t *rapid.T) {
		b.Reset() // batches are used again
		stored := rapid.Int64Range(1<<40, 1<<41).Draw(t, "stored")
		type cell struct {
			counter string
			tier    int
			cell    int64
		}
		want := map[cell]int64{}
		var hits int64
		for range rapid.IntRange(0, 200).Draw(t, "hits") {
			counter := fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "counter"))
			at := stored - rapid.OneOf(rapid.Int64Range(-10_000, 10_000), rapid.Int64Range(0, 40*24*3600_000)).Draw(t, "age")
			n := rapid.Int64Range(1, 1<<31-1).Draw(t, "n")
			hash := HashCounter([]byte(counter))
			b.Add([]byte(counter), hash, at, stored, n)
			hits += n
			for i, tier := range l.Tiers {
				if tier.deadline(tier.epochAt(at), hash)*1000 > stored {
					want[cell{counter, i, tier.cellAt(at)}] += n
				}
			}
		}
		for shard := range l.Shards {
			s := b.Shard(shard)
			commands := 0
			for name, c := range s.counters {
				if l.ShardOf(HashCounter([]byte(name))) != shard {
					t.Fatalf("counter %s is on shard %d", name, shard)
				}
				for i, got := range c.cells {
					k := cell{name, got.tier, got.cell}
					if want[k] != got.n {
						t.Fatalf("%+v has %d; want %d", k, got.n, want[k])
					}
					delete(want, k)
					commands++
					if c.firstOfHash(l.Tiers[got.tier], i) {
						commands++
					}
				}
			}
			if s.Commands() != commands {
				t.Fatalf("shard %d says %d commands and has %d", shard, s.Commands(), commands)
			}
			hits -= s.Hits()
		}
		if len(want) > 0 || hits != 0 {
			t.Fatalf("cells %v are missing, and %d hits", want, hits)
		}
	})
}
