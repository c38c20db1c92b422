package window

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// undivided plans without coarser cells inside.
func undivided(l Layout, counter string, r Range, now int64) (Plan, error) {
	tier, err := l.reaching(r, now)
	if err != nil {
		return Plan{}, err
	}
	p := l.newPlan(counter, r, now, tier)
	for {
		finer, edge, ok := l.refine(tier, r, now)
		if !ok {
			break
		}
		p.add(tier, Range{r.From, edge})
		tier, r.From = finer, edge
	}
	p.add(tier, r)
	return p, nil
}

// cost is what the plan costs, see hashCost.
func (p *Plan) cost() (n int64) {
	for h := range p.hashes {
		n += hashCost + h.tier.cellsPerEpoch()
	}
	return n
}

// genChart draws layouts whose tiers have many cells, so that their ranges lie in many hashes.
var genChart = rapid.Custom(func(t *rapid.T) Layout {
	text := rapid.SampledFrom([]string{
		"1s/1h,1m/1d,1h/92d", "1s/1m,1m/1d,1h/32d", "1s/1m,5m/1d,6h/32d", "2s/2h,10s/3h,1m/1d", "3s/1h,4s/2h,1m/1d", "1s/2h",
	}).Draw(t, "tiers")
	tiers, err := ParseTiers(text)
	require.NoError(t, err)
	return Layout{Tiers: tiers.Cut(rapid.SampledFrom([]int64{EpochCells, 60, 7}).Draw(t, "cut")), Shards: 16}
})

// Coarser cells inside a range change no sum and no bound, and never cost more. That holds for hits that came
// late, by a clock that is ahead of Redis's by up to the grace, and for hits that are dated later than now.
func TestCoarserCellsInsideChangeNoAnswer(t *testing.T) {
	t.Parallel()
	divided, summed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.OneOf(genChart, genLayout).Draw(t, "layout")
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		r := genRange(l, now).Draw(t, "range")
		hits := slices.Concat(genHits(l, now).Draw(t, "hits"), genEdgeHits(l, r, now).Draw(t, "hits at the edges"))
		grace := l.Tiers[0].grace()
		for _, late := range rapid.SliceOfN(rapid.Int64Range(r.From, r.To-1), 0, 20).Draw(t, "late hits") {
			hits = append(hits, storedHit{late, now + grace, 1 + late%9})
		}
		ahead := int64(0)
		if rapid.Bool().Draw(t, "hits are ahead") {
			ahead = now + rapid.Int64Range(1, 2*l.Tiers[len(l.Tiers)-1].cellMillis()).Draw(t, "ahead")
			hits = append(hits, storedHit{ahead - 1, ahead - 1, 5}, storedHit{now, now, 3})
		}

		p, err := l.Plan("c", r, now)
		require.NoError(t, err)
		plain, err := undivided(l, "c", r, now)
		require.NoError(t, err)
		cells := leftBy(l, "c", hits, now)
		if got, want := p.sum(p.cellsOf(cells), ahead), plain.sum(plain.cellsOf(cells), ahead); got != want || p.Tier != plain.Tier {
			t.Fatalf("%+v in cells of %s with %+v; want %+v in cells of %s", got, p.Tier, p.stretches, want, plain.Tier)
		}
		sums := p
		sums.sums = true
		if got, want := sums.sum(sums.cellsOf(cells), ahead), p.sum(p.cellsOf(cells), ahead); got != want {
			t.Fatalf("with sums of hashes %+v, want %+v: %+v", got, want, p.stretches)
		}
		for h := range sums.hashes {
			if h.sum {
				summed++
			}
		}
		if p.cost() > plain.cost() {
			t.Fatalf("%+v costs %d; undivided %d", p.stretches, p.cost(), plain.cost())
		}
		checkStretches(t, p)
		if len(p.stretches) > len(plain.stretches) {
			divided++
		}
	})
	if divided == 0 || summed == 0 {
		t.Errorf("%d ranges were divided, and of %d hashes the sum was enough", divided, summed)
	}
}

