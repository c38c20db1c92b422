package bench_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// tierSets are sets of tiers that one may choose from.
var tierSets = []struct{ tiers, note string }{
	{window.DefaultTiers, "the default"},
	{"1s/1m,1m/1h,15m/1d,6h/32d", "the default before"},
	{"1s/1m,1m/1d,1h/32d", "for speed"},
	{"1s/1m,5m/1d,6h/32d", ""},
	{"1s/1h,1m/1d,1h/92d", "for charts"},
}

// tierWindows are asked of each set.
var tierWindows = [...]time.Duration{time.Minute, time.Hour, day, 7 * day, 30 * day}

// tierHits are the hits of a run, one to a message; of a run with batches they are three times as many.
const tierHits = 2_000_000

// tierFigures are what is known of a set of tiers.
type tierFigures struct {
	name          string
	tiers         window.Tiers
	one, batched  row
	sparse, dense float64                     // bytes of Redis of a counter
	reads         [len(tierWindows)]answering // one for each window
}

func (f *tierFigures) path() string { return "tiers/" + f.tiers.String() }

// measureTiers counts the same hits, fills the same counters and asks the same questions with each set of tiers.
func measureTiers(t *testing.T, r *rig, o options) []*tierFigures {
	var all []*tierFigures
	for _, set := range tierSets {
		f := &tierFigures{name: set.tiers, tiers: mustTiers(t, set.tiers)}
		if set.note != "" {
			f.name += " (" + set.note + ")"
		}
		all = append(all, f)
	}
	all = chosen(o, (*tierFigures).path, all...)
	inTurns(t, o, all, (*tierFigures).path, func(t *testing.T, f *tierFigures, _ int) { f.count(t, r, o) })
	for _, f := range all {
		subtest(t, f.path(), func(t *testing.T) {
			f.weigh(t, r, o)
			f.ask(t, r, o)
		})
	}
	return all
}

// count counts hits one by one, and 100 to a message.
func (f *tierFigures) count(t *testing.T, r *rig, o options) {
	t.Helper()
	for _, form := range []struct {
		of         *row
		name       string
		hits, size int
	}{{&f.one, "ONE", tierHits, 1}, {&f.batched, "BATCHES", 3 * tierHits, batchSize}} {
		subtest(t, form.name, func(t *testing.T) {
			s := fill(t, r.js, form.name, form.name, workloads[2], o.size(form.hits), form.size)
			counted := r.tallyroll(t, []*stored{s}, 1, "INGEST_STREAMS="+s.stream, "TIERS="+f.tiers.String())
			form.of.figures = append(form.of.figures, counted)
			fmt.Printf("%s/%s: %.0f hits/s\n", f.path(), form.name, counted.rate())
		})
	}
}

// weigh measures what counters take, as the table of memory does.
func (f *tierFigures) weigh(t *testing.T, r *rig, o options) {
	t.Helper()
	sparse, dense := footprintRates[0], footprintRates[len(footprintRates)-1]
	f.sparse = r.tierBytes(t, f.tiers.String(), sparse, o.counters(sparse))
	f.dense = r.tierBytes(t, f.tiers.String(), dense, o.counters(dense))
	fmt.Printf("tiers/%s: %.0f bytes of a sparse counter, %.0f of a dense one\n", f.tiers, f.sparse, f.dense)
}

// ask asks for one total at a time, of counters with hits in every cell.
func (f *tierFigures) ask(t *testing.T, r *rig, o options) {
	t.Helper()
	r.empty(t)
	r.fillTiers(t, f.tiers, densest, densest)
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
	client := httpClient(t, askers)
	for run := range o.runs {
		for i := range tierWindows {
			turn := (i + run) % len(tierWindows)
			w := window.FormatDuration(tierWindows[turn])
			url := q.URL() + "/v1/total?window=" + w + "&key="
			a := &f.reads[turn]
			a.question = question{askers: askers, ask: func(ctx context.Context, i int) error {
				return askOnce(ctx, client, http.MethodGet, url+counterName(i%densest), "")
			}}
			a.press(t, q.PID(), r.redisClock(t), max(o.seconds(1), 200*time.Millisecond))
			fmt.Printf("%s/%s run %d: %.0f/s\n", f.path(), w, run+1, a.last("rate"))
		}
	}
}

// width is how far the bounds of a window that ends now are apart, as a part of its total, if hits come evenly. It
// is the same at every moment but those at which the window begins with a cell, when it is 0.
func (f *tierFigures) width(t *testing.T, w time.Duration) float64 {
	t.Helper()
	now := time.Date(2026, 11, 21, 10, 7, 23, 456e6, time.UTC).UnixMilli()
	p, err := window.Layout{Tiers: f.tiers, Shards: 1}.Plan("c", window.Range{From: now - w.Milliseconds(), To: now}, now)
	require.NoError(t, err)
	return float64(p.Tier.Cell) / float64(w)
}

type tiersView struct{ Costs, Answers, Windows []string }

func viewTiers(t *testing.T, all []*tierFigures) (v tiersView) {
	t.Helper()
	for _, w := range tierWindows {
		v.Windows = append(v.Windows, window.FormatDuration(w))
	}
	for _, f := range all {
		first := all[0]
		v.Costs = append(v.Costs, cellsOf(f.name,
			spread(f.one.rates()), ratio(median(f.one.rates()), median(first.one.rates())), f.one.commandsPerHit(),
			spread(f.batched.rates()), ratio(median(f.batched.rates()), median(first.batched.rates())), f.batched.commandsPerHit(),
			boot.Thousands(f.sparse), boot.Thousands(f.dense)))
		answers := []string{f.name}
		for i, w := range tierWindows {
			query, redis := f.reads[i].short("query"), f.reads[i].short("store")
			answers = append(answers, fmt.Sprintf("%s %%: %s + %s µs", short(100*f.width(t, w)), query, redis))
		}
		v.Answers = append(v.Answers, cellsOf(answers...))
	}
	return v
}

// A set can be counted, weighed and asked: this one has the fewest cells.
func checkTiers(t *testing.T, r *rig) {
	all := measureTiers(t, r, options{runs: 1, scale: 0.001, only: regexp.MustCompile("^tiers/1s/1m,5m/1d,6h/32d$")})
	require.Len(t, all, 1)
	f := all[0]
	if f.one.figures[0].hits != tierHits/1000 || f.sparse <= 0 || f.dense <= f.sparse {
		t.Errorf("%+v", f)
	}
	v := viewTiers(t, all)
	if len(v.Costs) != 1 || len(v.Answers) != 1 || len(v.Windows) != len(tierWindows) {
		t.Errorf("%+v", v)
	}
}

func TestBoundsAreACellApart(t *testing.T) {
	f := &tierFigures{tiers: mustTiers(t, "1s/1h,1m/1d,1h/92d")}
	for w, want := range map[time.Duration]float64{time.Hour: 1. / 3600, day: 1. / 1440, 30 * day: 1. / 720} {
		require.InDelta(t, want, f.width(t, w), 1e-12, "%s", w)
	}
}

func mustTiers(t *testing.T, text string) window.Tiers {
	t.Helper()
	tiers, err := window.ParseTiers(text)
	require.NoError(t, err)
	return tiers
}
