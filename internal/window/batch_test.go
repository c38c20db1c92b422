package window

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestABatchKeepsEveryHit(t *testing.T) {
	t.Parallel()
	batches := map[string]*Batch{} // they are used again
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		l := Layout{Tiers: genTiers(outer).Draw(t, "tiers"), Shards: 8}
		which := fmt.Sprintf("%+v", l.Tiers)
		b := batches[which]
		if b == nil {
			b = NewBatch(l)
			batches[which] = b
		}
		b.Reset()
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
			segments, names := map[segment]bool{}, map[int64]bool{}
			for i := range s.counters {
				c, name := &s.counters[i], s.counters[i].name
				cells := s.cells(c, nil)
				if l.ShardOf(HashCounter([]byte(name))) != shard {
					t.Fatalf("counter %s is on shard %d", name, shard)
				}
				for _, got := range cells {
					k := cell{name, got.tier, got.cell}
					if want[k] != got.n {
						t.Fatalf("%+v has %d; want %d", k, got.n, want[k])
					}
					delete(want, k)
					commands++
					if got.first {
						commands++
					}
					if tier := l.Tiers[got.tier]; tier.Window > time.Hour { // at least the coarsest is
						segments[segment{got.tier, floorDiv(got.cell, tier.segmentCells())}] = true
					}
					if got.tier == len(l.Tiers)-1 {
						names[l.Tiers[got.tier].namesOf(got.epoch)] = true
					}
				}
			}
			commands += len(segments) + 2*len(names)
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
