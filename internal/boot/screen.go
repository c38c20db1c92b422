package boot

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

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
