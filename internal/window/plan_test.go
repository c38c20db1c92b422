package window

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// storedHit is n hits at a moment, which the stream stored at another.
type storedHit struct{ at, stored, n int64 }

// leftBy is what commits of these hits have left by the moment now: cells of
// the tiers that still held each hit when it was stored, in hashes, less
// the hashes that have expired.
func leftBy(l Layout, counter string, hits []storedHit, now int64) func(cellHash) []storedCell {
	hash := HashCounter([]byte(counter))
	out := map[cellHash][]storedCell{}
	for _, t := range l.Tiers {
		cells := map[int64]int64{}
		for _, h := range hits {
			if t.holds(hash, h.at, h.stored) {
				cells[t.cellAt(h.at)] += h.n
			}
		}
		for cell, n := range cells {
			epoch, field := t.place(cell)
			if t.deadline(epoch, hash)*1000 > now {
				h := cellHash{shard: l.ShardOf(hash), counter: counter, tier: t, epoch: epoch}
				out[h] = append(out[h], storedCell{field, n})
			}
		}
	}
	return func(h cellHash) []storedCell { return out[h] }
}

// cellsOf are the cells of the plan's hashes, as sum takes them.
func (p *Plan) cellsOf(cells func(cellHash) []storedCell) (out planCells) {
	for h := range p.hashes {
		whole := h
		whole.sum = false
		found := cells(whole)
		if h.sum {
			sum := storedCell{}
			for _, c := range found {
				sum.n += c.n
			}
			found = []storedCell{sum}
		}
		out = append(out, found)
	}
	return out
}

// truth counts the hits of a range one by one.
func truth(hits []storedHit, r Range) (n int64) {
	for _, h := range hits {
		if h.at >= r.From && h.at < r.To {
			n += h.n
		}
	}
	return n
}

// genLayout draws up to four tiers, whose cells need not divide each other.
var genLayout = rapid.Custom(func(t *rapid.T) Layout {
	l := Layout{Shards: rapid.IntRange(1, 64).Draw(t, "shards")}
	for range rapid.IntRange(1, 4).Draw(t, "tiers") {
		tier := Tier{Cell: time.Duration(rapid.IntRange(1, 90).Draw(t, "cell")) * time.Second}
		cells := rapid.IntRange(1, EpochCells).Draw(t, "cells")
		if len(l.Tiers) > 0 {
			last := l.Tiers[len(l.Tiers)-1]
			tier.Cell += last.Cell
			if rapid.Bool().Draw(t, "nested") {
				tier.Cell = last.Cell * time.Duration(rapid.IntRange(2, 20).Draw(t, "times"))
			}
			cells = max(cells, int(last.Window/tier.Cell)+1)
		}
		tier.Window = tier.Cell * time.Duration(cells)
		l.Tiers = append(l.Tiers, tier)
	}
	l.Tiers = l.Tiers.Cut(genCut.Draw(t, "cut"))
	return l
})

// genHits draws hits that were stored by now, some of them long after they happened.
func genHits(l Layout, now int64) *rapid.Generator[[]storedHit] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) storedHit {
		// Of each tier's time alike: the finest has a small part of the coarsest's.
		reach := rapid.SampledFrom(l.Tiers).Draw(t, "tier").Window.Milliseconds()
		at := rapid.Int64Range(now-2*reach, now-1).Draw(t, "at")
		stored := rapid.OneOf(rapid.Just(at), rapid.Just(now), rapid.Int64Range(at, now)).Draw(t, "stored")
		return storedHit{at, stored, rapid.Int64Range(1, math.MaxInt32).Draw(t, "n")}
	}), 0, 60)
}

// genEdgeHits draws hits within two cells of the edges of a range, where a plan could miss or take too much.
func genEdgeHits(l Layout, r Range, now int64) *rapid.Generator[[]storedHit] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) storedHit {
		edge := rapid.SampledFrom([]int64{r.From, r.To}).Draw(t, "edge")
		near := 2 * rapid.SampledFrom(l.Tiers).Draw(t, "tier").cellMillis()
		at := rapid.Int64Range(edge-near, min(edge+near, now)-1).Draw(t, "at")
		return storedHit{at, at, rapid.Int64Range(1, 1<<40).Draw(t, "n")}
	}), 0, 10)
}

