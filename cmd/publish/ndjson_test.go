package main

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestNDJSONParser(t *testing.T) {
	any := errors.New("any")
	cases := []struct {
		name, line string
		want       string
		n, ts      int64
		err        error
	}{
		{name: "all fields", line: `{"key":"/cart","n":3,"ts":1763683200000}`, want: "/cart", n: 3, ts: 1763683200000},
		{name: "key alone", line: ` {"key":"a"} `, want: "a", n: 1, ts: noTime},
		{name: "other fields", line: `{"x":[1,{"key":"no"}],"key":"a\u00e9\"","y":null}`, want: `aé"`, n: 1, ts: noTime},
		{name: "RFC 3339", line: `{"key":"a","ts":"2025-11-21T01:00:00.5+01:00"}`, want: "a", n: 1, ts: 1763683200500},
		{name: "largest n", line: `{"key":"a","n":1099511627776}`, want: "a", n: 1 << 40, ts: noTime},
		{name: "last moment", line: `{"key":"a","ts":253402300799999}`, want: "a", n: 1, ts: 253402300799999},
		{name: "first moment", line: `{"key":"a","ts":"0001-01-01T00:00:00Z"}`, want: "a", n: 1, ts: -62135596800000},
		{name: "surrogate pair", line: `{"key":"\ufffd\uD83D\ude00"}`, want: "\ufffd😀", n: 1, ts: noTime},
		{name: "escaped backslash before u", line: `{"key":"\ufffd\\ud83d"}`, want: "\ufffd\\ud83d", n: 1, ts: noTime},
		{name: "half a surrogate in another field", line: `{"x":"\ud83d","key":"\ufffd"}`, want: "\ufffd", n: 1, ts: noTime},
		{name: "id", line: `{"key":"a","id":"7"}`, want: "a", n: 1, ts: noTime},
		{name: "before 1970", line: `{"key":"a","ts":-1}`, want: "a", n: 1, ts: -1},

		{name: "no key", line: `{"n":1}`, err: errNoKey},
		{name: "empty key", line: `{"key":""}`, err: errKeyEmpty},
		{name: "key of a number", line: `{"key":7}`, err: errKeyType},
		{name: "key null", line: `{"key":null}`, err: errKeyType},
		{name: "key with a control character", line: `{"key":"a\u0007"}`, err: errKeyControl},
		{name: "key not UTF-8", line: "{\"key\":\"\xff\"}", err: any},
		{name: "n zero", line: `{"key":"a","n":0}`, err: errBadCount},
		{name: "n too large", line: `{"key":"a","n":1099511627777}`, err: errBadCount},
		{name: "n far too large", line: `{"key":"a","n":99999999999999999999}`, err: errBadCount},
		{name: "n fraction", line: `{"key":"a","n":1.5}`, err: errBadCount},
		{name: "n with a point", line: `{"key":"a","n":1.0}`, err: errBadCount},
		{name: "n in words", line: `{"key":"a","n":"2"}`, err: errBadCount},
		{name: "n exponent", line: `{"key":"a","n":1e2}`, err: errBadCount},
		{name: "ts fraction", line: `{"key":"a","ts":1.5}`, err: errBadTime},
		{name: "ts in words", line: `{"key":"a","ts":"yesterday"}`, err: errBadTime},
		{name: "ts quoted number", line: `{"key":"a","ts":"1763683200000"}`, err: errBadTime},
		{name: "ts beyond", line: `{"key":"a","ts":9223372036854775807}`, err: errFarTime},
		{name: "ts one beyond", line: `{"key":"a","ts":253402300800000}`, err: errFarTime},
		{name: "ts in the year 0", line: `{"key":"a","ts":"0000-12-31T23:59:59Z"}`, err: errFarTime},
		{name: "ts of a JavaScript number", line: `{"key":"a","ts":9007199254740992}`, err: errFarTime},
		{name: "ts not an int64", line: `{"key":"a","ts":9223372036854775808}`, err: errBadTime},
		{name: "high surrogate", line: `{"key":"\ud83d"}`, err: errHalfKey},
		{name: "low surrogate", line: `{"key":"a\uDE00b"}`, err: errHalfKey},
		{name: "high surrogate before a pair", line: `{"key":"\ud83d\ud83d\ude00"}`, err: errHalfKey},
		{name: "halves that another escape parts", line: `{"key":"\ud83d\"\ude00"}`, err: errHalfKey},
		{name: "high surrogate before an escaped backslash", line: `{"key":"\ud83d\\ude00"}`, err: errHalfKey},
		{name: "count", line: `{"key":"a","count":7}`, err: errSlip},
		{name: "value", line: `{"key":"a","value":7}`, err: errSlip},
		{name: "N", line: `{"N":7,"key":"a"}`, err: errSlip},
		{name: "Key", line: `{"Key":"a"}`, err: errSlip},
		{name: "time", line: `{"key":"a","time":1763683200000}`, err: errSlip},
		{name: "timestamp", line: `{"key":"a","timestamp":"2025-11-21T00:00:00Z"}`, err: errSlip},
		{name: "array", line: `[{"key":"a"}]`, err: errNoObject},
		{name: "word", line: `hello`, err: errNoObject},
		{name: "two objects", line: `{"key":"a"}{"key":"b"}`, err: errTrailing},
		{name: "rubbish behind", line: `{"key":"a"}x`, err: errTrailing},
		{name: "not closed", line: `{"key":"a"`, err: any},
		{name: "comma at the end", line: `{"key":"a",}`, err: any},
	}
	parse := ndjsonParser() // one for all: no line may leave something behind
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h, err := parse([]byte(c.line))
			if c.err != nil {
				if err == nil || (c.err != any && !errors.Is(err, c.err)) {
					t.Fatalf("%q: error %v, want %v", h.key, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if string(h.key) != c.want || h.n != c.n || h.ts != c.ts {
				t.Fatalf("%q n %d ts %d", h.key, h.n, h.ts)
			}
		})
	}
}

