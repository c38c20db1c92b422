package boot

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLogFormatIsJSONUnlessATerminalReadsIt(t *testing.T) {
	var byDefault struct{ Log Log }
	require.NoError(t, Parse(&byDefault))
	require.EqualValues(t, "auto", byDefault.Log.Format)
	for format, want := range map[LogFormat]string{
		"auto": `^\{`,
		// Lines of several programs are put in order by their times: these have milliseconds.
		"json":    `^\{.*"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)"`,
		"console": `^\d\d:\d\d:\d\d\.\d{3} INF hello[^\x1b]*$`, // without colours
	} {
		var text bytes.Buffer
		log := byDefault.Log
		log.Format = format
		line := log.New(NewScreen(&text, "messages"))
		line.Info().Msg("hello")
		require.Regexp(t, want, text.String(), format)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer file.Close()
	if isTerminal(file) || isTerminal(NewScreen(file, "messages")) {
		t.Error("a file is taken for a terminal")
	}
}

// ConnectedUrlRedacted leaves tokens in: outside of this package nobody may ask a
// connection where it is.
func TestOnlyBootAsksConnectionsForTheirServers(t *testing.T) {
	for _, dir := range []string{"../../cmd", "../../internal"} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || filepath.Base(filepath.Dir(path)) == "boot" {
				return err
			}
			text, err := os.ReadFile(path)
			if bytes.Contains(text, []byte(".ConnectedUrl")) {
				t.Errorf("%s asks a connection for its URL: take boot.NATSServer", path)
			}
			return err
		})
		require.NoError(t, err)
	}
}

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
	return f, &Screen{out: f, items: "messages", parts: map[string]Progress{}}
}

func TestScreenKeepsTheBarBelowTheLog(t *testing.T) {
	f, s := newTerminal()
	fmt.Fprintln(s, "before")
	s.Progress("HITS", Progress{}) // every second, if there is no backlog
	require.Equal(t, []string{"before", ""}, f.lines)
	s.Progress("HITS", Progress{Done: 100, Left: 900})
	fmt.Fprintln(s, "while it runs")
	require.Regexp(t, `\(100/1000, .*messages/`, f.last())
	s.Progress("HITS", Progress{})
	fmt.Fprintln(s, "after")
	require.Equal(t, []string{"before", "while it runs", "after", ""}, f.lines)
}

// All parts share one bar: what is over counts as done, and the bar stays until the last part is over.
func TestScreenSharesOneBarAmongAllParts(t *testing.T) {
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
			require.Contains(t, f.last(), step.want)
			require.Equal(t, step.want == "", f.last() == "", "%s, %+v: %q", step.part, step.p, f.last())
		}
	})
}

func TestScreenOfAJobOfUnknownSizeShowsHowFarItIs(t *testing.T) {
	f, s := newTerminal()
	s.Progress("", Progress{Done: 1000, Open: true})
	require.Contains(t, f.last(), "1000/-")
	s.Progress("", Progress{})
	require.Equal(t, []string{""}, f.lines)
}

func TestScreenKeepsLinesWholeWithManyWritersAtATime(t *testing.T) {
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
	s.Progress("HITS", Progress{Done: 1, Left: 9})
	fmt.Fprintln(s, "a line")
	s.Progress("HITS", Progress{Done: 2, Left: 8})
	s.Progress("HITS", Progress{})
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "a line\n", string(got))
}

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceParent = "00-" + traceID + "-00f067aa0ba902b7-01"
)

func TestTraceParentIsTakenIfValid(t *testing.T) {
	for _, c := range []struct {
		what, value, want string
	}{
		{"as it should be", traceParent, traceParent},
		{"of a later version", "cc" + traceParent[2:], traceParent},
		{"of a later version that says more", "cc" + traceParent[2:] + "-what-the-future-will-be-like", traceParent},
		{"of a later version that goes on otherwise", "cc" + traceParent[2:] + ".x", ""},
		{"with more than version 00 has", traceParent + "-x", ""},
		{"of the version that is none", "ff" + traceParent[2:], ""},
		{"in upper case", strings.ToUpper(traceParent), ""},
		{"no trace", "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", ""},
		{"no parent", "00-" + traceID + "-0000000000000000-01", ""},
		{"too short", traceParent[:54], ""},
		{"another separator", strings.ReplaceAll(traceParent, "-", "_"), ""},
		{"no digits", strings.Replace(traceParent, "f", "g", 1), ""},
		{"empty", "", ""},
	} {
		for _, name := range []string{"Traceparent", "traceparent"} {
			require.Equal(t, c.want, TraceParent(map[string][]string{name: {c.value}}), c.what)
		}
	}
	require.Empty(t, TraceParent(map[string][]string{"Traceparent": {traceParent, traceParent}}))
	require.Empty(t, TraceParent(nil))
}

// A line has the trace of the request whose context it has, and of no other.
func TestLogNamesTheTrace(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	var out bytes.Buffer
	log := Sampled(Log{Format: "json"}.New(&out)) // as clients' failures are
	ctx := WithTrace(t.Context(), map[string][]string{"Traceparent": {"00-" + id + "-00f067aa0ba902b7-01"}})
	log.Warn().Ctx(ctx).Msg("with")
	log.Warn().Ctx(t.Context()).Msg("without")
	log.Warn().Msg("alone")
	if got := out.String(); strings.Count(got, "trace_id") != 1 || !strings.Contains(got, `"message":"with"}`) || !strings.Contains(got, `"trace_id":"`+id+`","message":"with"`) {
		t.Errorf("%s", got)
	}
}

func TestSignalsWithinASecondAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		stopped, gaveUp := false, false
		go func() {
			obey(signals, func() { stopped = true })
			gaveUp = true
		}()
		for _, step := range []struct {
			after           time.Duration
			stopped, gaveUp bool
		}{{0, true, false}, {0, true, false}, {time.Millisecond, true, false}, {900 * time.Millisecond, true, false}, {200 * time.Millisecond, true, true}} {
			time.Sleep(step.after)
			signals <- os.Interrupt
			synctest.Wait()
			if stopped != step.stopped || gaveUp != step.gaveUp {
				t.Fatalf("%v later: stopped %v, gave up %v; want %+v", step.after, stopped, gaveUp, step)
			}
		}
	})
}

func TestRevisionNamesCommitAndDirt(t *testing.T) {
	for want, settings := range map[string][]debug.BuildSetting{
		"":             {{Key: "GOOS", Value: "linux"}, {Key: "vcs.modified", Value: "true"}},
		"0012ab":       {{Key: "vcs.revision", Value: "0012ab"}, {Key: "vcs.modified", Value: "false"}},
		"0012ab+dirty": {{Key: "vcs.revision", Value: "0012ab"}, {Key: "vcs.modified", Value: "true"}},
	} {
		require.Equal(t, want, revisionOf(&debug.BuildInfo{Settings: settings}))
	}
}

func TestBallastLetsGarbageWait(t *testing.T) {
	goal := func() uint64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := goal()
	TakeBallast()
	t.Cleanup(func() { ballast = nil })
	if after := goal(); after < before+ballastBytes {
		t.Errorf("the heap is collected at %d bytes, and was at %d", after, before)
	}
}
