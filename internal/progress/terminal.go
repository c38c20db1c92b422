package progress

import (
	"io"
	"os"

	"golang.org/x/term"
)

// IsTerminal reports whether w, or the file behind a Screen, is a terminal.
func IsTerminal(w io.Writer) bool {
	if s, ok := w.(*Screen); ok {
		w = s.out
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
