package chart

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

// chartStyle has the colours of both modes. It names each colour where it is used and has
// no variables, because programs that turn SVG into PNG do not know them. The colours of
// the lines are those of Okabe and Ito (2008), changed until each stands out from the background and
// from the others, even for people who see few colours: see TestColors.
//
//go:embed chart.css
var chartStyle string

// MaxLines is how many lines a chart may have: chart.css has a colour for each.
const MaxLines = 7

// Sizes of letters and heights of rows in pixels. The sizes are those of chart.css.
const (
	textSize, titleSize        = 12.0, 15.0
	boldness                   = 1.12 // width of bold letters relative to normal ones
	titleRow, textRow          = 20.0, 17.0
	swatch, swatchGap, nameGap = 12.0, 5.0, 16.0 // of the legend
)

// drawing is an unfinished chart. Lengths are CSS pixels from the upper left corner.
type drawing struct {
	bytes.Buffer
	keys                     []string // as they are shown
	series                   []window.Series
	width, height            float64
	zone                     *time.Location
	step                     string  // from one point to the next, in words
	uniques                  bool    // the numbers are not hits
	gap                      float64 // between the parts, less if the picture is low
	left, top, right, bottom float64 // of the plot, where the lines are
	ceiling                  float64 // the number of hits at the top of the plot
	crowd                    int     // steps that share a level
}

// Form is what a chart looks like.
type Form struct {
	Width, Height int            // CSS pixels
	Zone          *time.Location // of the times beside the axis
	Step          string         // what an answer calls the time from one point to the next
	Uniques       bool           // the numbers are how many different ones, not hits
}

// levelWidth is the least pixels of a level: narrower ones would run together into a smear.
const levelWidth = 2

