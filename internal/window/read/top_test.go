package read_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// checkTop compares a top list with what is known of every counter.
func checkTop(t *testing.T, top read.Top, all map[string]window.Answer) {
	t.Helper()
	listed := make(map[string]bool)
	for i, c := range top.Counters {
		listed[c.Counter] = true
		if c.Answer != all[c.Counter] {
			t.Errorf("%s has %+v in the list and %+v by itself", c.Counter, c.Answer, all[c.Counter])
		}
		if i == 0 {
			continue
		}
		if before := top.Counters[i-1]; before.Total < c.Total || before.Total == c.Total && before.Counter >= c.Counter {
			t.Errorf("%s with %d comes before %s with %d", before.Counter, before.Total, c.Counter, c.Total)
		}
	}
	for counter, a := range all {
		if a.Upper > top.Floor && !listed[counter] {
			t.Errorf("%s is missing with %+v; the floor is %d", counter, a.Total, top.Floor)
		}
	}
}

// withPrefixes returns the counters whose names begin with one of the prefixes.
func withPrefixes(all map[string]window.Answer, prefixes []string) map[string]window.Answer {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(counter string, _ window.Answer) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(counter, p) })
	})
	return out
}

// The largest counters of prefixes are right on every kind of Redis, and no other has more than the floor,
// however many names other prefixes have.
func (r *rig) TestTopOfPrefixes(t *testing.T) {
	now, b, names := time.Now(), window.NewBatch(layout), []string{}
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 1100 {
		for _, prefix := range []string{"refused.a.", "refused.b.", "usage."} {
			name := fmt.Sprint(prefix, i)
			names = append(names, name)
			windowtest.AddHits(b, name, now.UnixMilli()-random.Int64N(time.Hour.Milliseconds()), now.UnixMilli(), 1+int64(1000/(i+1))*(1+random.Int64N(9)))
		}
	}
	r.Open("HITS").CommitBatch(b, windowtest.CursorAt(1, now))
	for _, w := range []time.Duration{5 * time.Minute, time.Hour, 24 * time.Hour} {
		all := make(map[string]window.Answer)
		for chunk := range slices.Chunk(names, 1000) {
			questions := make([]window.Question, len(chunk))
			for i, c := range chunk {
				questions[i] = window.Question{Counter: c, Span: window.Last(w)}
			}
			found, err := r.Answer(now, questions...)
			require.NoError(t, err)
			for i, a := range found.Answers {
				all[chunk[i]] = a
			}
		}
		for _, prefixes := range [][]string{{"refused.a."}, {"refused."}, {"refused.a.1", "usage.2"}, {"nobody."}} {
			for _, limit := range []int{1, 10, 1000} {
				var top read.Top
				var err error
				r.At(now, func() { top, err = r.Reader.Top(t.Context(), window.Last(w), limit, prefixes...) })
				require.NoError(t, err)
				require.LessOrEqual(t, len(top.Counters), limit)
				checkTop(t, top, withPrefixes(all, prefixes))
				if w == time.Hour && prefixes[0] == "refused.a." && limit == 10 && (len(top.Counters) < 10 || top.Floor >= top.Counters[0].Total) {
					t.Errorf("%d counters with a floor of %d", len(top.Counters), top.Floor)
				}
			}
		}
	}
}

// checkBounds checks that no counter has more hits than the list of bounds allows it, which are sorted.
func checkBounds(t *testing.T, bounds read.Top, all map[string]window.Answer) {
	t.Helper()
	most, before := make(map[string]int64), int64(math.MaxInt64)
	for _, c := range bounds.Counters {
		if c.Upper > before || all[c.Counter].Tier == (window.Tier{}) {
			t.Errorf("%s has at most %d, after %d", c.Counter, c.Upper, before)
		}
		most[c.Counter], before = c.Upper, c.Upper
	}
	for counter, a := range all {
		if limit := cmp.Or(most[counter], bounds.Floor); a.Upper > limit {
			t.Errorf("%s has up to %d, and its bound is %d", counter, a.Upper, limit)
		}
	}
}