// What the body builder writes, the parser reads back.
func TestNDJSONRoundTrip(t *testing.T) {
	parse := ndjsonParser()
	rapid.Check(t, func(t *rapid.T) {
		h := hit{
			key: []byte(rapid.String().Filter(func(s string) bool { return checkKey([]byte(s)) == nil }).Draw(t, "key")),
			n:   rapid.Int64Range(1, maxCount).Draw(t, "n"),
			ts:  rapid.OneOf(rapid.Just(int64(noTime)), rapid.Int64Range(minTime, maxTime)).Draw(t, "ts"),
		}
		got, err := parse(appendHit(nil, h))
		if err != nil {
			t.Fatal(err)
		}
		if string(got.key) != string(h.key) || got.n != h.n || got.ts != h.ts {
			t.Fatalf("%+v, want %+v", got, h)
		}
	})
}

func FuzzNDJSONParser(f *testing.F) {
	f.Add([]byte(`{"key":"/cart","n":3,"ts":1763683200000}`))
	f.Add([]byte(`{"key":"a","ts":"2025-11-21T01:00:00.5+01:00","x":[{}]}`))
	parse := ndjsonParser()
	f.Fuzz(func(t *testing.T, line []byte) {
		h, err := parse(line)
		if err != nil {
			return
		}
		if err := checkKey(h.key); err != nil || h.n < 1 || h.n > maxCount {
			t.Fatalf("%q n %d: %v", h.key, h.n, err)
		}
	})
}

func BenchmarkNDJSONParser(b *testing.B) {
	parse := ndjsonParser()
	line := []byte(`{"key":"/images/a.png?x=1&y=2","n":3,"ts":1763683200000}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parse(line); err != nil {
			b.Fatal(err)
		}
	}
}
