package window

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// boundsNow is the moment that the bursts lead up to, in the middle of a cell of each tier.
var boundsNow = time.Date(2026, 11, 21, 10, 7, 23, 456e6, time.UTC).UnixMilli()

// bursts are the hits of a counter in the 30 days before boundsNow: a quiet
// level, and bursts of all lengths in which most hits lie. Half of them are
// recent, so that short windows have something to count.
func bursts(r *rand.Rand) []storedHit {
	var hits []storedHit
	add := func(from, length int64, n int) {
		for range n {
			if at := from + r.Int64N(length); at < boundsNow {
				hits = append(hits, storedHit{at, at, 1 + r.Int64N(5)})
			}
		}
	}
	const day = 86_400_000
	add(boundsNow-30*day, 30*day, 200)
	for range 30 {
		ago := int64(math.Exp(r.Float64() * math.Log(30*day)))
		length := int64(math.Exp(math.Log(50) + r.Float64()*math.Log(day/50)))
		add(boundsNow-ago, length, 20+r.IntN(60))
	}
	return hits
}

// twoNumbers is what keepers of two fixed windows answer: the running one, and the
// one before it weighted by the part of it that the rolling window still covers.
func twoNumbers(hits []storedHit, window, now int64) int64 {
	start := now - now%window
	running := truth(hits, Range{start, now})
	before := truth(hits, Range{start - window, start})
	return running + portion(before, window-(now-start), window)
}

// errorsOf collects |answer - truth| / max(1, truth).
type errorsOf []float64

func (e *errorsOf) add(answer, truth int64) {
	*e = append(*e, math.Abs(float64(answer-truth))/float64(max(1, truth)))
}

func (e errorsOf) String() string {
	var sum float64
	for _, v := range e {
		sum += v
	}
	return fmt.Sprintf("%.3f %%\t%.1f %%", 100*sum/float64(len(e)), 100*slices.Max(e))
}

// Over 10,000 random questions about bursts the truth is always within the bounds. The table (go test -v)
// shows how far totals are off, compared with two numbers per counter. The figures are in docs/queries.md.
func TestBoundsHoldOnBursts(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	r := rand.New(rand.NewPCG(1, 2))
	var counters [][]storedHit
	for range 50 {
		counters = append(counters, bursts(r))
	}
	ours, theirs := make([]errorsOf, len(l.Tiers)), make([]errorsOf, len(l.Tiers))
	for i := range 10_000 {
		which := r.IntN(len(l.Tiers))
		tier, least := l.Tiers[which], int64(1000)
		if which > 0 {
			least = l.Tiers[which-1].Window.Milliseconds() + 1000
		}
		longest := tier.Window.Milliseconds()
		window := (least + r.Int64N(longest-least+1)) / 1000 * 1000
		now := boundsNow - r.Int64N(longest/4)
		seen := slices.DeleteFunc(slices.Clone(counters[i%len(counters)]), func(h storedHit) bool { return h.at >= now })
		p, err := l.Plan("c", Range{now - window, now}, now)
		require.NoError(t, err)
		require.Equal(t, tier, p.Tier)
		cells := leftBy(Layout{Tiers: Tiers{tier}, Shards: l.Shards}, "c", seen, now)
		got, want := p.Sum(p.cellsOf(cells), 0), truth(seen, p.Range)
		if got.Lower > want || want > got.Upper || got.Total < got.Lower || got.Total > got.Upper {
			t.Fatalf("window of %d ms at %d: %+v does not hold the truth, %d", window, now, got, want)
		}
		ours[which].add(got.Total, want)
		theirs[which].add(twoNumbers(seen, window, now), want)
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "tier\tquestions\tmean\tworst\ttwo numbers: mean\tworst")
	for i, tier := range l.Tiers {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", tier, len(ours[i]), ours[i], theirs[i])
	}
	_ = w.Flush()
	t.Logf("|total-truth| / max(1, truth):\n%s", table.String())
}
