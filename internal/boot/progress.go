package boot

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// Progress holds how much of a job is done. If nothing is left and Open is false, the job is over or
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

// Screen is where a program's log lines go. On a terminal, it also shows one line below
// them with a progress bar. Both go through the Screen, so neither breaks the
// other. Anywhere else, it only writes the log lines, and shows no progress.
type Screen struct {
	out   io.Writer
	words Words
	width func() int // columns; nil if out is not a terminal

	mu    sync.Mutex
	parts map[string]Progress // the jobs that the bar sums up; finished ones stay until all are finished
	drawn time.Time
}

// NewScreen returns a screen on a file such as standard error.
func NewScreen(out io.Writer, words Words) *Screen {
	if !isTerminal(out) || os.Getenv("TERM") == "dumb" {
		return &Screen{out: out}
	}
	f := out.(*os.File)
	return newScreen(f, words, func() int {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
		return 80 // a terminal that does not know its size
	})
}

func newScreen(out io.Writer, words Words, width func() int) *Screen {
	return &Screen{out: out, words: words, width: width, parts: make(map[string]Progress)}
}

const (
	lineStart = "\r"
	clearRest = "\x1b[K" // to the end of the line
	// redrawEvery is a little less than the second after which each part reports its progress.
	redrawEvery = 900 * time.Millisecond
)

// Write writes whole log lines above the bar.
func (s *Screen) Write(lines []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parts) == 0 {
		return s.out.Write(lines)
	}
	if _, err := io.WriteString(s.out, lineStart+clearRest+string(lines)+s.bar()); err != nil {
		return 0, err
	}
	return len(lines), nil
}

// Progress shows how much of one part of the work is done. All parts share one bar, which
// vanishes when the last of them is over.
func (s *Screen) Progress(part string, p Progress) {
	if s.width == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, shown := s.parts[part]
	switch {
	case p.underWay():
		s.parts[part] = p
	case !shown:
		return
	default: // what it has done still counts among the others
		s.parts[part] = Progress{Done: before.Done}
	}
	if before.underWay() == p.underWay() && time.Since(s.drawn) < redrawEvery {
		return
	}
	s.drawn = time.Now()
	_, _ = io.WriteString(s.out, s.bar()) // a terminal that is gone shows nothing
}

// bar draws the bar over what the last line shows, or clears that line once all is over.
func (s *Screen) bar() string {
	var sum Progress
	for _, p := range s.parts {
		sum.Done += p.Done
		sum.Left += p.Left
		sum.Open = sum.Open || p.Open
		sum.PerSecond += p.PerSecond
		sum.Gained += p.Gained
	}
	if !sum.underWay() {
		clear(s.parts)
		return lineStart + clearRest
	}
	// The last column stays empty: some terminals wrap there.
	return lineStart + sum.line(s.width()-1, s.words) + clearRest
}

// Bar shows on a Screen how many items of one job are done. Its methods may be called from any goroutine.
type Bar struct {
	Screen *Screen // where log lines go
	start  time.Time
	total  atomic.Int64 // 0 while nobody knows
	done   atomic.Int64
}

// NewBar returns the bar of a job that begins now, on a file such as standard error.
func NewBar(out io.Writer, items string) *Bar {
	return &Bar{Screen: NewScreen(out, Words{Items: items, End: "done"}), start: time.Now()}
}

// Expect sets how many items there will be.
func (b *Bar) Expect(items int64) { b.total.Store(items) }

// Add notes that more items are done.
func (b *Bar) Add(items int) {
	done, total := b.done.Add(int64(items)), b.total.Load()
	rate := float64(done) / time.Since(b.start).Seconds()
	b.Screen.Progress("", Progress{
		Done: uint64(done), Left: uint64(max(0, total-done)), Open: total == 0, PerSecond: rate, Gained: rate,
	})
}

// End takes the bar away, so that what comes next stands alone.
func (b *Bar) End() { b.Screen.Progress("", Progress{}) }