// Draw draws the hits of each finished step as a level from its beginning
// to its end, as SVG. If there are too many for that, a level is the mean of several, in a band from the least of
// them to the most. There is no line for steps that nobody counted or that are still being
// counted: a step that has just begun would look like a fall. A band also has the bounds of steps that are not
// exact. Steps that may lack hits are shaded.
func Draw(keys []string, series []window.Series, form Form) []byte {
	c := &drawing{keys: make([]string, len(keys)), series: series, zone: form.Zone, step: form.Step, uniques: form.Uniques, width: float64(form.Width), height: float64(form.Height)}
	for i, key := range keys {
		c.keys[i] = shown(key)
	}
	c.gap = min(c.height/40, 8)
	pad := min(max(min(c.width/40, c.height/15), 6), 20)
	c.left, c.top, c.right, c.bottom = pad, pad, c.width-pad, c.height-pad-textRow
	c.crowd = max(1, int(math.Ceil(levelWidth*float64(len(series[0].Counts))/(c.right-c.left))))
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" class="tallyroll" role="img" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">`,
		form.Width, form.Height)
	c.describe()
	fmt.Fprintf(c, "<style>\n%s</style>\n<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>\n", chartStyle)
	c.heading()
	if len(keys) > 1 {
		c.legend()
	}
	c.axes()
	c.shade()
	c.lines()
	c.WriteString("</svg>\n")
	return c.Bytes()
}

// describe puts into words what the chart shows, for people who cannot see it.
func (c *drawing) describe() {
	f, names := c.series[0], make([]string, len(c.keys))
	for i, key := range c.keys {
		names[i] = xmlText(apart(key))
	}
	fmt.Fprintf(c, "\n<title>%s: %s</title>\n<desc>From %s to %s (%s), as of %s.", strings.Join(names, ", "), c.unit(),
		c.dateTime(f.Range.From), c.dateTime(f.Range.To), c.zone, c.dateTime(f.AsOf))
	if end := c.incompleteUpTo(); end > f.Range.From {
		fmt.Fprintf(c, " Before %s hits may be missing.", c.dateTime(end))
	}
	for i, f := range c.series {
		if begun, finished := f.Begun(), f.Finished(); begun < finished {
			least, most := int64(math.MaxInt64), int64(0)
			for _, n := range f.Counts[begun:finished] {
				least, most = min(least, n), max(most, n)
			}
			fmt.Fprintf(c, " %s: %s to %s.", names[i], withCommas(uint64(max(least, 0))), withCommas(uint64(most)))
		} else {
			fmt.Fprintf(c, " %s: %s.", names[i], nothingYet)
		}
	}
	c.WriteString("</desc>\n")
}

// incompleteUpTo is the moment before which hits of some counter may be missing.
func (c *drawing) incompleteUpTo() (end int64) {
	for _, f := range c.series {
		end = max(end, min(f.Start(f.CompleteFrom()), f.Range.To))
	}
	return end
}

func (c *drawing) dateTime(milli int64) string {
	return time.UnixMilli(milli).In(c.zone).Format(time.DateTime)
}

// heading writes what is counted, and how fresh it is: beside it if there is room,
// otherwise below.
func (c *drawing) heading() {
	title, before := c.unit(), ""
	if len(c.keys) == 1 {
		title, before = c.keys[0], c.unit()+" · "
	}
	at := time.UnixMilli(c.series[0].AsOf).In(c.zone)
	full := c.zone.String() + ", as of " + at.Format(time.DateTime)
	titleWidth, room := boldness*textWidth(title, titleSize), c.right-c.left
	baseline := c.top + titleSize - 2
	if rest := room - titleWidth - 2*nameGap; rest >= textWidth(before+full, textSize) {
		c.writeName("title", c.left, c.top, titleWidth+nameGap, titleRow, title)
		fmt.Fprintf(c, "<text x=\"%s\" y=\"%s\" text-anchor=\"end\">%s%s</text>\n", px(c.right), px(baseline), before, full)
		c.top += titleRow + c.gap
		return
	}
	c.writeName("title", c.left, c.top, room, titleRow, fitted(title, titleSize, room/boldness))
	// The description has the whole of it.
	shortest := "as of " + at.Format(time.TimeOnly+" MST")
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

// unit is what the numbers are of.
func (c *drawing) unit() string {
	f := c.series[0]
	unit := "hits per " + c.step
	if c.uniques {
		unit = "different ones per " + c.step
	}
	switch {
	case c.crowd > 1 && f.Steps != nil:
		unit += fmt.Sprintf(": mean and range of %d", c.crowd)
	case c.crowd > 1:
		unit += ": mean and range of " + window.FormatDuration(f.Step*time.Duration(c.crowd))
	case f.Bounds != nil:
		unit += " and their bounds"
	}
	return unit
}

// legend names the lines, in rows. If names are long or the picture is small, it shortens
// the names until the plot keeps two fifths of the height.
func (c *drawing) legend() {
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
			c.writeName("name", x+swatch+swatchGap, y, n.width, textRow, n.text)
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
func (c *drawing) flow(widest float64) (names []legendName, rows int) {
	const around = swatch + swatchGap + nameGap
	x, row := 0.0, 0
	for _, text := range fittedApart(c.keys, textSize, widest-around) {
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

// writeName writes a name, which may come from strangers, into a box. An svg within an svg cuts off
// what is outside it: some characters are wider than anybody expects (U+FDFD).
func (c *drawing) writeName(class string, x, y, width, height float64, text string) {
	size := textSize
	if class == "title" {
		size = titleSize
	}
	fmt.Fprintf(c, "<svg x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><text class=\"%s\" y=\"%s\">%s</text></svg>\n",
		px(x), px(y), px(width), px(height), class, px(size-2), xmlText(text))
}

// sharp returns the middle of a pixel, where a thin line is as thin as it can be.
func sharp(length float64) string { return px(math.Floor(length) + 0.5) }

// px writes a length to a tenth of a pixel.
func px(length float64) string { return strconv.FormatFloat(math.Round(length*10)/10, 'f', -1, 64) }
