package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"tallyroll/internal/window"
)

// fakeNow is when all series end.
var fakeNow = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// draw draws in UTC, with the step of the first series.
func draw(keys []string, found []window.Series, form Form) []byte {
	form.Zone, form.Step = time.UTC, window.FormatDuration(found[0].Step)
	return Draw(keys, found, form)
}

// aSeries has n points of a wave around a level.
func aSeries(n int, step time.Duration, level float64) window.Series {
	out := window.Series{Step: step, AsOf: fakeNow.UnixMilli(), Counts: make([]int64, n)}
	out.Range.To = out.AsOf
	out.Range.From = out.Range.To - int64(n)*step.Milliseconds()
	for i := range out.Counts {
		out.Counts[i] = int64(level * (1 + 0.8*math.Sin(float64(i)/5)))
	}
	return out
}

// several are counters with a wave each.
func several(n int) (keys []string, found []window.Series) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("/shop/products/%d/reviews", 1000+i))
		found = append(found, aSeries(60, time.Minute, 1000*float64(i+1)))
	}
	return keys, found
}

// Charts of all kinds and sizes are XML, name their counters, and have nothing
// outside the picture. CHARTS names a directory to look at them in.
func TestCharts(t *testing.T) {
	t.Parallel()
	seven, ofSeven := several(MaxLines)
	three, ofThree := several(3)
	late := aSeries(60, time.Minute, 700)
	late.CountingSince, late.AsOf = late.Start(20), late.Start(50)
	unknown := aSeries(60, time.Minute, 700)
	unknown.AsOf = unknown.Range.From
	hostile := []string{
		"größe <&>\"' ]]>", "a\ufffeb\uffffc \U0001fffe", "</text><script>alert(1)</script>", "\u202egnp.\u2066", "\ufdfd\ufdfd\ufdfd", "نص عربي", "👩‍👩‍👧‍👦 日本語",
	}
	for _, c := range []struct {
		name  string
		keys  []string
		found []window.Series
	}{
		{"hour", []string{"/index.html"}, []window.Series{aSeries(60, time.Minute, 12_345)}},
		{"day", three, []window.Series{aSeries(96, 15*time.Minute, 1e6), aSeries(96, 15*time.Minute, 5e5), aSeries(96, 15*time.Minute, 2e5)}},
		{"three", three, ofThree},
		{"seven", seven, ofSeven},
		{"hostile", hostile, ofSeven},
		{"long", []string{strings.Repeat("very-long-", 51)}, []window.Series{aSeries(120, 6*time.Hour, 3)}},
		{"wide", []string{strings.Repeat("W", 512), strings.Repeat("\ufdfd", 170)}, ofSeven[:2]},
		{"minute", []string{"a"}, []window.Series{aSeries(60, time.Second, 40)}},
		{"decade", []string{"a"}, []window.Series{aSeries(520, 7*24*time.Hour, 4e6)}},
		{"zeros", []string{"a"}, []window.Series{aSeries(60, time.Minute, 0)}},
		{"late", []string{"a"}, []window.Series{late}},
		{"unknown", []string{"a"}, []window.Series{unknown}},
		{"one", []string{"a"}, []window.Series{aSeries(1, time.Minute, math.MaxInt64/2)}},
		{"most", []string{"a"}, []window.Series{{Step: time.Minute, Range: late.Range, AsOf: late.Range.To, Counts: []int64{math.MaxInt64, -1}}}},
	} {
		for _, size := range []Form{{Width: 800, Height: 300}, {Width: 390, Height: 240}, {Width: 200, Height: 100}, {Width: 2000, Height: 100}, {Width: 200, Height: 1200}, {Width: 2000, Height: 1200}} {
			name := fmt.Sprintf("%s-%dx%d", c.name, size.Width, size.Height)
			t.Run(name, func(t *testing.T) {
				drawing := draw(c.keys, c.found, size)
				if dir := os.Getenv("CHARTS"); dir != "" {
					if err := os.WriteFile(filepath.Join(dir, name+".svg"), drawing, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if again := draw(c.keys, c.found, size); !bytes.Equal(again, drawing) {
					t.Error("the same series are drawn in another way the second time")
				}
				text := checkDrawing(t, drawing, size)
				if strings.ContainsFunc(strings.NewReplacer("\u2068", "", "\u2069", "").Replace(text), isTurn) || strings.Count(text, "\u2068") != strings.Count(text, "\u2069") {
					t.Errorf("a name changes the direction of what is around it: %q", text)
				}
				for _, key := range c.keys {
					if !strings.Contains(text, printable(key)) {
						t.Errorf("the drawing does not name %s", key)
					}
				}
			})
		}
	}
}

// printable is a name as XML can hold it, and as it leaves the text around it alone.
func printable(key string) string {
	return strings.NewReplacer("\ufffe", "\ufffd", "\uffff", "\ufffd", "\u202e", `\u202e`, "\u2066", `\u2066`).Replace(key)
}

// Every character with which a name could turn the direction of a text is written out, and letters that are read from
// the right are apart from the rest of a sentence.
func TestNamesTurnNothing(t *testing.T) {
	t.Parallel()
	name := "a"
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if unicode.Is(unicode.Bidi_Control, r) {
			name += string(r)
		}
	}
	if got, want := shown(name), `a\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069`; got != want || apart(got) != got {
		t.Errorf("%q is shown as %s", name, got)
	}
	for _, plain := range []string{"", "shop.cart", "größe", "日本語", "שלום", "a\u200db"} {
		if shown(plain) != plain {
			t.Errorf("%q is shown as %q", plain, shown(plain))
		}
	}
	if got := apart("שלום"); got != "\u2068שלום\u2069" {
		t.Errorf("%q", got)
	}
}

var lengths = regexp.MustCompile(`[MHVvh ]?-?[0-9.]+`)

// checkDrawing fails if a drawing is no XML, has an element that we never draw, or
// reaches out of the picture. It returns the text.
func checkDrawing(t *testing.T, drawing []byte, size Form) string {
	t.Helper()
	var all strings.Builder
	var x, width float64 // of the box that a text stands in
	var current xml.StartElement
	inside := func(what string, at, most float64) {
		if !(at >= 0 && at <= most) { // also not a number
			t.Errorf("%s: %v is not within 0 to %v: %s", what, at, most, drawing)
		}
	}
	number := func(e xml.StartElement, name string) float64 {
		for _, a := range e.Attr {
			if a.Name.Local == name {
				n, err := strconv.ParseFloat(a.Value, 64)
				if err != nil {
					t.Errorf("%s of %s: %v", name, e.Name.Local, err)
				}
				return n
			}
		}
		return 0
	}
	w, h := float64(size.Width), float64(size.Height)
	depth := 0 // of svg elements
	for d := xml.NewDecoder(bytes.NewReader(drawing)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatalf("%v in %s", err, drawing)
		}
		switch e := token.(type) {
		case xml.StartElement:
			current = e
			switch e.Name.Local {
			case "svg":
				depth++
				x, width = number(e, "x"), number(e, "width")
				inside("a box's right edge", x+width, w)
				inside("a box's lower edge", number(e, "y")+number(e, "height"), h)
			case "path":
				pathInside(t, e, w, h)
			case "text":
				inside("a text's baseline", number(e, "y"), h-2)
			case "title", "desc", "style", "rect":
			default:
				t.Errorf("<%s> in a drawing", e.Name.Local)
			}
		case xml.EndElement:
			if e.Name.Local == "svg" {
				depth--
			}
			current = xml.StartElement{}
		case xml.CharData:
			all.Write(e)
			if current.Name.Local != "text" {
				continue
			}
			long := textWidth(string(e), textSize)
			if depth > 1 {
				inside("a name's end", long, width+0.1)
				continue
			}
			at := number(current, "x")
			from, to := at, at+long
			for _, a := range current.Attr {
				switch {
				case a.Name.Local == "text-anchor" && a.Value == "end":
					from, to = at-long, at
				case a.Name.Local == "text-anchor" && a.Value == "middle":
					from, to = at-long/2, at+long/2
				}
			}
			inside("where "+string(e)+" begins", from+0.1, w)
			inside("where "+string(e)+" ends", to-0.1, w)
		}
	}
}

