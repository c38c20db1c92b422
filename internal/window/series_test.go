package window

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Every point is the number of hits in its step.
func TestSeriesPointsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genLayout.Draw(t, "layout")
		now := rapid.Int64Range(1<<40, 1<<41).Draw(t, "now")
		hits := genHits(l, now).Draw(t, "hits")
		r := genRange(l, now).Draw(t, "range")
		step := time.Duration(rapid.IntRange(0, 5000).Draw(t, "step")) * time.Second

		p, err := l.planSeries("ns", SeriesQuestion{"c", Between(r.From, r.To), step}, now)
		if err != nil {
			t.Fatal(err)
		}
		cell := p.Tier.cellMillis()
		switch {
		case p.Range.From > r.From || r.From-p.Range.From >= cell || p.Range.To < r.To || p.Range.To-r.To >= cell:
			t.Fatalf("range %+v for %+v with cells of %d ms", p.Range, r, cell)
		case p.Range.From%cell != 0 || p.Range.To%cell != 0 || p.step%cell != 0:
			t.Fatalf("range %+v and step %d are not whole cells of %d ms", p.Range, p.step, cell)
		case p.step < step.Milliseconds() || p.step >= step.Milliseconds()+cell && step > 0:
			t.Fatalf("step %d ms for %s with cells of %d ms", p.step, step, cell)
		case len(p.parts) != 1 || len(p.parts[0].hashes) > 2:
			t.Fatalf("%+v reads more than two hashes", p)
		}
		counts := p.counts(hashesOf(l, "c", hits, now))
		for i, got := range counts {
			from := p.Range.From + int64(i)*p.step
			if want := truth(hits, Range{from, min(from+p.step, p.Range.To)}); got != want {
				t.Fatalf("point %d is %d, want %d", i, got, want)
			}
		}
		if end := p.Range.From + int64(len(counts))*p.step; end < p.Range.To || end-p.step >= p.Range.To {
			t.Fatalf("%d points of %d ms for %+v", len(counts), p.step, p.Range)
		}
	})
}

func TestSeriesOutOfReach(t *testing.T) {
	l := Layout{Tiers: mustTiers(t, defaultTiers), Shards: 16}
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixMilli()
	var out *OutOfReachError
	if _, err := l.planSeries("ns", SeriesQuestion{"c", Last(721 * time.Hour), 0}, now); !errors.As(err, &out) {
		t.Errorf("a range of 721h: %v; want an OutOfReachError", err)
	}
}