// genRange draws a range that some tier answers at the moment now.
func genRange(l Layout, now int64) *rapid.Generator[Range] {
	return rapid.Custom(func(t *rapid.T) Range {
		tier := rapid.SampledFrom(l.Tiers).Draw(t, "tier of from")
		r := Range{From: rapid.Int64Range(now-tier.Window.Milliseconds(), now-1).Draw(t, "from")}
		if rapid.Bool().Draw(t, "on a cell") {
			if edge := tier.cellStart(tier.cellAt(r.From) + 1); edge < now {
				r.From = edge
			}
		}
		late := max(r.From+1, now-rapid.SampledFrom(l.Tiers).Draw(t, "tier of to").Window.Milliseconds())
		r.To = rapid.OneOf(rapid.Just(now), rapid.Int64Range(r.From+1, now), rapid.Int64Range(late, now)).Draw(t, "to")
		return r
	})
}

// Whatever the tiers and however late the hits, the truth is within the bounds,
// and these differ by the cells that the edges cut and by nothing else.
func TestTheTruthIsBetweenTheBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := genLayout.Draw(t, "layout")
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		hits := genHits(l, now).Draw(t, "hits")
		r := genRange(l, now).Draw(t, "range")
		hits = append(hits, genEdgeHits(l, r, now).Draw(t, "hits at the edges")...)

		p, err := l.Plan("c", r, now)
		require.NoError(t, err)
		got, want := p.sum(p.cellsOf(leftBy(l, "c", hits, now)), 0), truth(hits, r)
		if got.Lower > want || want > got.Upper || got.Total < got.Lower || got.Total > got.Upper {
			t.Fatalf("%+v does not hold the truth, %d", got, want)
		}
		first, last := p.stretches[0], p.stretches[len(p.stretches)-1]
		var doubt int64
		from := cutCell(first.tier, r.From)
		doubt += truth(hits, from)
		if to := cutCell(last.tier, r.To); r.To < now && to != from {
			doubt += truth(hits, to)
		}
		if got.Upper-got.Lower > doubt {
			t.Fatalf("%+v has more doubt than the %d hits of the cells that its edges cut", got, doubt)
		}
		at := r.From
		for _, s := range p.stretches {
			if s.From != at || s.To <= s.From || s.lastEpoch-s.firstEpoch > (s.To-s.From+s.tier.epochMillis()-1)/s.tier.epochMillis() {
				t.Fatalf("stretch %+v after %d", s, at)
			}
			at = s.To
		}
		if at != r.To || first.tier != p.Tier && cutCell(p.Tier, r.From) != (Range{r.From, r.From}) {
			t.Fatalf("%+v is not all of the range", p)
		}
	})
}

// cutCell is the cell that a moment cuts; empty where a cell begins there.
func cutCell(tier Tier, at int64) Range {
	start := tier.cellStart(tier.cellAt(at))
	if start == at {
		return Range{at, at}
	}
	return Range{start, start + tier.cellMillis()}
}

// An end in the past is refined by the tiers that reach back to it, step by step.
func TestAnEndInThePastIsRefined(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	milli := func(s string) int64 {
		at, err := time.Parse(time.TimeOnly, s)
		require.NoError(t, err)
		return time.Date(2026, 11, 21, at.Hour(), at.Minute(), at.Second(), 0, time.UTC).UnixMilli()
	}
	for _, c := range []struct{ from, to, want string }{
		{"00:00:00", "10:00:00", "15m 00:00:00-10:00:00"}, // it ends now
		{"00:00:00", "09:30:00", "15m 00:00:00-09:30:00"}, // no cell is cut
		{"00:00:00", "09:20:30", "15m 00:00:00-09:15:00, 1m 09:15:00-09:20:30"},
		{"00:00:00", "09:59:30", "15m 00:00:00-09:45:00, 1m 09:45:00-09:59:00, 1s 09:59:00-09:59:30"},
		{"00:00:00", "08:20:30", "15m 00:00:00-08:20:30"}, // nothing finer reaches back so far
		{"09:20:00", "09:59:30", "1m 09:20:00-09:59:00, 1s 09:59:00-09:59:30"},
		{"08:46:00", "08:50:00", "15m 08:46:00-08:50:00"}, // all of it in one cell
	} {
		p, err := l.Plan("c", Range{milli(c.from), milli(c.to)}, now.UnixMilli())
		require.NoError(t, err)
		var got []string
		for _, s := range p.stretches {
			got = append(got, fmt.Sprintf("%s %s-%s", FormatDuration(s.tier.Cell),
				time.UnixMilli(s.From).UTC().Format(time.TimeOnly), time.UnixMilli(s.To).UTC().Format(time.TimeOnly)))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s to %s: %s; want %s", c.from, c.to, s, c.want)
		}
	}
}