// pathInside fails if a path leaves the picture.
func pathInside(t *testing.T, e xml.StartElement, w, h float64) {
	t.Helper()
	for _, a := range e.Attr {
		if a.Name.Local != "d" {
			continue
		}
		x, y := 0.0, 0.0
		for _, step := range lengths.FindAllString(a.Value, -1) {
			n, err := strconv.ParseFloat(strings.TrimLeft(step, "MHVvh "), 64)
			if err != nil {
				t.Fatalf("path %s: %v", a.Value, err)
			}
			switch step[0] {
			case 'M', 'H':
				x = n
			case 'V', ' ':
				y = n
			case 'h':
				x += n
			case 'v':
				y += n
			}
			if x < 0 || x > w || y < 0 || y > h {
				t.Errorf("a path reaches %v, %v: %s", x, y, a.Value)
			}
		}
	}
}

// The plot keeps some height, whatever has to be named.
func TestPlotKeepsItsRoom(t *testing.T) {
	t.Parallel()
	for lines := 1; lines <= MaxLines; lines++ {
		keys, found := several(lines)
		for width := 200; width <= 2000; width += 100 {
			for height := 100; height <= 1200; height += 50 {
				drawing := string(draw(keys, found, Form{Width: width, Height: height}))
				var ys []float64
				for _, m := range regexp.MustCompile(`class="(?:grid|axis)" d="M\S+ (\S+)H`).FindAllStringSubmatch(drawing, -1) {
					y, err := strconv.ParseFloat(m[1], 64)
					if err != nil {
						t.Fatal(err)
					}
					ys = append(ys, y)
				}
				if got, least := ys[0]-ys[len(ys)-1], max(10, 0.3*float64(height)-22); got < least {
					t.Errorf("%d lines in %dx%d: the plot has %v pixels, want %v", lines, width, height, got, least)
				}
			}
		}
	}
}

