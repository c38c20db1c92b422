// Package progress shows on a terminal how far a job is, below the lines of the log.
package progress

import (
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// State is how much of a job is done. If Left is 0 and Open is false, the job is over or unknown.
type State struct {
	Done, Left uint64  // items, since it began
	Open       bool    // Left is unknown
	PerSecond  float64 // items done per second
	Gained     float64 // by how many items Left shrinks per second; negative if it grows
}

func (p State) underWay() bool { return p.Left > 0 || p.Open }

// Seconds estimates how long the rest takes at this rate. It is +Inf if Left does not shrink.
func (p State) Seconds() float64 {
	if p.Gained <= 0 {
		return math.Inf(1)
	}
	return float64(p.Left) / p.Gained
}

// Screen writes a program's log lines and, on a terminal, a progress bar in the line below them.
type Screen struct {
	out   io.Writer
	items string // what the bar counts; empty if out is not a terminal

	mu    sync.Mutex
	parts map[string]State // the jobs that the bar sums up; finished ones stay until all are finished
	drawn time.Time
	bar   *progressbar.ProgressBar // nil if no job is under way
}

// redrawEvery is a little less than the second after which each part reports its progress.
const redrawEvery = 900 * time.Millisecond

// NewScreen returns a screen on a file such as standard error. Its bar counts items such as "messages".
func NewScreen(out io.Writer, items string) *Screen {
	if !IsTerminal(out) || os.Getenv("TERM") == "dumb" {
		items = ""
	}
	return &Screen{out: out, items: items, parts: make(map[string]State)}
}

// Write writes whole log lines above the bar.
func (s *Screen) Write(lines []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar == nil {
		return s.out.Write(lines)
	}
	_ = s.bar.Clear() // fails only if the terminal is gone
	n, err := s.out.Write(lines)
	_ = s.bar.RenderBlank()
	return n, err
}

// Progress shows how much of one part is done. All parts share one bar, which vanishes with the last of them.
func (s *Screen) Progress(part string, p State) {
	if s.items == "" {
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
	default: // the bar still counts what it has done
		s.parts[part] = State{Done: before.Done}
	}
	if before.underWay() == p.underWay() && time.Since(s.drawn) < redrawEvery {
		return
	}
	s.drawn = time.Now()
	var sum State
	for _, p := range s.parts {
		sum.Done, sum.Left, sum.Open = sum.Done+p.Done, sum.Left+p.Left, sum.Open || p.Open
	}
	s.draw(sum)
}

func (s *Screen) draw(sum State) {
	if !sum.underWay() {
		clear(s.parts)
		if s.bar != nil {
			_ = s.bar.Clear()
			s.bar = nil
		}
		return
	}
	total := int64(sum.Done + sum.Left)
	if sum.Open {
		total = -1
	}
	if s.bar == nil {
		s.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(s.out), progressbar.OptionFullWidth(),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(), progressbar.OptionSetItsString(s.items), progressbar.OptionUseANSICodes(true),
			progressbar.OptionSetSpinnerChangeInterval(0))
	}
	s.bar.ChangeMax64(total)
	_ = s.bar.Set64(int64(sum.Done))
}

// Bar shows the progress of one job on a Screen. It is safe for concurrent use.
type Bar struct {
	Screen *Screen // where log lines go
	start  time.Time
	total  atomic.Int64 // 0 while unknown
	done   atomic.Int64
}

// NewBar returns the bar of a job that begins now, on a file such as standard error.
func NewBar(out io.Writer, items string) *Bar {
	return &Bar{Screen: NewScreen(out, items), start: time.Now()}
}

// Expect sets how many items there will be.
func (b *Bar) Expect(items int64) { b.total.Store(items) }

func (b *Bar) Add(items int) {
	done, total := b.done.Add(int64(items)), b.total.Load()
	rate := float64(done) / time.Since(b.start).Seconds()
	b.Screen.Progress("", State{
		Done: uint64(done), Left: uint64(max(0, total-done)), Open: total == 0, PerSecond: rate, Gained: rate,
	})
}

// End removes the bar.
func (b *Bar) End() { b.Screen.Progress("", State{}) }

// IsTerminal reports whether w, or the file behind a Screen, is a terminal.
func IsTerminal(w io.Writer) bool {
	if s, ok := w.(*Screen); ok {
		w = s.out
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
