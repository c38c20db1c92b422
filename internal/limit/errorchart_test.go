package limit

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
}

// What the docs say in words about the figures.
func TestCellsErrLess(t *testing.T) {
	t.Parallel()
	byName := make(map[string]errorFigures)
	for _, f := range measureErrors() {
		byName[f.traffic+f.counter] = f
	}
	for _, traffic := range errorTraffics {
		cells := byName[traffic.name+errorCounters[0].name]
		for _, other := range errorCounters[1:] {
			o := byName[traffic.name+other.name]
			if cells.tooMany > o.tooMany || cells.meanOver > o.meanOver || math.Abs(cells.allowed-100) > 2 {
				t.Errorf("%s: cells %+v, %s %+v: cells should allow less too much", traffic.name, cells, other.name, o)
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
