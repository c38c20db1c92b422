package boot

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Progress is how far a work is. Without anything left it is over, or not known, unless it is open.
type Progress struct {
	Done, Left uint64  // items, since it began
	Open       bool    // nobody knows how much there is
	PerSecond  float64 // items done
	Gained     float64 // by how many items a second Left shrinks; what comes meanwhile makes it less, even negative
}

// Words name what a progress is of: "1,234 messages left", "caught up in 5s".
type Words struct{ Items, End string }

func (p Progress) underWay() bool { return p.Left > 0 || p.Open }

// Seconds is how long the rest takes at this rate; +Inf where more comes than is done.
func (p Progress) Seconds() float64 {
	if p.Gained <= 0 {
		return math.Inf(1)
	}
	return float64(p.Left) / p.Gained
}

// leastBar is the shortest bar, in columns, that says more than the words beside it.
const leastBar = 10

// line is a progress in at most so many columns. The bar takes what the words
// leave; where there is too little for both, less is said.
func (p Progress) line(columns int, words Words) string {
	rate := "  " + Thousands(p.PerSecond) + "/s"
	if p.Open {
		return widest(columns, Thousands(float64(p.Done))+" "+words.Items+rate, Thousands(float64(p.Done)))
	}
	done := float64(p.Done) / float64(p.Done+p.Left)
	percent := fmt.Sprintf("%2d %%", int(100*done)) // rounded down: 100 would be the end
	left := "  " + Thousands(float64(p.Left)) + " " + words.Items + " left"
	end := "  never " + words.End + " at this rate"
	if s := p.Seconds(); s < math.MaxInt64/1e9 {
		end = "  " + words.End + " in " + time.Duration(s*1e9).Round(time.Second).String()
	}
	for _, words := range []string{percent + left + rate + end, percent + left + end, percent + end, percent} {
		if bar := columns - len("[] ") - len(words); bar >= leastBar {
			full := int(done * float64(bar))
			return "[" + strings.Repeat("#", full) + strings.Repeat(".", bar-full) + "] " + words
		}
	}
	return widest(columns, percent)
}

// widest is the first of the texts that fits; empty where none does.
func widest(columns int, texts ...string) string {
	for _, text := range texts {
		if len(text) <= columns {
			return text
		}
	}
	return ""
}

// Thousands is a number to the nearest whole one, with commas: 1,234,567.
func Thousands(n float64) string {
	s := strconv.FormatFloat(n, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