// A line begins where counting did and ends with the last finished step: it falls
// only where the hits did.
func TestLinesLeaveOutWhatIsNotCounted(t *testing.T) {
	t.Parallel()
	series := func(since, asOf time.Duration) window.Series {
		s := aSeries(4, time.Minute, 0)
		s.Counts = []int64{0, 5, 6, 1}
		s.CountingSince, s.AsOf = s.Range.From+since.Milliseconds(), s.Range.From+asOf.Milliseconds()
		return s
	}
	for _, c := range []struct {
		name string
		of   window.Series
		want string
		path string // in a plot of 400 x 100 pixels that ends at 10 hits
	}{
		{"all", series(-time.Hour, 4*time.Minute), "0:0 60:5 120:6 180:1 240:1", "M0 100H100V50H200V40H300V90H400"},
		{"the last step goes on", series(-time.Hour, 4*time.Minute-1), "0:0 60:5 120:6 180:6", "M0 100H100V50H200V40H300"},
		{"nobody counted at first", series(90*time.Second, 5*time.Minute), "60:5 120:6 180:1 240:1", "M100 50H200V40H300V90H400"},
		{"nothing yet", series(90*time.Second, time.Minute), "", ""},
		{"nothing known", series(-time.Hour, -time.Hour), "", ""},
		{"it began later, and hits have earlier times", series(time.Hour, time.Hour), "60:5 120:6 180:1 240:1", "M100 50H200V40H300V90H400"},
	} {
		corners := levels(c.of, 1)
		var got []string
		for _, corner := range corners {
			got = append(got, fmt.Sprintf("%d:%v", (corner.at-c.of.Range.From)/1000, corner.hits))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
		svg := string(draw([]string{"a"}, []window.Series{c.of}, Form{Width: 400, Height: 200}))
		if drawn, said := strings.Contains(svg, `class="line`), strings.Contains(svg, ">"+nothingYet+"<"); drawn != (c.want != "") || said == drawn {
			t.Errorf("%s: a line %t, a note that there is none %t", c.name, drawn, said)
		}
		if c.want == "" {
			continue
		}
		plot := &drawing{series: []window.Series{c.of}, right: 400, bottom: 100, ceiling: 10}
		if path := plot.path(corners); path != c.path {
			t.Errorf("%s: path %s, want %s", c.name, path, c.path)
		}
	}
}

// Levels that look the same are one stroke: a long series stays a small drawing.
func TestEqualLevelsAreOneStroke(t *testing.T) {
	t.Parallel()
	long := aSeries(3600, time.Second, 0)
	plot := &drawing{series: []window.Series{long}, right: 400, bottom: 100, ceiling: 10}
	if path := plot.path(levels(long, 1)); path != "M0 100H400" {
		t.Errorf("%.100s", path)
	}
}

// If there are more steps than pixels, the line is their mean and the band has the least and the most, so a
// single high step is still to be seen.
func TestCrowdedStepsAreABand(t *testing.T) {
	t.Parallel()
	crowded := aSeries(7, time.Minute, 0)
	crowded.Counts = []int64{2, 4, 6, 0, 0, 9, 5}
	plot := &drawing{series: []window.Series{crowded}, right: 700, bottom: 100, ceiling: 10}
	corners := levels(crowded, 3)
	if got, want := plot.path(corners), "M0 60H300V70H600V50H700"; got != want {
		t.Errorf("the line is %s, want %s", got, want)
	}
	if got, want := plot.band(corners), "M0 40H300V10H600V50H700H700V50H600V100H300V80H0Z"; got != want {
		t.Errorf("the band is %s, want %s", got, want)
	}
	for _, c := range []struct {
		steps int
		band  bool
	}{{60, false}, {300, false}, {3600, true}} {
		f := aSeries(c.steps, time.Second, 100)
		drawing := draw([]string{"a"}, []window.Series{f}, Form{Width: 800, Height: 300})
		said := strings.Contains(string(drawing), "hits per 1s: mean and range of 10s")
		if drawn := strings.Contains(string(drawing), `class="band`); drawn != c.band || said != c.band || len(drawing) > 30_000 {
			t.Errorf("%d steps: a band %t, said %t, %d bytes", c.steps, drawn, said, len(drawing))
		}
	}
}

func TestFitted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		room float64
		want string
	}{
		{"checkout", 100, "checkout"}, {"checkout", 5, ""}, {"checkout", 12, "…"}, {"", 0, ""},
		{"/shop/products/1001/reviews", 100, "/shop/pr…ews"},
		{strings.Repeat("界", 100), 60, "界界…"},
	} {
		got := fitted(c.name, textSize, c.room)
		if got != c.want || textWidth(got, textSize) > c.room {
			t.Errorf("%s in %v pixels: %q, want %q", c.name, c.room, got, c.want)
		}
	}
}

