package window

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func sparseTier(t testing.TB, tiers string) (Tier, bool) {
	t.Helper()
	return Layout{Tiers: mustTiers(t, tiers), Shards: 1}.SparseTier()
}

// The cells of a log are those of which all tiers' cells consist, also if these do not nest; its span is the
// longest window, in spans of the coarsest tier's hashes.
func TestTierOfLogs(t *testing.T) {
	t.Parallel()
	for tiers, want := range map[string]struct {
		cell, span time.Duration
		fits       bool
	}{
		DefaultTiers:           {time.Second, 768 * time.Hour, true},
		"2s/8s,3s/24s,5s/75s":  {time.Second, 150 * time.Second, true},
		"4s/8s,6s/30s,10s/90s": {2 * time.Second, 180 * time.Second, true},
		"1d/5y":                {}, // an increment of one tier costs as little
		"1m/20h,1h/24h":        {}, // a hash of minutes would outlive a log
	} {
		got, ok := sparseTier(t, tiers)
		if ok != want.fits || ok && (got.Cell != want.cell || got.EpochMillis() != want.span.Milliseconds()) {
			t.Errorf("%s: cells of %s in logs of %d ms, %v; want %+v", tiers, got.Cell, got.EpochMillis(), ok, want)
		}
	}
}

// Whatever another program has written to the key of a log, it is no log, or has no cell that a log cannot
// have.
func TestForeignTextsAreNoLogs(t *testing.T) {
	t.Parallel()
	tier, _ := sparseTier(t, DefaultTiers)
	log := AppendLogCell(AppendLogCell([]byte(LogHeader), 7, 1), tier.CellsPerEpoch()-1, 300)
	cells, err := tier.ParseLog(string(log))
	require.NoError(t, err)
	require.Equal(t, []StoredCell{{7, 1}, {tier.CellsPerEpoch() - 1, 300}}, cells)
	for what, text := range map[string]string{
		"nothing": "", "no header": string(log[1:]), "a number": "17", "JSON": `{"a":1}`, "an end within a cell": string(log[:len(log)-1]),
		"a cell too late":    string(AppendLogCell(log, tier.CellsPerEpoch(), 1)),
		"a count of 1":       string(append(log, 3, 1)),
		"a number too large": LogHeader + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
	} {
		_, err := tier.ParseLog(text)
		require.Error(t, err, what)
	}
}

func FuzzParseLog(f *testing.F) {
	tier, _ := sparseTier(f, DefaultTiers)
	f.Add(LogHeader + "\x0e\x11\x02")
	f.Add("\x0e")
	f.Fuzz(func(t *testing.T, text string) {
		cells, err := tier.ParseLog(text)
		if err != nil {
			return
		}
		again := []byte(LogHeader)
		for _, c := range cells {
			if c.Field < 0 || c.Field >= tier.CellsPerEpoch() || c.N < 1 {
				t.Fatalf("%q has the cell %+v", text, c)
			}
			again = AppendLogCell(again, c.Field, c.N)
		}
		found, err := tier.ParseLog(string(again))
		if err != nil || !slices.Equal(found, cells) {
			t.Fatalf("%q has %+v, and written again %+v, %v", text, cells, found, err)
		}
	})
}

