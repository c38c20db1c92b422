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
	report := &report{options: o, began: time.Now(), rig: r}
	report.throughput = measureThroughput(t, r, o)
	report.multi = measureStreams(t, r, o)
	report.rules = measureRules(t, r, o)
	report.tiers = measureTiers(t, r, o)
	report.latency = measureLatency(t, r, o)
	report.memory = measureMemory(t, r, o)
	report.queries = measureQueries(t, r, o)
	report.dashboards = measureDashboards(t, r, o)
	report.series = measureSeries(t, r, o)
	measureUniques(t, r, o) // these are printed, and told in docs/benchmarks.md
	measureUniqueHits(t, r, o)
	measureUniqueCells(t, r, o)
	report.collect = measureCollect(t, r, o)
	report.limits = measureLimits(t, r, o)
	report.ways = measureWays(t, r, o)
	report.masters = measureMasters(t, r, o)
	report.postgres = measurePostgres(t, r, o)
	report.write(t)
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

// each runs one measurement as a subtest, so that the processes of a run end
// with it, and says what it found.
func each(t *testing.T, path string, run int, measure func(t *testing.T) figures) (f figures) {
	t.Helper()
	t.Run(fmt.Sprintf("%s/run=%d", path, run), func(t *testing.T) { f = measure(t) })
	if t.Failed() {
		t.FailNow()
	}
	fmt.Printf("%s run %d: %.0f hits/s (%d hits, %.2f s)\n", path, run+1, f.rate(), f.hits, f.seconds)
	if f.late {
		fmt.Printf("%s run %d: too slow: cells of the finest tier may have expired before they were written\n", path, run+1)
	}
	return f
}
