package window

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// genTiers draws tiers with one hash or many per window.
func genTiers(t *testing.T) *rapid.Generator[Tiers] {
	return rapid.SampledFrom([]Tiers{
		mustTiers(t, DefaultTiers), mustTiers(t, "1s/1h,1m/1d,1h/92d"), mustTiers(t, "1s/1m,15m/1d").Cut(7), mustTiers(t, "1s/1h,1m/1d").Cut(2 * maxCells),
	})
}

// What a transaction sends is worked out from the batch and Redis's clock alone:
// every cell that has not expired, in every hash an expiry that is set or trusted, a
// name wherever the expiry of a coarsest hash is set, and the hits of each segment.
func TestChangesOfABatch(t *testing.T) {
	t.Parallel()
	outer := t
	var c changes // used again, as a writer does
	rapid.Check(t, func(t *rapid.T) {
		l := Layout{Tiers: genTiers(outer).Draw(t, "tiers"), Shards: 1}
		known, again := expiryMemory{}, map[uint64]bool{}
		stored := rapid.Int64Range(1_763_000_000_000, 1_763_000_100_000).Draw(t, "stored")
		later := rapid.OneOf(rapid.Int64Range(0, 250), rapid.SampledFrom([]int64{4000, 90_000, 80 * 86_400})) // the finest hashes live so long
		for range rapid.IntRange(1, 4).Draw(t, "transactions") {
			now := stored/1000 + later.Draw(t, "later")
			batch := NewBatch(l)
			type field struct {
				key   string
				field int64
			}
			cells, top := map[field]int64{}, map[segment]map[string]int64{}
			expiries, coarsest := map[string]hashExpiry{}, map[string]string{}
			for range rapid.IntRange(0, 40).Draw(t, "hits") {
				counter := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "counter"))
				hash := HashCounter([]byte(counter))
				at := stored - rapid.OneOf(rapid.Int64Range(0, 5000), rapid.Int64Range(0, 40*86_400_000)).Draw(t, "age")
				batch.Add([]byte(counter), hash, at, stored, 3)
				for i, tier := range l.Tiers {
					cell := tier.cellAt(at)
					epoch, f := tier.place(cell)
					deadline := tier.deadline(epoch, hash)
					if !tier.holds(hash, at, stored) || deadline <= now {
						continue
					}
					key := fmt.Sprintf("ns:{0}:h:%s:%d:%s", FormatDuration(tier.Cell), epoch, counter)
					cells[field{key, f}] += 3
					expiries[key] = hashExpiry{key, hashID(hash, i, epoch), deadline}
					if i == len(l.Tiers)-1 {
						coarsest[key] = fmt.Sprint(tier.namesOf(epoch), counter)
					}
					if l.isLevel(i) {
						s := segment{i, floorDiv(at, tier.segmentMillis())}
						if top[s] == nil {
							top[s] = map[string]int64{}
						}
						top[s][counter] += 3
					}
				}
			}
			c.workOut(batch.Shard(0), 0, keys{"ns"}, &known, &registerMemory{}, now)

			for _, inc := range c.increments {
				f := field{inc.key, inc.field}
				if cells[f] != inc.n || inc.deadline != expiries[inc.key].deadline {
					t.Fatalf("%+v; want %d hits and %+v", inc, cells[f], expiries[inc.key])
				}
				delete(cells, f)
			}
			if len(cells) > 0 {
				t.Fatalf("%v are missing", cells)
			}
			var want, got []string
			for _, h := range c.set {
				if again[h.id] && h.deadline-now >= trustSeconds {
					t.Fatalf("the expiry of %+v is set twice", h)
				}
				if coarsest[h.key] != "" {
					want = append(want, coarsest[h.key])
				}
				known.add(h.id)
			}
			for _, h := range c.trusted {
				if !again[h.id] || h.deadline-now < trustSeconds {
					t.Fatalf("%+v is taken to be set", h)
				}
			}
			for _, h := range slices.Concat(c.set, c.trusted) {
				if again[h.id] = true; expiries[h.key] != h {
					t.Fatalf("%+v, want %+v", h, expiries[h.key])
				}
				delete(expiries, h.key)
			}
			for set, names := range c.names {
				for _, name := range names {
					got = append(got, fmt.Sprint(set, name))
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if len(expiries) > 0 || !slices.Equal(got, want) {
				t.Fatalf("without an expiry: %v; names %v, want %v", expiries, got, want)
			}
			for s, want := range top {
				got := map[string]int64{}
				for _, l := range c.hits(s) {
					got[l.name] += l.count
				}
				if !maps.Equal(got, want) || len(got) != len(c.hits(s)) {
					t.Fatalf("segment %+v has %v, want %v", s, c.hits(s), want)
				}
			}
			if len(c.segments) != len(top) {
				t.Fatalf("%d segments, want %d", len(c.segments), len(top))
			}
		}
	})
}