// A counter's hits go into its log unless they alone are too much for one. A log that is due is folded, and
// one that is not, because larger ones are, takes hits until it is far too large. A decision stays.
func TestPlacement(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1}
	tier, _ := l.SparseTier()
	at := tier.EpochStart(30) + 5_000_000
	for what, c := range map[string]struct {
		hits, size, larger int
		sparse, folds      bool
	}{
		"new":                            {hits: 1, sparse: true},
		"has room":                       {hits: 1, size: 18, sparse: true},
		"is full":                        {hits: 1, size: 19, sparse: true, folds: true},
		"a load that is too large":       {hits: 11},
		"full, as are many larger ones":  {hits: 1, size: 19, larger: 40, sparse: true},
		"far too large, and no others":   {hits: 1, size: 161, sparse: true, folds: true},
		"far too large, as are others":   {hits: 1, size: 161, larger: 40},
		"full, as are three larger ones": {hits: 1, size: 19, larger: 3, sparse: true, folds: true},
	} {
		b := NewBatch(l)
		for i := range c.hits {
			b.Add([]byte("a"), 1, at+1000*int64(i), at+60_000, 1)
		}
		for i := range c.larger {
			b.Add(fmt.Append(nil, i), uint64(i+2), at, at, 1)
		}
		s := b.Shard(0)
		s.Place(20, 0, func(counterHash uint64, epoch int64) int {
			require.Equal(t, int64(30), epoch)
			if counterHash > 1 {
				return 1000
			}
			return c.size
		})
		s.Place(0, 0, func(uint64, int64) int { return math.MaxInt }) // what has been decided stays
		counter := &s.Counters[1]                                     // behind the sum of all hits
		epoch, folds := s.FoldedEpoch(counter)
		if counter.IsSparse() != c.sparse || folds != c.folds || folds && epoch != 30 {
			t.Errorf("%s: sparse %v, folds %v in %d; want %+v", what, counter.IsSparse(), folds, epoch, c)
		}
		if got := len(s.Cells(counter, nil)) == 0; got != c.sparse {
			t.Errorf("%s: the tiers get %v", what, s.Cells(counter, nil))
		}
	}
}

// A commit folds once a log exceeds the limit of its stream: the largest of those that are near it.
func TestFewCommitsFold(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1}
	const at, counters = int64(1_763_000_000_000), 320
	folded := func(salt uint64, sizes ...int) (out []int) {
		b, of := NewBatch(l), map[uint64]int{}
		for i := range counters {
			name := fmt.Append(nil, i)
			b.Add(name, HashCounter(name), at, at, 1)
			of[HashCounter(name)] = sizes[i%len(sizes)] - i%40
		}
		s := b.Shard(0)
		s.Place(MaxLogBytes, salt, func(counterHash uint64, _ int64) int { return of[counterHash] })
		for i := range s.Counters {
			if _, ok := s.FoldedEpoch(&s.Counters[i]); ok {
				out = append(out, of[s.Counters[i].CounterHash])
			}
		}
		return out
	}
	require.Empty(t, folded(0, MaxLogBytes-8), "all are near the limit")
	all := folded(0, MaxLogBytes+5)
	require.Len(t, all, mostFolds+(counters+1)/16)
	require.Greater(t, slices.Min(all), MaxLogBytes-7, "the largest")
	require.Len(t, folded(0, MaxLogBytes+1, 10, 10, 10, 10, 10, 10, 10), 40, "those that are near, too")
	require.Len(t, folded(0, MaxLogBytes+1, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10), 16)
	require.NotEmpty(t, folded(MaxLogBytes/4, MaxLogBytes-8), "the limit of another stream")
	require.Empty(t, folded(MaxLogBytes/4, MaxLogBytes*3/4-8))
}

// What a fold keeps and what it moves are what the log had; the newest cells stay.
func TestFoldedLog(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1}
	tier, _ := l.SparseTier()
	c := &CounterHits{Name: "a", CounterHash: 1}
	rapid.Check(t, func(t *rapid.T) {
		s, keep := NewBatch(l).Shard(0), rapid.IntRange(0, 40).Draw(t, "keep")
		hits := map[int64]int64{}
		var cells []StoredCell
		for range rapid.IntRange(1, 40).Draw(t, "cells") {
			cell := StoredCell{rapid.Int64Range(0, 200).Draw(t, "field"), rapid.Int64Range(1, 300).Draw(t, "n")}
			cells, hits[cell.Field] = append(cells, cell), hits[cell.Field]+cell.N
		}
		first := cells[0].Field
		folded, kept := s.FoldLog(c, 30, cells, keep)
		stay, err := tier.ParseLog(LogHeader + string(kept))
		if err != nil || len(kept) > keep {
			t.Fatalf("%d bytes stay: %v", len(kept), err)
		}
		if len(stay) > 0 && len(folded.slots) > 0 && stay[0].Field == first {
			t.Fatalf("the log begins with cell %d, as before", first)
		}
		oldest := int64(math.MaxInt64)
		for _, cell := range stay {
			if hits[cell.Field] != cell.N {
				t.Fatalf("%+v stays of %d", cell, hits[cell.Field])
			}
			delete(hits, cell.Field)
			oldest = min(oldest, cell.Field)
		}
		for _, h := range folded.slots {
			epoch, field := tier.EpochAndField(tier.CellAt(h.slot.Begins()))
			if epoch != 30 || field >= oldest || hits[field] != h.n || !s.heldByAll(h.slot) {
				t.Fatalf("%d hits of cell %d of %d move, and %d stays", h.n, field, epoch, oldest)
			}
			delete(hits, field)
		}
		if len(hits) > 0 {
			t.Fatalf("%v are gone", hits)
		}
	})
}

