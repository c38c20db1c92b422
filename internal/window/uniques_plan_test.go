package window

import (
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/unique"
)

// visit is a hit with a unique value, and when the stream stored it.
type visit struct {
	at, stored int64
	who        int
}

// visitsLeft returns who is in a cell by the moment now: cells are sets in place of HyperLogLogs.
func visitsLeft(visits []visit, c unionCell, now int64) map[int]bool {
	out := make(map[int]bool)
	for _, v := range visits {
		// As in Tier.Deadline, without its jitter: the tightest that a writer may keep.
		kept := c.end() + c.Tier.Window.Milliseconds() + c.Tier.Grace()
		if c.Tier.CellAt(v.at) == c.Number && kept > v.stored && kept > now {
			out[v.who] = true
		}
	}
	return out
}

func unionOf(visits []visit, u Union, now int64) map[int]bool {
	out := make(map[int]bool)
	for _, c := range u {
		maps.Copy(out, visitsLeft(visits, c, now))
	}
	return out
}

// If cells were sets, everybody in Lower would have come in the range, and everybody who came in the range
// would be in Upper. That holds for visits stored ahead, for ranges that end before now, and for tiers whose
// cells do not divide each other.
func TestUniqueCellsHoldTheRange(t *testing.T) {
	t.Parallel()
	coarse, open, cut := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.OneOf(genLayout, rapid.Just(defaultUniques)).Draw(t, "layout")
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		r := genRange(l, now).Draw(t, "range")
		l.UniqueTiers, l.Tiers = l.Tiers, nil
		unique, err := l.UniqueLayout()
		require.NoError(t, err)
		var visits []visit
		for i, h := range slices.Concat(genHits(unique, now).Draw(t, "visits"), genEdgeHits(unique, r, now).Draw(t, "visits at the edges")) {
			visits = append(visits, visit{h.at, h.stored, i % 30})
		}
		ahead := rapid.Bool().Draw(t, "ahead")
		if ahead { // hits are dated after now
			visits = append(visits, visit{now + 1, now, 1000})
		}
		p, err := l.PlanUniques(Question{Counter: "c", Span: Between(r.From, r.To)}, now, ahead)
		require.NoError(t, err)
		if n := len(p.Unions); n != 1+len(p.Cover.Gaps) {
			t.Fatalf("%d unions for %d gaps", n, len(p.Cover.Gaps))
		}
		came := make(map[int]bool)
		for _, v := range visits {
			if v.at >= r.From && v.at < r.To {
				came[v.who] = true
			}
		}
		for who := range unionOf(visits, p.Unions[0], now) {
			if !came[who] {
				t.Fatalf("%d is in the lower bound and did not come: %+v", who, p.Cover)
			}
		}
		upper := unionOf(visits, p.Unions[len(p.Unions)-1], now)
		for who := range came {
			if !upper[who] {
				t.Fatalf("%d came and is not in the upper bound: %+v", who, p.Cover)
			}
		}
		checkCover(t, p)
		for _, s := range p.Cover.inside {
			if s.Tier != unique.Tiers[0] {
				coarse++
			}
			if s.To == now && s.Tier.CellStart(s.Tier.CellAt(now)) != now {
				open++
			}
		}
		cut += len(p.Cover.Gaps)
	})
	if coarse == 0 || open == 0 || cut == 0 {
		t.Errorf("%d coarse cells, %d that were still open, and %d gaps", coarse, open, cut)
	}
}

// checkCover checks that the parts of a range follow each other, that no cell is counted twice in a union,
// and that shares are parts.
func checkCover(t *rapid.T, p UniquePlan) {
	parts := slices.Clone(p.Cover.inside)
	for _, g := range p.Cover.Gaps {
		parts = append(parts, stretch{Range: g.Range})
		if share := g.share(p.now); share <= 0 || share > 1 || len(g.cells) > 2 {
			t.Fatalf("a share of %v and %d cells in %+v", share, len(g.cells), g)
		}
	}
	slices.SortFunc(parts, func(a, b stretch) int { return int(a.From - b.From) })
	checkParts(t, p.Range, parts)
	for _, u := range p.Unions {
		seen := make(map[unionCell]bool)
		for _, c := range u {
			if seen[c] {
				t.Fatalf("%+v is twice in %+v", c, u)
			}
			seen[c] = true
		}
	}
}

