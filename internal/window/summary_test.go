package window

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// checkSummary compares what a summary promises with the true counts.
func checkSummary(s *summary, truth map[string]int64) error {
	var all int64
	for name, n := range truth {
		all += n
		e := s.listed[name]
		switch {
		case e == nil && n > s.floor:
			return fmt.Errorf("%s has %d hits and is not listed; the floor is %d", name, n, s.floor)
		case e != nil && n > e.count:
			return fmt.Errorf("%s has %d hits and is listed with %d", name, n, e.count)
		case e != nil && e.count-s.floor > n:
			return fmt.Errorf("%s has %d hits and is listed with %d, more than the floor of %d above", name, n, e.count, s.floor)
		}
	}
	if len(s.order) > s.size || len(s.listed) != len(s.order) {
		return fmt.Errorf("%d entries, %d names, of at most %d", len(s.order), len(s.listed), s.size)
	}
	if s.floor > all/int64(s.size) {
		return fmt.Errorf("the floor of %d counters is %d for %d hits", s.size, s.floor, all)
	}
	for i, e := range s.order {
		if e.at != i || s.listed[e.name] != e || i > 0 && s.order[(i-1)/2].count > e.count {
			return fmt.Errorf("entry %d (%+v) is out of order", i, e)
		}
	}
	return nil
}

func TestSummaryBoundsEveryCounter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 12).Draw(t, "size")
		s, truth := newSummary(size), map[string]int64{}
		for range rapid.IntRange(0, 120).Draw(t, "adds") {
			name := fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "counter"))
			n := rapid.Int64Range(1, 50).Draw(t, "n")
			s.add(name, n)
			truth[name] += n
			if rapid.IntRange(0, 9).Draw(t, "kept") == 0 { // in Redis, and read back
				again, err := parseSummary(size, s.encode())
				if err != nil {
					t.Fatal(err)
				}
				s = again
			}
			if err := checkSummary(s, truth); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestSummaryThatHasRoomIsExact(t *testing.T) {
	s, truth := newSummary(100), map[string]int64{}
	for i := range 1000 {
		name := fmt.Sprint(i * i % 97)
		s.add(name, int64(i+1))
		truth[name] += int64(i + 1)
	}
	got := map[string]int64{}
	for name, e := range s.listed {
		got[name] = e.count
	}
	if s.floor != 0 || !maps.Equal(got, truth) {
		t.Errorf("floor %d, %v; want %v", s.floor, got, truth)
	}
}

func TestSummaryStopsAtTheLargestCount(t *testing.T) {
	s := newSummary(1)
	s.add("a", math.MaxInt64)
	s.add("a", 5)
	s.add("b", 5)
	again, err := parseSummary(1, s.encode())
	if err != nil || again.floor != math.MaxInt64 || again.listed["b"].count != math.MaxInt64 {
		t.Errorf("%+v, %v", again, err)
	}
}

func FuzzParseSummary(f *testing.F) {
	s := newSummary(3)
	for i := range 9 {
		s.add(fmt.Sprint("counter", i%5), int64(1)<<(7*i))
	}
	f.Add(s.encode())
	for _, text := range []string{"", "\x01", "\x02\x00", "\x01\x80", "\x01\x00\x01a\x01\x01a\x01", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x01\x00\x7fa"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSummary(3, text)
		if err != nil {
			return
		}
		again, err := parseSummary(3, s.encode())
		if err != nil || again.encode() != s.encode() || again.floor != s.floor || len(again.order) != len(s.order) {
			t.Fatalf("%q is read as %q, which is read as %q, %v", text, s.encode(), again.encode(), err)
		}
	})
}

func TestABadSummaryIsRefused(t *testing.T) {
	for _, text := range []string{"", "\x02\x00", "\x00", "\x01", "\x01\x00\x02a", "\x01\x00\x01a", "\x01\x00\x01a\x01\x01a\x02", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		if s, err := parseSummary(16, text); err == nil {
			t.Errorf("%q is read as %+v", text, s)
		}
	}
}

// What one counter of a batch costs; see docs/design.md.
func BenchmarkSummaryAdd(b *testing.B) {
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf("counter-%d", i)
	}
	for _, load := range []struct {
		name string
		next func(*rand.Rand) func() int
	}{
		{"zipf1.1", func(r *rand.Rand) func() int {
			z := rand.NewZipf(r, 1.1, 1, uint64(len(names)-1))
			return func() int { return int(z.Uint64()) }
		}},
		{"uniform", func(r *rand.Rand) func() int { return func() int { return r.IntN(len(names)) } }},
	} {
		for _, size := range []int{63, 1000} {
			b.Run(fmt.Sprintf("%s/%d", load.name, size), func(b *testing.B) {
				next := load.next(rand.New(rand.NewPCG(1, 2)))
				drawn := make([]string, 1<<16)
				for i := range drawn {
					drawn[i] = names[next()]
				}
				s := newSummary(size)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					s.add(drawn[i%len(drawn)], 1)
				}
			})
		}
	}
}
