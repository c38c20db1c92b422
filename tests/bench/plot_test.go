package bench_test

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"os"
	"slices"
	"strings"

	"tallyroll/internal/boot"
)

// plotted is the workload whose rates are drawn.
const plotted = "zipf"

var kindColors = map[kind]string{ceiling: "#999999", product: "#1f6fb4", pipelines: "#e3a057", asWritten: "#c45a3b"}

var kindNames = map[kind]string{
	ceiling: "a consumer that only counts messages", product: "Tallyroll",
	pipelines: "a technique at its best: pipelined by 100", asWritten: "a technique as written",
}

// plotRates draws a bar for each candidate, the fastest at the top, and a line
// from its slowest run to its fastest. The scale is logarithmic: rates differ by
// a factor of thousands.
func plotRates(c comparison, path string) error {
	const (
		least                = 100 // hits/s, where the bars begin
		width, names, margin = 1200.0, 400.0, 20.0
		rowHeight, header    = 30.0, 60.0
	)
	rows := slices.Clone(c.rows)
	slices.SortStableFunc(rows, func(a, b *row) int { return cmp.Compare(median(b.rates()), median(a.rates())) })
	most := 10.0 * least
	for _, r := range rows {
		most = max(most, 4*slices.Max(r.rates())) // room for the number
	}
	x := func(rate float64) float64 {
		return names + (width-margin-names)*math.Log10(max(rate, least)/least)/math.Log10(most/least)
	}
	bottom := header + rowHeight*float64(len(rows))

	var out strings.Builder
	kinds := []kind{ceiling, product, pipelines, asWritten}
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="system-ui, sans-serif" font-size="13">`+"\n",
		width, bottom+50+20*float64(len(kinds)))
	fmt.Fprintf(&out, `<rect width="100%%" height="100%%" fill="#fff"/><text x="%.0f" y="30" font-size="16">Hits per second: %s</text>`+"\n",
		margin, html.EscapeString(c.workload.title))
	for rate := float64(least); rate <= most; rate *= 10 {
		at := x(rate)
		fmt.Fprintf(&out, `<path d="M%.1f %.1fV%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n",
			at, header-6, bottom, at, bottom+18, boot.Thousands(rate))
	}
	for i, r := range rows {
		rates, y := r.rates(), header+rowHeight*float64(i)
		middle := y + rowHeight/2
		fmt.Fprintf(&out, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`, names-8, middle+4, html.EscapeString(r.candidate.name))
		fmt.Fprintf(&out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`,
			names, y+4, x(median(rates))-names, rowHeight-8, kindColors[r.candidate.kind])
		fmt.Fprintf(&out, `<path d="M%.1f %.1fH%.1f" stroke="#000"/>`, x(slices.Min(rates)), middle, x(slices.Max(rates)))
		fmt.Fprintf(&out, `<text x="%.1f" y="%.1f">%s</text>`+"\n", x(slices.Max(rates))+5, middle+4, boot.Thousands(median(rates)))
	}
	fmt.Fprintf(&out, `<text x="%.0f" y="%.1f">hits/s (logarithmic); a thin line spans the slowest and the fastest run</text>`+"\n", names, bottom+38)
	for i, k := range kinds {
		y := bottom + 46 + 20*float64(i)
		fmt.Fprintf(&out, `<rect x="%.0f" y="%.1f" width="12" height="12" fill="%s"/><text x="%.0f" y="%.1f">%s</text>`+"\n",
			names, y, kindColors[k], names+18, y+11, kindNames[k])
	}
	out.WriteString("</svg>\n")
	return os.WriteFile(path, []byte(out.String()), 0o644)
}
