package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/progress"
	"tallyroll/tests/cases"
	"tallyroll/tests/stack"
)

func TestLinesAreThoseOfSplitInWhateverChunksTheyCome(t *testing.T) {
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
		return f.feed(h)
	})
	return keys, f.bad, err
}

// A website in one run: its pages with a prefix, and all of it on one counter, each with the visitors.
func TestSkippedPrefixedAndAllNames(t *testing.T) {
	t.Parallel()
	opts := mustParse(t, "--prefix", "shop", "--all", "shop", "--unique", "host", "--skip", `\.(css|js)$`, "--max-names", "1")
	var log strings.Builder
	for _, path := range []string{"/cart", "/a.css", "/b.js?v=1", "/cart?x=1"} {
		fmt.Fprintf(&log, "192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET %s HTTP/1.1\" 200 5\n", path)
	}
	f := newFeeder(t.Context(), &batcher{maxHits: 3, maxBytes: 1 << 20, submit: func(*outbox.Message) error { return nil }}, 0)
	f.names.limit, f.skip = opts.names, opts.skip
	var got []string
	require.NoError(t, f.lines(strings.NewReader(log.String()), opts.parser(), opts.naming(func(h hit.Hit) error {
		got = append(got, string(h.Counter)+" "+string(h.Unique))
		return f.feed(h)
	})))
	require.Equal(t, []string{"shop/cart 192.0.2.1", "shop 192.0.2.1", "shop/cart 192.0.2.1", "shop 192.0.2.1"}, got)
	require.Zero(t, f.bad.count)
	require.EqualValues(t, 4, f.batch.hits)
}

