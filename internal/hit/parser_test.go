package hit

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	cases := []struct {
		name, line string
		want       string
		n, ts      int64
		reason     Reason // and what of the detail tells it from others
		detail     string
	}{
		{name: "all fields", line: `{"key":"/cart","n":3,"ts":1763683200000}`, want: "/cart", n: 3, ts: 1763683200000},
		{name: "key alone", line: ` {"key":"a"} `, want: "a", n: 1, ts: NoTime},
		{name: "other fields", line: `{"x":[1,{"key":"no"}],"key":"a\u00e9\"","y":null}`, want: `aé"`, n: 1, ts: NoTime},
		{name: "RFC 3339", line: `{"key":"a","ts":"2025-11-21T01:00:00.5+01:00"}`, want: "a", n: 1, ts: 1763683200500},
		{name: "largest n", line: `{"key":"a","n":1099511627776}`, want: "a", n: 1 << 40, ts: NoTime},
		{name: "last moment", line: `{"key":"a","ts":253402300799999}`, want: "a", n: 1, ts: 253402300799999},
		{name: "first moment", line: `{"key":"a","ts":"0001-01-01T00:00:00Z"}`, want: "a", n: 1, ts: -62135596800000},
		{name: "surrogate pair", line: `{"key":"\ufffd\uD83D\ude00"}`, want: "\ufffd😀", n: 1, ts: NoTime},
		{name: "escaped backslash before u", line: `{"key":"\ufffd\\ud83d"}`, want: "\ufffd\\ud83d", n: 1, ts: NoTime},
		{name: "half a surrogate in another field", line: `{"x":"\ud83d","key":"\ufffd"}`, want: "\ufffd", n: 1, ts: NoTime},
		{name: "id", line: `{"key":"a","id":"7"}`, want: "a", n: 1, ts: NoTime},
		{name: "before 1970", line: `{"key":"a","ts":-1}`, want: "a", n: 1, ts: -1},

		{name: "no key", line: `{"n":1}`, reason: BadKey, detail: "no key"},
		{name: "empty key", line: `{"key":""}`, reason: BadKey, detail: "0 bytes"},
		{name: "key of a number", line: `{"key":7}`, reason: BadKey, detail: "must be a string"},
		{name: "key null", line: `{"key":null}`, reason: BadKey, detail: "must be a string"},
		{name: "key with a control character", line: `{"key":"a\u0007"}`, reason: BadKey, detail: "control character"},
		{name: "key not UTF-8", line: "{\"key\":\"\xff\"}", reason: BadKey, detail: "UTF-8"},
		{name: "n zero", line: `{"key":"a","n":0}`, reason: BadCount, detail: "n must be"},
		{name: "n too large", line: `{"key":"a","n":1099511627777}`, reason: BadCount, detail: "n must be"},
		{name: "n far too large", line: `{"key":"a","n":99999999999999999999}`, reason: BadCount, detail: "n must be"},
		{name: "n fraction", line: `{"key":"a","n":1.5}`, reason: BadCount, detail: "n must be"},
		{name: "n with a point", line: `{"key":"a","n":1.0}`, reason: BadCount, detail: "n must be"},
		{name: "n in words", line: `{"key":"a","n":"2"}`, reason: BadCount, detail: "n must be"},
		{name: "n exponent", line: `{"key":"a","n":1e2}`, reason: BadCount, detail: "n must be"},
		{name: "ts fraction", line: `{"key":"a","ts":1.5}`, reason: BadTime, detail: "ts "},
		{name: "ts in words", line: `{"key":"a","ts":"yesterday"}`, reason: BadTime, detail: "ts "},
		{name: "ts quoted number", line: `{"key":"a","ts":"1763683200000"}`, reason: BadTime, detail: "ts "},
		{name: "ts beyond", line: `{"key":"a","ts":9223372036854775807}`, reason: BadTime, detail: "years 1 to 9999"},
		{name: "ts one beyond", line: `{"key":"a","ts":253402300800000}`, reason: BadTime, detail: "years 1 to 9999"},
		{name: "ts in the year 0", line: `{"key":"a","ts":"0000-12-31T23:59:59Z"}`, reason: BadTime, detail: "years 1 to 9999"},
		{name: "ts of a JavaScript number", line: `{"key":"a","ts":9007199254740992}`, reason: BadTime, detail: "years 1 to 9999"},
		{name: "ts not an int64", line: `{"key":"a","ts":9223372036854775808}`, reason: BadTime, detail: "ts "},
		{name: "high surrogate", line: `{"key":"\ud83d"}`, reason: BadKey, detail: "half of a surrogate"},
		{name: "low surrogate", line: `{"key":"a\uDE00b"}`, reason: BadKey, detail: "half of a surrogate"},
		{name: "high surrogate before a pair", line: `{"key":"\ud83d\ud83d\ude00"}`, reason: BadKey, detail: "half of a surrogate"},
		{name: "halves that another escape parts", line: `{"key":"\ud83d\"\ude00"}`, reason: BadKey, detail: "half of a surrogate"},
		{name: "high surrogate before an escaped backslash", line: `{"key":"\ud83d\\ude00"}`, reason: BadKey, detail: "half of a surrogate"},
		{name: "count", line: `{"key":"a","count":7}`, reason: BadJSON, detail: "has no field"},
		{name: "value", line: `{"key":"a","value":7}`, reason: BadJSON, detail: "has no field"},
		{name: "N", line: `{"N":7,"key":"a"}`, reason: BadJSON, detail: "has no field"},
		{name: "Key", line: `{"Key":"a"}`, reason: BadJSON, detail: "has no field"},
		{name: "time", line: `{"key":"a","time":1763683200000}`, reason: BadJSON, detail: "has no field"},
		{name: "timestamp", line: `{"key":"a","timestamp":"2025-11-21T00:00:00Z"}`, reason: BadJSON, detail: "has no field"},
		{name: "array", line: `[{"key":"a"}]`, reason: BadJSON, detail: "not a JSON object"},
		{name: "word", line: `hello`, reason: BadJSON, detail: "not a JSON object"},
		{name: "two objects", line: `{"key":"a"}{"key":"b"}`, reason: BadJSON, detail: "more follows"},
		{name: "rubbish behind", line: `{"key":"a"}x`, reason: BadJSON, detail: "more follows"},
		{name: "not closed", line: `{"key":"a"`, reason: BadJSON, detail: "not a JSON object"},
		{name: "comma at the end", line: `{"key":"a",}`, reason: BadJSON, detail: "not a JSON object"},
	}
	p := NewParser() // one for all: no line may leave something behind
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h, err := p.Parse([]byte(c.line))
			if c.reason != "" {
				var refused *Refusal
				if !errors.As(err, &refused) || refused.Reason != c.reason || !strings.Contains(refused.Detail, c.detail) {
					t.Fatalf("%q: error %#v, want %s: %s", h.Counter, err, c.reason, c.detail)
				}
				return
			}
			require.NoError(t, err)
			if string(h.Counter) != c.want || h.N != c.n || h.At != c.ts {
				t.Fatalf("%+v", h)
			}
		})
	}
}

