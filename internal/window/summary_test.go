package window

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// checkSummary compares what a summary promises with the true counts.
func checkSummary(t *rapid.T, s Summary, truth map[string]int64, size int) {
	listed := map[string]bool{}
	var above int64
	for _, l := range s.Listed {
		listed[l.Name] = true
		above += l.Count - s.Floor
		if l.Count < s.Floor || l.Count < truth[l.Name] || l.Count-s.Floor > truth[l.Name] {
			t.Fatalf("%s has %d hits and is listed with %d; the floor is %d", l.Name, truth[l.Name], l.Count, s.Floor)
		}
	}
	if len(s.Listed) > size || len(listed) != len(s.Listed) {
		t.Fatalf("%d entries, %d names, of at most %d", len(s.Listed), len(listed), size)
	}
	var all int64
	for name, n := range truth {
		all += n
		if !listed[name] && n > s.Floor {
			t.Fatalf("%s has %d hits and is not listed; the floor is %d", name, n, s.Floor)
		}
	}
	if int64(size+1)*s.Floor+above > all { // more than it promises: the floor is also that of the largest count dropped
		t.Fatalf("%d times the floor of %d and %d above it are more than all %d hits", size+1, s.Floor, above, all)
	}
}

// Whatever the batches, all bounds of a summary hold: of each counter, and of the floor, which is 0 while
// there is room: then each count is exact.
func TestSummaryBoundsEveryCounter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 12).Draw(t, "size")
		var s Summary
		truth := map[string]int64{}
		counter := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "counter")) })
		hits := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 50))
		for range rapid.IntRange(0, 30).Draw(t, "batches") {
			batch := make([]Listing, 0, 41)
			for _, name := range rapid.SliceOfNDistinct(counter, 0, 41, rapid.ID[string]).Draw(t, "batch") {
				n := hits.Draw(t, "n")
				batch = append(batch, Listing{name, n})
				truth[name] += n
			}
			kept, err := ParseSummary(s.Encode()) // as between two commits
			require.NoError(t, err)
			require.NoError(t, kept.Merge(batch, size))
			if s = kept; s.Floor > 0 && len(s.Listed) != size {
				t.Fatalf("%d of %d counters are listed, with a floor of %d", len(s.Listed), size, s.Floor)
			}
			checkSummary(t, s, truth, size)
		}
	})
}

func TestSummaryStopsAtTheLargestCount(t *testing.T) {
	t.Parallel()
	s := Summary{Listed: []Listing{{"a", math.MaxInt64}}}
	for _, batch := range [][]Listing{{{"a", 5}}, {{"b", math.MaxInt64}}, {{"c", 5}, {"a", 5}}} {
		require.NoError(t, s.Merge(batch, 1))
	}
	again, err := ParseSummary(s.Encode())
	if err != nil || again.Floor != math.MaxInt64 || !slices.Equal(again.Listed, []Listing{{"a", math.MaxInt64}}) {
		t.Errorf("%+v, %v", again, err)
	}
}

var badSummaries = []string{
	"", "\x02\x00", "\x00", "\x01", "\x01\x80", "\x01\x00\x02a", "\x01\x00\x01a", "\x01\x00\x7fa",
	"\x01\x00\x01a\x01\x01a\x02", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
}

// What Redis holds is read, and added to, or refused: then or when it is merged.
func TestStoredSummaryIsContinued(t *testing.T) {
	t.Parallel()
	s, err := ParseSummary("\x01\x04\x01b\x05\x02aa\xac\x02")
	require.NoError(t, err)
	require.NoError(t, s.Merge([]Listing{{"c", 2}, {"b", 1}}, 2))
	require.Equal(t, "\x01\x06\x01b\x06\x02aa\xac\x02", s.Encode())
	for _, text := range badSummaries {
		if s, err := ParseSummary(text); err == nil {
			require.Error(t, s.Merge(nil, 16), "%q is read as %+v", text, s)
		}
	}
}

func FuzzParseSummary(f *testing.F) {
	f.Add((&Summary{300, []Listing{{"counter1", 300}, {"counter2", 1 << 50}}}).Encode())
	for _, text := range badSummaries {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSummary(text)
		if err != nil {
			return
		}
		again, err := ParseSummary(s.Encode())
		if err != nil || again.Encode() != s.Encode() || again.Floor != s.Floor || !slices.Equal(again.Listed, s.Listed) {
			t.Fatalf("%q is read as %q, which is read as %q, %v", text, s.Encode(), again.Encode(), err)
		}
	})
}

// BenchmarkSummaryMerge merges batches into a full summary, as a commit does with that of a segment; ns/op is
// per batch and segment. See docs/design.md.
func BenchmarkSummaryMerge(b *testing.B) {
	add := func(size int, text string, batch []Listing) string {
		s, err := ParseSummary(text)
		if err == nil {
			err = s.Merge(batch, size)
		}
		require.NoError(b, err)
		return s.Encode()
	}
	for _, load := range []string{"zipf", "uniform"} {
		for _, size := range []int{16, 63} {
			for _, batch := range []int{1, 10, 100, 2000} {
				b.Run(fmt.Sprintf("%s/listed=%d/batch=%d", load, size, batch), func(b *testing.B) {
					r := rand.New(rand.NewPCG(1, 2))
					draw := rand.NewZipf(r, 1.1, 1, 99_999).Uint64
					if load == "uniform" {
						draw = func() uint64 { return r.Uint64N(100_000) }
					}
					var batches [16][]Listing
					text := (&Summary{}).Encode()
					for i := range batches {
						seen := map[string]int64{}
						for len(seen) < batch {
							seen[fmt.Sprintf("counter-%d", draw())]++
						}
						for name, n := range seen {
							batches[i] = append(batches[i], Listing{name, n})
						}
						text = add(size, text, batches[i])
					}
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						add(size, text, batches[i%len(batches)])
					}
				})
			}
		}
	}
}
