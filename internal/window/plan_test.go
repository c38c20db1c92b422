package window

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// hashesOf stores hits the way a commit does, as fields of hashes by key.
func hashesOf(l Layout, counter string, hits map[int64]int64) map[string][]Cell {
	out := map[string][]Cell{}
	hash := HashCounter([]byte(counter))
	for _, t := range l.Tiers {
		cells := map[int64]int64{}
		for at, n := range hits {
			cells[t.cellAt(at)] += n
		}
		for cell, n := range cells {
			epoch, field := t.place(cell)
			key := keys{"ns"}.cellsPrefix(l.ShardOf(hash), t, epoch) + counter
			out[key] = append(out[key], Cell{field, n})
		}
	}
	return out
}

func answer(p Plan, hashes map[string][]Cell) Total {
	var cells [][]Cell
	for _, key := range p.keys {
		cells = append(cells, hashes[key])
	}
	return p.sum(cells)
}

// truth counts the hits of a range one by one.
func truth(hits map[int64]int64, r Range) (n int64) {
	for at, k := range hits {
		if at >= r.From && at < r.To {
			n += k
		}
	}
	return n
}

func TestTheTruthIsBetweenTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tier := genTier.Draw(t, "tier")
		l := Layout{Tiers: Tiers{tier}, Shards: rapid.IntRange(1, 64).Draw(t, "shards")}
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		reach := tier.Window.Milliseconds()
		hits := rapid.MapOfN(rapid.Int64Range(now-2*reach, now-1), rapid.Int64Range(1, math.MaxInt32), 0, 40).Draw(t, "hits")
		r := Range{From: rapid.Int64Range(now-reach, now-1).Draw(t, "from")}
		r.To = rapid.OneOf(rapid.Just(now), rapid.Int64Range(r.From+1, now)).Draw(t, "to")

		p, err := l.Plan("ns", "c", r, now)
		if err != nil {
			t.Fatal(err)
		}
		got, want := answer(p, hashesOf(l, "c", hits)), truth(hits, r)
		if got.Lower > want || want > got.Upper || got.Total < got.Lower || got.Total > got.Upper {
			t.Fatalf("%+v does not hold the truth, %d", got, want)
		}
		cut := func(edge int64) bool { return edge%tier.cellMillis() != 0 }
		if !cut(r.From) && (!cut(r.To) || r.To == now) && got.Lower != got.Upper {
			t.Fatalf("%+v has doubt where no cell is cut", got)
		}
	})
}

func TestPlanTakesTheFinestTierThatReaches(t *testing.T) {
	l := Layout{Tiers: mustTiers(t, defaultTiers), Shards: 16}
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixMilli()
	for window, want := range map[time.Duration]string{
		time.Second: "1s", time.Minute: "1s", 61 * time.Second: "1m", time.Hour: "1m",
		2 * time.Hour: "15m", 24 * time.Hour: "15m", 25 * time.Hour: "6h", 720 * time.Hour: "6h",
	} {
		p, err := l.Plan("ns", "c", Range{now - window.Milliseconds(), now}, now)
		if err != nil || FormatDuration(p.Tier.Cell) != want {
			t.Errorf("window %v is answered by %v, %v; want cells of %s", window, p.Tier, err, want)
		}
		if len(p.keys) < 1 || len(p.keys) > 2 {
			t.Errorf("window %v reads %d hashes", window, len(p.keys))
		}
	}
	var out *OutOfReachError
	if _, err := l.Plan("ns", "c", Range{now - (721 * time.Hour).Milliseconds(), now}, now); !errors.As(err, &out) {
		t.Errorf("a window of 721h: %v; want an OutOfReachError", err)
	}
	for _, r := range []Range{{now, now}, {now, now - 1}, {now - 1, now + 1}} {
		if _, err := l.Plan("ns", "c", r, now); err == nil {
			t.Errorf("range %v was taken", r)
		}
	}
}

func TestACutCellCountsInProportion(t *testing.T) {
	l := Layout{Tiers: Tiers{{Cell: time.Minute, Window: time.Hour}}, Shards: 1}
	now := int64(1_000_000 * 60_000)
	hits := map[int64]int64{now - 30_000: 100, now - 90_000: 10} // one in the cell before the last one
	for from, want := range map[int64]Total{
		now - 60_000:  {100, 100, 100},
		now - 75_000:  {103, 100, 110}, // a quarter of 10, rounded half up
		now - 120_000: {110, 110, 110},
	} {
		p, err := l.Plan("ns", "c", Range{from, now}, now)
		if err != nil {
			t.Fatal(err)
		}
		if got := answer(p, hashesOf(l, "c", hits)); got != want {
			t.Errorf("from %d s ago: %+v; want %+v", (now-from)/1000, got, want)
		}
	}
}

func TestSumsStopAtTheLargestNumber(t *testing.T) {
	p, err := Layout{Tiers: Tiers{{time.Second, time.Minute}}, Shards: 1}.Plan("ns", "c", Range{0, 60_000}, 60_000)
	if err != nil {
		t.Fatal(err)
	}
	got := p.sum([][]Cell{{{0, math.MaxInt64}, {1, math.MaxInt64}}})
	if got != (Total{math.MaxInt64, math.MaxInt64, math.MaxInt64}) {
		t.Errorf("%+v", got)
	}
	if got := portion(math.MaxInt64, 999, 1000); got != 9214148664817921031 {
		t.Errorf("portion of a large count is %d", got)
	}
}
