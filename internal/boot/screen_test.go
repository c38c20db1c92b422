package boot

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// terminal shows what is written to it, as one does that knows \r, \n and the
// erasing of a line, and wraps lines that reach its last column.
type terminal struct {
	columns int
	lines   []string
	at      int // column of the last line
}

func (f *terminal) Write(p []byte) (int, error) {
	for rest := string(p); rest != ""; {
		if len(f.lines) == 0 || f.at == f.columns {
			f.lines, f.at = append(f.lines, ""), 0
		}
		last := &f.lines[len(f.lines)-1]
		if after, ok := strings.CutPrefix(rest, "\x1b[2K"); ok {
			*last, rest, f.at = "", after, 0
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
	require.Equal(t, want, f.lines)
}

func newTerminal() (*terminal, *Screen) {
	f := &terminal{columns: 200}
	return f, &Screen{out: f, items: "messages", parts: map[string]Progress{}}
}

func TestScreenKeepsTheBarBelowTheLog(t *testing.T) {
	f, s := newTerminal()
	fmt.Fprintln(s, "before")
	s.Progress("HITS", Progress{}) // every second, if there is no backlog
	f.shows(t, "before", "")
	s.Progress("HITS", Progress{Done: 100, Left: 900})
	fmt.Fprintln(s, "while it runs")
	if last := f.lines[len(f.lines)-1]; !strings.Contains(last, "(100/1000, ") || !strings.Contains(last, "messages/") {
		t.Errorf("the last line is %q, want a bar with 100 of 1000 messages", last)
	}
	s.Progress("HITS", Progress{})
	fmt.Fprintln(s, "after")
	f.shows(t, "before", "while it runs", "after", "")
}

// All parts share one bar: what is over counts as done, and the bar stays until the last part is over.
func TestScreenSumsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newTerminal()
		for _, step := range []struct {
			part string
			p    Progress
			want string // on the last line
		}{
			{"A", Progress{Done: 10, Left: 90}, "(10/100, "},
			{"B", Progress{Done: 20, Left: 80}, "(30/200, "},
			{"A", Progress{Done: 20, Left: 80}, "(30/200, "}, // once per second, however many parts there are
			{"", Progress{}, ""},
			{"B", Progress{Done: 30, Left: 70}, "(50/200, "},
			{"A", Progress{}, "(50/120, "},
			{"B", Progress{}, ""},
		} {
			if step.part == "" {
				time.Sleep(time.Second)
				continue
			}
			s.Progress(step.part, step.p)
			if last := f.lines[len(f.lines)-1]; !strings.Contains(last, step.want) || step.want == "" && last != "" {
				t.Errorf("%s, %+v: the last line is %q, want %q", step.part, step.p, last, step.want)
			}
		}
	})
}

// A job of unknown size shows how far it is until it is over.
func TestScreenOfAnOpenJob(t *testing.T) {
	f, s := newTerminal()
	s.Progress("", Progress{Done: 1000, Open: true})
	require.Contains(t, f.lines[len(f.lines)-1], "1000/-")
	s.Progress("", Progress{})
	f.shows(t, "")
}

func TestScreenManyAtATime(t *testing.T) {
	f, s := newTerminal()
	const parts, lines = 8, 200
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			for i := range lines {
				s.Progress(fmt.Sprint(part), Progress{Done: uint64(i), Left: lines - uint64(i)})
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
	require.EqualValues(t, parts*lines, len(f.lines)-1)
}

func TestScreenThatIsNoTerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	s := NewScreen(file, "messages")
	s.Progress("HITS", Progress{Done: 1, Left: 9})
	fmt.Fprintln(s, "a line")
	s.Progress("HITS", Progress{Done: 2, Left: 8})
	s.Progress("HITS", Progress{})
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, []byte("a line\n")) {
		t.Errorf("the file holds %q, %v", got, err)
	}
}