const day = 24 * time.Hour

var defaultUniques = Layout{Shards: 4, Tiers: Tiers{
	{Cell: 5 * time.Minute, Window: time.Hour}, {Cell: time.Hour, Window: day}, {Cell: day, Window: 32 * day},
}}

// The usual windows read few keys.
func TestUniqueWindowsReadFewCells(t *testing.T) {
	t.Parallel()
	l := Layout{Shards: 4, UniqueTiers: defaultUniques.Tiers}
	midnight := time.Date(2026, 11, 24, 0, 0, 17, 5e8, time.UTC).UnixMilli()
	for length, most := range map[time.Duration]int{ // cells in Upper, at whatever time of the day
		5 * time.Minute: 3, time.Hour: 13, 6 * time.Hour: 17, day: 25, 7 * day: 8 + 24, 32 * day: 34,
	} {
		for minute := range int64(24 * 60) {
			p, err := l.PlanUniques(Question{Counter: "c", Span: Last(length)}, midnight+minute*60_000, false)
			require.NoError(t, err)
			if n := len(p.Unions[1]); len(p.Cover.Gaps) != 1 || n > most {
				t.Fatalf("%s at %s reads %d cells: %+v", length, Moment(p.now), n, p.Cover)
			}
		}
	}
	_, err := l.PlanUniques(Question{Counter: "c", Span: Last(33 * day)}, midnight, false)
	require.ErrorContains(t, err, "further than any tier of uniques")
	_, err = Layout{Tiers: l.UniqueTiers, Shards: 4}.PlanUniques(Question{Counter: "c", Span: Last(day)}, midnight, false)
	require.ErrorIs(t, err, ErrNoUniques)
}

func TestBoundsOfUniques(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64][2]int64{0: {0, 0}, 1: {1, 1}, 2: {2, 2}, 10: {10, 10}, 30: {30, 30}, 40: {39, 41}, 100: {98, 102}, 12_400: {12_202, 12_605}} {
		if got := [2]int64{leastUniques(n), mostUniques(n)}; got != want {
			t.Errorf("%d lies between %d, want %d", n, got, want)
		}
	}
	// A gap adds the share of time of what its cell adds.
	c := uniqueCover{Gaps: []uniqueGap{{Range: Range{45 * 60_000, 60 * 60_000}, cells: []unionCell{{Tier{Cell: time.Hour}, 0}}}}}
	if got := c.Estimate([]int64{1000, 1400}, 1<<40); got.Total != 1100 || got.Lower != leastUniques(1000) || got.Upper != mostUniques(1400) {
		t.Errorf("%+v", got)
	}
	// Of the rest of the hour, other cells have the half: the quarter is a half of what the cell adds.
	c.Gaps[0].covered = 30 * 60_000
	if got := c.Estimate([]int64{1000, 1400}, 1<<40); got.Total != 1200 {
		t.Errorf("%+v", got)
	}
}

// The bounds hold as often as they say for any number of unique values, however few: an estimate of few is
// hardly ever wrong, and one of many is off by about its standard error.
func TestBoundsOfUniquesHoldForAnyNumber(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 2026))
	for _, n := range []int{1, 2, 3, 10, 20, 30, 31, 40, 60, 92, 100, 150, 200, 500, 1000, 3000, 10_000, 60_000} {
		trials, held := min(1000, 1_500_000/n), 0
		for range trials {
			var s unique.Sketch
			for range n {
				s.Add(unique.Of(binary.LittleEndian.AppendUint64(nil, random.Uint64())))
			}
			estimate := int64(math.Round(s.Estimate()))
			if leastUniques(estimate) <= int64(n) && int64(n) <= mostUniques(estimate) {
				held++
			}
		}
		part := float64(held) / float64(trials)
		// 2.5 standard deviations of so many trials below, for those that are drawn here.
		if least := UniqueConfidence - 2.5*math.Sqrt(UniqueConfidence*(1-UniqueConfidence)/float64(trials)); part < least {
			t.Errorf("%d different ones: %.1f %% of %d within the bounds, want %.1f %%", n, 100*part, trials, 100*least)
		}
	}
}
