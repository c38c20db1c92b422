package boot

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Progress says how much of a job is done. If nothing is left and Open is false, the job is over or
// not known.
type Progress struct {
	Done, Left uint64  // items, since it began
	Open       bool    // nobody knows how much there is
	PerSecond  float64 // items done per second
	Gained     float64 // by how many items Left shrinks per second; negative if more items come than are done
}

// Words name the items and the end of a job: "1,234 messages left", "caught up in 5s".
type Words struct{ Items, End string }

func (p Progress) underWay() bool { return p.Left > 0 || p.Open }

// Seconds is how long the rest takes at this rate. It is +Inf if more comes than is done.
func (p Progress) Seconds() float64 {
	if p.Gained <= 0 {
		return math.Inf(1)
	}
	return float64(p.Left) / p.Gained
}

// leastBar is the length in columns below which a bar says less than the words beside it.
const leastBar = 10

// line shows a progress in at most the given number of columns. The bar takes the columns that
// the words leave. If there is too little room for both, it says less.
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

// widest returns the first of the texts that fits, or an empty one if none does.
func widest(columns int, texts ...string) string {
	for _, text := range texts {
		if len(text) <= columns {
			return text
		}
	}
	return ""
}

// Thousands rounds a number to a whole one and writes it with commas: 1,234,567.
func Thousands(n float64) string {
	s := strconv.FormatFloat(n, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
