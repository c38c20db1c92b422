package chart

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// axes draws the grid and its numbers, and finds the place of the plot.
func (c *drawing) axes() {
	highest := int64(1)
	for _, f := range c.series {
		for _, corner := range levels(f, c.crowd) {
			highest = max(highest, corner.most)
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
	for _, tick := range timeTicks(shown.From, shown.To, c.right-c.left, c.zone) {
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

// hitTicks are the numbers beside the axis of hits: 0 and the multiples of a
// step, the last of which is the highest number or the first above it. The step is the smallest
// of 1, 2 and 5 times a power of ten with which at most the given number of ticks follow the 0
// (P. Heckbert, "Nice Numbers for Graph Labels", Graphics Gems, 1990). It is a whole
// number, because there are no half hits. The largest tick is 10¹⁹.
func hitTicks(highest int64, most int) []uint64 {
	last := uint64(max(highest, 1))
	step := uint64(1)
	for i := 0; (last-1)/step+1 > uint64(max(most, 1)); i++ {
		if i%3 == 1 {
			step = step / 2 * 5
		} else {
			step *= 2
		}
	}
	ticks := []uint64{0}
	for tick := step; ; tick += step {
		ticks = append(ticks, tick)
		if tick >= last {
			return ticks
		}
	}
}

// withCommas writes 1234567 as 1,234,567.
func withCommas(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	var out strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(',')
		}
		out.WriteRune(d)
	}
	return out.String()
}

// withPrefix writes 1500000 as 1.5M, with the prefixes of the SI. Of a tick it
// drops nothing but zeros.
func withPrefix(n uint64) string {
	unit, prefix := uint64(1), ""
	for _, larger := range []string{"k", "M", "G", "T", "P", "E"} {
		if n/unit < 1000 {
			break
		}
		unit, prefix = unit*1000, larger
	}
	text := strconv.FormatUint(n/unit, 10)
	if rest := n % unit; rest > 0 {
		text += "." + strings.TrimRight(strconv.FormatUint(unit+rest, 10)[1:], "0")
	}
	return text + prefix
}

// timeTick is a moment on the axis of time and what stands below it.
type timeTick struct {
	at    int64 // Unix milliseconds
	label string
}

// cadence is the time from one tick to the next: whole months, or a duration.
type cadence struct {
	every  time.Duration // of months the shortest
	months int
	widest string // of its labels
}

const day = 24 * time.Hour

var cadences = []cadence{
	{time.Second, 0, "00:00:00"}, {2 * time.Second, 0, "00:00:00"}, {5 * time.Second, 0, "00:00:00"},
	{10 * time.Second, 0, "00:00:00"}, {15 * time.Second, 0, "00:00:00"}, {30 * time.Second, 0, "00:00:00"},
	{time.Minute, 0, "Nov 30"}, {2 * time.Minute, 0, "Nov 30"}, {5 * time.Minute, 0, "Nov 30"},
	{10 * time.Minute, 0, "Nov 30"}, {15 * time.Minute, 0, "Nov 30"}, {30 * time.Minute, 0, "Nov 30"},
	{time.Hour, 0, "Nov 30"}, {2 * time.Hour, 0, "Nov 30"}, {3 * time.Hour, 0, "Nov 30"},
	{6 * time.Hour, 0, "Nov 30"}, {12 * time.Hour, 0, "Nov 30"},
	{day, 0, "Nov 30"}, {2 * day, 0, "Nov 30"}, {5 * day, 0, "Nov 30"}, {10 * day, 0, "Nov 30"},
	{28 * day, 1, "2026"}, {90 * day, 3, "2026"}, {181 * day, 6, "2026"}, {365 * day, 12, "2026"},
	{5 * 365 * day, 60, "2026"}, {25 * 365 * day, 300, "2026"},
}

// timeTicks are at round times of a zone's clocks and calendar, as near to
// each other as their labels can be read on an axis of so many pixels.
func timeTicks(from, to int64, pixels float64, zone *time.Location) []timeTick {
	const gap = 26 // pixels between labels, at least
	length := float64(to - from)
	c := cadences[len(cadences)-1]
	for _, finer := range cadences {
		if pixels*float64(finer.every.Milliseconds()) >= length*(textWidth(finer.widest, textSize)+gap) {
			c = finer
			break
		}
	}
	var out []timeTick
	// Ticks are found by what the clocks show, as if that were UTC. If a change leaves one out, time.Date returns
	// a moment beside it.
	for shown := c.firstTick(shownIn(zone, from)); ; shown = c.nextTick(shown) {
		year, month, day := shown.Date()
		hour, minute, second := shown.Clock()
		at := time.Date(year, month, day, hour, minute, second, 0, zone).UnixMilli()
		switch {
		case at > to:
			return out
		case at >= from:
			out = append(out, timeTick{at, shown.Format(c.labelFormat(shown))})
		}
	}
}

// shownIn is what the clocks of a zone show at a moment, as a time of UTC.
func shownIn(zone *time.Location, milli int64) time.Time {
	at := time.UnixMilli(milli).In(zone)
	_, offset := at.Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// firstTick is the last tick that is not after a moment.
func (c cadence) firstTick(at time.Time) time.Time {
	if c.months == 0 {
		return at.Truncate(c.every)
	}
	months := at.Year()*12 + int(at.Month()) - 1
	return time.Date(0, time.Month(months-months%c.months+1), 1, 0, 0, 0, 0, time.UTC)
}

func (c cadence) nextTick(at time.Time) time.Time {
	if c.months == 0 {
		return at.Add(c.every)
	}
	return at.AddDate(0, c.months, 0)
}

// labelFormat is how a label is written: a day is named at its midnight, a year at its January.
func (c cadence) labelFormat(at time.Time) string {
	switch {
	case c.months > 0 && at.Month() == time.January:
		return "2006"
	case c.months > 0:
		return "Jan"
	case at.Equal(at.Truncate(day)):
		return "Jan 2"
	case c.every < time.Minute:
		return "15:04:05"
	}
	return "15:04"
}
