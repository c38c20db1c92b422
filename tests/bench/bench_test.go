// Package bench_test measures Tallyroll beside a consumer that does nothing and
// beside the techniques of the articles that describe the same need, all on the
// same hits, the same servers and in one run.
//
// The tests that `make bench-smoke` runs only check that each candidate counts right.
// `make bench` measures and rewrites docs/benchmarks-tables.md.
package bench_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
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
	throughput := measureThroughput(t, r, o)
	v := view{
		"Date":       began.UTC().Format("2006-01-02"),
		"Throughput": throughputTables(throughput, o),
		"Multi":      countingRows(measureStreams(t, r, o), (*row).first),
		"Rules":      countingRows(measureRules(t, r, o), (*row).sameForm),
		"Tiers":      viewTiers(t, measureTiers(t, r, o)),
		"Latency":    latencyRows(measureLatency(t, r, o)),
		"Memory":     memoryRows(measureMemory(t, r, o)),
		"Queries":    queryTables(measureQueries(t, r, o)),
		"Dashboards": dashboardRows(measureDashboards(t, r, o)),
		"Series":     seriesRows(measureSeries(t, r, o)),
	}
	measureUniques(t, r, o) // these are printed, and told in docs/benchmarks.md
	measureUniqueHits(t, r, o)
	measureUniqueCells(t, r, o)
	v["Collect"] = collectRows(measureCollect(t, r, o))
	v["Limits"] = measureLimits(t, r, o).view()
	v["Ways"] = wayRows(measureWays(t, r, o))
	v["Masters"] = mastersRows(measureMasters(t, r, o))
	v["Postgres"] = measurePostgres(t, r, o, startPostgres).view()
	v.write(t, r, o, throughput)
}

func parseOptions(t *testing.T) options {
	t.Helper()
	o := options{runs: 5, scale: 1, only: everything, out: os.Getenv("OUT"), fleet: os.Getenv("FLEET") == "1"}
	var err error
	if text := os.Getenv("RUNS"); text != "" {
		if o.runs, err = strconv.Atoi(text); err != nil || o.runs < 1 {
			t.Fatalf("RUNS=%q: a whole number from 1 is allowed", text)
		}
	}
	if text := os.Getenv("SCALE"); text != "" {
		if o.scale, err = strconv.ParseFloat(text, 64); err != nil || o.scale <= 0 || o.scale > 100 {
			t.Fatalf("SCALE=%q: a number above 0 and up to 100 is allowed", text)
		}
	}
	if text := os.Getenv("ONLY"); text != "" {
		if o.only, err = regexp.Compile(text); err != nil {
			t.Fatalf("ONLY=%q: %v", text, err)
		}
		if o.out != "" {
			t.Logf("ONLY is set: the tables are printed, and %s is left as it is", o.out)
			o.out = ""
		}
	}
	return o
}

func (o options) wants(path string) bool { return o.only.MatchString(path) }

// size is a default number by the scale.
func (o options) size(n int) int { return max(1, int(float64(n)*o.scale)) }

func (o options) seconds(n int) time.Duration {
	return time.Duration(float64(n) * o.scale * float64(time.Second))
}

// chosen are the candidates that ONLY selects by their paths.
func chosen[C any](o options, path func(C) string, all ...C) (out []C) {
	for _, c := range all {
		if o.wants(path(c)) {
			out = append(out, c)
		}
	}
	return out
}

// inTurns measures each candidate once per round, each round beginning with another one.
func inTurns[C any](t *testing.T, o options, all []C, path func(C) string, measure func(t *testing.T, c C, run int)) {
	t.Helper()
	for run := range o.runs {
		for i := range all {
			c := all[(i+run)%len(all)]
			subtest(t, fmt.Sprintf("%s/run=%d", path(c), run), func(t *testing.T) { measure(t, c, run) })
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

// sample is what was measured of one candidate: the value of each figure in each round, and the times of all its
// requests.
type sample struct {
	name   string
	rounds map[string][]float64
	took   []time.Duration
}

func (s *sample) add(figure string, value float64) {
	if s.rounds == nil {
		s.rounds = make(map[string][]float64)
	}
	s.rounds[figure] = append(s.rounds[figure], value)
}

func (s *sample) median(figure string) float64 { return median(s.rounds[figure]) }

// last is the value of the last round.
func (s *sample) last(figure string) float64 { return s.rounds[figure][len(s.rounds[figure])-1] }

// short is the median as a cell of a table: none if there is nothing to tell.
func (s *sample) short(figure string) string {
	if s.median(figure) == 0 {
		return "–"
	}
	return short(s.median(figure))
}

func (s *sample) p(percent float64) string { return percentile(s.took, percent).String() }
