package chart

import (
	"fmt"
	"slices"
	"strings"

	"tallyroll/internal/window"
)

// shade marks the time of which hits may be missing. If there is room, it says so.
func (c *drawing) shade() {
	const note = "hits may be missing"
	end := c.incompleteUpTo()
	width := c.x(end) - c.left
	if end <= c.series[0].Range.From || width < 1 {
		return
	}
	fmt.Fprintf(c, "<rect class=\"doubt\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>\n", px(c.left), px(c.top), px(width), px(c.bottom-c.top))
	if textWidth(note, textSize)+8 < width {
		fmt.Fprintf(c, "<text x=\"%s\" y=\"%s\">%s</text>\n", px(c.left+4), px(c.top+textSize), note)
	}
}

const nothingYet = "no finished step was counted"

// lines draws the levels: as steps, in a band if each is of several, and one line alone with the area below it.
func (c *drawing) lines() {
	drawn := false
	for i, f := range c.series {
		corners := levels(f, c.crowd)
		if len(corners) == 0 {
			continue
		}
		drawn = true
		path := c.path(corners)
		if len(c.series) == 1 {
			fmt.Fprintf(c, "<path class=\"area line%d\" d=\"%sV%sH%sZ\"/>\n", i, path, px(c.bottom), px(c.x(corners[0].at)))
		}
		if c.crowd > 1 || f.Bounds != nil {
			fmt.Fprintf(c, "<path class=\"band line%d\" d=\"%s\"/>\n", i, c.band(corners))
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
func (c *drawing) path(corners []corner) string {
	return "M" + px(c.x(corners[0].at)) + " " + px(c.y(corners[0].hits)) +
		c.stairs(corners, func(level corner) float64 { return level.hits })
}

// band surrounds the levels, from the most of their steps to the least.
func (c *drawing) band(corners []corner) string {
	var out strings.Builder
	most := func(level corner) float64 { return float64(level.most) }
	fmt.Fprintf(&out, "M%s %s%s", px(c.x(corners[0].at)), px(c.y(most(corners[0]))), c.stairs(corners, most))
	y := ""
	for i := len(corners) - 2; i >= 0; i-- {
		next := px(c.y(float64(corners[i].least)))
		if next != y {
			fmt.Fprintf(&out, "H%sV%s", px(c.x(corners[i+1].at)), next)
			y = next
		}
	}
	fmt.Fprintf(&out, "H%sZ", px(c.x(corners[0].at)))
	return out.String()
}

// stairs go on from the first corner to the last, at the height that each level has.
func (c *drawing) stairs(corners []corner, height func(level corner) float64) string {
	var out strings.Builder
	y := px(c.y(height(corners[0])))
	for i, corner := range corners[1:] {
		next := px(c.y(height(corner)))
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
type corner struct {
	at          int64
	hits        float64 // the mean of the level's steps
	least, most int64   // of them, or their bounds
}

// levels are the corners of the line: the beginning of each step that is counted, and the end of the last. So many
// steps share a level.
func levels(f window.Series, crowd int) []corner {
	begun, finished := f.Begun(), f.Finished()
	if begun >= finished {
		return nil
	}
	var out []corner
	for i := begun; i < finished; i += crowd {
		steps := f.Counts[i:min(i+crowd, finished)]
		level := corner{at: f.Start(i), least: slices.Min(steps), most: slices.Max(steps)}
		if f.Bounds != nil {
			for _, b := range f.Bounds[i : i+len(steps)] {
				level.least, level.most = min(level.least, b[0]), max(level.most, b[1])
			}
		}
		for _, n := range steps {
			level.hits += float64(n) / float64(len(steps))
		}
		out = append(out, level)
	}
	end := out[len(out)-1]
	end.at = min(f.Start(finished), f.Range.To)
	return append(out, end)
}

func (c *drawing) x(at int64) float64 {
	shown := c.series[0].Range
	return c.left + (c.right-c.left)*float64(at-shown.From)/float64(shown.To-shown.From)
}

func (c *drawing) y(hits float64) float64 {
	return c.bottom - (c.bottom-c.top)*min(max(hits/c.ceiling, 0), 1)
}
