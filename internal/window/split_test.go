package window

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Wherever a crash cuts the parts of a commit, each counter has been applied either to the old place or to
// the new one, as the cursor records; all parts together are the whole.
func TestPartsTakeEachCounterOnce(t *testing.T) {
	t.Parallel()
	layout := Layout{Tiers: mustTiers(t, "1s/1m,1m/1h"), Shards: 1}
	rapid.Check(t, func(t *rapid.T) {
		batch := NewBatch(layout)
		most := rapid.SampledFrom([]int{60, 3}).Draw(t, "counters")
		age := rapid.Int64Range(0, rapid.SampledFrom([]int64{0, 4_000_000}).Draw(t, "longest age"))
		for i := range rapid.IntRange(1, 200).Draw(t, "hits") {
			name := fmt.Appendf(nil, "c%d", rapid.IntRange(0, most).Draw(t, "counter"))
			stored := int64(100_000_000 + 700*i)
			batch.Add(name, HashCounter(name), stored-age.Draw(t, "age"), stored, 1)
		}
		cells := batch.Shard(0)
		counters := cells.Counters[1:] // without AllHits, of which each part has its share
		maxCommands := rapid.IntRange(1, 400).Draw(t, "maxCommands")
		from := Cursor{Created: 1, Seq: 10, Stored: 5, AsOf: 7, IncompleteBefore: 3}
		to := Cursor{Created: 1, Seq: 20, Stored: 8, AsOf: 9}

		taken := map[string]bool{}
		var hits int64
		at, transactions := from, 0
		for part, cursor := range cells.Split(from, to, maxCommands) {
			transactions++
			beside := part.Commands()
			for i := 1; i < len(part.Counters); i++ {
				alone := newShardBatch(layout)
				alone.Counters = []CounterHits{{}}
				alone.take(&part.Counters[i])
				if alone.Commands() > maxCommands {
					beside = min(beside, part.Commands()-alone.Commands())
				}
			}
			if beside > maxCommands {
				t.Fatalf("a part of %d counters needs %d commands beside those of its largest counter, more than %d", len(part.Counters)-1, beside, maxCommands)
			}
			for i, c := range part.Counters[1:] {
				whole := counters[slices.IndexFunc(counters, func(w CounterHits) bool { return w.Name == c.Name })]
				if taken[c.Name] || !slices.Equal(part.Cells(&part.Counters[1+i], nil), cells.Cells(&whole, nil)) {
					t.Fatalf("%s is in two parts, or has other cells in this one", c.Name)
				}
				taken[c.Name] = true
				if got := at.Applied(c.CounterHash); got != from.Seq {
					t.Fatalf("%s is at %d before its part", c.Name, got)
				}
			}
			hits += part.Hits()
			at = cursor
			for _, c := range counters {
				want := from.Seq
				if taken[c.Name] {
					want = to.Seq
				}
				if got := at.Applied(c.CounterHash); got != want {
					t.Fatalf("after part %d %s is at %d, want %d", transactions, c.Name, got, want)
				}
			}
			if at != to && (at.Seq != from.Seq || at.AsOf != from.AsOf || at.Furthest() != to.Seq) {
				t.Fatalf("the cursor between two parts is %+v", at)
			}
		}
		if at != to || hits != cells.Hits() || len(taken) != len(counters) {
			t.Fatalf("at %+v with %d hits of %d counters; want %+v, %d, %d", at, hits, len(taken), to, cells.Hits(), len(counters))
		}
		if cells.Commands() <= maxCommands && transactions != 1 || transactions > len(counters) {
			t.Fatalf("%d transactions for %d commands of at most %d and %d counters", transactions, cells.Commands(), maxCommands, len(counters))
		}
	})
}

// The shares of parts in the sum of all hits make up the whole, each with the cells of its part's counters,
// without excluded hits. Those add up to multiples of more than the others do.
func TestPartsHaveTheirSharesOfAllHits(t *testing.T) {
	t.Parallel()
	const excludedHits = 1000
	layout := Layout{Tiers: mustTiers(t, "1s/1m,1m/1h"), Shards: 1}
	rapid.Check(t, func(t *rapid.T) {
		batch := NewBatch(layout)
		for i := range rapid.IntRange(1, 200).Draw(t, "hits") {
			name := fmt.Appendf(nil, "c%d", rapid.IntRange(0, 60).Draw(t, "counter"))
			stored := int64(100_000_000 + 700*i)
			at := stored - rapid.Int64Range(0, 4_000_000).Draw(t, "age")
			if rapid.Bool().Draw(t, "excluded") {
				batch.AddExcluded(name, HashCounter(name), at, stored, excludedHits)
			} else {
				batch.Add(name, HashCounter(name), at, stored, 1)
			}
		}
		add := func(to map[CellID]int64, s *ShardBatch, isAll bool) {
			for i := range s.Counters {
				c := &s.Counters[i]
				c.Order()
				if (c.Name == AllHits) == isAll {
					for _, cell := range s.Cells(c, nil) {
						to[CellID{cell.Tier, cell.Cell}] += cell.N
					}
				}
			}
		}
		whole, shares := map[CellID]int64{}, map[CellID]int64{}
		from, to := Cursor{Created: 1, Seq: 1}, Cursor{Created: 1, Seq: 2}
		for part := range batch.Shard(0).Split(from, to, rapid.IntRange(1, 400).Draw(t, "maxCommands")) {
			share, counters := map[CellID]int64{}, map[CellID]int64{}
			add(share, part, true)
			add(counters, part, false)
			add(shares, part, true)
			for cell, n := range counters {
				if counters[cell] = n % excludedHits; counters[cell] == 0 {
					delete(counters, cell)
				}
			}
			if !maps.Equal(share, counters) {
				t.Fatalf("a part has %v of all hits, and its counters have %v", share, counters)
			}
		}
		add(whole, batch.Shard(0), true)
		if !maps.Equal(whole, shares) {
			t.Fatalf("the parts have %v, the whole has %v", shares, whole)
		}
	})
}

// While some counters are ahead a second place cannot be told of.
func TestPartsAreNotSplitTwice(t *testing.T) {
	t.Parallel()
	layout := Layout{Tiers: mustTiers(t, "1m/1h"), Shards: 1}
	batch := NewBatch(layout)
	for i := range 10 {
		name := fmt.Appendf(nil, "c%d", i)
		batch.Add(name, HashCounter(name), 1_000_000, 1_000_000, 1)
	}
	from := Cursor{Created: 1, Seq: 10, Ahead: Ahead{Seq: 30, Stored: 6, Done: 1, Parts: 2}}
	for part, cursor := range batch.Shard(0).Split(from, Cursor{Created: 1, Seq: 20, Ahead: from.Ahead}, 4) {
		if part.Hits() != 10 || cursor.Ahead != from.Ahead {
			t.Errorf("%d hits to %+v, want all 10 in one transaction", part.Hits(), cursor)
		}
	}
}
