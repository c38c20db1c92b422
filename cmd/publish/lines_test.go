package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
	"tallyroll/tests/stack"
)

// However the input is chunked, the lines are those that strings.Split gives.
func TestLineCutterAnyChunks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOf(rapid.StringOf(rapid.RuneFrom([]rune("ab é")))).Draw(t, "lines")
		text := strings.Join(lines, "\n")
		var got []string
		cutter := &lineCutter{each: func(number int64, line []byte, long bool) error {
			if long || number != int64(len(got)+1) {
				t.Fatalf("line %d: long %v after %d lines", number, long, len(got))
			}
			got = append(got, string(line))
			return nil
		}}
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "chunk")
			require.NoError(t, cutter.cut([]byte(rest[:n])))
			rest = rest[n:]
		}
		require.NoError(t, cutter.finish())
		want := strings.Split(text, "\n")
		if want[len(want)-1] == "" {
			want = want[:len(want)-1] // nothing follows the last line end
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

// feedLines runs input through a feeder and returns the names it takes.
func feedLines(t *testing.T, in io.Reader, parse func([]byte) (hit.Hit, error)) (keys []string, bad badLines, err error) {
	t.Helper()
	batch := &batcher{maxHits: 3, maxBytes: 1 << 20, submit: func(m *outbox.Message) error { return nil }}
	f := newFeeder(t.Context(), batch, 0)
	err = f.lines(in, parse, func(h hit.Hit) error {
		keys = append(keys, string(h.Counter))
		return f.take(h)
	})
	return keys, f.bad, err
}

func TestFeedLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*maxLine)
	input := "a\r\n\n" + long + "\nb\n" + strings.Repeat("y", hit.MaxName+1) + "\n\x01\nlast"
	for name, in := range map[string]io.Reader{
		"whole":    strings.NewReader(input),
		"halves":   iotest.HalfReader(strings.NewReader(input)),
		"data+EOF": iotest.DataErrReader(strings.NewReader(input)),
	} {
		t.Run(name, func(t *testing.T) {
			keys, bad, err := feedLines(t, in, parseName)
			require.NoError(t, err)
			require.Equal(t, []string{"a", "b", "last"}, keys)
			if bad.count != 3 || bad.first != 3 || !errors.Is(bad.reason, errLongLine) {
				t.Errorf("bad lines %+v", bad)
			}
		})
	}
}

// A byte-order mark is no part of the first counter's name, in whatever pieces it
// comes; anywhere else it is a character like any other.
func TestFeedByteOrderMark(t *testing.T) {
	t.Parallel()
	const mark = "\ufeff"
	for name, c := range map[string]struct {
		parse func([]byte) (hit.Hit, error)
		input string
		want  []string
	}{
		"lines":    {parseName, mark + "a\n" + mark + "b\n", []string{"a", mark + "b"}},
		"ndjson":   {hit.NewParser().Parse, mark + `{"key":"a"}`, []string{"a"}},
		"combined": {combinedParser("host", ""), mark + goodLine, []string{goodLine[:strings.IndexByte(goodLine, ' ')]}},
		"alone":    {parseName, mark, nil},
	} {
		for _, in := range []io.Reader{strings.NewReader(c.input), iotest.OneByteReader(strings.NewReader(c.input))} {
			keys, bad, err := feedLines(t, in, c.parse)
			if err != nil || bad.count != 0 || !slices.Equal(keys, c.want) {
				t.Errorf("%s: %q, bad %+v, %v; want %q", name, keys, bad, err, c.want)
			}
		}
	}
}

func TestFeedLongestLine(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"", "\n", "\r\n"} {
		line := `{"key":"k","pad":"` + strings.Repeat("x", maxLine-20) + `"}`
		require.Len(t, line, maxLine)
		keys, bad, err := feedLines(t, strings.NewReader(line+end), hit.NewParser().Parse)
		if err != nil || len(keys) != 1 || bad.count != 0 {
			t.Errorf("end %q: %d hits, bad %+v, %v", end, len(keys), bad, err)
		}
	}
}

func TestFeedReadError(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	keys, _, err := feedLines(t, io.MultiReader(strings.NewReader("a\nb\n"), iotest.ErrReader(broken)), parseName)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "after line 2") || len(keys) != 2 {
		t.Fatalf("%q, %v", keys, err)
	}
}

func TestFeedEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	defer out.Close()
	batch := &batcher{maxHits: 10, maxBytes: 1 << 20, submit: func(*outbox.Message) error {
		cancel() // the batch of a pausing input has been submitted
		return nil
	}}
	go out.Write([]byte("a\nb\n")) //nolint:errcheck // a pipe that the test reads
	f := newFeeder(ctx, batch, 0)
	if err := f.lines(in, parseName, f.take); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	require.EqualValues(t, 2, batch.hits)
}

// A log with more names than are allowed stops there.
func TestTooManyNames(t *testing.T) {
	t.Parallel()
	b := stack.NATS(t)
	stream := hitsOf(t, b)
	in := "a\nb\na\nb\nc\na\nd\ne\nf\n"
	o := publishAll(t, b, io.Discard, in, "--format", "lines", "--max-names", "2")
	if want := `stopped before line 5: "c" would be distinct name 3, and each is a counter in Redis: ` +
		`choose a --key with fewer values, or go on from there (tail -n +5) with --max-names 4`; o.err == nil || o.err.Error() != want {
		t.Errorf("%v, want %s", o.err, want)
	}
	if o.report.tally.hits != 4 || o.report.names != 2 || !strings.Contains(o.report.String(), "; 2 distinct names; skipped 0 bad lines") {
		t.Errorf("%s", o.report)
	}
	if _, hits, byKey := counts(t, stream); hits != 4 || byKey["a"] != 2 || byKey["b"] != 2 {
		t.Errorf("%d hits are stored: %v", hits, byKey)
	}

	o = publishAll(t, b, io.Discard, in, "--format", "ndjson", "--rebase", "now", "--max-names", "1")
	if o.err != nil || o.report.names != 0 {
		t.Errorf("%v: %s", o.err, o.report) // no line of it is an object
	}
	in = `{"key":"a"}` + "\n" + `{"key":"b"}`
	o = publishAll(t, b, io.Discard, in, "--format", "ndjson", "--rebase", "now", "--max-names", "1")
	if o.err == nil || !strings.Contains(o.err.Error(), "nothing is published yet") || o.report.tally.hits != 0 {
		t.Errorf("%v: %s", o.err, o.report)
	}
	if o = publishAll(t, b, io.Discard, in, "--format", "ndjson", "--max-names", "2"); o.err != nil || o.report.names != 2 {
		t.Errorf("%v: %s", o.err, o.report)
	}
}
