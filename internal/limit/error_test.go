package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit/cells"
)

// How far off are counters that do not keep every hit? Each one decides about the same traffic, which asks
// for half as much again as the limit allows. The test also keeps every hit that a counter has allowed, to
// compare each decision with that of a window that is exact.

const (
	errorWindow  = time.Minute
	errorMax     = 100
	errorWindows = 1000 // that a schedule lasts
	errorAsked   = 1.5  // hits asked for in a window, in errorMax
)

// errorCounter is a limiter of one key: it allows a hit and counts it, or refuses. Times are Unix
// milliseconds.
type errorCounter struct {
	name string
	new  func() (allow func(at int64) bool)
}

// exactCounter keeps every hit.
var exactCounter = errorCounter{"exact", func() func(int64) bool {
	var exact exactWindow
	return func(at int64) bool {
		allowed := exact.at(at) < errorMax
		if allowed {
			exact.add(at)
		}
		return allowed
	}
}}

// exactWindow is the times of hits.
type exactWindow struct{ hits []int64 }

func (e *exactWindow) add(at int64) { e.hits = append(e.hits, at) }

// at is how many hits the window has that ends then.
func (e *exactWindow) at(now int64) int {
	for len(e.hits) > 0 && e.hits[0] <= now-errorWindow.Milliseconds() {
		e.hits = e.hits[1:]
	}
	return len(e.hits)
}

var errorCounters = []errorCounter{
	{"cells, 60 in a window", func() func(int64) bool {
		var r cells.Ring
		return func(at int64) bool {
			v := r.At(time.UnixMilli(at), errorWindow)
			allowed := float64(v.Estimate())+1 <= errorMax
			if allowed {
				r.Add(&v, 1)
			}
			return allowed
		}
	}},
	{"two numbers, sliding", func() func(int64) bool {
		var number, count, before int64
		return func(at int64) bool {
			length := errorWindow.Milliseconds()
			if n := at / length; n != number {
				if n > number+1 {
					count = 0
				}
				number, count, before = n, 0, count
			}
			part := 1 - float64(at%length)/float64(length)
			allowed := float64(before)*part+float64(count)+1 <= errorMax
			if allowed {
				count++
			}
			return allowed
		}
	}},
	{"fixed window", func() func(int64) bool {
		var number, count int64
		return func(at int64) bool {
			if n := at / errorWindow.Milliseconds(); n != number {
				number, count = n, 0
			}
			allowed := count < errorMax
			if allowed {
				count++
			}
			return allowed
		}
	}},
}

// errorTraffic yields the times of hits.
type errorTraffic struct {
	name string
	gap  func(r *rand.Rand, mean float64) float64 // milliseconds to the next hit
}

var errorTraffics = []errorTraffic{
	{"even", func(r *rand.Rand, mean float64) float64 { return mean * (0.9 + 0.2*r.Float64()) }},
	{"bursts of 30", func(r *rand.Rand, mean float64) float64 {
		if r.IntN(30) > 0 {
			return 20 * r.Float64()
		}
		return 30 * (mean - 10) * r.ExpFloat64()
	}},
	// Few long pauses make up most of the time, as between the visits of a person: Pareto's law with exponent
	// 1.5.
	{"long pauses", func(r *rand.Rand, mean float64) float64 { return mean / 3 * math.Pow(1-r.Float64(), -1/1.5) }},
}

// errorFigures say how a counter did on a schedule. Shares and sizes are percentages; sizes are of max.
type errorFigures struct {
	counter, traffic string
	decisions        int
	tooMany, tooFew  float64 // decisions that allowed what the exact window refuses, and the other way round
	allowed          float64 // hits allowed in all, of those that an exact limiter allows
	meanOver         float64 // hits above max in the exact window, the mean over decisions
	mostOver         float64 // and the most
}

// measureErrors runs all counters on all traffic. It yields the same figures every time.
func measureErrors() (out []errorFigures) {
	for _, traffic := range errorTraffics {
		_, exact := measureError(exactCounter, traffic)
		for _, counter := range errorCounters {
			f, allowed := measureError(counter, traffic)
			f.allowed = 100 * float64(allowed) / float64(exact)
			out = append(out, f)
		}
	}
	return out
}

// measureError also says how many hits were allowed.
func measureError(counter errorCounter, traffic errorTraffic) (f errorFigures, allowed int) {
	random := rand.New(rand.NewPCG(1, 2))
	length := errorWindow.Milliseconds()
	const begin = 1_800_000_000_000
	mean := float64(length) / errorMax / errorAsked
	allow := counter.new()
	f = errorFigures{counter: counter.name, traffic: traffic.name}
	var truth exactWindow // of the hits that were allowed
	over, most, tooMany, tooFew := 0, 0, 0, 0
	for at := float64(begin); at < float64(begin+errorWindows*length); at += traffic.gap(random, mean) {
		now := int64(at)
		fits, allows := truth.at(now) < errorMax, allow(now)
		if allows {
			truth.add(now)
			allowed++
		}
		switch {
		case allows && !fits:
			tooMany++
		case fits && !allows:
			tooFew++
		}
		excess := max(0, truth.at(now)-errorMax)
		over, most = over+excess, max(most, excess)
		f.decisions++
	}
	percent := func(n int) float64 { return 100 * float64(n) / float64(f.decisions) }
	f.tooMany, f.tooFew, f.meanOver = percent(tooMany), percent(tooFew), percent(over)/errorMax
	f.mostOver = 100 * float64(most) / errorMax
	return f, allowed
}

