package query

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/window"
)

// chartStyle has the colours of both modes. It names each colour where it is used,
// without variables: programs that turn SVG into PNG do not know those. The colours of the
// lines are those of Okabe and Ito (2008), moved until each stands out from the
// background and from the others, also for people who see few colours: see TestColors.
//
//go:embed chart.css
var chartStyle string

// maxLines is how many lines a chart may have: chart.css has a colour for each.
const maxLines = 7

// Sizes of letters and heights of rows in pixels. The sizes are those of chart.css.
const (
	textSize, titleSize      = 12.0, 15.0
	boldness                 = 1.12 // how much wider bold letters are
	titleRow, textRow        = 20.0, 17.0
	swatch, swatchGap, apart = 12.0, 5.0, 16.0 // of the legend
)

// chart is a drawing under way. Lengths are CSS pixels from the upper left corner.
type chart struct {
	bytes.Buffer
	keys                     []string
	found                    []window.Series
	width, height            float64
	gap                      float64 // between the parts, less where the picture is low
	left, top, right, bottom float64 // of the plot, where the lines are
	most                     float64 // the number of hits at the top of the plot
}

// seriesChart draws the hits of each finished step as a level from its beginning
// to its end, as SVG. Where nobody counted, or counting goes on, there is no line: a
// step that has hardly begun would look like a fall.
func seriesChart(keys []string, found []window.Series, v view) []byte {
	c := &chart{keys: keys, found: found, width: float64(v.Width), height: float64(v.Height)}
	c.gap = min(c.height/40, 8)
	pad := min(max(min(c.width/40, c.height/15), 6), 20)
	c.left, c.top, c.right, c.bottom = pad, pad, c.width-pad, c.height-pad-textRow
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" class="tallyroll" role="img" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">`,
		v.Width, v.Height)
	c.describe()
	fmt.Fprintf(c, "<style>\n%s</style>\n<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>\n", chartStyle)
	c.heading()
	if len(keys) > 1 {
		c.legend()
	}
	c.axes()
	c.lines()
	c.WriteString("</svg>\n")
	return c.Bytes()
}

// describe says in words what there is to see, for those who cannot see it.
func (c *chart) describe() {
	f := c.found[0]
	fmt.Fprintf(c, "\n<title>%s: %s</title>\n<desc>From %s to %s (UTC), as of %s.", escaped(strings.Join(c.keys, ", ")), c.unit(),
		clock(f.Range.From), clock(f.Range.To), clock(f.AsOf))
	for i, f := range c.found {
		if begun, finished := f.Begun(), f.Finished(); begun < finished {
			least, most := int64(math.MaxInt64), int64(0)
			for _, n := range f.Counts[begun:finished] {
				least, most = min(least, n), max(most, n)
			}
			fmt.Fprintf(c, " %s: %s to %s.", escaped(c.keys[i]), grouped(uint64(max(least, 0))), grouped(uint64(most)))
		} else {
			fmt.Fprintf(c, " %s: %s.", escaped(c.keys[i]), nothingYet)
		}
	}
	c.WriteString("</desc>\n")
}

func (c *chart) unit() string { return "hits per " + window.FormatDuration(c.found[0].Step) }

func clock(milli int64) string { return timeOf(milli).Format(time.DateTime) }

// heading says what is counted, and how fresh it is: beside it if there is room,
// otherwise below.
func (c *chart) heading() {
	title, before := c.unit(), ""
	if len(c.keys) == 1 {
		title, before = c.keys[0], c.unit()+" · "
	}
	at := timeOf(c.found[0].AsOf)
	full := "UTC, as of " + at.Format(time.DateTime)
	titleWidth, room := boldness*textWidth(title, titleSize), c.right-c.left
	baseline := c.top + titleSize - 2
	if rest := room - titleWidth - 2*apart; rest >= textWidth(before+full, textSize) {
		c.name("title", c.left, c.top, titleWidth+apart, titleRow, title)
		fmt.Fprintf(c, "<text x=\"%s\" y=\"%s\" text-anchor=\"end\">%s%s</text>\n", px(c.right), px(baseline), before, full)
		c.top += titleRow + c.gap
		return
	}
	c.name("title", c.left, c.top, room, titleRow, fitted(title, titleSize, room/boldness))
	// The description has the whole of it.
	shortest := "as of " + at.Format(time.TimeOnly) + " UTC"
	text := shortest
	for _, longer := range []string{before + full, before + shortest, full} {
		if textWidth(longer, textSize) <= room {
			text = longer
			break
		}
	}
	fmt.Fprintf(c, "<text x=\"%s\" y=\"%s\">%s</text>\n", px(c.left), px(c.top+titleRow+textSize-1), text)
	c.top += titleRow + textRow + c.gap
}

// name writes a name of strangers into a box. An svg within an svg cuts off what
// is outside it: some characters are wider than anybody reckons with (U+FDFD).
func (c *chart) name(class string, x, y, width, height float64, text string) {
	size := textSize
	if class == "title" {
		size = titleSize
	}
	fmt.Fprintf(c, "<svg x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><text class=\"%s\" y=\"%s\">%s</text></svg>\n",
		px(x), px(y), px(width), px(height), class, px(size-2), escaped(text))
}

// legend names the lines, in rows. Where names are long, or the picture is small,
// they are shortened until the plot keeps two fifths of the height.
func (c *chart) legend() {
	room := c.right - c.left
	mostRows := max(1, int((c.bottom-c.top-0.4*c.height)/textRow))
	names, rows := c.flow(room)
	for columns := 2; rows > mostRows && columns <= len(c.keys); columns++ {
		names, rows = c.flow(room / float64(columns))
	}
	for i, n := range names {
		x, y := c.left+n.x, c.top+float64(n.row)*textRow
		fmt.Fprintf(c, "<path class=\"line line%d\" d=\"M%s %sh%s\"/>", i, px(x), px(y+6), px(swatch))
		if n.width > 0 {
			c.name("name", x+swatch+swatchGap, y, n.width, textRow, n.text)
		}
	}
	c.top += float64(rows)*textRow + c.gap
}

// legendName is a name and its place in the legend.
type legendName struct {
	text     string
	x, width float64
	row      int
}

// flow lays the legend out in rows, each name at most so wide with what is around it.
func (c *chart) flow(widest float64) (names []legendName, rows int) {
	const around = swatch + swatchGap + apart
	x, row := 0.0, 0
	for _, key := range c.keys {
		text := fitted(key, textSize, widest-around)
		width := textWidth(text, textSize)
		all := min(widest, width+around)
		if x > 0 && x+all > c.right-c.left+0.01 { // sums of fractions are not exact
			x, row = 0, row+1
		}
		names = append(names, legendName{text, x, width, row})
		x += all
	}
	return names, row + 1
}

// axes draws the grid and its numbers, and finds the place of the plot.
func (c *chart) axes() {
	top := int64(1)
	for _, f := range c.found {
		for _, corner := range levels(f) {
			top = max(top, corner.count)
		}
	}
	ticks := countTicks(top, int((c.bottom-c.top)/34))
	last := ticks[len(ticks)-1]
	c.most = float64(last)
	write := grouped
	widest := widestOf(ticks, write)
	if widest > c.width/5 {
		write = prefixed
		widest = widestOf(ticks, write)
	}
	c.left += widest + 8
	for _, tick := range ticks {
		y := c.y(float64(tick))
		class := "grid"
		if tick == 0 {
			class = "axis"
		}
		fmt.Fprintf(c, "<path class=\"%s\" d=\"M%s %sH%s\"/>", class, px(c.left), sharp(y), px(c.right))
		fmt.Fprintf(c, "<text x=\"%s\" y=\"%s\" text-anchor=\"end\">%s</text>\n", px(c.left-8), px(y+4), write(tick))
	}
	span := c.found[0].Range
	for _, tick := range timeTicks(span.From, span.To, c.right-c.left) {
		x, half := c.x(tick.at), textWidth(tick.label, textSize)/2
		fmt.Fprintf(c, "<path class=\"axis\" d=\"M%s %sv4\"/>", sharp(x), px(c.bottom))
		fmt.Fprintf(c, "<text x=\"%s\" y=\"%s\" text-anchor=\"middle\">%s</text>\n", px(min(x, c.width-half-2)), px(c.bottom+textRow), tick.label)
	}
}

func widestOf(ticks []uint64, write func(uint64) string) float64 {
	widest := 0.0
	for _, tick := range ticks {
		widest = max(widest, textWidth(write(tick), textSize))
	}
	return widest
}

const nothingYet = "no finished step was counted"

// lines draws the levels: as steps, and one line alone with the area below it.
func (c *chart) lines() {
	drawn := false
	for i, f := range c.found {
		corners := levels(f)
		if len(corners) == 0 {
			continue
		}
		drawn = true
		path := c.path(corners)
		if len(c.found) == 1 {
			fmt.Fprintf(c, "<path class=\"area\" d=\"%sV%sH%sZ\"/>\n", path, px(c.bottom), px(c.x(corners[0].at)))
		}
		fmt.Fprintf(c, "<path class=\"line line%d\" d=\"%s\"/>\n", i, path)
	}
	if !drawn {
		room := c.right - c.left
		fmt.Fprintf(c, "<text x=\"%s\" y=\"%s\" text-anchor=\"middle\">%s</text>\n",
			px((c.left+c.right)/2), px((c.top+c.bottom)/2), fitted(nothingYet, textSize, room))
	}
}

// path goes along the corners; levels that look the same are one.
func (c *chart) path(corners []corner) string {
	var out strings.Builder
	y := px(c.y(float64(corners[0].count)))
	fmt.Fprintf(&out, "M%s %s", px(c.x(corners[0].at)), y)
	for i, corner := range corners[1:] {
		next := px(c.y(float64(corner.count)))
		if next != y {
			fmt.Fprintf(&out, "H%sV%s", px(c.x(corner.at)), next)
			y = next
		} else if i == len(corners)-2 {
			fmt.Fprintf(&out, "H%s", px(c.x(corner.at)))
		}
	}
	return out.String()
}

// corner is where a level begins, or the last one ends.
type corner struct{ at, count int64 }

// levels are the corners of the line: the beginning of each step that is counted, and the end of the last.
func levels(f window.Series) []corner {
	begun, finished := f.Begun(), f.Finished()
	if begun >= finished {
		return nil
	}
	out := make([]corner, 0, finished-begun+1)
	for i := begun; i < finished; i++ {
		out = append(out, corner{f.Start(i), f.Counts[i]})
	}
	return append(out, corner{min(f.Start(finished), f.Range.To), out[len(out)-1].count})
}

func (c *chart) x(at int64) float64 {
	span := c.found[0].Range
	return c.left + (c.right-c.left)*float64(at-span.From)/float64(span.To-span.From)
}

func (c *chart) y(count float64) float64 {
	return c.bottom - (c.bottom-c.top)*min(max(count/c.most, 0), 1)
}

// px writes a length to a tenth of a pixel.
func px(length float64) string { return strconv.FormatFloat(math.Round(length*10)/10, 'f', -1, 64) }

// sharp is the middle of a pixel, where a thin line is as thin as it can be.
func sharp(length float64) string { return px(math.Floor(length) + 0.5) }
