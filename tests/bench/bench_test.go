// Package bench_test compares Tallyroll with a consumer that does nothing and with the techniques of the
// articles that describe the same need, all on the same hits, the same servers and in one run.
//
// The tests that `make bench-smoke` runs only check that each candidate counts right.
// `make bench` measures and rewrites docs/benchmarks-tables.md.
package bench_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
)

// options of a measurement, from the environment.
type options struct {
	runs  int            // RUNS: how often each candidate runs
	scale float64        // SCALE: of the default numbers of hits and seconds
	only  *regexp.Regexp // ONLY: the parts and candidates to measure, by their paths
	out   string         // OUT: the page to rewrite; empty: print
	fleet bool           // FLEET=1: also several workers that share streams
}

var everything = regexp.MustCompile("")

// TestBench measures where BENCH=1 is set.
func TestBench(t *testing.T) {
	if os.Getenv("BENCH") != "1" {
		t.Skip("a measurement: `make bench` runs it")
	}
	o := parseOptions(t)
	r := newRig(t)
	began := time.Now()
	v := view{
		"Date":       began.UTC().Format("2006-01-02"),
		"Machine":    machine(t, r),
		"Throughput": measureThroughput(t, r, o),
		"Aged":       measureAged(t, r, o),
		"AgedRates":  measureAgedRates(t, r, o),
		"Multi":      measureStreams(t, r, o),
		"Rules":      measureRules(t, r, o),
		"Tiers":      measureTiers(t, r, o),
		"Latency":    measureLatency(t, r, o),
		"Memory":     measureMemory(t, r, o),
		"Queries":    measureQueries(t, r, o),
		"Totals":     measureLived(t, r, o),
		"Dashboards": measureDashboards(t, r, o),
		"Series":     measureSeries(t, r, o),
	}
	measureUniques(t, r, o) // these are printed, and docs/benchmarks.md has them
	measureUniqueHits(t, r, o)
	measureUniqueCells(t, r, o)
	v["Collect"] = measureCollect(t, r, o)
	v["Limits"] = measureLimits(t, r, o)
	v["Occupied"] = measureLimitMemory(t, r, o)
	v["Ways"] = measureWays(t, r, o)
	v["Masters"] = measureMasters(t, r, o)
	v["Postgres"] = measurePostgres(t, r, o, startPostgres)
	v.write(t, o)
}

func parseOptions(t *testing.T) options {
	t.Helper()
	o := options{out: os.Getenv("OUT"), fleet: os.Getenv("FLEET") == "1"}
	o.runs = setting(t, "RUNS", 5, strconv.Atoi)
	o.scale = setting(t, "SCALE", 1, func(text string) (float64, error) { return strconv.ParseFloat(text, 64) })
	o.only = setting(t, "ONLY", everything, regexp.Compile)
	if o.runs < 1 || o.scale <= 0 || o.scale > 100 {
		t.Fatalf("RUNS=%d SCALE=%g: from 1 run, and a scale above 0 and up to 100 are allowed", o.runs, o.scale)
	}
	if o.only != everything && o.out != "" {
		t.Logf("ONLY is set: the tables are printed, and %s is left as it is", o.out)
		o.out = ""
	}
	return o
}

// setting is what the environment has under a name, or else the default.
func setting[V any](t *testing.T, name string, value V, parse func(string) (V, error)) V {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return value
	}
	value, err := parse(text)
	require.NoErrorf(t, err, "%s=%q", name, text)
	return value
}

func (o options) wants(path string) bool { return o.only.MatchString(path) }

// size is a default number by the scale.
func (o options) size(n int) int { return max(1, int(float64(n)*o.scale)) }

func (o options) seconds(n int) time.Duration {
	return time.Duration(float64(n) * o.scale * float64(time.Second))
}

// measured is a candidate that holds its sample.
type measured interface{ Itself() *sample }

// chosen are the candidates that ONLY selects by their paths.
func chosen[C measured](o options, all ...C) (out []C) {
	for _, c := range all {
		if o.wants(c.Itself().path()) {
			out = append(out, c)
		}
	}
	return out
}

// inTurns measures each candidate once per round, each round beginning with another one, and prints what it
// measured.
func inTurns[C measured](t *testing.T, o options, all []C, measure func(t *testing.T, c C, run int)) {
	t.Helper()
	for run := range o.runs {
		for i := range all {
			c := all[(i+run)%len(all)]
			s := c.Itself()
			subtest(t, fmt.Sprintf("%s/run=%d", s.path(), run), func(t *testing.T) {
				before := len(s.took)
				measure(t, c, run)
				s.print(run, s.took[before:])
			})
		}
	}
}

// subtest runs a measurement whose processes end with it. If it fails, so does the whole.
func subtest(t *testing.T, name string, measure func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, measure) {
		t.FailNow()
	}
}

// sample is what was measured of one candidate: the value of each figure in each round, and the times of all
// its requests. The methods with capitals are what testdata/tables.md shows of it.
type sample struct {
	part, name string // its path, which ONLY selects
	rounds     map[string][]float64
	took       []time.Duration
	marked     bool // a note behind the table gives the reason
}

func (s *sample) path() string { return s.part + "/" + s.name }

func (s *sample) add(figure string, value float64) {
	if s.rounds == nil {
		s.rounds = make(map[string][]float64)
	}
	s.rounds[figure] = append(s.rounds[figure], value)
}

func (s *sample) median(figure string) float64 { return median(s.rounds[figure]) }

// last is the value of the last round.
func (s *sample) last(figure string) float64 { return s.rounds[figure][len(s.rounds[figure])-1] }

// print prints the last round, of whose requests took are the times.
func (s *sample) print(run int, took []time.Duration) {
	fmt.Printf("%s run %d:", s.path(), run+1)
	for _, figure := range slices.Sorted(maps.Keys(s.rounds)) {
		fmt.Printf(" %s %s", figure, short(s.last(figure)))
	}
	if len(took) > 0 {
		fmt.Printf(" p50 %v p99 %v", percentile(took, 50), percentile(took, 99))
	}
	fmt.Println()
}

func (s *sample) Itself() *sample { return s }

func (s *sample) Marked() bool { return s.marked }

func (s *sample) Name() string {
	if s.marked {
		return s.name + " *"
	}
	return s.name
}

// Figure is the median with three digits, and Whole without a fraction: none if there is nothing to show.
func (s *sample) Figure(figure string) string { return orNone(s.median(figure), short) }
func (s *sample) Whole(figure string) string  { return orNone(s.median(figure), human.Thousands) }

// Spread is the median, the least and the most.
func (s *sample) Spread(figure string) string {
	v := s.rounds[figure]
	least, most := human.Thousands(slices.Min(v)), human.Thousands(slices.Max(v))
	return fmt.Sprintf("%s (%s to %s)", human.Thousands(median(v)), least, most)
}

// Of is the median as a ratio to that of another sample, if that was measured.
func (s *sample) Of(other *sample, figure string) string {
	if other == nil || other.median(figure) == 0 {
		return "–"
	}
	return short(s.median(figure) / other.median(figure))
}

// P is a percentile of the times.
func (s *sample) P(percent float64) string { return percentile(s.took, percent).String() }
