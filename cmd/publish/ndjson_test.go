package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
)

// part is the value of a field as a line has it.
type part struct {
	text string
	bad  badness
	want any // a key's string, n or ts
}

type badness int

const (
	good      badness = iota
	badIfLast         // a field that comes again later takes its place
	bad
)

var keyParts = []part{
	{`"a"`, good, "a"}, {`" "`, good, " "}, {`"\u0061\/\""`, good, `a/"`}, {`"é\u00e9"`, good, "éé"}, {"\"\u00a0\u2028\ufeff\"", good, "\u00a0\u2028\ufeff"},
	{`"\ud83d\uDE00"`, good, "😀"}, {`"\ufffd"`, good, "\ufffd"}, {"\"\ufffd\"", good, "\ufffd"}, {`"\ufffd\\ud83d"`, good, "\ufffd\\ud83d"},
	{`"` + strings.Repeat("é", 256) + `"`, good, strings.Repeat("é", 256)},
	{`"` + strings.Repeat("é", 256) + `x"`, badIfLast, ""}, {`""`, badIfLast, ""}, {`"\u0000"`, badIfLast, ""}, {"\"\x7f\"", badIfLast, ""}, {`"\u007f"`, badIfLast, ""},
	{"\"a\u0080\"", badIfLast, ""}, {`"\u009f"`, badIfLast, ""}, {`"\n"`, badIfLast, ""}, {"\"\xff\"", badIfLast, ""}, {"\"a\xc3\"", badIfLast, ""}, {"\"\xed\xa0\x80\"", badIfLast, ""},
	{`"\ud83d"`, badIfLast, ""}, {`"\uDE00a"`, badIfLast, ""}, {`"\ud83d\ud83d\ude00"`, badIfLast, ""}, {`"\ud83d\\ude00"`, badIfLast, ""}, {`"\ud83d\"\ude00"`, badIfLast, ""},
	{"\"\n\"", bad, ""}, {"\"\x00\"", bad, ""}, {`"\x61"`, bad, ""}, {`"a`, bad, ""}, {`'a'`, bad, ""}, {`a`, bad, ""}, {``, bad, ""},
	{`null`, bad, ""}, {`7`, bad, ""}, {`true`, bad, ""}, {`["a"]`, bad, ""}, {`{"key":"a"}`, bad, ""},
}

var nParts = []part{
	{`1`, good, int64(1)}, {`2`, good, int64(2)}, {`1099511627776`, good, int64(hit.MaxN)},
	{`0`, bad, nil}, {`-0`, bad, nil}, {`-1`, bad, nil}, {`1.0`, bad, nil}, {`1.5`, bad, nil}, {`1e2`, bad, nil}, {`1E0`, bad, nil}, {`1e400`, bad, nil}, {`01`, bad, nil}, {`+1`, bad, nil},
	{`1099511627777`, bad, nil}, {`9223372036854775808`, bad, nil}, {`18446744073709551617`, bad, nil}, {`0x1`, bad, nil}, {`1_0`, bad, nil}, {`1.`, bad, nil}, {`-`, bad, nil},
	{`"1"`, bad, nil}, {`null`, bad, nil}, {`[1]`, bad, nil}, {`{}`, bad, nil}, {`true`, bad, nil},
}

var tsParts = []part{
	{`0`, good, int64(0)}, {`-0`, good, int64(0)}, {`-1`, good, int64(-1)}, {`1763683200000`, good, int64(1763683200000)},
	{`-62135596800000`, good, int64(hit.MinTime)}, {`253402300799999`, good, int64(hit.MaxTime)},
	{`"2025-11-21T00:00:00Z"`, good, int64(1763683200000)}, {`"2025-11-21T05:30:00.9999999999+05:30"`, good, int64(1763683200999)}, {`"2025-11-20T23:59:59-00:00"`, good, int64(1763683199000)},
	{`"0001-01-01T00:00:00Z"`, good, int64(hit.MinTime)}, {`"9999-12-31T23:59:59.999Z"`, good, int64(hit.MaxTime)}, {`"2024-02-29T12:00:00\u005a"`, good, int64(1709208000000)},
	{`"2025-11-21T0:00:00,5Z"`, good, int64(1763683200500)},
	{`-62135596800001`, badIfLast, nil}, {`253402300800000`, badIfLast, nil}, {`1763683200000000`, badIfLast, nil}, {`9223372036854775807`, badIfLast, nil}, {`-9223372036854775808`, badIfLast, nil},
	{`"0000-12-31T23:59:59Z"`, badIfLast, nil}, {`"0001-01-01T00:00:00+00:01"`, badIfLast, nil}, {`"9999-12-31T23:59:59-00:01"`, badIfLast, nil},
	{`"2025-11-21t00:00:00Z"`, bad, nil}, {`"2025-11-21T00:00:00z"`, bad, nil}, {`"2025-11-21 00:00:00Z"`, bad, nil}, {`"2025-11-21T23:59:60Z"`, bad, nil}, {`"2025-11-21T24:00:00Z"`, bad, nil},
	{`"2025-02-29T00:00:00Z"`, bad, nil}, {`"2025-11-21"`, bad, nil}, {`"2025-11-21T00:00:00"`, bad, nil}, {`"2025-11-21T00:00:00+0100"`, bad, nil}, {`" 2025-11-21T00:00:00Z"`, bad, nil},
	{`"12025-11-21T00:00:00Z"`, bad, nil}, {`"2025-11-21T00:00Z"`, bad, nil}, {`"1763683200000"`, bad, nil}, {`""`, bad, nil}, {"\"\xff\"", bad, nil},
	{`1763683200000.0`, bad, nil}, {`1.7e12`, bad, nil}, {`00`, bad, nil}, {`9223372036854775808`, bad, nil}, {`null`, bad, nil}, {`[]`, bad, nil}, {`{}`, bad, nil}, {`false`, bad, nil},
}

