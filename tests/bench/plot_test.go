package bench_test

import (
	"cmp"
	_ "embed"
	"math"
	"os"
	"slices"
	"strings"
	"text/template"

	"tallyroll/internal/platform/human"
)

// plotted is the workload whose rates are drawn.
const plotted = "zipf"

//go:embed testdata/benchmarks.svg
var plotText string

var plot = template.Must(template.New("plot").Parse(plotText))

// drawn is a mark of the scale or a bar.
type drawn struct {
	Name, Text             string
	Kind                   kind
	X, Y, Slowest, Fastest int
}

// plotRates draws a bar for each candidate, the fastest at the top, and a line
// from its slowest run to its fastest. The scale is logarithmic: rates differ by
// a factor of thousands.
func plotRates(c comparison, path string) error {
	const (
		least            = 100.0 // hits/s, where the bars begin
		width, rowHeight = 780, 30
	)
	rows := slices.Clone(c.Rows)
	slices.SortStableFunc(rows, func(a, b *candidate) int { return cmp.Compare(b.median("rate"), a.median("rate")) })
	most := 10 * least
	for _, r := range rows {
		most = max(most, 4*slices.Max(r.rounds["rate"])) // room for the number
	}
	x := func(rate float64) int {
		return int(width * math.Log10(max(rate, least)/least) / math.Log10(most/least))
	}
	bottom := rowHeight * len(rows)
	var marks, bars []drawn
	for rate := least; rate <= most; rate *= 10 {
		marks = append(marks, drawn{X: x(rate), Text: human.Thousands(rate)})
	}
	for i, r := range rows {
		rates := r.rounds["rate"]
		bars = append(bars, drawn{
			Name: r.name, Kind: r.kind, Text: human.Thousands(median(rates)),
			X: x(median(rates)), Y: rowHeight * i, Slowest: x(slices.Min(rates)), Fastest: x(slices.Max(rates)),
		})
	}
	var out strings.Builder
	view := map[string]any{"Title": c.Title, "Marks": marks, "Bars": bars, "Bottom": bottom, "Height": bottom + 200}
	if err := plot.Execute(&out, view); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(out.String()), 0o644)
}