// errorTable is the figures as a table of Markdown.
func errorTable(all []errorFigures) string {
	out := "| traffic | counter | wrongly allowed | wrongly refused | allowed in all, of exact | " +
		"above max, mean | above max, most |\n" +
		"| --- | --- | --- | --- | --- | --- | --- |\n"
	for _, f := range all {
		out += fmt.Sprintf("| %s | %s | %.2f %% | %.2f %% | %.1f %% | %.2f %% | %.0f %% |\n",
			f.traffic, f.counter, f.tooMany, f.tooFew, f.allowed, f.meanOver, f.mostOver)
	}
	return out
}

const (
	errorChart = "../../docs/limits-error.svg"
	errorPage  = "../../docs/benchmarks.md"
	errorBegin = "<!-- errors: begin (LIMITS_ERROR=write rewrites from here) -->\n\n"
	errorEnd   = "\n<!-- errors: end -->"
)

// The chart and the table of the docs are what this code yields. LIMITS_ERROR=write writes them.
func TestErrorFiguresAreThoseOfTheDocs(t *testing.T) {
	t.Parallel()
	all := measureErrors()
	page, err := os.ReadFile(errorPage)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(page), errorBegin)
	old, tail, ok2 := strings.Cut(rest, errorEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no lines %q and %q: there is no place for the table", errorPage, errorBegin, errorEnd)
	}
	table, chart := errorTable(all), drawErrors(all)
	if os.Getenv("LIMITS_ERROR") == "write" {
		for path, text := range map[string]string{errorPage: head + errorBegin + table + errorEnd + tail, errorChart: chart} {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		return
	}
	require.Equal(t, table, old, "LIMITS_ERROR=write writes the figures of the code into %s", errorPage)
	drawn, err := os.ReadFile(errorChart)
	require.NoError(t, err)
	require.Equal(t, chart, string(drawn), "LIMITS_ERROR=write draws %s anew", errorChart)

	// What the docs say in words: cells err less.
	for i := 0; i < len(all); i += len(errorCounters) {
		cells := all[i]
		for _, other := range all[i+1 : i+len(errorCounters)] {
			if cells.tooMany > other.tooMany || cells.meanOver > other.meanOver || math.Abs(cells.allowed-100) > 2 {
				t.Errorf("cells %+v, other %+v: cells should allow less too much", cells, other)
			}
		}
	}
}

const errorStyle = `<style>
text { fill: #1c2024; font: 13px system-ui, sans-serif } .small { fill: #5b6570 } .back { fill: #fff }
.axis { stroke: #a4adb6 } .bar0 { fill: #0072b2 } .bar1 { fill: #e69f00 } .bar2 { fill: #c45a3b }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ec } .small { fill: #a2acb6 } .back { fill: #14171a }
.axis { stroke: #5b6570 } .bar0 { fill: #40a0fa } .bar1 { fill: #f0c040 } .bar2 { fill: #de660a } }
</style>
`

// drawErrors draws three groups of bars, one for each figure. The scales are linear and begin at 0.
func drawErrors(all []errorFigures) string {
	const (
		width, margin, names  = 900.0, 20.0, 110.0
		panel, numbers        = 255.0, 55.0 // the bars of one figure; room for a bar's number
		bar, between, legends = 18.0, 14.0, 84.0
	)
	group := bar*float64(len(errorCounters)) + between
	height := legends + group*float64(len(errorTraffics)) + margin
	var out strings.Builder
	fmt.Fprintf(&out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "+
		"aria-label=\"Wrong decisions and hits above max of three counters\">\n", width, height)
	out.WriteString(errorStyle)
	out.WriteString("<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n")
	for i, counter := range errorCounters {
		x := margin + 240*float64(i)
		fmt.Fprintf(&out, "<rect class=\"bar%d\" x=\"%.0f\" y=\"18\" width=\"12\" height=\"12\"/><text x=\"%.0f\" y=\"29\">%s</text>\n",
			i, x, x+18, counter.name)
	}
	for p, figure := range []struct {
		title string
		of    func(errorFigures) float64
	}{
		{"Wrongly allowed, % of decisions", func(f errorFigures) float64 { return f.tooMany }},
		{"Wrongly refused, % of decisions", func(f errorFigures) float64 { return f.tooFew }},
		{"Above max on average, % of max", func(f errorFigures) float64 { return f.meanOver }},
	} {
		left := margin + names + panel*float64(p)
		most := 0.0
		for _, f := range all {
			most = max(most, figure.of(f))
		}
		fmt.Fprintf(&out, "<text x=\"%.0f\" y=\"64\">%s</text>\n", left, figure.title)
		fmt.Fprintf(&out, "<path class=\"axis\" d=\"M%.0f %.0fV%.0f\"/>\n", left, legends-6, height-margin)
		for i, f := range all {
			traffic, counter := i/len(errorCounters), i%len(errorCounters)
			y := legends + group*float64(traffic) + bar*float64(counter)
			if counter == 0 && p == 0 {
				fmt.Fprintf(&out, "<text class=\"small\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left-8, y+31, f.traffic)
			}
			length := (panel - numbers) * figure.of(f) / most
			fmt.Fprintf(&out, "<rect class=\"bar%d\" x=\"%.0f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\"/>", counter, left, y, length, bar-3)
			fmt.Fprintf(&out, "<text class=\"small\" x=\"%.1f\" y=\"%.1f\">%.2f</text>\n", left+length+5, y+12, figure.of(f))
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}