// Names that differ only in the middle stay different if there is room for that.
func TestFittedApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names []string
		room  float64
		want  string
	}{
		{[]string{"checkout", "cart"}, 100, "checkout cart"},
		{[]string{"/shop/products/1000/reviews", "/shop/products/1001/reviews"}, 1000, "/shop/products/1000/reviews /shop/products/1001/reviews"},
		{[]string{"/shop/products/1000/reviews", "/shop/products/1001/reviews"}, 100, "/sho…1000…s /sho…1001…s"},
		{[]string{"/shop/products/1000/reviews", "/shop/products/7/reviews"}, 60, "…1000… /s…7…s"},
		{[]string{"/shop/products/1000/reviews", "/shop/products/1001/reviews"}, 40, "1000 1001"},
		{[]string{"/shop/products/1000", "/shop/products/1001"}, 100, "/shop/pr…1000 /shop/pr…1001"},
		{[]string{"shop.berlin.checkout", "market.berlin.checkout"}, 100, "shop…ckout market…ckout"},
		{[]string{"größe/日本語/größe", "größe/本/größe"}, 80, "…日本語… grö…本…e"},
		{[]string{"/a/b", "/a/b/c/d/e/f/g/h/i/j"}, 50, "/a/b b/c/…/j"},
		{[]string{"the-same-long-name", "the-same-long-name"}, 60, "t…name t…name"},
		{[]string{strings.Repeat("x", 40), strings.Repeat("x", 40) + "y"}, 60, "xxxx…xx xxxx…xy"},
	} {
		got := fittedApart(c.names, textSize, c.room)
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s in %v pixels: %s, want %s", c.names, c.room, s, c.want)
		}
		for _, name := range got {
			if width := textWidth(name, textSize); width > c.room || !utf8.ValidString(name) {
				t.Errorf("%q takes %v pixels of %v", name, width, c.room)
			}
		}
	}
}
