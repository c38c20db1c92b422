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

// What a hit is written as, the parser reads back.
func TestParserReadsBackWhatIsWritten(t *testing.T) {
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

// Whatever the order, the escapes and the form of a unique value: it is what encoding/json reads, or it is
// refused as bad_unique by a sentence that does not contain it.
func TestUniqueValueIsReadAsByEncodingJSON(t *testing.T) {
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