// A bad unique value refuses the object, also if the field comes again.
var uniqueParts = []part{
	{`"u-17"`, good, "u-17"}, {`" "`, good, " "}, {`"\u0061\/\"\\"`, good, `a/"\`}, {`"é\u00e9"`, good, "éé"}, {`"\ud83d\uDE00"`, good, "😀"}, {`"\ufffd"`, good, "\ufffd"}, {"\"\ufffd\"", good, "\ufffd"},
	{`"\u0000\n\u009f"`, good, "\x00\n\u009f"}, {"\"\x7f\"", good, "\x7f"}, {`"\ufffd\\ud83d"`, good, "\ufffd\\ud83d"}, {`"7"`, good, "7"},
	{`"` + strings.Repeat("x", 512) + `"`, good, strings.Repeat("x", 512)}, {`"` + strings.Repeat("é", 256) + `"`, good, strings.Repeat("é", 256)}, {`"` + strings.Repeat(`\u00e9`, 256) + `"`, good, strings.Repeat("é", 256)},
	{`"` + strings.Repeat("x", 513) + `"`, bad, ""}, {`"` + strings.Repeat("é", 256) + `x"`, bad, ""}, {`""`, bad, ""}, {"\"\xff\"", bad, ""}, {"\"a\xc3\"", bad, ""}, {"\"\xed\xa0\x80\"", bad, ""},
	{`"\ud83d"`, badIfLast, ""}, {`"\uDE00a"`, badIfLast, ""}, {`"\ud83d\ud83d\ude00"`, badIfLast, ""}, {`"\ud83d\\ude00"`, badIfLast, ""}, {`"\ud83d\"\ude00"`, badIfLast, ""},
	{"\"\n\"", bad, ""}, {`"\x61"`, bad, ""}, {`"a`, bad, ""}, {`a`, bad, ""}, {``, bad, ""},
	{`null`, bad, ""}, {`7`, bad, ""}, {`1.5`, bad, ""}, {`true`, bad, ""}, {`["a"]`, bad, ""}, {`{"unique":"a"}`, bad, ""},
}

// otherParts are fields with their names.
var otherParts = []part{
	{`"id":"7"`, good, nil}, {`"KEY":null`, good, nil}, {`"":1e400`, good, nil}, {`"x":{"key":"no","n":0,"count":1}`, good, nil}, {`"y":[1,{"ts":"x"},"]}"]`, good, nil}, {`"z":"\ud83d"`, good, nil},
	{"\"x\xff\":\"\xff\"", good, nil}, {`"Count":0`, good, nil}, {`"key ":0`, good, nil},
	{`"count":7`, bad, nil}, {`"\u0063ount":7`, bad, nil}, {`"value":null`, bad, nil}, {`"N":7`, bad, nil}, {`"Key":"a"`, bad, nil}, {`"time":{}`, bad, nil}, {`"timestamp":1`, bad, nil},
	{`"x":{"unique":"no"}`, good, nil}, {`"UNIQUE":7`, good, nil}, {`"Unique":"a"`, bad, nil}, {`"uniques":1`, bad, nil}, {`"uniq":null`, bad, nil},
	{`"x":tru`, bad, nil}, {`"x":01`, bad, nil}, {`"x":"\q"`, bad, nil}, {"\"x\":\"\t\"", bad, nil}, {`"x":`, bad, nil}, {`"x" 1`, bad, nil}, {`x:1`, bad, nil}, {`"x":[1,]`, bad, nil}, {`"x":NaN`, bad, nil},
}

// Fields of an object, in the order of allParts.
const (
	fieldKey = iota
	fieldN
	fieldTS
	fieldUnique
	fieldOther
)

var (
	allParts   = [][]part{keyParts, nParts, tsParts, uniqueParts, otherParts}
	fieldNames = [][]string{{`"key":`, `"\u006bey":`}, {`"n":`, `"\u006E":`}, {`"ts":`}, {`"unique":`, `"uniqu\u0065":`}, {""}}
)

// line is a line of NDJSON, and what the contract says of it, told without the parser's code.
type line struct {
	text string
	want string // what it counts; empty: nothing
}

// field is one of an object's.
type fieldOf struct {
	of int // fieldKey, …
	part
}

// contract is what an object of these fields counts.
func contract(fields []fieldOf) string {
	h := hit.Hit{N: 1, At: hit.NoTime}
	last := [5]*part{}
	for i, f := range fields {
		if f.bad == bad {
			return ""
		}
		last[f.of] = &fields[i].part
	}
	for of, p := range last {
		switch {
		case p == nil && of == fieldKey, p != nil && p.bad != good:
			return ""
		case p == nil || of == fieldOther:
		case of == fieldKey:
			h.Counter = []byte(p.want.(string))
		case of == fieldN:
			h.N = p.want.(int64)
		case of == fieldTS:
			h.At = p.want.(int64)
		case of == fieldUnique:
			h.Unique = []byte(p.want.(string))
		}
	}
	return counted(h)
}

// eachPart are lines with one field beside a good key, or with a key alone, which tell
// of each part by itself; and lines that are no object.
func eachPart() (lines []line) {
	for of, parts := range allParts {
		for _, p := range parts {
			fields := []fieldOf{{fieldKey, part{`"k"`, good, "k"}}, {of, p}}
			lines = append(lines, line{fmt.Sprintf(`{"key":"k",%s%s}`, fieldNames[of][0], p.text), contract(fields)})
		}
	}
	const object = `{"key":"k"}`
	for _, text := range []string{
		object + "x", object + object, object + "[", object + ",", object + "\x00", object + "\u00a0", "\ufeff" + object, "\v" + object, "[" + object + "]", "{" + object, `"` + object,
		`{"key":"k"`, `{"key":"k",}`, `{,"key":"k"}`, `{"key":"k";"n":1}`, `{}`, `[]`, `null`, `7`, `"k"`, "k", "\u00a0", "\v", "\x00", "\ufeff", "\u0085", "\u2028",
	} {
		lines = append(lines, line{text: text})
	}
	return append(lines, line{" \t\r" + object + "\r ", contract([]fieldOf{{fieldKey, part{"", good, "k"}}})})
}

// drawLine draws an object of several fields, some of them more than once.
func drawLine(t *rapid.T) line {
	white := func() string { return rapid.SampledFrom([]string{"", "", " ", "\t", "\r"}).Draw(t, "white space") }
	onlyGood := rapid.IntRange(0, 3).Draw(t, "only good") > 0
	var fields []fieldOf
	var object []string
	for _, of := range append([]int{fieldKey}, rapid.SliceOfN(rapid.IntRange(fieldKey, fieldOther), 0, 4).Draw(t, "fields")...) {
		p := rapid.SampledFrom(allParts[of]).Filter(func(p part) bool { return p.bad == good || !onlyGood }).Draw(t, "value")
		if of == fieldKey && p.bad == good && rapid.Bool().Draw(t, "any key") {
			name := rapid.String().Filter(func(s string) bool { return hit.CheckName([]byte(s)) == nil }).Draw(t, "key")
			encoded, err := json.Marshal(name)
			if err != nil {
				t.Fatal(err)
			}
			p = part{string(encoded), good, name}
		}
		if of == fieldUnique && p.bad == good && rapid.Bool().Draw(t, "any unique value") {
			value := rapid.String().Filter(func(s string) bool { return hit.CheckUnique([]byte(s)) == nil }).Draw(t, "unique value")
			encoded, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			p = part{string(encoded), good, value}
		}
		fields = append(fields, fieldOf{of, p})
		object = append(object, white()+rapid.SampledFrom(fieldNames[of]).Draw(t, "name")+white()+p.text+white())
	}
	return line{white() + "{" + strings.Join(object, ",") + "}" + white(), contract(fields)}
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

// counted is a hit as it is to be counted, in a form that can be compared.
func counted(h hit.Hit) string {
	if h.At == hit.NoTime {
		h.At = lastStored
	}
	if h.Unique != nil {
		return fmt.Sprintf("%q n %d at %d of %q", h.Counter, h.N, h.At, h.Unique)
	}
	return fmt.Sprintf("%q n %d at %d", h.Counter, h.N, h.At)
}

// ingested decodes a body as a worker does whose tiers hold everything.
func ingested(body []byte) (hits []string, rejects []hit.Reject) {
	decoder := hit.NewDecoder(hit.Limits{MaxHits: 1000, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
	found, rejects := decoder.Decode("", lastStored, body) // no subject: a hit without a key has no counter, as in publish
	for _, h := range found {
		hits = append(hits, counted(h))
	}
	return hits, rejects
}

// publishing feeds lines through the program up to the messages' bodies, and returns
// what ingest counts of these.
func publishing(t rapid.TB, parse func([]byte) (hit.Hit, error), lines ...string) (hits []string, bad badLines) {
	batch := &batcher{maxHits: 3, maxBytes: 1 << 20, submit: func(m *outbox.Message) error {
		counts, rejects := ingested(m.Body)
		if len(rejects) != 0 {
			t.Fatalf("%q: ingest rejects what publish sends: %q: %+v", lines, m.Body, rejects)
		}
		hits = append(hits, counts...)
		return nil
	}}
	feed := newFeeder(context.Background(), batch, 0)
	if err := errors.Join(feed.lines(strings.NewReader(strings.Join(lines, "\n")), parse, feed.take), batch.flush()); err != nil {
		t.Fatal(err)
	}
	return hits, feed.bad
}

// compareLine holds a line that publish reads against the same line among others as any
// producer sends it, and returns what it counts.
func compareLine(t rapid.TB, text string) string {
	text = strings.ReplaceAll(text, "\n", "\f")                                // so that it is one line
	sent, bad := publishing(t, hit.NewParser().Parse, `{"key":"first"}`, text) // a first line may have a byte-order mark
	hits, rejects := ingested([]byte(`{"key":"first"}` + "\n" + text))
	if !slices.Equal(sent, hits) || int(bad.count) != len(rejects) {
		t.Fatalf("%q: by publish %v, and bad lines %+v; ingest counts %v and rejects %+v", text, sent, bad, hits, rejects)
	}
	return strings.Join(hits[1:], "; ")
}

// What publish takes and sends, ingest counts as the same; what ingest would refuse, publish refuses.
func TestPublishTakesWhatIngestCounts(t *testing.T) {
	t.Parallel()
	for _, l := range eachPart() {
		if got := compareLine(t, l.text); got != l.want {
			t.Errorf("%q counts %q, want %q", l.text, got, l.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		l := drawLine(t)
		if got := compareLine(t, l.text); got != l.want {
			t.Fatalf("%q counts %q, want %q", l.text, got, l.want)
		}
		compareLine(t, mutate(t, l.text))
	})
}

func FuzzPublishTakesWhatIngestCounts(f *testing.F) {
	for _, l := range eachPart() {
		f.Add(l.text)
	}
	f.Fuzz(func(t *testing.T, text string) { compareLine(t, text) })
}

// Whatever stands in the lines of the other formats: what is sent counts.
func TestPublishSendsOnlyWhatCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := mutate(t, rapid.OneOf(rapid.String(), rapid.Just(strings.Repeat("é", 256))).Draw(t, "name"))
		name = strings.NewReplacer("\n", "", "\r", "").Replace(name)
		if got, bad := publishing(t, parseName, "first", name); len(got)+int(bad.count) != 2 && !hit.Blank([]byte(name)) ||
			len(got) == 2 && got[1] != counted(hit.Hit{Counter: []byte(name), N: 1, At: hit.NoTime}) {
			t.Fatalf("%q: %v, bad %+v", name, got, bad)
		}
		year := rapid.SampledFrom([]string{"0000", "0001", "2015", "9999"}).Draw(t, "year")
		day := rapid.SampledFrom([]string{"01/Jan", "31/Dec"}).Draw(t, "day")
		clock := rapid.SampledFrom([]string{"00:00:00 +0000", "00:00:00 +0001", "23:59:59 +0000", "23:59:60 +0000", "23:59:59 -0001"}).Draw(t, "clock")
		access := fmt.Sprintf(`h - - [%s/%s:%s] "GET /%s HTTP/1.1" 200 1`, day, year, clock, name)
		if got, bad := publishing(t, combinedParser("path", ""), access); len(got)+int(bad.count) != 1 {
			t.Fatalf("%q: %v, bad %+v", access, got, bad)
		}
	})
}