// What a hit is written as, the parser reads back.
func TestParseRoundTrip(t *testing.T) {
	p := NewParser()
	rapid.Check(t, func(t *rapid.T) {
		h := Hit{
			Counter: []byte(rapid.String().Filter(func(s string) bool { return CheckName([]byte(s)) == nil }).Draw(t, "key")),
			N:       rapid.Int64Range(1, MaxN).Draw(t, "n"),
			Unique:  rapid.OneOf(rapid.Just([]byte(nil)), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }).Filter(func(b []byte) bool { return CheckUnique(b) == nil })).Draw(t, "unique"),
			At:      rapid.OneOf(rapid.Just(int64(NoTime)), rapid.Int64Range(MinTime, MaxTime)).Draw(t, "ts"),
		}
		got, err := p.Parse(h.AppendJSON(nil))
		require.NoError(t, err)
		if string(got.Counter) != string(h.Counter) || got.N != h.N || got.At != h.At || string(got.Unique) != string(h.Unique) || (got.Unique == nil) != (h.Unique == nil) {
			t.Fatalf("%+v, want %+v", got, h)
		}
	})
}

// Whatever the order, the escapes and the form of a unique value: it is what encoding/json reads, or it is refused as
// bad_unique by a sentence that does not contain it.
func TestParseUnique(t *testing.T) {
	p := NewParser()
	check := func(t rapid.TB, line string) {
		var fields map[string]any
		require.NoErrorf(t, json.Unmarshal([]byte(line), &fields), "%s", line)
		value, has := fields["unique"]
		text, isText := value.(string)
		good := !has || isText && len(text) >= 1 && len(text) <= MaxUnique && utf8.ValidString(line) && (!strings.Contains(text, "\ufffd") || !strings.Contains(line, `\ud`))
		h, err := p.Parse([]byte(line))
		var refused *Refusal
		switch {
		case good && (err != nil || string(h.Unique) != text || (h.Unique != nil) != has):
			t.Fatalf("%s: %q (%v), want %q", line, h.Unique, err, text)
		case !good && (!errors.As(err, &refused) || refused.Reason != BadUnique):
			t.Fatalf("%s: %v, want bad_unique", line, err)
		case !good && strings.Contains(refused.Detail, "secret"):
			t.Fatalf("%s: the detail has the value: %s", line, refused.Detail)
		}
	}
	for _, line := range []string{
		`{"unique":"secret","key":"a"}`, `{"key":"a","n":2,"unique":"secret","ts":1}`, `{"unique":"\u0073ecret\n\"\\","key":"a"}`, `{"key":"a","unique":"\ud83d\ude00"}`,
		`{"key":"a","unique":"secret\ud83d"}`, `{"key":"a","unique":"\ude00secret"}`, `{"key":"a","unique":"secret\ufffd"}`, "{\"key\":\"a\",\"unique\":\"secret\xff\"}",
		`{"key":"a","unique":""}`, `{"key":"a","unique":null}`, `{"key":"a","unique":5}`, `{"key":"a","unique":true}`, `{"key":"a","unique":["secret"]}`, `{"key":"a","unique":{"secret":1}}`,
		`{"key":"a","unique":"first","unique":"secret"}`, `{"key":"a"}`, `{"key":"a","x":{"unique":7}}`, `{"key":"a","\u0075nique":"secret"}`,
		`{"key":"a","unique":"` + strings.Repeat("é", MaxUnique/2) + `"}`, `{"key":"a","unique":"secret` + strings.Repeat("é", MaxUnique/2) + `"}`,
	} {
		check(t, line)
	}
	rapid.Check(t, func(t *rapid.T) {
		value, err := json.Marshal(rapid.OneOf(
			rapid.Map(rapid.StringN(0, 600, -1), func(s string) any { return s }), rapid.Map(rapid.Int(), func(n int) any { return n }),
			rapid.Just[any](nil), rapid.Just[any](strings.Repeat("x", MaxUnique)), rapid.Just[any](strings.Repeat("x", MaxUnique+1)),
		).Draw(t, "value"))
		require.NoError(t, err)
		fields := rapid.Permutation([]string{`"key":"a"`, `"n":3`, `"ts":1763683200000`, `"unique":` + string(value), `"y":[{"unique":0}]`}).Draw(t, "fields")
		check(t, "{"+strings.Join(fields, rapid.SampledFrom([]string{",", " ,\t"}).Draw(t, "between"))+"}")
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"key":"/cart","n":3,"ts":1763683200000}`))
	f.Add([]byte(`{"key":"a","ts":"2025-11-21T01:00:00.5+01:00","x":[{}]}`))
	for _, seed := range plainSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		h, err := NewParser().Parse(line)
		if err != nil {
			return
		}
		if !validKey(string(h.Counter)) || h.N < 1 || h.N > MaxN || h.At != NoTime && (h.At < MinTime || h.At > MaxTime) || h.Unique != nil && CheckUnique(h.Unique) != nil {
			t.Fatalf("%+v", h)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	p := NewParser()
	line := []byte(`{"key":"/images/a.png?x=1&y=2","n":3,"ts":1763683200000}`)
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, errOf(p.Parse(line)))
	}
}
