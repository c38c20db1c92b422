package bench_test

import (
	"cmp"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"tallyroll/internal/boot"
)

// plotted is the workload whose rates are drawn.
const plotted = "zipf"

var kindColors = map[kind]color.Color{
	ceiling:   color.RGBA{0x99, 0x99, 0x99, 0xff},
	product:   color.RGBA{0x1f, 0x6f, 0xb4, 0xff},
	pipelines: color.RGBA{0xe3, 0xa0, 0x57, 0xff},
	asWritten: color.RGBA{0xc4, 0x5a, 0x3b, 0xff},
}

var kindNames = map[kind]string{
	ceiling: "a consumer that only counts messages", product: "Tallyroll",
	pipelines: "a technique at its best: pipelined by 100", asWritten: "a technique as written",
}

// plotRates draws a bar for each candidate, the fastest at the top, and a line
// from its slowest run to its fastest. The scale is logarithmic: rates differ by
// a factor of thousands.
func plotRates(c comparison, path string) error {
	const least = 100 // where the bars begin
	rows := slices.Clone(c.rows)
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(median(a.rates()), median(b.rates())) })

	p := plot.New()
	p.Title.Text = "Hits per second: " + c.workload.title
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text = "hits/s (logarithmic); a thin line spans the slowest and the fastest run"
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.TickerFunc(func(least, most float64) []plot.Tick {
		ticks := plot.LogTicks{}.Ticks(least, most)
		for i := range ticks {
			if ticks[i].Label != "" {
				ticks[i].Label = boot.Thousands(ticks[i].Value)
			}
		}
		return ticks
	})
	p.X.Min, p.X.Max = least, 10*least
	names := make([]string, len(rows))
	var labels plotter.XYLabels
	var explained []kind // in the legend
	p.Legend.Padding = vg.Points(4)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-8), vg.Points(10)
	for i, r := range rows {
		y, rates := float64(i), r.rates()
		middle := max(median(rates), least)
		names[i] = r.candidate.name
		bar, err := plotter.NewPolygon(plotter.XYs{{X: least, Y: y - 0.38}, {X: middle, Y: y - 0.38}, {X: middle, Y: y + 0.38}, {X: least, Y: y + 0.38}})
		if err != nil {
			return err
		}
		bar.Color, bar.LineStyle.Width = kindColors[r.candidate.kind], 0
		span, err := plotter.NewLine(plotter.XYs{{X: max(slices.Min(rates), least), Y: y}, {X: max(slices.Max(rates), least), Y: y}})
		if err != nil {
			return err
		}
		p.Add(bar, span)
		if !slices.Contains(explained, r.candidate.kind) {
			explained = append(explained, r.candidate.kind)
			p.Legend.Add(kindNames[r.candidate.kind], bar)
		}
		labels.XYs = append(labels.XYs, plotter.XY{X: max(slices.Max(rates), least), Y: y})
		labels.Labels = append(labels.Labels, boot.Thousands(median(rates)))
		p.X.Max = max(p.X.Max, 4*slices.Max(rates)) // room for the number
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	text.Offset.X = vg.Points(4)
	for i := range text.TextStyle {
		text.TextStyle[i].YAlign = -0.4
	}
	p.Add(text)
	p.NominalY(names...)
	p.Y.Tick.Length, p.Y.LineStyle.Width = 0, 0
	p.Y.Min, p.Y.Max = -0.6, float64(len(rows))-0.4
	return p.Save(vg.Points(900), vg.Points(60+22*float64(len(rows))), path)
}
