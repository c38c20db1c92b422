package window

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/platform/human"
	"tallyroll/tests/cases"
)

// storedHit is n hits at a moment, which the stream stored at another.
type storedHit struct{ at, stored, n int64 }

// leftBy is what commits of these hits have left by the moment now: cells of
// the tiers that still held each hit when it was stored, in hashes, less
// the hashes that have expired.
//
// If the layout has logs, every other hit is in a load of a busy counter.
func leftBy(l Layout, counter string, hits []storedHit, now int64) func(CellHash) []StoredCell {
	hash := HashCounter([]byte(counter))
	if _, ok := l.SparseTier(); ok {
		return leftByLoads(l, counter, hash, hits, now)
	}
	out := map[CellHash][]StoredCell{}
	for _, t := range l.Tiers {
		cells := map[int64]int64{}
		for _, h := range hits {
			if holdsWhenStored(t, hash, h.at, h.stored) {
				cells[t.CellAt(h.at)] += h.n
			}
		}
		for cell, n := range cells {
			epoch, field := t.EpochAndField(cell)
			if t.Deadline(epoch, hash)*1000 > now {
				h := CellHash{Shard: l.ShardOf(hash), Counter: counter, Tier: t, Epoch: epoch}
				out[h] = append(out[h], StoredCell{field, n})
			}
		}
	}
	return func(h CellHash) []StoredCell { return out[h] }
}

func leftByLoads(l Layout, counter string, hash uint64, hits []storedHit, now int64) func(CellHash) []StoredCell {
	out := map[CellHash][]StoredCell{}
	for busy := range 2 {
		b := NewBatch(l)
		for i := busy; i < len(hits); i += 2 {
			b.Add([]byte(counter), hash, hits[i].at, hits[i].stored, hits[i].n)
		}
		s := b.Shard(l.ShardOf(hash))
		s.Place(math.MaxInt32*(1-busy), 0, func(uint64, int64) int { return 0 })
		add := func(t Tier, c CellHits) {
			if t.Deadline(c.Epoch, hash)*1000 > now {
				h := CellHash{Shard: l.ShardOf(hash), Counter: counter, Tier: t, Epoch: c.Epoch}
				out[h] = append(out[h], StoredCell{c.Field, c.N})
			}
		}
		for i := range s.Counters {
			if s.Counters[i].Name == AllHits {
				continue
			}
			for _, c := range s.Cells(&s.Counters[i], nil) {
				add(l.Tiers[c.Tier], c)
			}
			for _, c := range s.LogCells(&s.Counters[i], nil) {
				if s.Counters[i].IsSparse() {
					add(s.NamesTier, c)
				}
			}
		}
	}
	return func(h CellHash) []StoredCell { return out[h] }
}

// dense are the stretches that hashes answer.
func (p *Plan) dense() []stretch {
	return slices.DeleteFunc(slices.Clone(p.Stretches), func(s stretch) bool { return s.Tier.Sparse })
}

// cellsOf are the cells of the plan's hashes, as sum takes them.
func (p *Plan) cellsOf(cells func(CellHash) []StoredCell) (out PlanCells) {
	for h := range p.Hashes {
		whole := h
		whole.Sum = false
		found := cells(whole)
		if h.Sum {
			sum := StoredCell{}
			for _, c := range found {
				sum.N += c.N
			}
			found = []StoredCell{sum}
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
		near := 2 * rapid.SampledFrom(l.Tiers).Draw(t, "tier").CellMillis()
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
			if edge := tier.CellStart(tier.CellAt(r.From) + 1); edge < now {
				r.From = edge
			}
		}
		late := max(r.From+1, now-rapid.SampledFrom(l.Tiers).Draw(t, "tier of to").Window.Milliseconds())
		r.To = rapid.OneOf(rapid.Just(now), rapid.Int64Range(r.From+1, now), rapid.Int64Range(late, now)).Draw(t, "to")
		if rapid.Bool().Draw(t, "ended a moment ago") {
			ago := rapid.Int64Range(0, tier.Grace()/2).Draw(t, "ago")
			r.From, r.To = r.From-ago, r.To-ago
		}
		return r
	})
}

// genChart draws layouts whose tiers have many cells, so that their ranges lie in many hashes.
var genChart = rapid.Custom(func(t *rapid.T) Layout {
	tiers, err := ParseTiers(rapid.SampledFrom([]string{
		"1s/1h,1m/1d,1h/92d", "1s/1m,1m/1d,1h/32d", "1s/1m,5m/1d,6h/32d", "2s/2h,10s/3h,1m/1d", "3s/1h,4s/2h,1m/1d", "1s/2h",
	}).Draw(t, "tiers"))
	require.NoError(t, err)
	return Layout{Tiers: tiers.Cut(rapid.SampledFrom([]int64{EpochCells, 60, 7}).Draw(t, "cut")), Shards: 16}
})

