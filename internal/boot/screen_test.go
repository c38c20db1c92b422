package boot

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// terminal shows what is written to it, as one does that knows \r, \n and the
// erasing of the rest of a line, and wraps lines that reach its last column.
type terminal struct {
	columns int
	lines   []string
	at      int // column of the last line
}

func (f *terminal) width() int { return f.columns }

func (f *terminal) Write(p []byte) (int, error) {
	for rest := string(p); rest != ""; {
		if len(f.lines) == 0 || f.at == f.columns {
			f.lines, f.at = append(f.lines, ""), 0
		}
		last := &f.lines[len(f.lines)-1]
		if after, ok := strings.CutPrefix(rest, "\x1b[K"); ok {
			*last, rest = (*last)[:f.at], after
			continue
		}
		switch c := rest[0]; c {
		case '\r':
			f.at = 0
		case '\n':
			f.lines, f.at = append(f.lines, ""), 0
		default:
			*last = (*last)[:f.at] + string(c) + (*last)[min(f.at+1, len(*last)):]
			f.at++
		}
		rest = rest[1:]
	}
	return len(p), nil
}

func (f *terminal) shows(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(f.lines, want) {
		t.Errorf("the terminal shows\n%s\nwant\n%s", strings.Join(f.lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestScreenKeepsTheBarBelowTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &terminal{columns: 80}
		s := newScreen(f, ofBacklog, f.width)
		log := zerolog.New(s)
		log.Info().Msg("before")
		s.Progress("HITS", Progress{}) // every second, where there is no backlog
		f.shows(t, `{"level":"info","message":"before"}`, "")

		p := Progress{Done: 100, Left: 900, PerSecond: 100, Gained: 100}
		s.Progress("HITS", p)
		f.shows(t, `{"level":"info","message":"before"}`, p.line(79, ofBacklog))
		f.columns = 45 // the bar follows the width
		log.Warn().Msg("a short one")
		f.shows(t, `{"level":"info","message":"before"}`, `{"level":"warn","message":"a short one"}`, p.line(44, ofBacklog))

		f.columns = 80
		time.Sleep(time.Second)
		s.Progress("HITS", Progress{Done: 200, Left: 800, PerSecond: 100, Gained: 100})
		log.Info().Msg("caught up")
		s.Progress("HITS", Progress{})
		log.Info().Msg("after")
		f.shows(t, `{"level":"info","message":"before"}`, `{"level":"warn","message":"a short one"}`,
			`{"level":"info","message":"caught up"}`, `{"level":"info","message":"after"}`, "")
	})
}

func TestScreenSumsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &terminal{columns: 100}
		s := newScreen(f, ofBacklog, f.width)
		shows := func(want Progress) {
			t.Helper()
			f.shows(t, want.line(99, ofBacklog))
		}
		s.Progress("A", Progress{Done: 10, Left: 90, PerSecond: 5, Gained: 5})
		shows(Progress{Done: 10, Left: 90, PerSecond: 5, Gained: 5})
		s.Progress("B", Progress{Done: 20, Left: 80, PerSecond: 9, Gained: -1})
		shows(Progress{Done: 30, Left: 170, PerSecond: 14, Gained: 4})

		// Once a second, however many parts there are.
		s.Progress("A", Progress{Done: 20, Left: 80, PerSecond: 10, Gained: 10})
		shows(Progress{Done: 30, Left: 170, PerSecond: 14, Gained: 4})
		time.Sleep(time.Second)
		s.Progress("B", Progress{Done: 30, Left: 70, PerSecond: 10, Gained: 10})
		shows(Progress{Done: 50, Left: 150, PerSecond: 20, Gained: 20})

		// What is over counts as done; nothing goes backwards.
		s.Progress("A", Progress{})
		shows(Progress{Done: 50, Left: 70, PerSecond: 10, Gained: 10})
		s.Progress("B", Progress{})
		f.shows(t, "")
		s.Progress("B", Progress{Done: 1, Left: 9, PerSecond: 1, Gained: 1})
		shows(Progress{Done: 1, Left: 9, PerSecond: 1, Gained: 1})
	})
}

// What nobody knows the end of shows how far it is, until it is said to be over.
func TestScreenOfAnOpenWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &terminal{columns: 80}
		s := newScreen(f, ofBacklog, f.width)
		s.Progress("", Progress{Done: 1000, Open: true, PerSecond: 500, Gained: 500})
		f.shows(t, "1,000 messages  500/s")
		time.Sleep(time.Second)
		s.Progress("", Progress{Done: 1500, Left: 500, PerSecond: 500, Gained: 500}) // now it is known
		f.shows(t, Progress{Done: 1500, Left: 500, PerSecond: 500, Gained: 500}.line(79, ofBacklog))
		s.Progress("", Progress{})
		f.shows(t, "")
	})
}

func TestScreenManyAtATime(t *testing.T) {
	f := &terminal{columns: 120}
	s := newScreen(f, ofBacklog, f.width)
	const parts, lines = 8, 200
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			for i := range lines {
				s.Progress(fmt.Sprint(part), Progress{Done: uint64(i), Left: lines - uint64(i), PerSecond: 1, Gained: 1})
				fmt.Fprintf(s, "part %d line %d\n", part, i)
			}
			s.Progress(fmt.Sprint(part), Progress{})
		})
	}
	all.Wait()
	if last := f.lines[len(f.lines)-1]; last != "" {
		t.Errorf("the last line is %q", last)
	}
	next := make([]int, parts)
	for _, line := range f.lines[:len(f.lines)-1] {
		var part, i int
		if n, err := fmt.Sscanf(line, "part %d line %d", &part, &i); n != 2 || err != nil || line != fmt.Sprintf("part %d line %d", part, next[part]) {
			t.Fatalf("%q is no whole line in its turn", line)
		}
		next[part]++
	}
	if len(f.lines)-1 != parts*lines {
		t.Errorf("%d lines; want %d", len(f.lines)-1, parts*lines)
	}
}

func TestScreenThatIsNoTerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := NewScreen(file, ofBacklog)
	s.Progress("HITS", Progress{Done: 1, Left: 9})
	fmt.Fprintln(s, "a line")
	s.Progress("HITS", Progress{Done: 2, Left: 8})
	s.Progress("HITS", Progress{})
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, []byte("a line\n")) {
		t.Errorf("the file holds %q, %v", got, err)
	}
}
