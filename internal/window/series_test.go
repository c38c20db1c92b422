package window

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var genReach = rapid.SampledFrom([]Reach{WithinWindow, WhileHeld, WhileHeldIfFitting, WhileHeldWithLead})

// Every point is the number of hits in its step.
func TestSeriesPointsAreExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := genLayout.Draw(t, "layout")
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		hits := genHits(l, now).Draw(t, "hits")
		r := genRange(l, now).Draw(t, "range")
		step := time.Duration(rapid.IntRange(0, 5000).Draw(t, "step")) * time.Second

		reach := genReach.Draw(t, "reach")
		lead := reach == WhileHeldWithLead

		p, err := l.PlanSeries(SeriesQuestion{Counter: "c", Span: Between(r.From, r.To), Step: step, Reach: reach}, now)
		var out *outOfReachError
		if lead && errors.As(err, &out) {
			t.Skip("no tier reaches back a cell further")
		}
		require.NoError(t, err)
		cell := p.Tier.CellMillis()
		first := r.From
		if lead {
			first -= cell
		}
		switch {
		case p.Range.From > first || first-p.Range.From >= cell || p.Range.To < r.To || p.Range.To-r.To >= cell:
			t.Fatalf("range %+v for %+v with cells of %d ms", p.Range, r, cell)
		case p.Range.From%cell != 0 || p.Range.To%cell != 0 || p.Step%cell != 0:
			t.Fatalf("range %+v and step %d are not whole cells of %d ms", p.Range, p.Step, cell)
		case p.Step < step.Milliseconds() || p.Step >= step.Milliseconds()+cell && step > 0:
			t.Fatalf("step %d ms for %s with cells of %d ms", p.Step, step, cell)
		case len(p.dense()) != 1 || p.Stretches[0].lastEpoch-p.Stretches[0].firstEpoch > (p.Range.To-p.Range.From+p.Tier.EpochMillis()-1)/p.Tier.EpochMillis():
			t.Fatalf("%+v reads more hashes than the range needs", p)
		}
		counts := p.Counts(p.cellsOf(leftBy(l, "c", hits, now)), now)
		for i, got := range counts {
			from := p.Range.From + int64(i)*p.Step
			if want := truth(hits, Range{from, min(from+p.Step, p.Range.To)}); got != (Estimate{want, want, want}) {
				t.Fatalf("point %d is %+v, want %d", i, got, want)
			}
		}
		if end := p.Range.From + int64(len(counts))*p.Step; end < p.Range.To || end-p.Step >= p.Range.To {
			t.Fatalf("%d points of %d ms for %+v", len(counts), p.Step, p.Range)
		}
	})
}

// A range that ended a moment ago is answered by the cells that it would get if it ended now,
// and a tier whose hash lives on answers for longer than its window.
func TestHeldSeriesTakeTheFinestTierThatLives(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	epoch := 2 * time.Hour // of the tier 1m/1h
	begin := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).Truncate(epoch)
	now := epoch + 62*time.Minute // since the beginning of an epoch
	for _, c := range []struct {
		from, now time.Duration
		tier      string
	}{
		{0, now, "1m/1h"}, // three hours back
		{0, now + 31*time.Second, "15m/1d"},
		{epoch - time.Millisecond, now, "1m/1h"}, // an hour and two minutes back, at the worst moment
		{epoch, now, "1m/1h"},
	} {
		span := Between(begin.Add(c.from).UnixMilli(), begin.Add(c.now).UnixMilli()-1)
		p, err := l.PlanSeries(SeriesQuestion{Counter: "c", Span: span, Reach: WhileHeld}, begin.Add(c.now).UnixMilli())
		require.NoError(t, err)
		require.Equal(t, c.tier, p.Tier.String(), "from %s at %s", c.from, c.now)
	}
}

// With Fit, a range that ends now gets the cells of its length at any moment, and keeps them for a while.
func TestFittingSeriesKeepTheirTier(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	random := rand.New(rand.NewPCG(3, 4))
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixMilli()
	for range 2000 {
		now, length := start+random.Int64N(30*86_400_000), 1+random.Int64N(3*86_400_000)
		want, err := chooseReaching(l, Range{now - length, now}, now)
		require.NoError(t, err)
		for _, ago := range []int64{0, want.Grace() / 2} {
			q := SeriesQuestion{Counter: "c", Span: Between(now-length, now), Reach: WhileHeldIfFitting}
			p, err := l.PlanSeries(q, now+ago)
			if err != nil || p.Tier != want {
				t.Fatalf("%d ms up to %d, %d ms later: %s %v, want %s", length, now, ago, p.Tier, err, want)
			}
		}
	}
	_, err := l.PlanSeries(SeriesQuestion{Counter: "c", Span: Last(2000 * time.Hour), Reach: WhileHeldIfFitting}, start)
	require.ErrorContains(t, err, "1s cells reach back 1m", "beyond all tiers")
}

// drawnSteps are steps between drawn edges.
type drawnSteps []int64

func (s *drawnSteps) At(milli int64) Range {
	i := stepAt(*s, milli)
	return Range{(*s)[i], (*s)[i+1]}
}

func (s *drawnSteps) String() string { return "drawn" }