// TestTopAgainstTheTruth fills two streams and compares the list with the totals
// of all counters. TOP_COUNTERS=1000000 TOP_HITS=2000000 measures what it costs with so many.
func TestTopAgainstTheTruth(t *testing.T) {
	t.Parallel()
	counters, hits := 100_000, 50_000 // docs/design.md has more
	for name, n := range map[string]*int{"TOP_COUNTERS": &counters, "TOP_HITS": &hits} {
		if text := os.Getenv(name); text != "" {
			require.NoError(t, windowtest.ErrOf(fmt.Sscan(text, n)))
		}
	}
	for name, exponent := range map[string]float64{"Zipf 1.01": 1.01, "Zipf 1.1": 1.1, "uniform": 0} {
		t.Run(name, func(t *testing.T) {
			r := windowtest.NewRig(t, windowtest.Server(t))
			require.NoError(t, r.Store.AddStream(t.Context(), "HITS_2"))
			random := rand.New(rand.NewPCG(1, 2))
			draw := func() uint64 { return random.Uint64N(uint64(counters)) }
			if exponent > 0 {
				draw = rand.NewZipf(random, exponent, 1, uint64(counters-1)).Uint64
			}
			now, seen := time.Now(), make(map[string]bool)
			sessions := []*windowtest.Session{r.Open("HITS"), r.Open("HITS_2")}
			batches := []*window.Batch{window.NewBatch(layout), window.NewBatch(layout)}
			for i := range hits {
				s, batch, counter := sessions[i%2], batches[i%2], fmt.Sprintf("c%d", draw())
				seen[counter] = true
				at := now.UnixMilli() - random.Int64N(2*time.Hour.Milliseconds())
				windowtest.AddHits(batch, counter, at, at, 1)
				if i/2%5000 == 4999 || i >= hits-2 {
					s.CommitBatch(batch, windowtest.CursorAt(s.Seq+1, time.Now()))
					batch.Reset()
				}
			}
			for _, w := range []time.Duration{time.Hour, 24 * time.Hour} {
				began := time.Now()
				top, err := r.Top(w, now, 20)
				took := time.Since(began)
				require.NoError(t, err)
				all := make(map[string]window.Answer)
				for chunk := range slices.Chunk(slices.Collect(maps.Keys(seen)), 2000) {
					questions := make([]window.Question, len(chunk))
					for i, c := range chunk {
						questions[i] = window.Question{Counter: c, Span: window.Last(w)}
					}
					found, err := r.Answer(now, questions...)
					require.NoError(t, err)
					for i, a := range found.Answers {
						all[chunk[i]] = a
					}
				}
				require.Len(t, top.Counters, 20)
				checkTop(t, top, all)
				for _, prefixes := range [][]string{{"c1"}, {"c1", "c27"}, {"none"}} {
					var some read.Top
					r.At(now, func() { some, err = r.Reader.Top(t.Context(), window.Last(w), 20, prefixes...) })
					require.NoError(t, err)
					require.Equal(t, prefixes[0] == "none", len(some.Counters) == 0)
					checkTop(t, some, withPrefixes(all, prefixes))
				}
				var bounds read.Top
				r.At(now, func() { bounds, err = r.Reader.Bounds(t.Context(), window.Last(w)) })
				require.NoError(t, err)
				checkBounds(t, bounds, all)
				t.Logf("%s, %d counters, %d hits, window %s: floor %d, first %d, last %d, %s", name, len(seen), hits,
					human.FormatDuration(w), top.Floor, top.Counters[0].Total, top.Counters[19].Total, took.Round(time.Millisecond))
			}
		})
	}
}

func (r *rig) TestNamesAreListed(t *testing.T) {
	now, b := time.Now(), window.NewBatch(layout)
	add := func(counter string, at time.Time) {
		windowtest.AddHits(b, counter, at.UnixMilli(), at.UnixMilli(), 1)
	}
	longest := layout.Tiers[len(layout.Tiers)-1].Window
	var want []string
	for i := range 500 {
		name := fmt.Sprintf("shop.%03d", i)
		add(name, now.Add(-time.Duration(i%40)*24*time.Hour)) // some before the longest window
		if time.Duration(i%40+1)*24*time.Hour < longest {
			want = append(want, name)
		}
	}
	for _, other := range []string{"shop", "shop-", "shoq", "größe ☃"} {
		add(other, now)
	}
	r.Open("HITS").CommitBatch(b, windowtest.CursorAt(1, now))
	all := func(prefix string, limit int) (out []string) {
		t.Helper()
		q := read.NamesQuestion{Prefix: prefix, Limit: limit}
		for range 1000 {
			var page read.Names
			var err error
			r.At(now, func() { page, err = r.Reader.Names(t.Context(), q) })
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Counters), limit)
			if out = append(out, page.Counters...); page.Next == "" {
				return out
			}
			q.After = page.Next
		}
		t.Fatal("the pages have no end")
		return nil
	}
	for _, limit := range []int{1, 7, 100, 1000} {
		got := all("shop.", limit)
		// A name from the window's beginning may have hits in the cell that it cuts.
		got = slices.DeleteFunc(got, func(name string) bool {
			return !slices.Contains(want, name) && r.Total(name, longest, now).Upper > 0
		})
		require.Equal(t, want, got, "pages of %d", limit)
	}
	require.Equal(t, "[größe ☃] [shoq] []", fmt.Sprint(all("gr", 5), all("shoq", 5), all("z", 5)))
	r.MustExpire(append(stack.Scan(t, r.Client, "test:*:names:*"), stack.Scan(t, r.Client, "test:*:top:*")...))
}

// Names of the two windows before do not count for a short window, and those with hits in it do.
func (r *rig) TestNamesWithinASpan(t *testing.T) {
	tier := layout.NamesTier()
	set := 2 * tier.Window
	turn := time.UnixMilli(0).Add((time.Since(time.UnixMilli(0))/set + 1) * set) // a set of names begins
	now, b := turn.Add(time.Hour), window.NewBatch(layout)
	for name, ago := range map[string]time.Duration{"old": 2 * time.Hour, "late": 30 * time.Minute, "new": time.Minute} {
		windowtest.AddHits(b, name, now.Add(-ago).UnixMilli(), now.UnixMilli(), 1)
	}
	r.Open("HITS").CommitBatch(b, windowtest.CursorAt(1, now))
	for length, want := range map[time.Duration]string{5 * time.Minute: "[late new]", 90 * time.Minute: "[late new old]"} {
		span := window.Last(length)
		var page read.Names
		var err error
		r.At(now, func() {
			page, err = r.Reader.Names(t.Context(), read.NamesQuestion{Within: &span, Listed: true, Limit: 10})
		})
		require.NoError(t, err)
		require.Equal(t, want, fmt.Sprint(page.Counters), "%v", length)
	}
}