func TestPlanTakesTheFinestTierThatReaches(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixMilli()
	for window, want := range map[time.Duration]string{
		time.Second: "1s", time.Minute: "1s", 61 * time.Second: "1m", time.Hour: "1m",
		2 * time.Hour: "15m", 24 * time.Hour: "15m", 25 * time.Hour: "1h", 768 * time.Hour: "1h",
	} {
		p, err := l.Plan("c", Range{now - window.Milliseconds(), now}, now)
		if err != nil || FormatDuration(p.Tier.Cell) != want {
			t.Errorf("window %v is answered by %v, %v; want cells of %s", window, p.Tier, err, want)
		}
		most := 2
		if p.Tier.Cell == time.Hour {
			most = 4 // of 256 hours each
		}
		if n := len(slices.Collect(p.hashes)); len(p.stretches) != 1 || n < 1 || n > most {
			t.Errorf("window %v reads %d hashes", window, n)
		}
	}
	var out *outOfReachError
	if _, err := l.Plan("c", Range{now - (769 * time.Hour).Milliseconds(), now}, now); !errors.As(err, &out) {
		t.Errorf("a window of 769h: %v; want an outOfReachError", err)
	}
	for _, r := range []Range{{now, now}, {now, now - 1}, {now - 1, now + 1}} {
		if _, err := l.Plan("c", r, now); err == nil {
			t.Errorf("range %v was taken", r)
		}
	}
}

func TestACutCellCountsInProportion(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: Tiers{{Cell: time.Minute, Window: time.Hour}}, Shards: 1}
	now := int64(1_000_000 * 60_000)
	hits := []storedHit{{now - 30_000, now, 100}, {now - 90_000, now, 10}} // one in the cell before the last one
	for from, want := range map[int64]Estimate{
		now - 60_000:  {100, 100, 100},
		now - 75_000:  {103, 100, 110}, // a quarter of 10, rounded half up
		now - 120_000: {110, 110, 110},
	} {
		p, err := l.Plan("c", Range{from, now}, now)
		require.NoError(t, err)
		if got := p.sum(p.cellsOf(leftBy(l, "c", hits, now)), 0); got != want {
			t.Errorf("from %d s ago: %+v; want %+v", (now-from)/1000, got, want)
		}
	}
}

func TestSumsStopAtTheLargestNumber(t *testing.T) {
	t.Parallel()
	p, err := Layout{Tiers: Tiers{{Cell: time.Second, Window: time.Minute}}, Shards: 1}.Plan("c", Range{0, 60_000}, 60_000)
	require.NoError(t, err)
	got := p.sum(planCells{{{0, math.MaxInt64}, {1, math.MaxInt64}}}, 0)
	if got != (Estimate{math.MaxInt64, math.MaxInt64, math.MaxInt64}) {
		t.Errorf("%+v", got)
	}
	if got := portion(math.MaxInt64, 999, 1000); got != 9214148664817921031 {
		t.Errorf("portion of a large count is %d", got)
	}
}

func TestGroupOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		parts      int
	}{
		{"shop.eu.cart", "shop", 1}, {"shop.eu.cart", "shop.eu", 2}, {"shop.eu.cart", "shop.eu.cart", 3}, {"shop.eu", "shop.eu", 9},
		{"/cart/items", "/cart", 1}, {"/cart/items", "/cart/items", 2}, {"/", "/", 1}, {"a..b", "a.", 2}, {"shop.eu/x", "shop.eu", 2}, {"größe.☃", "größe", 1},
	} {
		if got := GroupOf(c.name, c.parts); got != c.want {
			t.Errorf("the first %d parts of %s are %q, want %q", c.parts, c.name, got, c.want)
		}
	}
}