// Whatever the steps, the truth is within the bounds of each, a hit is in one of them, and bounds differ only
// if an edge cuts a cell.
func TestSeriesOfUnequalSteps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := genLayout.Draw(t, "layout")
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		hits := genHits(l, now).Draw(t, "hits")
		r := genRange(l, now).Draw(t, "range")
		longest := 2 * l.Tiers[len(l.Tiers)-1].Window.Milliseconds()
		unit := rapid.SampledFrom([]int64{1, l.Tiers[0].CellMillis(), l.Tiers[len(l.Tiers)-1].CellMillis()}).Draw(t, "unit")
		steps := drawnSteps{FloorDiv(now-longest, unit) * unit}
		for steps[len(steps)-1] <= now {
			steps = append(steps, steps[len(steps)-1]+unit*rapid.Int64Range(1, 1+longest/unit/8).Draw(t, "length"))
		}
		p, err := l.PlanSeries(SeriesQuestion{
			Counter: "c", Span: Between(r.From, r.To), Steps: &steps,
			Reach: rapid.SampledFrom([]Reach{WithinWindow, WhileHeld, WhileHeldIfFitting}).Draw(t, "reach"),
		}, now)
		require.NoError(t, err)
		hits = append(hits, genEdgeHits(l, Range{p.Range.From, min(p.Range.To, now)}, now).Draw(t, "hits at the edges")...)
		switch edges := p.edges; {
		case edges[0] > r.From || edges[len(edges)-1] < r.To || edges[0] != p.Range.From || edges[len(edges)-1] != p.Range.To:
			t.Fatalf("edges %v for %+v", edges, r)
		case edges[0] != steps.At(r.From).From && r.From-edges[0] >= p.Tier.CellMillis():
			t.Fatalf("the first step begins at %d, its own beginning is %d", edges[0], steps.At(r.From).From)
		}
		for i, edge := range p.edges[1 : len(p.edges)-1] {
			if !slices.Contains(steps, edge) || steps.At(edge-1).From != p.edges[i] && i > 0 {
				t.Fatalf("%d is no edge after %d of %v", edge, p.edges[i], steps)
			}
		}
		counts, sum := p.Counts(p.cellsOf(leftBy(l, "c", hits, now)), now), int64(0)
		for i, got := range counts {
			want := truth(hits, Range{p.edges[i], p.edges[i+1]})
			if got.Lower > want || got.Upper < want || got.Total < got.Lower || got.Total > got.Upper {
				t.Fatalf("step %d is %+v, want %d", i, got, want)
			}
			if got.Lower < got.Upper && !p.Cuts {
				t.Fatalf("step %d is %+v, and no edge cuts a cell", i, got)
			}
			sum += got.Total
		}
		aligned := func(at int64) bool { return at > now || p.Tier.CellStart(p.Tier.CellAt(at)) == at }
		if aligned(p.Range.From) && aligned(p.Range.To) && sum != truth(hits, p.Range) {
			t.Fatalf("all steps have %d hits, want %d", sum, truth(hits, p.Range))
		}
	})
}

// With the default tiers, days that begin on whole hours are exact, and others as far back as finer cells
// reach.
func TestDaysAreExactWhereFinerCellsReach(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	random := rand.New(rand.NewPCG(5, 6))
	midnight := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	now := midnight.Add(10*time.Hour + 20*time.Minute).UnixMilli()
	for _, c := range []struct{ begin, change time.Duration }{ // by UTC, and of the clocks ten days ago
		{0, 0}, {-time.Hour, time.Hour}, {-2 * time.Hour, -time.Hour}, {5*time.Hour + 30*time.Minute, 0},
		{-10 * time.Hour, -30 * time.Minute}, {-10*time.Hour - 30*time.Minute, 30 * time.Minute},
	} {
		var days drawnSteps
		for day := -40; day <= 2; day++ {
			begin := midnight.AddDate(0, 0, day).Add(c.begin)
			if day > -10 {
				begin = begin.Add(c.change)
			}
			days = append(days, begin.UnixMilli())
		}
		var hits []storedHit
		for range 8000 { // half of them in logs
			at := now - 1 - random.Int64N(32*86_400_000)
			hits = append(hits, storedHit{at, at, 1 + random.Int64N(9)})
		}
		span := Last(30 * 24 * time.Hour)
		p, err := l.PlanSeries(SeriesQuestion{Counter: "c", Span: span, Steps: &days, Reach: WhileHeldIfFitting}, now)
		require.NoError(t, err)
		counts := p.Counts(p.cellsOf(leftBy(l, "c", hits, now)), now)
		if n := len(counts); n < 30 || n > 31 {
			t.Errorf("%v: %d days", c, n)
		}
		for i, got := range counts {
			want, exact := truth(hits, Range{p.edges[i], p.edges[i+1]}), got.Lower == got.Upper
			if got.Lower > want || got.Upper < want || exact && got.Total != want {
				t.Errorf("%v, day %d: %+v, want %d", c, i, got, want)
			}
			whole := p.edges[i]%3_600_000 == 0 && p.edges[i+1]%3_600_000 == 0
			if (whole || i == len(counts)-1) && !exact || !whole && i < len(counts)-4 && exact {
				t.Errorf("%v, day %d: %+v, exact %t", c, i, got, exact)
			}
		}
	}
}
