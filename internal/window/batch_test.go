package window

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/unique"
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
		most := rapid.SampledFrom([]int{20, 0}).Draw(t, "counters")
		for range rapid.IntRange(0, 200).Draw(t, "hits") {
			counter := fmt.Sprint(rapid.IntRange(0, most).Draw(t, "counter"))
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
				c.order()
				for i := range c.slots[1:] {
					if c.slots[i].slot >= c.slots[i+1].slot {
						t.Fatalf("counter %s has the slots %v in this order", name, c.slots)
					}
				}
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
			if most := s.Commands(); most < commands || most > commands && !s.inexact {
				t.Fatalf("shard %d says %d commands (not exact: %v) and has %d", shard, most, s.inexact, commands)
			}
			before := s.Hits()
			s.recount()
			if s.Commands() != commands || s.Hits() != before {
				t.Fatalf("shard %d says %d commands and %d hits when it has counted them again, and has %d and %d", shard, s.Commands(), s.Hits(), commands, before)
			}
			hits -= s.Hits()
		}
		if len(want) > 0 || hits != 0 {
			t.Fatalf("cells %v are missing, and %d hits", want, hits)
		}
	})
}

// A late hit takes no more memory than the cells that it goes into: 3,600 hits of the seconds of an hour are one sum if
// only the tier of hours still held them, and one sketch if only the tier of days did.
func TestLateHitsShareASlot(t *testing.T) {
	t.Parallel()
	uniques, err := ParseUniqueTiers(DefaultUniqueTiers)
	require.NoError(t, err)
	l := Layout{Tiers: mustTiers(t, DefaultTiers), UniqueTiers: uniques, Shards: 1}
	b, name := NewBatch(l), []byte("api")
	const stored, hour = 1_763_683_200_000, 3_600_000
	for i := range int64(3600) {
		at := stored - 20*24*hour + (i*7919%3600)*1000 // in no order
		b.AddUnique(name, HashCounter(name), at, stored, 1, unique.Of([]byte("visitor")))
	}
	if want := counterBytes + len(name) + slotBytes + sketchBytes + 4*4; b.Bytes() > want {
		t.Errorf("an hour of late hits takes %d bytes, want %d", b.Bytes(), want)
	}
	if s := b.Shard(0); s.Hits() != 3600 || s.End() > stored-20*24*hour+hour {
		t.Errorf("%d hits that end at %d", s.Hits(), s.End())
	}
}

// BenchmarkOrder coalesces the hits of one counter, and works out what a commit of them changes, once per 50,000; ns/op
// is per hit. What a hit costs must not depend on the order of times: in-order; two logs side by side; one hit in 1,000 half
// the span late; and times that are drawn.
func BenchmarkOrder(b *testing.B) {
	const hits, flush = 300_000, 50_000
	const stored = 1_763_683_200_000
	l := Layout{Shards: 1}
	var err error
	if l.Tiers, err = ParseTiers(DefaultTiers); err != nil {
		b.Fatal(err)
	}
	name := []byte("api-1")
	hash := HashCounter(name)
	for _, span := range []time.Duration{30 * 24 * time.Hour, time.Minute} {
		rising := func(i int) int64 { return stored - span.Milliseconds() + int64(i)*span.Milliseconds()/hits }
		random := rand.New(rand.NewPCG(1, 2))
		for _, order := range []struct {
			name string
			at   func(i int) int64
		}{
			{"in-order", rising},
			{"two-logs", func(i int) int64 { return rising(i/2 + i%2*hits/2) }},
			{"late", func(i int) int64 { return rising(i) - int64(i%1000/999)*span.Milliseconds()/2 }},
			{"drawn", func(int) int64 { return rising(random.IntN(hits)) }},
		} {
			times := make([]int64, hits)
			for i := range times {
				times[i] = order.at(i)
			}
			b.Run("span="+FormatDuration(span)+"/"+order.name, func(b *testing.B) {
				batch, c := NewBatch(l), changes{}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					batch.Add(name, hash, times[i%hits], stored, 1)
					if i%flush == flush-1 {
						c.workOut(batch.Shard(0), 0, keys{"bench"}, &expiryMemory{}, &registerMemory{}, stored/1000)
						batch.Reset()
					}
				}
			})
		}
	}
}