// undivided plans without coarser cells inside.
func undivided(l Layout, counter string, r Range, now int64) (Plan, error) {
	tier, err := chooseReaching(l, r, now)
	if err != nil {
		return Plan{}, err
	}
	p := NewPlan(l, counter, r, now, tier)
	for {
		finer, edge, ok := refine(l, tier, r, now)
		if !ok {
			break
		}
		p.Add(tier, Range{r.From, edge})
		tier, r.From = finer, edge
	}
	p.Add(tier, r)
	p.AddLogs(l)
	return p, nil
}

// cost is what the plan costs, see hashCost.
func (p *Plan) cost() (n int64) {
	for h := range p.Hashes {
		n += hashCost + h.Tier.CellsPerEpoch()
	}
	return n
}

// Whatever the tiers and however late the hits, the truth is within the bounds, and these differ by the cells
// that the edges cut and by nothing else. Coarser cells inside a range change no sum and no bound, and never
// cost more. That holds for hits that came late, by a clock that is ahead of Redis's by up to the grace, and
// for hits that are dated later than now.
func TestTheTruthIsBetweenTheBounds(t *testing.T) {
	t.Parallel()
	divided, summed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.OneOf(genChart, genLayout).Draw(t, "layout")
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		r := genRange(l, now).Draw(t, "range")
		hits := slices.Concat(genHits(l, now).Draw(t, "hits"), genEdgeHits(l, r, now).Draw(t, "hits at the edges"))
		p, err := l.Plan("c", r, now)
		require.NoError(t, err)
		slack := l.Tiers[0].Grace()
		if now-r.From > p.Tier.Window.Milliseconds() {
			slack /= 2 // the range has used the other half
		}
		for _, late := range rapid.SliceOfN(rapid.Int64Range(r.From, r.To-1), 0, 20).Draw(t, "late hits") {
			hits = append(hits, storedHit{late, now + slack, 1 + late%9})
		}
		ahead := int64(0)
		if rapid.Bool().Draw(t, "hits are ahead") {
			ahead = now + rapid.Int64Range(1, 2*l.Tiers[len(l.Tiers)-1].CellMillis()).Draw(t, "ahead")
			hits = append(hits, storedHit{ahead - 1, ahead - 1, 5}, storedHit{now, now, 3})
		}

		cells := leftBy(l, "c", hits, now)
		got, want := p.Sum(p.cellsOf(cells), ahead), truth(hits, r)
		if got.Lower > want || want > got.Upper || got.Total < got.Lower || got.Total > got.Upper {
			t.Fatalf("%+v does not hold the truth, %d", got, want)
		}
		dense := p.dense()
		from := cutCell(dense[0].Tier, r.From)
		uncertain := truth(hits, from)
		if to := cutCell(dense[len(dense)-1].Tier, r.To); (r.To < now || ahead > 0) && to != from {
			uncertain += truth(hits, to)
		}
		if got.Upper-got.Lower > uncertain {
			t.Fatalf("%+v has more uncertainty than the %d hits of the cells that its edges cut", got, uncertain)
		}
		checkStretches(t, p)

		plain, err := undivided(l, "c", r, now)
		require.NoError(t, err)
		if want := plain.Sum(plain.cellsOf(cells), ahead); got != want || p.Tier != plain.Tier {
			t.Fatalf("%+v in cells of %s with %+v; want %+v in cells of %s", got, p.Tier, p.Stretches, want, plain.Tier)
		}
		if p.cost() > plain.cost() {
			t.Fatalf("%+v costs %d; undivided %d", p.Stretches, p.cost(), plain.cost())
		}
		if len(p.Stretches) > len(plain.Stretches) {
			divided++
		}
		sums := p
		sums.Sums = true
		if sum := sums.Sum(sums.cellsOf(cells), ahead); got != sum {
			t.Fatalf("with sums of hashes %+v, want %+v: %+v", sum, got, p.Stretches)
		}
		for h := range sums.Hashes {
			if h.Sum {
				summed++
			}
		}
	})
	if divided == 0 || summed == 0 {
		t.Errorf("%d ranges were divided, and of %d hashes the sum was enough", divided, summed)
	}
}

// checkParts checks that every moment of a range lies in one part.
func checkParts(t *rapid.T, r Range, parts []stretch) {
	at := r.From
	for _, s := range parts {
		if s.From != at || s.To <= s.From {
			t.Fatalf("%+v does not begin at %d: %+v", s, at, parts)
		}
		at = s.To
	}
	if at != r.To {
		t.Fatalf("the parts end at %d, the range at %d", at, r.To)
	}
}

// checkStretches checks that stretches make up the range, that each begins where a cell of both neighbours
// begins, and that no hash is read twice or in vain.
func checkStretches(t *rapid.T, p Plan) {
	checkParts(t, p.Range, p.dense())
	if logs := p.Stretches[len(p.dense()):]; len(logs) > 0 {
		checkParts(t, p.Range, logs)
	}
	seen, before := map[CellHash]bool{}, p.Tier
	for i, s := range p.dense() {
		if s.lastEpoch-s.firstEpoch > (s.To-s.From+s.Tier.EpochMillis()-1)/s.Tier.EpochMillis() {
			t.Fatalf("stretch %d reads too much: %+v", i, p.Stretches)
		}
		for _, tier := range []Tier{before, s.Tier} {
			if before != s.Tier && cutCell(tier, s.From) != (Range{s.From, s.From}) {
				t.Fatalf("stretch %d begins within a cell of %s: %+v", i, tier, p.Stretches)
			}
		}
		before = s.Tier
	}
	for h := range p.Hashes {
		if seen[h] {
			t.Fatalf("%+v is read twice: %+v", h, p.Stretches)
		}
		seen[h] = true
	}
}

