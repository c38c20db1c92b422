package bench_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
)

// tierSets are sets of tiers that one may choose from.
var tierSets = []struct{ tiers, note string }{
	{window.DefaultTiers, " (the default)"},
	{"1s/1m,1m/1h,15m/1d,6h/32d", " (the default before)"},
	{"1s/1m,1m/1d,1h/32d", " (for speed)"},
	{"1s/1m,5m/1d,6h/32d", ""},
	{"1s/1h,1m/1d,1h/92d", " (for charts)"},
}

// tierHits are the hits of a run, one to a message; of a run with batches they are three times as many.
const tierHits = 2_000_000

// tierSet is what was measured of a set of tiers: its figures are bytes of Redis of a sparse and of a dense
// counter.
type tierSet struct {
	sample
	Note         string
	One, Batched sample
	Base         *tierSet
}

// measureTiers counts the same hits, and fills the same counters, with each set of tiers.
func measureTiers(t *testing.T, r *rig, o options) []*tierSet {
	var all []*tierSet
	for _, set := range tierSets {
		f := &tierSet{sample: sample{part: "tiers", name: set.tiers}, Note: set.note}
		all = append(all, f)
		f.Base = all[0]
	}
	all = chosen(o, all...)
	inTurns(t, o, all, func(t *testing.T, f *tierSet, run int) {
		for _, form := range []struct {
			of         *sample
			name       string
			hits, size int
		}{{&f.One, "ONE", tierHits, 1}, {&f.Batched, "BATCHES", 3 * tierHits, batchSize}} {
			s := r.fill(t, form.name, workloads[2], o.size(form.hits), form.size)
			form.of.part, form.of.name = f.path(), form.name
			for figure, value := range r.tallyroll(t, []*stored{s}, s.stream, 1, "TIERS="+f.name) {
				form.of.add(figure, value)
			}
			form.of.print(run, nil)
		}
	})
	for _, f := range all {
		subtest(t, f.path(), func(t *testing.T) {
			for figure, rate := range map[string]rate{"sparse": footprintRates[0], "dense": footprintRates[len(footprintRates)-1]} {
				f.add(figure, r.tierBytes(t, f.name, rate, o.counters(rate)))
			}
			f.print(0, nil)
		})
	}
	return all
}

// Width is how far the bounds of a window that ends now are apart, as a part of its total, if hits come
// evenly. It is the same at every moment but those at which the window begins with a cell, when it is 0.
func (f *tierSet) Width(text string) (string, error) {
	w, err := human.ParseDuration(text)
	if err != nil {
		return "", err
	}
	now := time.Date(2026, 11, 21, 10, 7, 23, 456e6, time.UTC).UnixMilli()
	layout := window.Layout{Tiers: tiersOf(f.name), Shards: 1}
	p, err := layout.Plan("c", window.Range{From: now - w.Milliseconds(), To: now}, now)
	return short(100*float64(p.Tier.Cell)/float64(w)) + " %", err
}

// A set can be counted and weighed: this one has the fewest cells.
func checkTiers(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 0.001, only: regexp.MustCompile("^tiers/1s/1m,5m/1d,6h/32d$")}
	all := measureTiers(t, r, o)
	require.Len(t, all, 1)
	f := all[0]
	if f.One.last("hits") != tierHits/1000 || f.last("sparse") <= 0 || f.last("dense") <= f.last("sparse") {
		t.Errorf("%+v", f)
	}
	require.Contains(t, view{"Tiers": all}.tables(t, o), " | 8.33 % | 0.347 % | 3.57 % | 0.833 % |\n")
}
