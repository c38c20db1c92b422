package query

import (
	"bytes"
	"image/color"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"tallyroll/internal/window"
)

// lineColors can be told apart by people who see few colours: they are those of
// Okabe and Ito (2008), the yellow left out, which is hard to see on white.
var lineColors = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
	{230, 159, 0, 255}, {86, 180, 233, 255}, {0, 0, 0, 255},
}

// maxLines is how many lines a chart may have.
const maxLines = 7

// pixel is a CSS pixel: 96 make an inch.
const pixel = vg.Inch / 96

var grid = color.RGBA{225, 228, 232, 255}

// gonum keeps the font of new plots in a variable of the package.
func init() { plot.DefaultFont.Variant = "Sans" }

// seriesChart draws the hits of each finished step as a level from its beginning
// to its end. Where nobody counted, or counting goes on, there is no line: a
// step that has hardly begun would look like a fall.
func seriesChart(keys []string, found []window.Series, v view) ([]byte, error) {
	p := plot.New()
	p.Title.Text = "hits per " + window.FormatDuration(found[0].Step)
	if len(keys) == 1 {
		p.Title.Text = shortened(keys[0]) + ": " + p.Title.Text
	}
	p.Title.Padding = 8 * pixel
	p.X.Label.Text = "UTC, as of " + timeOf(found[0].AsOf).Format("2006-01-02 15:04:05")
	p.X.Label.Padding = 4 * pixel
	p.X.Padding, p.Y.Padding = 0, 0
	p.X.Min, p.X.Max = seconds(found[0].Range.From), seconds(found[0].Range.To)
	p.X.Tick.Marker = timeTicks{most: v.Width / 90}
	p.Y.Tick.Marker = countTicks{}
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = grid, grid
	p.Add(lines)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.ThumbnailWidth, p.Legend.Padding, p.Legend.XOffs = 16*pixel, 4*pixel, 8*pixel

	top := 1.0
	for i, f := range found {
		line := &plotter.Line{XYs: levels(f), LineStyle: plotter.DefaultLineStyle}
		line.Color, line.Width, line.StepStyle = lineColors[i], 1.5*pixel, plotter.PostStep
		if len(line.XYs) > 0 {
			p.Add(line)
		}
		if len(keys) > 1 {
			p.Legend.Add(shortened(keys[i]), line)
		}
		for _, corner := range line.XYs {
			top = max(top, corner.Y)
		}
	}
	p.Y.Min, p.Y.Max = 0, top*1.05
	if len(keys) > 1 {
		// Room for the legend, out of what the title and the axis leave of the height.
		legend := float64(20*len(keys)) / float64(v.Height-90)
		p.Y.Max = top / (1 - min(legend, 0.7))
	}

	var out bytes.Buffer
	width, height := vg.Length(v.Width)*pixel, vg.Length(v.Height)*pixel
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	if v.Format == "svg" {
		canvas = vgsvg.New(width, height)
	} else {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(96))}
	}
	const margin = 10 * pixel
	p.Draw(draw.Crop(draw.New(canvas), margin, -margin, margin, -margin))
	_, err := canvas.WriteTo(&out)
	return out.Bytes(), err
}

// levels are the corners of the line: the beginning of each step that is counted, and the end of the last.
func levels(f window.Series) plotter.XYs {
	begun, finished := f.Begun(), f.Finished()
	if begun >= finished {
		return nil
	}
	out := make(plotter.XYs, 0, finished-begun+1)
	for i := begun; i < finished; i++ {
		out = append(out, plotter.XY{X: seconds(f.Start(i)), Y: float64(f.Counts[i])})
	}
	return append(out, plotter.XY{X: seconds(min(f.Start(finished), f.Range.To)), Y: out[len(out)-1].Y})
}

func seconds(milli int64) float64 { return float64(milli) / 1000 }

// shortened is a counter's name as a chart has room for it, and may write it: XML
// has no way at all to write U+FFFE and U+FFFF (XML 1.0, 2.2).
func shortened(key string) string {
	const most = 40
	key = strings.Map(func(r rune) rune {
		if r == 0xFFFE || r == 0xFFFF {
			return utf8.RuneError
		}
		return r
	}, key)
	if utf8.RuneCountInString(key) <= most {
		return key
	}
	return string([]rune(key)[:most-1]) + "…"
}

// countTicks are gonum's ticks at whole numbers, with separators between thousands.
type countTicks struct{}

func (countTicks) Ticks(low, high float64) []plot.Tick {
	var out []plot.Tick
	for _, t := range (plot.DefaultTicks{}).Ticks(low, high) {
		switch {
		case t.Value != float64(int64(t.Value)):
			continue // there is no half of a hit
		case t.Label != "":
			t.Label = grouped(int64(t.Value))
		}
		out = append(out, t)
	}
	return out
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var out strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			out.WriteByte(',')
		}
		out.WriteRune(d)
	}
	return out.String()
}

// timeTicks are at round times of the clock (UTC), at most so many.
type timeTicks struct{ most int }

var tickEvery = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 5 * 24 * time.Hour, 10 * 24 * time.Hour, 30 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour,
}

func (t timeTicks) Ticks(low, high float64) []plot.Tick {
	every := tickEvery[len(tickEvery)-1]
	for _, d := range tickEvery {
		if (high-low)/d.Seconds() <= float64(t.most) {
			every = d
			break
		}
	}
	from := time.Unix(int64(low), 0).UTC()
	var out []plot.Tick
	for at := from.Truncate(every); float64(at.Unix()) <= high; at = at.Add(every) {
		if float64(at.Unix()) < low {
			continue
		}
		layout := "15:04"
		switch {
		case at.Equal(at.Truncate(24 * time.Hour)):
			layout = "Jan 2" // midnight: which day begins
		case every < time.Minute:
			layout = "15:04:05"
		}
		out = append(out, plot.Tick{Value: float64(at.Unix()), Label: at.Format(layout)})
	}
	return out
}