// cutCell is the cell that a moment cuts; empty where a cell begins there.
func cutCell(tier Tier, at int64) Range {
	start := tier.CellStart(tier.CellAt(at))
	if start == at {
		return Range{at, at}
	}
	return Range{start, start + tier.CellMillis()}
}

// Which cells of which tiers answer a question, how many hashes and logs are read, and which summaries a top
// list takes.
func TestPlansOfTiers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 7, 30, 0, time.UTC)
	cases.Check(t, "plans", func(t *testing.T, section, given string) string {
		l, out := Layout{Tiers: mustTiers(t, section), Shards: 16}, ""
		if text, ok := strings.CutPrefix(given, "the tiers"); ok {
			if text != "" {
				most, err := strconv.ParseInt(strings.Fields(text)[2], 10, 64)
				require.NoError(t, err)
				l.Tiers = l.Tiers.Cut(most)
			}
			for i, tier := range l.Tiers {
				out += fmt.Sprintf("%s: hashes of %d cells", tier, tier.CellsPerEpoch())
				if l.HasSummaries(i) {
					out += fmt.Sprintf(", a summary per %d", segmentCells(tier))
				}
				out += "\n"
			}
			return strings.TrimSuffix(out, "\n")
		}
		moment := func(text string) int64 {
			if ago, err := time.ParseDuration(text); err == nil {
				return now.Add(-ago).UnixMilli()
			}
			at, err := time.Parse(time.TimeOnly, text)
			require.NoError(t, err)
			return now.Truncate(24 * time.Hour).Add(at.Sub(at.Truncate(24 * time.Hour))).UnixMilli()
		}
		var span Span
		if from, to, found := strings.Cut(given, " to "); found {
			span = Between(moment(from), Now)
			if to != "now" {
				span.To = moment(to)
			}
		} else {
			length, to, found := strings.Cut(given, " until ")
			d, err := time.ParseDuration(length)
			require.NoError(t, err)
			if span = Last(d); found {
				span.To = moment(to)
			}
		}
		var p Plan
		r, err := span.At(now.UnixMilli())
		if err == nil {
			p, err = l.Plan("c", r, now.UnixMilli())
		}
		if err != nil {
			return "error: " + err.Error()
		}
		show := func(milli int64) string { return time.UnixMilli(milli).UTC().Format("Jan _2 15:04:05.999") }
		for _, s := range p.dense() {
			out += fmt.Sprintf("%s from %s\n", human.FormatDuration(s.Tier.Cell), show(s.From))
		}
		keys := map[bool]int{}
		for h := range p.Hashes {
			keys[h.Tier.Sparse]++
		}
		level, first, last, _ := l.Segments(p)
		return out + fmt.Sprintf("to %s: %d hashes and %d logs, or %d summaries of %s",
			show(r.To), keys[false], keys[true], last-first+1, l.Tiers[level])
	})
	milli := now.UnixMilli()
	for _, r := range []Range{{milli, milli}, {milli, milli - 1}, {milli - 1, milli + 1}} {
		_, err := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}.Plan("c", r, milli)
		require.Error(t, err, "%v, which is no range up to now", r)
	}
}

// A range that ended within half of the grace gets the tier that it would get if it ended now, and no longer.
func TestARangeKeepsItsTierForAWhile(t *testing.T) {
	t.Parallel()
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	const now = int64(1_795_255_650_000)
	for i, tier := range l.Tiers {
		r := Range{now - tier.Window.Milliseconds(), now}
		for _, ago := range []int64{0, 1, tier.Grace() / 2} {
			p, err := l.Plan("c", r, now+ago)
			require.NoError(t, err)
			require.Equal(t, tier, p.Tier, "%d ms ago", ago)
		}
		p, err := l.Plan("c", r, now+tier.Grace()/2+1)
		if i == len(l.Tiers)-1 {
			require.ErrorContains(t, err, "further than any tier")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, l.Tiers[i+1], p.Tier, "later")
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
		if got := p.Sum(p.cellsOf(leftBy(l, "c", hits, now)), 0); got != want {
			t.Errorf("from %d s ago: %+v; want %+v", (now-from)/1000, got, want)
		}
	}
}

func TestSumsStopAtTheLargestNumber(t *testing.T) {
	t.Parallel()
	p, err := Layout{Tiers: Tiers{{Cell: time.Second, Window: time.Minute}}, Shards: 1}.Plan("c", Range{0, 60_000}, 60_000)
	require.NoError(t, err)
	got := p.Sum(PlanCells{{{0, math.MaxInt64}, {1, math.MaxInt64}}}, 0)
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
