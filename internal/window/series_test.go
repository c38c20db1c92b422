package window

import (
	"errors"
	"math/rand/v2"
	"strings"
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

		held := rapid.Bool().Draw(t, "held")
		lead := held && rapid.Bool().Draw(t, "lead")

		p, err := l.planSeries(SeriesQuestion{Counter: "c", Span: Between(r.From, r.To), Step: step, Held: held, Lead: lead}, now)
		var out *outOfReachError
		if lead && errors.As(err, &out) {
			t.Skip("no tier reaches back a cell further")
		}
		if err != nil {
			t.Fatal(err)
		}
		cell := p.Tier.cellMillis()
		first := r.From
		if lead {
			first -= cell
		}
		switch {
		case p.Range.From > first || first-p.Range.From >= cell || p.Range.To < r.To || p.Range.To-r.To >= cell:
			t.Fatalf("range %+v for %+v with cells of %d ms", p.Range, r, cell)
		case p.Range.From%cell != 0 || p.Range.To%cell != 0 || p.step%cell != 0:
			t.Fatalf("range %+v and step %d are not whole cells of %d ms", p.Range, p.step, cell)
		case p.step < step.Milliseconds() || p.step >= step.Milliseconds()+cell && step > 0:
			t.Fatalf("step %d ms for %s with cells of %d ms", p.step, step, cell)
		case len(p.stretches) != 1 || p.stretches[0].lastEpoch-p.stretches[0].firstEpoch > (p.Range.To-p.Range.From+p.Tier.epochMillis()-1)/p.Tier.epochMillis():
			t.Fatalf("%+v reads more hashes than the range needs", p)
		}
		counts := p.counts(p.cellsOf(leftBy(l, "c", hits, now)))
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
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixMilli()
	var out *outOfReachError
	if _, err := l.planSeries(SeriesQuestion{Counter: "c", Span: Last(769 * time.Hour)}, now); !errors.As(err, &out) {
		t.Errorf("a range of 769h: %v; want an outOfReachError", err)
	}
}

// A range that ended a moment ago is answered by the cells that it would get if it ended now,
// and a tier whose hash lives on answers for longer than its window.
func TestHeldSeries(t *testing.T) {
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	epoch := 2 * time.Hour // of the tier 1m/1h
	begin := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).Truncate(epoch)
	for _, c := range []struct {
		from, now time.Duration // since the beginning of an epoch
		tier      string
	}{
		{0, epoch + 62*time.Minute, "1m/1h"}, // three hours back
		{0, epoch + 62*time.Minute + 31*time.Second, "15m/1d"},
		{epoch - time.Millisecond, epoch + 62*time.Minute, "1m/1h"}, // an hour and two minutes back, at the worst moment
		{epoch, epoch + 62*time.Minute, "1m/1h"},
	} {
		span := Between(begin.Add(c.from).UnixMilli(), begin.Add(c.now).UnixMilli()-1)
		p, err := l.planSeries(SeriesQuestion{Counter: "c", Span: span, Held: true}, begin.Add(c.now).UnixMilli())
		if err != nil || p.Tier.String() != c.tier {
			t.Errorf("from %s at %s: %s %v, want %s", c.from, c.now, p.Tier, err, c.tier)
		}
	}
}

// With Fit, a range that ends now gets the cells of its length at any moment, and keeps them for a while.
func TestFittingSeries(t *testing.T) {
	l := Layout{Tiers: mustTiers(t, DefaultTiers), Shards: 16}
	random := rand.New(rand.NewPCG(3, 4))
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixMilli()
	for range 2000 {
		now, length := start+random.Int64N(30*86_400_000), 1+random.Int64N(3*86_400_000)
		want, err := l.reaching(Range{now - length, now}, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, ago := range []int64{0, want.grace() / 2} {
			q := SeriesQuestion{Counter: "c", Span: Between(now-length, now), Held: true, Fit: true}
			p, err := l.planSeries(q, now+ago)
			if err != nil || p.Tier != want {
				t.Fatalf("%d ms up to %d, %d ms later: %s %v, want %s", length, now, ago, p.Tier, err, want)
			}
		}
	}
	q := SeriesQuestion{Counter: "c", Span: Last(2000 * time.Hour), Held: true, Fit: true}
	_, err := l.planSeries(q, start)
	if err == nil || !strings.Contains(err.Error(), "1s cells reach back 1m") {
		t.Errorf("beyond all tiers: %v", err)
	}
}