func TestBadLinesAreSkippedAndCounted(t *testing.T) {
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
func TestByteOrderMarkBeforeTheFirstLineIsNoPartOfIt(t *testing.T) {
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

func TestLongestLineIsRead(t *testing.T) {
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

func TestReadErrorNamesTheLastLine(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	keys, _, err := feedLines(t, io.MultiReader(strings.NewReader("a\nb\n"), iotest.ErrReader(broken)), parseName)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "after line 2") || len(keys) != 2 {
		t.Fatalf("%q, %v", keys, err)
	}
}

func TestReadingEndsWithItsContext(t *testing.T) {
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
	if err := f.lines(in, parseName, f.feed); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	require.EqualValues(t, 2, batch.hits)
}

func TestLogWithTooManyNamesStopsThere(t *testing.T) {
	t.Parallel()
	b := stack.SharedNATS(t)
	stream := createHits(t, b)
	in := "a\nb\na\nb\nc\na\nd\ne\nf\n"
	o := publishAll(t, b, io.Discard, in, "--format", "lines", "--max-names", "2")
	if want := `stopped before line 5: "c" would be distinct name 3, and each is a counter in Redis: ` +
		`choose a --key with fewer values, or go on from there (tail -n +5) with --max-names 4`; o.err == nil || o.err.Error() != want {
		t.Errorf("%v, want %s", o.err, want)
	}
	if o.report.tally.hits != 4 || o.report.names != 2 || !strings.Contains(o.report.String(), "; 2 distinct names; skipped 0 bad lines") {
		t.Errorf("%s", o.report)
	}
	if _, hits, byKey := countStored(t, stream); hits != 4 || byKey["a"] != 2 || byKey["b"] != 2 {
		t.Errorf("%d hits are stored: %v", hits, byKey)
	}

	o = publishAll(t, b, io.Discard, in, "--format", "ndjson", "--rebase", "now", "--max-names", "1")
	require.ErrorContains(t, o.err, "no line was a hit")
	require.Zero(t, o.report.names)
	in = `{"key":"a"}` + "\n" + `{"key":"b"}`
	o = publishAll(t, b, io.Discard, in, "--format", "ndjson", "--rebase", "now", "--max-names", "1")
	if o.err == nil || !strings.Contains(o.err.Error(), "nothing is published yet") || o.report.tally.hits != 0 {
		t.Errorf("%v: %s", o.err, o.report)
	}
	if o = publishAll(t, b, io.Discard, in, "--format", "ndjson", "--max-names", "2"); o.err != nil || o.report.names != 2 {
		t.Errorf("%v: %s", o.err, o.report)
	}
}

// textOrNil is a unique value; nil for none.
func textOrNil(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

func TestRebaseKeepsDifferences(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type in struct {
			name   string
			n      int64
			ts     int64
			unique string // empty: none
		}
		hits := rapid.SliceOf(rapid.Custom(func(t *rapid.T) in {
			return in{
				name:   rapid.SampledFrom([]string{"a", "b", "c", "/d?e"}).Draw(t, "name"),
				n:      rapid.Int64Range(1, hit.MaxN).Draw(t, "n"),
				ts:     rapid.OneOf(rapid.Just(int64(hit.NoTime)), rapid.Int64Range(hit.MinTime, hit.MaxTime)).Draw(t, "ts"),
				unique: rapid.SampledFrom([]string{"", "", "a", "u-1", "u-2"}).Draw(t, "unique"),
			}
		})).Draw(t, "hits")
		moment := rapid.Int64Range(hit.MinTime, hit.MaxTime).Draw(t, "moment")
		log := newHitLog()
		latest := int64(hit.NoTime)
		for _, h := range hits {
			latest = max(latest, h.ts)
			require.NoError(t, log.add(hit.Hit{Counter: []byte(h.name), N: h.n, At: h.ts, Unique: textOrNil(h.unique)}))
		}
		var want []in
		for _, h := range hits {
			if h.ts != hit.NoTime {
				h.ts += moment - latest
			}
			if h.ts == hit.NoTime || h.ts >= hit.MinTime { // none is later than the moment
				want = append(want, h)
			}
		}
		dropped := log.rebase(moment)

		var got []in
		err := log.replay(func(h hit.Hit) error {
			got = append(got, in{string(h.Counter), h.N, h.At, string(h.Unique)})
			return nil
		})
		if err != nil || !slices.Equal(got, want) || dropped != len(hits)-len(want) {
			t.Fatalf("%d dropped: %v, want %v: %v", dropped, got, want, err)
		}
	})
}

// A hit that would be shifted to before the year 1 is reported, not sent for workers to reject.
func TestHitRebasedToBeforeTheYear1IsReported(t *testing.T) {
	t.Parallel()
	log := `{"key":"a","ts":"0001-01-01T00:00:00Z"}` + "\n" + `{"key":"b","ts":"2026-11-21T10:00:00Z"}` + "\n" + `{"key":"c"}`
	var published []byte
	batch := &batcher{maxHits: 10, maxBytes: 1 << 20, submit: func(m *outbox.Message) error { published = m.Body; return nil }}
	feed := newFeeder(t.Context(), batch, 0)
	held, err := feed.all(mustParse(t, "--format", "ndjson", "--rebase", "2026-11-21T09:59:59.5Z"), strings.NewReader(log), progress.NewBar(io.Discard, "hits"))
	if err != nil || batch.flush() != nil {
		t.Fatal(err)
	}
	if want := `{"key":"b","ts":1795255199500}` + "\n" + `{"key":"c"}`; held != 2 || string(published) != want {
		t.Errorf("%d held, %s published; want %s", held, published, want)
	}
	require.Contains(t, (report{bad: feed.bad}).String(), "skipped 1 bad lines (first: shifted by --rebase: the time is outside the years 1 to 9999)")
}

// lines are objects that count, objects that do not, and what is no object. internal/hit has what each of
// them is.
var lines = []string{
	`{"key":"a"}`, ` {"key":"\ufffd","n":3,"ts":1763683200000,"unique":"u-17"} `, `{"\u006bey":"a","n":1099511627776,"ts":"2025-11-21T00:00:00Z"}`,
	`{"key":"\ud83d\ude00","id":"7","other":[1,{"key":"no"}]}`, `{"key":"a","key":"b","n":2,"n":5}`, `{"key":"` + strings.Repeat("é", 256) + `"}`,
	`{"key":""}`, `{"key":"a\u0085"}`, "{\"key\":\"\xff\"}", `{"key":"\ud83d"}`, `{"key":"a","n":0}`, `{"key":"a","n":1.0}`, `{"key":"a","n":"7"}`,
	`{"key":"a","ts":253402300800000}`, `{"key":"a","ts":"2025-11-21"}`, `{"key":"a","unique":""}`, `{"key":"a","unique":"\ud83d"}`, `{"key":"a","unique":7}`,
	`{"key":"a","count":7}`, `{"Key":"a"}`, `{"key":"a","uniques":1}`, `[{"key":"a"}]`, `{"key":"a"}{"key":"b"}`, `{"key":"a"`, `{"key":"a",}`, `{}`, `null`, `7`, "k", "\ufeff{}",
}

// mutate changes some bytes of a line.
func mutate(t *rapid.T, line string) string {
	b := []byte(line)
	for range rapid.IntRange(1, 3).Draw(t, "mutations") {
		i := rapid.IntRange(0, len(b)).Draw(t, "place")
		j := min(len(b), i+rapid.IntRange(0, 3).Draw(t, "length"))
		with := rapid.OneOf(
			rapid.SampledFrom([]string{"", `"`, `\`, `\u`, `\ud83d`, "{", "}", "[", "]", ":", ",", "0", "-", ".", "e", " ", "\x00", "\x7f", "\xff", "\ufffd", "\u0085", `"key":`, `"n":`, `"ts":`, `"unique":`, "null"}),
			rapid.Just(line[min(i, len(line)):min(j, len(line))]),
		).Draw(t, "with")
		b = slices.Replace(b, i, j, []byte(with)...)
	}
	return string(b)
}

// lastStored is after all times that a hit can have, so that each hit has its own.
const lastStored = hit.MaxTime

// format writes a hit as it is to be counted, in a form that can be compared.
func format(h hit.Hit) string {
	if h.At == hit.NoTime {
		h.At = lastStored
	}
	if h.Unique != nil {
		return fmt.Sprintf("%q n %d at %d of %q", h.Counter, h.N, h.At, h.Unique)
	}
	return fmt.Sprintf("%q n %d at %d", h.Counter, h.N, h.At)
}

// ingest decodes a body as a worker does whose tiers hold everything.
func ingest(body []byte) (hits []string, rejects []hit.Reject) {
	decoder := hit.NewDecoder(hit.Limits{MaxHits: 1000, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
	found, rejects := decoder.Decode("", lastStored, body) // no subject: a hit without a key has no counter, as in publish
	for _, h := range found {
		hits = append(hits, format(h))
	}
	return hits, rejects
}

// publishLines feeds lines through the program up to the messages' bodies, and returns
// what ingest counts of these.
func publishLines(t rapid.TB, parse func([]byte) (hit.Hit, error), lines ...string) (hits []string, bad badLines) {
	batch := &batcher{maxHits: 3, maxBytes: 1 << 20, submit: func(m *outbox.Message) error {
		counts, rejects := ingest(m.Body)
		require.Empty(t, rejects, "%v %v", lines, m.Body)
		hits = append(hits, counts...)
		return nil
	}}
	feed := newFeeder(context.Background(), batch, 0)
	require.NoError(t, errors.Join(feed.lines(strings.NewReader(strings.Join(lines, "\n")), parse, feed.feed), batch.flush()))
	return hits, feed.bad
}

// compareLine holds a line that publish reads against the same line among others as any producer sends it.
func compareLine(t rapid.TB, text string) {
	text = strings.ReplaceAll(text, "\n", "\f")                                  // so that it is one line
	sent, bad := publishLines(t, hit.NewParser().Parse, `{"key":"first"}`, text) // a first line may have a byte-order mark
	hits, rejects := ingest([]byte(`{"key":"first"}` + "\n" + text))
	if !slices.Equal(sent, hits) || int(bad.count) != len(rejects) {
		t.Fatalf("%q: by publish %v, and bad lines %+v; ingest counts %v and rejects %+v", text, sent, bad, hits, rejects)
	}
}

// What publish takes and sends, ingest counts as the same; what ingest would refuse, publish refuses.
func TestPublishTakesWhatIngestCounts(t *testing.T) {
	t.Parallel()
	for _, text := range lines {
		compareLine(t, text)
	}
	rapid.Check(t, func(t *rapid.T) { compareLine(t, mutate(t, rapid.SampledFrom(lines).Draw(t, "line"))) })
}

func FuzzPublishTakesWhatIngestCounts(f *testing.F) {
	for _, text := range lines {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { compareLine(t, text) })
}

// Whatever stands in the lines of the other formats: what is sent counts.
func TestPublishSendsOnlyWhatCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := mutate(t, rapid.OneOf(rapid.String(), rapid.Just(strings.Repeat("é", 256))).Draw(t, "name"))
		name = strings.NewReplacer("\n", "", "\r", "").Replace(name)
		if got, bad := publishLines(t, parseName, "first", name); len(got)+int(bad.count) != 2 && !hit.Blank([]byte(name)) ||
			len(got) == 2 && got[1] != format(hit.Hit{Counter: []byte(name), N: 1, At: hit.NoTime}) {
			t.Fatalf("%q: %v, bad %+v", name, got, bad)
		}
		year := rapid.SampledFrom([]string{"0000", "0001", "2015", "9999"}).Draw(t, "year")
		day := rapid.SampledFrom([]string{"01/Jan", "31/Dec"}).Draw(t, "day")
		clock := rapid.SampledFrom([]string{"00:00:00 +0000", "00:00:00 +0001", "23:59:59 +0000", "23:59:60 +0000", "23:59:59 -0001"}).Draw(t, "clock")
		access := fmt.Sprintf(`h - - [%s/%s:%s] "GET /%s HTTP/1.1" 200 1`, day, year, clock, name)
		if got, bad := publishLines(t, combinedParser("path", ""), access); len(got)+int(bad.count) != 1 {
			t.Fatalf("%q: %v, bad %+v", access, got, bad)
		}
	})
}

const goodLine = `83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /images/a.png?x=1&y=2 HTTP/1.1" 200 203023 "http://example.com/" "Mozilla/5.0 (X11)"`

func TestLinesOfAccessLogsAreReadOrSkipped(t *testing.T) {
	t.Parallel()
	for file, parser := range map[string]func(key, unique field) func([]byte) (hit.Hit, error){"combined": combinedParser, "caddy": caddyParser} {
		cases.Check(t, file, func(t *testing.T, section, line string) string {
			key, unique, _ := strings.Cut(section, ", unique: ")
			line = strings.NewReplacer("GOOD", goodLine, "HEAD", "h - - [17/May/2015:10:05:03 +0000]").Replace(line)
			h, err := parser(field(key), field(unique))([]byte(line))
			if err != nil {
				return "skipped: " + err.Error()
			}
			require.Equal(t, int64(1), h.N)
			out := fmt.Sprintf("%s at %s", h.Counter, time.UnixMilli(h.At).UTC().Format(time.RFC3339Nano))
			if h.Unique != nil {
				out += fmt.Sprintf(" of %s", h.Unique)
			}
			return out
		})
	}
}

func TestLongPathsAreShortenedAndStayApart(t *testing.T) {
	t.Parallel()
	parse := combinedParser("path", "")
	seen := map[string]bool{}
	for _, path := range []string{
		"/" + strings.Repeat("a", hit.MaxName-1), "/" + strings.Repeat("a", hit.MaxName), "/" + strings.Repeat("a", hit.MaxName+1),
		"/" + strings.Repeat("ä", hit.MaxName), "/x" + strings.Repeat("ä", hit.MaxName),
	} {
		h, err := parse([]byte(`h - - [17/May/2015:10:05:03 +0000] "GET ` + path + ` HTTP/1.1" 200 1`))
		if err != nil {
			t.Errorf("path of %d bytes: %v", len(path), err)
		}
		if whole := string(h.Counter) == path; whole != (len(path) <= hit.MaxName) {
			t.Errorf("path of %d bytes is counted as %q", len(path), h.Counter)
		}
		if !strings.HasPrefix(string(h.Counter), path[:hit.MaxName-32]) {
			t.Errorf("path of %d bytes is counted as %q, which does not begin like it", len(path), h.Counter)
		}
		seen[string(h.Counter)] = true
	}
	require.Len(t, seen, 5)
}

func FuzzCombinedParser(f *testing.F) {
	f.Add(goodLine)
	f.Add(`h - - [17/May/2015:10:05:03 +0000] "GET /a\"b HTTP/1.1" 200`)
	f.Add(`h - - [[17/May/2015:10:05:03 +0000] "-" 408`)
	f.Add(`h [`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, key := range []field{"path", "host", "status", "method"} {
			h, err := combinedParser(key, "")([]byte(line))
			if err != nil {
				continue
			}
			if err := hit.CheckName(h.Counter); err != nil {
				t.Errorf("%s %q: %v", key, h.Counter, err)
			}
			if len(h.Counter) < hit.MaxName-32 && !strings.Contains(line, string(h.Counter)) {
				t.Errorf("%s %q does not stand in the line", key, h.Counter)
			}
			if h.N != 1 || h.At == hit.NoTime {
				t.Errorf("n %d, ts %d", h.N, h.At)
			}
		}
	})
}
