package query

import (
	"fmt"
	"strings"

	"tallyroll/internal/window"
)

// axes draws the grid and its numbers, and finds the place of the plot.
func (c *chart) axes() {
	highest := int64(1)
	for _, f := range c.series {
		for _, corner := range levels(f) {
			highest = max(highest, corner.hits)
		}
	}
	ticks := hitTicks(highest, int((c.bottom-c.top)/34))
	last := ticks[len(ticks)-1]
	c.ceiling = float64(last)
	write := withCommas
	widest := widestOf(ticks, write)
	if widest > c.width/5 {
		write = withPrefix
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
	shown := c.series[0].Range
	for _, tick := range timeTicks(shown.From, shown.To, c.right-c.left) {
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
	for i, f := range c.series {
		corners := levels(f)
		if len(corners) == 0 {
			continue
		}
		drawn = true
		path := c.path(corners)
		if len(c.series) == 1 {
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

// path draws a line along the corners. It merges levels that look the same.
func (c *chart) path(corners []corner) string {
	var out strings.Builder
	y := px(c.y(float64(corners[0].hits)))
	fmt.Fprintf(&out, "M%s %s", px(c.x(corners[0].at)), y)
	for i, corner := range corners[1:] {
		next := px(c.y(float64(corner.hits)))
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
type corner struct{ at, hits int64 }

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
	return append(out, corner{min(f.Start(finished), f.Range.To), out[len(out)-1].hits})
}

func (c *chart) x(at int64) float64 {
	shown := c.series[0].Range
	return c.left + (c.right-c.left)*float64(at-shown.From)/float64(shown.To-shown.From)
}

func (c *chart) y(hits float64) float64 {
	return c.bottom - (c.bottom-c.top)*min(max(hits/c.ceiling, 0), 1)
}
