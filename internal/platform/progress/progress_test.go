package progress

import (
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

func (f *terminal) last() string { return f.lines[len(f.lines)-1] }

func newTerminal() (*terminal, *Screen) {
	f := &terminal{columns: 200}
	return f, &Screen{out: f, items: "messages", parts: map[string]State{}}
}

func TestScreenKeepsTheBarBelowTheLog(t *testing.T) {
	f, s := newTerminal()
	fmt.Fprintln(s, "before")
	s.Progress("HITS", State{}) // every second, if there is no backlog
	require.Equal(t, []string{"before", ""}, f.lines)
	s.Progress("HITS", State{Done: 100, Left: 900})
	fmt.Fprintln(s, "while it runs")
	require.Regexp(t, `\(100/1000, .*messages/`, f.last())
	s.Progress("HITS", State{})
	fmt.Fprintln(s, "after")
	require.Equal(t, []string{"before", "while it runs", "after", ""}, f.lines)
}

// All parts share one bar: what is over counts as done, and the bar stays until the last part is over.
func TestScreenSharesOneBarAmongAllParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newTerminal()
		for _, step := range []struct {
			part string
			p    State
			want string // on the last line
		}{
			{"A", State{Done: 10, Left: 90}, "(10/100, "},
			{"B", State{Done: 20, Left: 80}, "(30/200, "},
			{"A", State{Done: 20, Left: 80}, "(30/200, "}, // once per second, however many parts there are
			{"", State{}, ""},
			{"B", State{Done: 30, Left: 70}, "(50/200, "},
			{"A", State{}, "(50/120, "},
			{"B", State{}, ""},
		} {
			if step.part == "" {
				time.Sleep(time.Second)
				continue
			}
			s.Progress(step.part, step.p)
			require.Contains(t, f.last(), step.want)
			require.Equal(t, step.want == "", f.last() == "", "%s, %+v: %q", step.part, step.p, f.last())
		}
	})
}

func TestScreenOfAJobOfUnknownSizeShowsHowFarItIs(t *testing.T) {
	f, s := newTerminal()
	s.Progress("", State{Done: 1000, Open: true})
	require.Contains(t, f.last(), "1000/-")
	s.Progress("", State{})
	require.Equal(t, []string{""}, f.lines)
}

func TestScreenKeepsLinesWholeWithManyWritersAtATime(t *testing.T) {
	f, s := newTerminal()
	const parts, lines = 8, 200
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			for i := range lines {
				s.Progress(fmt.Sprint(part), State{Done: uint64(i), Left: lines - uint64(i)})
				fmt.Fprintf(s, "part %d line %d\n", part, i)
			}
			s.Progress(fmt.Sprint(part), State{})
		})
	}
	all.Wait()
	require.Empty(t, f.last())
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

func TestScreenThatIsNoTerminalHasNoBar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	s := NewScreen(file, "messages")
	s.Progress("HITS", State{Done: 1, Left: 9})
	fmt.Fprintln(s, "a line")
	s.Progress("HITS", State{Done: 2, Left: 8})
	s.Progress("HITS", State{})
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "a line\n", string(got))
}