// No load begins like a log, so a key that had none is never taken for one.
func TestLoadsDoNotBeginLikeALog(t *testing.T) {
	t.Parallel()
	tier, _ := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1}.SparseTier()
	for field := range min(tier.CellsPerEpoch(), 1<<17) {
		for _, n := range []int64{1, 2, 3, 1 << 40} {
			text := string(AppendFirstLogCell(nil, field, n))
			if strings.HasPrefix(text, LogHeader) {
				t.Fatalf("%d hits of cell %d are %q", n, field, text)
			}
			found, err := tier.ParseLog(LogHeader + text)
			sum := int64(0)
			for _, cell := range found {
				sum += cell.N
				if cell.Field != field {
					err = fmt.Errorf("cell %d", cell.Field)
				}
			}
			if err != nil || sum != n {
				t.Fatalf("%d hits of cell %d are read as %v, %v", n, field, found, err)
			}
		}
	}
}

// Late hits go into the tiers: a log would date them to the second in which their coarse cell begins.
func TestLateHitsAreInNoLog(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1}
	rapid.Check(t, func(t *rapid.T) {
		b := NewBatch(l)
		const stored = int64(1_763_000_000_000)
		hits := map[int64]int64{} // by their second, of those that no tier took for late
		for range rapid.IntRange(1, 40).Draw(t, "hits") {
			at := stored - rapid.OneOf(rapid.Int64Range(0, 200_000), rapid.Int64Range(0, 30*86_400_000)).Draw(t, "age")
			b.Add([]byte("a"), 1, at, stored, 1)
			if len(l.AppendCells(nil, 1, at, stored)) == len(l.Tiers) {
				hits[at/1000]++
			}
		}
		s := b.Shard(0)
		s.Place(math.MaxInt32, 0, func(uint64, int64) int { return 0 })
		c := &s.Counters[1] // behind the sum of all hits
		for _, cell := range s.LogCells(c, nil) {
			if second := s.NamesTier.CellStart(cell.Cell) / 1000; hits[second] != cell.N {
				t.Fatalf("the log has %d hits of second %d, want %d", cell.N, second, hits[second])
			}
			delete(hits, s.NamesTier.CellStart(cell.Cell)/1000)
		}
		if len(hits) > 0 {
			t.Fatalf("the log lacks %v", hits)
		}
	})
}

// Parts of a commit are as large as logs allow: what goes into the tiers needs three times the commands.
func TestSplitKnowsLogs(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1}
	count := func(most int) (parts int) {
		b := NewBatch(l)
		for i := range 300 {
			name := fmt.Appendf(nil, "c%d", i)
			b.Add(name, HashCounter(name), 1_763_000_000_000, 1_763_000_000_000, 1)
		}
		s := b.Shard(0)
		s.Place(most, 0, func(uint64, int64) int { return 0 })
		var hits int64
		for part := range s.Split(Cursor{Created: 1}, Cursor{Created: 1, Seq: 1}, 200) {
			hits += part.Hits()
			parts++
		}
		require.Equal(t, int64(300), hits)
		return parts
	}
	require.LessOrEqual(t, count(100), 4, "parts with logs")
	require.GreaterOrEqual(t, count(0), 12, "parts without")
}
