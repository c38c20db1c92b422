package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// screen is standard error: a place for log lines and, on a terminal, a
// progress bar below them.
type screen struct {
	out io.Writer
	bar *progressbar.ProgressBar // nil where there is no terminal
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.bar = progressbar.NewOptions64(-1,
			progressbar.OptionSetWriter(out),
			progressbar.OptionSetDescription("published"),
			progressbar.OptionSetItsString("hits"),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return s
}

// Write writes a log line where the bar is; the bar comes back below it.
func (s *screen) Write(p []byte) (int, error) {
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	return s.out.Write(p)
}

// expect says how many hits there will be, where that is known; 0 where not.
func (s *screen) expect(hits int64) {
	if s.bar != nil && hits > 0 {
		s.bar.ChangeMax64(hits)
	}
}

func (s *screen) stored(hits int) {
	if s.bar != nil {
		_ = s.bar.Add(hits)
	}
}

// end takes the bar away, so that the last line stands alone.
func (s *screen) end() {
	if s.bar != nil {
		_ = s.bar.Exit()
		_ = s.bar.Clear()
	}
}
