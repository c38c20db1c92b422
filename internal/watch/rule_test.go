package watch

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func known(total, lower, upper int64) Figures {
	return Figures{Total: total, Lower: lower, Upper: upper, Fresh: true, Complete: true}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	stale, lost, young := known(5, 5, 5), known(5, 5, 5), known(5, 5, 5)
	stale.Fresh, lost.Complete, young.Complete, young.Young = false, false, false, true
	none := Figures{}
	for _, c := range []struct {
		name    string
		c       Condition
		now     Figures
		before  Figures
		want    Verdict
		because string
	}{
		{"above", Condition{Kind: Above, Threshold: 4}, known(5, 3, 6), none, Holds, ""},
		{"not above", Condition{Kind: Above, Threshold: 5}, known(5, 3, 6), none, HoldsNot, ""},
		{"above, but not surely", Condition{Kind: Above, Threshold: 4, Surely: true}, known(5, 4, 6), none, HoldsNot, ""},
		{"surely above", Condition{Kind: Above, Threshold: 4, Surely: true}, known(5, 5, 6), none, Holds, ""},
		{"above although nobody counts", Condition{Kind: Above, Threshold: 4}, stale, none, Holds, ""},
		{"above although hits are missing", Condition{Kind: Above, Threshold: 4}, lost, none, Holds, ""},
		{"perhaps above, nobody counts", Condition{Kind: Above, Threshold: 5}, stale, none, NobodyKnows, reasonStale},
		{"perhaps above, hits are missing", Condition{Kind: Above, Threshold: 5}, lost, none, NobodyKnows, reasonLost},
		{"perhaps above, young", Condition{Kind: Above, Threshold: 5}, young, none, NobodyKnows, reasonYoung},
		{"below", Condition{Kind: Below, Threshold: 6}, known(5, 3, 9), none, Holds, ""},
		{"not below", Condition{Kind: Below, Threshold: 5}, known(5, 3, 9), none, HoldsNot, ""},
		{"below, but not surely", Condition{Kind: Below, Threshold: 6, Surely: true}, known(5, 3, 6), none, HoldsNot, ""},
		{"surely below", Condition{Kind: Below, Threshold: 6, Surely: true}, known(5, 3, 5), none, Holds, ""},
		{"0 is not below 10 if nobody counts", Condition{Kind: Below, Threshold: 10}, Figures{Complete: true}, none, NobodyKnows, reasonStale},
		{"0 is not below 10 if hits are missing", Condition{Kind: Below, Threshold: 10}, Figures{Fresh: true}, none, NobodyKnows, reasonLost},
		{"not below for sure although nobody counts", Condition{Kind: Below, Threshold: 5}, stale, none, HoldsNot, ""},
		{"+50%", Condition{Kind: ByPercent, Threshold: 5000}, known(15, 15, 15), known(10, 10, 10), Holds, ""},
		{"less than +50%", Condition{Kind: ByPercent, Threshold: 5000}, known(14, 14, 14), known(10, 10, 10), HoldsNot, ""},
		{"+50%, but not surely", Condition{Kind: ByPercent, Threshold: 5000, Surely: true}, known(15, 15, 15), known(10, 9, 11), HoldsNot, ""},
		{"from nothing to something", Condition{Kind: ByPercent, Threshold: 5000}, known(1, 1, 1), known(0, 0, 0), Holds, ""},
		{"from nothing to nothing", Condition{Kind: ByPercent, Threshold: 5000}, known(0, 0, 0), known(0, 0, 0), HoldsNot, ""},
		{"-20%", Condition{Kind: ByPercent, Threshold: -2000}, known(8, 8, 8), known(10, 10, 10), Holds, ""},
		{"less than -20%", Condition{Kind: ByPercent, Threshold: -2000}, known(9, 9, 9), known(10, 10, 10), HoldsNot, ""},
		{"-20% if nobody counts", Condition{Kind: ByPercent, Threshold: -2000}, Figures{Complete: true}, known(10, 10, 10), NobodyKnows, reasonStale},
		{"not -20% for sure although nobody counts", Condition{Kind: ByPercent, Threshold: -2000}, Figures{Total: 9, Lower: 9, Complete: true}, known(10, 10, 10), HoldsNot, ""},
		{"+50% for sure although nobody counts", Condition{Kind: ByPercent, Threshold: 5000}, Figures{Total: 15, Lower: 15, Complete: true}, known(10, 10, 10), Holds, ""},
		{"the window before is missing", Condition{Kind: ByPercent, Threshold: 5000}, known(15, 15, 15), Figures{Fresh: true, Total: 10, Lower: 10, Upper: 10}, NobodyKnows, reasonLost},
		{"-100%", Condition{Kind: ByPercent, Threshold: -10000}, known(0, 0, 0), known(10, 10, 10), Holds, ""},
		{"+50%, and too few hits", Condition{Kind: ByPercent, Threshold: 5000, Least: 10}, known(9, 9, 9), known(0, 0, 0), HoldsNot, ""},
		{"+50%, and enough hits now", Condition{Kind: ByPercent, Threshold: 5000, Least: 10}, known(10, 10, 10), known(0, 0, 0), Holds, ""},
		{"-100%, and enough hits before", Condition{Kind: ByPercent, Threshold: -10000, Least: 10}, known(0, 0, 0), known(10, 10, 10), Holds, ""},
		{"+50%, and perhaps too few hits", Condition{Kind: ByPercent, Threshold: 5000, Least: 10}, known(10, 9, 10), known(0, 0, 0), HoldsNot, ""},
		{"+50% for sure although nobody counts, of how many hits is not", Condition{Kind: ByPercent, Threshold: 5000, Least: 10}, Figures{Total: 9, Lower: 9, Complete: true}, known(1, 1, 1), NobodyKnows, reasonStale},
		{"large numbers", Condition{Kind: ByPercent, Threshold: 5000}, known(1<<62, 1<<62, 1<<62), known(1<<61, 1<<61, 1<<61), Holds, ""},
	} {
		if got, why := c.c.judge(c.now, c.before); got != c.want || why != c.because {
			t.Errorf("%s: %v %q, want %v %q", c.name, got, why, c.want, c.because)
		}
	}
}

