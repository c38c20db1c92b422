package window

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// checkSummary compares what a summary promises with the true counts.
func checkSummary(s summary, truth map[string]int64, size int) error {
	listed := map[string]int64{}
	var above int64
	for _, l := range s.listed {
		listed[l.name] = l.count
		above += l.count - s.floor
		if l.count < s.floor {
			return fmt.Errorf("%s is listed with %d, below the floor of %d", l.name, l.count, s.floor)
		}
		if l.count < truth[l.name] || l.count-s.floor > truth[l.name] {
			return fmt.Errorf("%s has %d hits and is listed with %d; the floor is %d", l.name, truth[l.name], l.count, s.floor)
		}
	}
	if len(s.listed) > size || len(listed) != len(s.listed) {
		return fmt.Errorf("%d entries, %d names, of at most %d", len(s.listed), len(listed), size)
	}
	var all int64
	for name, n := range truth {
		all += n
		if _, ok := listed[name]; !ok && n > s.floor {
			return fmt.Errorf("%s has %d hits and is not listed; the floor is %d", name, n, s.floor)
		}
	}
	if int64(size+1)*s.floor+above > all { // more than it promises: the floor is also that of the largest count dropped
		return fmt.Errorf("%d times the floor of %d and %d above it are more than all %d hits", size+1, s.floor, above, all)
	}
	return nil
}

// Whatever the batches, all bounds of a summary hold: of each counter, and of the floor, which is 0 while there is room: then
// each count is exact.
func TestSummaryBoundsEveryCounter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 12).Draw(t, "size")
		var s summary
		truth := map[string]int64{}
		counter := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "counter")) })
		hits := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 50))
		for range rapid.IntRange(0, 30).Draw(t, "batches") {
			batch := make([]listing, 0, 41)
			for _, name := range rapid.SliceOfNDistinct(counter, 0, 41, rapid.ID[string]).Draw(t, "batch") {
				n := hits.Draw(t, "n")
				batch = append(batch, listing{name, n})
				truth[name] += n
			}
			kept, err := parseSummary(s.encode()) // as between two commits
			require.NoError(t, err)
			require.NoError(t, kept.merge(batch, size))
			if s = kept; s.floor > 0 && len(s.listed) != size {
				t.Fatalf("%d of %d counters are listed, with a floor of %d", len(s.listed), size, s.floor)
			}
			require.NoError(t, checkSummary(s, truth, size))
		}
	})
}

func TestSummaryStopsAtTheLargestCount(t *testing.T) {
	t.Parallel()
	s := summary{listed: []listing{{"a", math.MaxInt64}}}
	for _, batch := range [][]listing{{{"a", 5}}, {{"b", math.MaxInt64}}, {{"c", 5}, {"a", 5}}} {
		require.NoError(t, s.merge(batch, 1))
	}
	again, err := parseSummary(s.encode())
	if err != nil || again.floor != math.MaxInt64 || !slices.Equal(again.listed, []listing{{"a", math.MaxInt64}}) {
		t.Errorf("%+v, %v", again, err)
	}
}

// What Redis holds is read, and added to.
func TestAStoredSummaryIsGoneOnWith(t *testing.T) {
	t.Parallel()
	s, err := parseSummary("\x01\x04\x01b\x05\x02aa\xac\x02")
	if err == nil {
		err = s.merge([]listing{{"c", 2}, {"b", 1}}, 2)
	}
	if want := "\x01\x06\x01b\x06\x02aa\xac\x02"; err != nil || s.encode() != want {
		t.Errorf("%q, %v; want %q", s.encode(), err, want)
	}
}

func FuzzParseSummary(f *testing.F) {
	f.Add((&summary{300, []listing{{"counter1", 300}, {"counter2", 1 << 50}}}).encode())
	for _, text := range []string{"", "\x01", "\x02\x00", "\x01\x80", "\x01\x00\x01a\x01\x01a\x01", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x01\x00\x7fa"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSummary(text)
		if err != nil {
			return
		}
		again, err := parseSummary(s.encode())
		if err != nil || again.encode() != s.encode() || again.floor != s.floor || !slices.Equal(again.listed, s.listed) {
			t.Fatalf("%q is read as %q, which is read as %q, %v", text, s.encode(), again.encode(), err)
		}
	})
}

func TestABadSummaryIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\x02\x00", "\x00", "\x01", "\x01\x00\x02a", "\x01\x00\x01a", "\x01\x00\x01a\x01\x01a\x02", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		if s, err := parseSummary(text); err == nil {
			if err := s.merge(nil, 16); err == nil {
				t.Errorf("%q is read as %+v", text, s)
			}
		}
	}
}
