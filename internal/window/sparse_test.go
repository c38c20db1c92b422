package window

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func sparseTier(t testing.TB, tiers string) (Tier, bool) {
	t.Helper()
	return Layout{Tiers: mustTiers(t, tiers), Shards: 1, Sparse: true}.SparseTier()
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
	_, ok := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1}.SparseTier()
	require.False(t, ok, "a namespace of version 2")
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

// A counter is busy if its log would become too large, or would have in the epoch before. A decision stays.
func TestBusyCountersGoIntoTheTiers(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1, Sparse: true}
	tier, _ := l.SparseTier()
	at := tier.EpochStart(30) + 5_000_000
	for what, c := range map[string]struct {
		hits    int
		sizes   map[int64]int
		sparse  bool
		waiting int // bytes
	}{
		"new":                       {1, nil, true, 2},
		"room for one more":         {1, map[int64]int{30: 18}, true, 2},
		"full":                      {1, map[int64]int{30: 19}, false, 2},
		"a load that is too large":  {11, nil, false, 22},
		"busy in the epoch before":  {1, map[int64]int{29: 21}, false, 2},
		"large in the epoch before": {1, map[int64]int{29: 20}, true, 2},
		"busy two epochs ago":       {1, map[int64]int{28: 100}, true, 2},
	} {
		b := NewBatch(l)
		for i := range c.hits {
			b.Add([]byte("a"), 1, at+1000*int64(i), at+60_000, 1)
		}
		s := b.Shard(0)
		s.Place(20, func(_ uint64, epoch int64) int { return c.sizes[epoch] })
		s.Place(0, func(uint64, int64) int { return math.MaxInt }) // what has been decided stays
		counter := &s.Counters[1]                                  // behind the sum of all hits
		if counter.IsSparse() != c.sparse || counter.LogBytes() != c.waiting {
			t.Errorf("%s: sparse %v with %d bytes; want %+v", what, counter.IsSparse(), counter.LogBytes(), c)
		}
		if got := len(s.Cells(counter, nil)) == 0; got != c.sparse {
			t.Errorf("%s: the tiers get %v", what, s.Cells(counter, nil))
		}
	}
}

// Late hits go into the tiers: a log would date them to the second in which their coarse cell begins.
func TestLateHitsAreInNoLog(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1, Sparse: true}
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
		s.Place(math.MaxInt, func(uint64, int64) int { return 0 })
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
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 1, Sparse: true}
	count := func(most int) (parts int) {
		b := NewBatch(l)
		for i := range 300 {
			name := fmt.Appendf(nil, "c%d", i)
			b.Add(name, HashCounter(name), 1_763_000_000_000, 1_763_000_000_000, 1)
		}
		s := b.Shard(0)
		s.Place(most, func(uint64, int64) int { return 0 })
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
