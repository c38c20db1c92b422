package query

import "fmt"

// legend names the lines, in rows. If names are long or the picture is small, it shortens
// the names until the plot keeps two fifths of the height.
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
func (c *chart) flow(widest float64) (names []legendName, rows int) {
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