// checkStretches checks that every moment of the range lies in one stretch, that each begins where a cell of
// both neighbours begins, and that no hash is read twice.
func checkStretches(t *rapid.T, p Plan) {
	at, seen := p.Range.From, map[cellHash]bool{}
	for i, s := range p.stretches {
		if s.From != at || s.To <= s.From {
			t.Fatalf("stretch %d begins at %d and not at %d: %+v", i, s.From, at, p.stretches)
		}
		at = s.To
		if i > 0 {
			for _, tier := range []Tier{p.stretches[i-1].tier, s.tier} {
				if cutCell(tier, s.From) != (Range{s.From, s.From}) {
					t.Fatalf("stretch %d begins within a cell of %s: %+v", i, tier, p.stretches)
				}
			}
		}
	}
	if at != p.Range.To {
		t.Fatalf("the stretches end at %d, the range at %d", at, p.Range.To)
	}
	for h := range p.hashes {
		if seen[h] {
			t.Fatalf("%+v is read twice: %+v", h, p.stretches)
		}
		seen[h] = true
	}
}

// What is divided, and how many hashes it then takes.
func TestRangesAreDivided(t *testing.T) {
	t.Parallel()
	const chart, fast = "1s/1h,1m/1d,1h/92d", "1s/1m,1m/1d,1h/32d"
	now := time.Date(2026, 11, 21, 10, 7, 23, 0, time.UTC)
	for _, c := range []struct {
		tiers    string
		from, to time.Duration // ago
		want     string
		hashes   int
	}{
		{DefaultTiers, 768 * time.Hour, 0, "1h", 4},
		{DefaultTiers, 24 * time.Hour, 0, "15m", 2},
		{chart, time.Minute, 0, "1s", 1},
		{chart, 5 * time.Minute, 0, "1s", 2},
		{chart, time.Hour, 0, "1s 1m 1s", 3},
		{chart, 24 * time.Hour, 0, "1m 1h 1m", 4},
		{chart, 92 * 24 * time.Hour, 0, "1h", 9},
		{chart, 55 * time.Minute, 5*time.Minute + 500*time.Millisecond, "1s 1m 1s", 3},
		{chart, 24 * time.Hour, 7*time.Minute + 30*time.Second, "1m 1h 1m 1s", 5}, // refined at its end
		{chart, 23*time.Hour + 7*time.Minute + 23*time.Second, 7*time.Minute + 23*time.Second, "1h", 1},
		{fast, 24 * time.Hour, 0, "1m 1h 1m", 4},
		{"1s/1d,1m/2d,1h/92d", 24 * time.Hour, 0, "1s 1m 1h 1m 1s", 5},
		{"7s/70m,1m/1d", 69 * time.Minute, 0, "7s", 3}, // cells of 7 s do not make up minutes
	} {
		l := Layout{Tiers: mustTiers(t, c.tiers), Shards: 16}
		r := Range{now.Add(-c.from).UnixMilli(), now.Add(-c.to).UnixMilli()}
		p, err := l.Plan("c", r, now.UnixMilli())
		require.NoError(t, err)
		var got []string
		for _, s := range p.stretches {
			got = append(got, FormatDuration(s.tier.Cell))
		}
		what := fmt.Sprintf("%s from %s to %s ago", c.tiers, c.from, c.to)
		if stretches := strings.Join(got, " "); stretches != c.want || p.Tier != l.mustReach(t, r, now) {
			t.Errorf("%s: %s with a tier of %s; want %s", what, stretches, p.Tier, c.want)
		}
		if n := len(slices.Collect(p.hashes)); n != c.hashes {
			t.Errorf("%s: %d hashes; want %d", what, n, c.hashes)
		}
	}
}

func (l Layout) mustReach(t *testing.T, r Range, now time.Time) Tier {
	t.Helper()
	tier, err := l.reaching(r, now.UnixMilli())
	require.NoError(t, err)
	return tier
}