// holds is whether a condition holds for the truth, in arithmetic without bounds.
func (c Condition) holds(now, before int64) bool {
	switch c.Kind {
	case Above:
		return now > c.Threshold
	case Below:
		return now < c.Threshold
	}
	left := new(big.Int).Mul(big.NewInt(now), big.NewInt(whole))
	right := new(big.Int).Mul(big.NewInt(before), big.NewInt(whole+c.Threshold))
	if c.Threshold > 0 {
		return now > before && left.Cmp(right) >= 0
	}
	return now < before && left.Cmp(right) <= 0
}

// Whatever the truth within the bounds: what surely holds does, and without surely, totals decide, beside a lower bound that
// reaches least. Of hits that nobody has counted, only a lower bound is known: then a verdict holds for any number of more.
func TestVerdictsAreTrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.SampledFrom([]int64{3, 30, 1 << 40, 1 << 60}).Draw(t, "scale")
		figures := func(name string) (f Figures, truth int64) {
			f.Lower = rapid.Int64Range(0, scale).Draw(t, name+" lower")
			f.Upper = f.Lower + rapid.SampledFrom([]int64{0, 0, 1, scale}).Draw(t, name+" doubt")
			f.Total = rapid.Int64Range(f.Lower, f.Upper).Draw(t, name+" total")
			f.Fresh, f.Complete = rapid.Bool().Draw(t, name+" fresh"), rapid.Bool().Draw(t, name+" complete")
			truth = rapid.Int64Range(f.Lower, f.Upper).Draw(t, name+" truth")
			if !f.known() { // any number of hits may be missing or not counted yet
				truth += rapid.Int64Range(0, scale).Draw(t, name+" missing")
			}
			return f, truth
		}
		now, nowTruth := figures("now")
		before, beforeTruth := figures("before")
		c := Condition{Kind: rapid.SampledFrom([]Kind{Above, Below, ByPercent}).Draw(t, "kind"), Surely: rapid.Bool().Draw(t, "surely")}
		c.Threshold = rapid.Int64Range(0, scale).Draw(t, "threshold")
		if c.Kind == ByPercent {
			c.Threshold = rapid.OneOf(rapid.Int64Range(1, 50_000), rapid.Int64Range(-whole, -1)).Draw(t, "percent")
			c.Least = rapid.Int64Range(0, scale).Draw(t, "least")
		}
		verdict, why := c.judge(now, before)
		decided := now.known() && (c.Kind != ByPercent || before.known())
		truth := c.holds(nowTruth, beforeTruth) && max(nowTruth, beforeTruth) >= c.Least
		switch {
		case (verdict == NobodyKnows) != (why != ""):
			t.Errorf("%v %q", verdict, why)
		case decided && verdict == NobodyKnows:
			t.Error("nobody knows what is known")
		case decided && !c.Surely && (verdict == Holds) != (c.holds(now.Total, before.Total) && max(now.Lower, before.Lower) >= c.Least):
			t.Errorf("%v, want what the totals say", verdict)
		case verdict == Holds && (c.Surely || !decided) && !truth:
			t.Errorf("it holds, but not for %d and %d", nowTruth, beforeTruth)
		case verdict == HoldsNot && !decided && truth:
			t.Errorf("it holds not, but for %d and %d it does", nowTruth, beforeTruth)
		}
	})
}
