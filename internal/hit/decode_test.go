package hit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// testStored is when the messages of these tests were stored: 2025-11-21T00:00:00Z.
const (
	testStored   = int64(1763683200000)
	testMaxAhead = 10 * time.Second
	testMaxHits  = 5
	day          = int64(24 * time.Hour / time.Millisecond)
)

// testLimits stand in for a worker's, whose tiers hold a moment for 98 days.
var testLimits = Limits{MaxAhead: testMaxAhead, MaxHits: testMaxHits, Place: func(counter []byte, at, stored int64) (uint64, string) {
	if stored-at >= 98*day {
		return 0, "too late"
	}
	return xxhash.Sum64(counter), ""
}}

func testDecoder() *Decoder { return NewDecoder(testLimits) }

// got and refused are hits and rejects in a form that can be compared.
type got struct {
	key   string
	n, at int64
}

type refused struct {
	item   int
	reason Reason
	body   string
}

func (r refused) String() string { return fmt.Sprintf("{%d %s %q}", r.item, r.reason, r.body) }

func outcome(d *Decoder) (hits []got, rejects []refused) {
	for _, h := range d.hits {
		hits = append(hits, got{string(h.Counter), h.N, h.At})
	}
	for _, r := range d.rejects {
		rejects = append(rejects, refused{r.Item, r.Reason, string(r.Body)})
	}
	return hits, rejects
}

func TestDecode(t *testing.T) {
	one := func(key string) []got { return []got{{key, 1, testStored}} }
	refuse := func(reason Reason, body string) []refused { return []refused{{0, reason, body}} }
	ab := []got{{"a", 1, testStored}, {"b", 1, testStored}}

	type test struct {
		name, body string
		hits       []got
		rejects    []refused
	}
	tests := []test{
		// Forms.
		{"empty body", "", one("subject"), nil},
		{"white space only", " \t\r\n\n ", one("subject"), nil},
		{"empty object", "{}", one("subject"), nil},
		{"all fields", `{"key":"/cart","n":3,"ts":1763683199999}`, []got{{"/cart", 3, testStored - 1}}, nil},
		{"space around", " \r\n {\"key\":\"a\"} \n", one("a"), nil},
		{"object over several lines", "{\n  \"key\": \"a\",\r\n  \"n\": 2\n}\n", []got{{"a", 2, testStored}}, nil},
		{"object over several lines that fails", "{\n\"key\":\"\"\n}", nil, refuse(BadKey, "{\n\"key\":\"\"\n}")},
		{"lines", "{\"key\":\"a\"}\n{\"key\":\"b\"}", ab, nil},
		{"lines ended with CR LF", "{\"key\":\"a\"}\r\n{\"key\":\"b\"}\r\n", ab, nil},
		{"blank lines", "\n{\"key\":\"a\"}\n\n  \r\n{\"key\":\"b\"}\n\n", ab, nil},
		{"bad line between good ones", "{\"key\":\"a\"}\n{\"key\" \"x\"}\n{\"key\":\"b\"}", ab, []refused{{1, BadJSON, `{"key" "x"}`}}},
		{"blank lines are not items", "{\"key\":\"a\"}\n\nx\n{\"key\":\"b\"}", ab, []refused{{1, BadJSON, "x"}}},
		{"first line bad", "{\"key\":\n{\"key\":\"a\"}\n{\"key\":\"b\"}", ab, []refused{{0, BadJSON, `{"key":`}}},
		{"array on a later line", "{\"key\":\"a\"}\n[{\"key\":\"b\"}]", one("a"), []refused{{1, BadJSON, `[{"key":"b"}]`}}},
		{"array", `[{"key":"a"},{"key":"b"}]`, ab, nil},
		{"array with space", " [ {\"key\":\"a\"}\n,\t{\"key\":\"b\"} ] \n", ab, nil},
		{"array of one", `[{}]`, one("subject"), nil},
		{"empty array", `[]`, nil, nil},
		{"empty array with space", " [ \n ] ", nil, nil},
		{"bad item between good ones", `[{"key":"a"},{bad},{"key":"b"}]`, ab, []refused{{1, BadJSON, "{bad}"}}},
		{"array of other things", `[{"key":"a"},7,"x",null,{"key":"b"}]`, ab, []refused{{1, BadJSON, "7"}, {2, BadJSON, `"x"`}, {3, BadJSON, "null"}}},
		{"stray closing brace in an item", `[{"key":"a"}},{"key":"b"}]`, []got{{"b", 1, testStored}}, []refused{{0, BadJSON, `{"key":"a"}}`}}},
		{"closing brace as an item", `[{"key":"a"},},{"key":"b"}]`, ab, []refused{{1, BadJSON, `}`}}},
		{"nested values in unknown fields", `[{"x":[{"y":[1,{"z":"],"}]}],"key":"a"},{"o":{"key":"no","n":0},"key":"b"}]`, ab, nil},
		{"brackets and escapes in strings", `[{"key":"a]},[{"},{"key":"\"],\\"},{"x":"\\\"]","key":"c"}]`,
			[]got{{"a]},[{", 1, testStored}, {`"],\`, 1, testStored}, {"c", 1, testStored}}, nil},
		{"array not closed", `[{"key":"a"},{"key":"b"}`, one("a"), []refused{{1, BadJSON, `{"key":"b"}`}}},
		{"array not closed in a string", `[{"key":"a"},{"key":"b]`, one("a"), []refused{{1, BadJSON, `{"key":"b]`}}},
		{"array with a comma at the end", `[{"key":"a"},]`, one("a"), []refused{{1, BadJSON, ""}}},
		{"more after the array", `[{"key":"a"}] {"key":"b"}`, one("a"), []refused{{1, BadJSON, `{"key":"b"}`}}},
		{"more after the empty array", `[] {"key":"b"}`, nil, refuse(BadJSON, `{"key":"b"}`)},
		{"unknown fields are ignored", `{"host":"x","id":"7","KEY":"no","Count":0,"a":[1],"b":{"ts":"x"},"c":null,"d":1e9,"e":true,"key":"a"}`, one("a"), nil},
		{"escaped field name", `{"\u006bey":"a"}`, one("a"), nil},

		{"key again: the last counts", `{"key":"","key":"a"}`, one("a"), nil},
		{"ts again: the last counts", `{"ts":253402300800000,"ts":1763683200000}`, one("subject"), nil},
		{"n again", `{"n":7,"n":2}`, []got{{"subject", 2, testStored}}, nil},

		// bad_json.
		{"byte-order mark", "\ufeff{}", nil, refuse(BadJSON, "\ufeff{}")},
		{"white space that JSON does not know", "\v", nil, refuse(BadJSON, "\v")},
		{"a line of a no-break space", "{}\n\u00a0", one("subject"), []refused{{1, BadJSON, "\u00a0"}}},
		{"text", "hello", nil, refuse(BadJSON, "hello")},
		{"text with space around is unchanged", " hello\n", nil, refuse(BadJSON, " hello\n")},
		{"number", "42", nil, refuse(BadJSON, "42")},
		{"cut object", `{"key":"a"`, nil, refuse(BadJSON, `{"key":"a"`)},
		{"two objects on one line", `{"key":"a"}{"key":"b"}`, nil, refuse(BadJSON, `{"key":"a"}{"key":"b"}`)},
		{"rubbish after the object", `{"key":"a"} -`, nil, refuse(BadJSON, `{"key":"a"} -`)},
		{"rubbish in an unknown field", `{"x":tru,"key":"a"}`, nil, refuse(BadJSON, `{"x":tru,"key":"a"}`)},
		{"comma at the end", `{"key":"a",}`, nil, refuse(BadJSON, `{"key":"a",}`)},
		{"number with a leading zero", `{"n":01}`, nil, refuse(BadJSON, `{"n":01}`)},
		{"control character in a string", "{\"key\":\"a\x01\"}", nil, refuse(BadJSON, "{\"key\":\"a\x01\"}")},
		{"bad bytes unchanged", "{\xff\xfe\x00}", nil, refuse(BadJSON, "{\xff\xfe\x00}")},
		{"bad JSON weighs more than a bad field", `{"n":0,"key":}`, nil, refuse(BadJSON, `{"n":0,"key":}`)},

		// A key that looks like a reason for refusal and is none.
		{"key of 512 bytes", `{"key":"` + strings.Repeat("é", 256) + `"}`, one(strings.Repeat("é", 256)), nil},
		{"key of one byte", `{"key":" "}`, one(" "), nil},
		{"key beyond ASCII", `{"key":"日本/\u00e9😀"}`, one("日本/é😀"), nil},
		{"key with a surrogate pair", `{"key":"\ud83d\uDE00"}`, one("😀"), nil},
		{"key with the replacement character", `{"key":"\ufffd","x":"\ud83d\ude00"}`, one("\ufffd"), nil},
		{"key with the replacement character and a pair", `{"key":"�\ud83d\ude00"}`, one("\ufffd😀"), nil},
		{"key with an escaped backslash", `{"key":"\ufffd\\ud83d"}`, one("\ufffd\\ud83d"), nil},
		{"half a surrogate in another field", `{"key":"\ufffd","x":"\ud83d"}`, one("\ufffd"), nil},
		{"n at most", `{"n":1099511627776}`, []got{{"subject", MaxN, testStored}}, nil},

		// ts.
		{"ts as text", `{"ts":"2025-11-21T00:00:00Z"}`, one("subject"), nil},
		{"ts with an offset", `{"ts":"2025-11-21T05:30:00+05:30"}`, one("subject"), nil},
		{"ts with a negative offset and a fraction", `{"ts":"2025-11-20T18:59:59.25-05:00"}`, []got{{"subject", 1, testStored - 750}}, nil},
		{"ts finer than a millisecond", `{"ts":"2025-11-20T23:59:59.999999999Z"}`, []got{{"subject", 1, testStored - 1}}, nil},
		{"ts earlier", `{"ts":1763683199999}`, []got{{"subject", 1, testStored - 1}}, nil},
		{"ts at the limit ahead: counted when it was stored", `{"ts":1763683210000}`, []got{{"subject", 1, testStored}}, nil},
		{"ts one ms beyond", `{"ts":1763683210001}`, nil, refuse(Future, `{"ts":1763683210001}`)},
		{"ts in microseconds", `{"ts":1763683200000000}`, nil, refuse(BadTime, `{"ts":1763683200000000}`)},
		{"ts in seconds", `{"ts":1763683200}`, nil, refuse(TooLate, `{"ts":1763683200}`)},
		{"ts that the coarsest tier holds", fmt.Sprintf(`{"ts":%d}`, testStored-30*day), []got{{"subject", 1, testStored - 30*day}}, nil},
		{"ts that no tier holds", fmt.Sprintf(`{"ts":%d}`, testStored-98*day), nil, refuse(TooLate, fmt.Sprintf(`{"ts":%d}`, testStored-98*day))},

		// too_large.
		{"as many lines as allowed", strings.Repeat("{}\n", testMaxHits), slices.Repeat(one("subject"), testMaxHits), nil},
		{"a line more", strings.Repeat("{}\n", testMaxHits+1), nil, refuse(TooLarge, strings.Repeat("{}\n", testMaxHits+1))},
		{"as many items as allowed", "[{},{},{},{},{}]", slices.Repeat(one("subject"), testMaxHits), nil},
		{"an item more", " [{},{},{},x,{},{}]\n", nil, refuse(TooLarge, " [{},{},{},x,{},{}]\n")},
	}
	for reason, bodies := range map[Reason][]string{
		BadJSON: {
			`{"count":7}`, `{"N":7}`, `{"Key":"a"}`, `{"time":1763683200000}`, `{"timestamp":"2025-11-21T00:00:00Z"}`, `{"value":7}`,
			`{"key":"x","n":1,"count":1}`, `{"\u0063ount":7}`, `{"count":{"n":[1]}}`,
		},
		BadKey: {
			`{"key":""}`, `{"key":"` + strings.Repeat("a", 513) + `"}`, `{"key":"` + strings.Repeat("é", 256) + `a"}`,
			`{"key":"a\nb"}`, `{"key":"\u0000"}`, `{"key":"\u007f"}`, "{\"key\":\"\x7f\"}", `{"key":"\u0085"}`, "{\"key\":\"a\u009f\"}",
			"{\"key\":\"\xff\"}", "{\"key\":\"a\xc3\"}", "{\"key\":\"\xed\xa0\x80\"}",
			`{"key":"\ud83d"}`, `{"key":"\uDE00"}`, `{"key":"\ud83dx"}`, `{"key":"\ud83d\n"}`, `{"key":"\ud83d\ud83d\ude00"}`, `{"key":"\ud83d\\ude00"}`,
			`{"key":5}`, `{"key":5,"count":2}`, `{"key":5,"key":"a"}`, `{"key":"a","key":""}`, `{"key":"\ufffd","key":"\ud83d"}`, `{"key":null}`, `{"key":["a"]}`, `{"key":{}}`, `{"key":true}`,
		},
		BadCount: {`{"n":0}`, `{"n":-1}`, `{"n":1.5}`, `{"n":1.0}`, `{"n":1e3}`, `{"n":"3"}`, `{"n":1099511627777}`, `{"n":9223372036854775808}`, `{"n":null}`, `{"n":[1]}`, `{"n":-0}`, `{"n":0,"n":1}`},
		BadTime: {
			`{"ts":""}`, `{"ts":"yesterday"}`, `{"ts":"2025-11-21"}`, `{"ts":"2025-11-21T00:00:00"}`, `{"ts":"2025-13-21T00:00:00Z"}`,
			`{"ts":"1763683200000"}`, `{"ts":1763683200000.0}`, `{"ts":1.7e12}`, `{"ts":null}`, `{"ts":{}}`, `{"ts":9223372036854775808}`,
			`{"ts":9223372036854775807}`, `{"ts":-9223372036854775808}`, "{\"ts\":\"\xff\"}", `{"ts":"2025-11-21T00:00:00z"}`, `{"ts":"0000-12-31T23:59:59Z"}`, `{"ts":"x","ts":0}`,
		},
		Future:  {`{"ts":"2025-11-21T00:00:10.001Z"}`, `{"ts":253402300799999}`},
		TooLate: {`{"ts":0}`, `{"ts":-1}`, `{"ts":"0001-01-01T00:00:00Z"}`},
	} {
		for _, body := range bodies {
			// Each alone, as a line and as an item, with good neighbours.
			tests = append(tests,
				test{body, body, nil, refuse(reason, body)},
				test{body + " as a line", "{\"key\":\"a\"}\n" + body + "\r\n{\"key\":\"b\"}", ab, []refused{{1, reason, body}}},
				test{body + " as an item", `[{"key":"a"}, ` + body + ` ,{"key":"b"}]`, ab, []refused{{1, reason, body}}})
		}
	}

	d := testDecoder() // one for all: nothing may be left over from the message before
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			body := []byte(test.body)
			for range 2 { // a replay decides the same
				d.Decode("subject", testStored, body)
				hits, rejects := outcome(d)
				if !slices.Equal(hits, test.hits) {
					t.Errorf("%q\nhits %v\nwant %v", test.body, hits, test.hits)
				}
				if !slices.Equal(rejects, test.rejects) {
					t.Errorf("%q\nrejects %v\nwant    %v", test.body, rejects, test.rejects)
				}
			}
			if string(body) != test.body {
				t.Errorf("the body was changed to %q", body)
			}
			for _, h := range d.hits {
				if h.Hash != xxhash.Sum64(h.Counter) {
					t.Errorf("hash of %q is %d", h.Counter, h.Hash)
				}
			}
			for _, r := range d.rejects {
				if r.Detail == "" || !slices.Contains(Reasons, r.Reason) {
					t.Errorf("reject without a detail or with an unknown reason: %+v", r)
				}
			}
		})
	}
}

// A field that was surely meant for another is refused, and the detail names the right one.
func TestDecodeNamesTheRightField(t *testing.T) {
	for wrong, right := range map[string]string{"count": "n", "N": "n", "value": "n", "Key": "key", "time": "ts", "timestamp": "ts"} {
		d := testDecoder()
		d.Decode("subject", testStored, fmt.Appendf(nil, `{"key":"a",%q:7}`, wrong))
		if len(d.hits) != 0 || len(d.rejects) != 1 {
			t.Errorf("%s: hits %v, rejects %v", wrong, d.hits, d.rejects)
			continue
		}
		want := fmt.Sprintf("no field %q: use %q", wrong, right)
		if r := d.rejects[0]; r.Reason != BadJSON || !strings.Contains(r.Detail, want) {
			t.Errorf("%s: %s: %s; want %s", wrong, r.Reason, r.Detail, want)
		}
	}
}

// The subject is checked as a key is, whatever the body is.
func TestDecodeSubjectAsKey(t *testing.T) {
	for subject, ok := range map[string]bool{
		"a": true, strings.Repeat("a", 512): true, strings.Repeat("a", 513): false, "": false, "a\x01": false, "a\xff": false, "é": true,
	} {
		for _, body := range []string{"", " \n", "{}", "[{}]"} {
			d := testDecoder()
			d.Decode(subject, testStored, []byte(body))
			hits, rejects := outcome(d)
			switch {
			case ok && (len(hits) != 1 || hits[0].key != subject || len(rejects) != 0):
				t.Errorf("subject %q, body %q: hits %v, rejects %v", subject, body, hits, rejects)
			case !ok && (len(hits) != 0 || len(rejects) != 1 || rejects[0].reason != BadKey):
				t.Errorf("subject %q, body %q: hits %v, rejects %v", subject, body, hits, rejects)
			}
		}
	}
}

// validKey is the contract's word on keys, written without the decoder's code.
func validKey(key string) bool {
	return len(key) >= 1 && len(key) <= 512 && utf8.ValidString(key) && !strings.ContainsFunc(key, unicode.IsControl)
}

func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		"", " \n", "{}", `{"key":"a","n":3,"ts":1763683200000}`, `{"key":"\ud83d\ude00"}`, `{"key":"\ud83d"}`, `{"key":"\ufffd","x":"\ud83d"}`,
		"{\"key\":\"a\"}\r\n\r\n{\"n\":0}\n", "{\n\"key\":\"a\"\n}", `[]`, `[] x`, `[{"key":"a"},{bad},{"key":"b"}]`, `[{"x":[{"y":"],\"\\"}]}]`,
		`[{"key":"a"}`, `[},{}]`, `[{"ts":"2025-11-21T05:30:00.5+05:30"},{"ts":0},{"ts":9e99}]`, "[{},{},{},{},{},{}]", "{\"key\":\"\xff\"}", `{"x":-}`, "\"", "{\"a\":\"\\",
	} {
		f.Add("subject", body)
	}
	f.Add("", "")
	f.Fuzz(func(t *testing.T, subject, body string) {
		d, raw := testDecoder(), []byte(body)
		d.Decode(subject, testStored, raw)
		hits, rejects := outcome(d)
		if string(raw) != body {
			t.Fatal("the body was changed")
		}
		for _, h := range hits {
			if !validKey(h.key) {
				t.Errorf("key %q", h.key)
			}
			if h.n < 1 || h.n > MaxN {
				t.Errorf("n %d", h.n)
			}
			if h.at > testStored || h.at < testStored-98*day {
				t.Errorf("at %d", h.at)
			}
		}
		items := map[int]bool{}
		for _, r := range rejects {
			if !slices.Contains(Reasons, r.reason) || !strings.Contains(body, r.body) || items[r.item] || r.item < 0 {
				t.Errorf("reject %+v", r)
			}
			items[r.item] = true
			if r.reason == TooLarge && (r.body != body || len(hits) > 0 || len(rejects) > 1) {
				t.Errorf("a message that is too large is rejected whole: %v %+v", hits, rejects)
			}
		}
		if len(hits) > testMaxHits {
			t.Errorf("%d hits", len(hits))
		}
		var list []json.RawMessage
		if emptyArray := json.Unmarshal(raw, &list) == nil && list != nil && len(list) == 0; (len(hits)+len(rejects) == 0) != emptyArray {
			t.Errorf("%d hits, %d rejects, empty array: %v", len(hits), len(rejects), emptyArray)
		}
		// A body that is JSON has one decoded per element.
		if strings.HasPrefix(strings.TrimLeft(body, " \t\r\n"), "[") && json.Valid(raw) && len(list) <= testMaxHits && len(hits)+len(rejects) != len(list) {
			t.Errorf("%d hits and %d rejects of %d elements", len(hits), len(rejects), len(list))
		}
		d.Decode("other", testStored, []byte(`[{"key":"x"},{},x]`))
		d.Decode(subject, testStored, raw)
		if again, rejectedAgain := outcome(d); !slices.Equal(again, hits) || !slices.Equal(rejectedAgain, rejects) {
			t.Errorf("decoded again: %v %v, first %v %v", again, rejectedAgain, hits, rejects)
		}
	})
}

// TestDecodeAsEncodingJSON: whatever encoding/json writes decodes to what was written.
func TestDecodeAsEncodingJSON(t *testing.T) {
	type object struct {
		Note any     `json:"note,omitempty"`
		Key  *string `json:"key,omitempty"`
		N    *int64  `json:"n,omitempty"`
		TS   any     `json:"ts,omitempty"`
	}
	key := rapid.StringOfN(rapid.Rune(), 1, -1, 512).Filter(validKey)
	rapid.Check(t, func(t *rapid.T) {
		var objects []object
		var want []got
		for range rapid.IntRange(1, 30).Draw(t, "hits") {
			o, w := object{}, got{"subject", 1, testStored}
			if rapid.Bool().Draw(t, "has key") {
				w.key = key.Draw(t, "key")
				o.Key = &w.key
			}
			if rapid.Bool().Draw(t, "has n") {
				w.n = rapid.Int64Range(1, MaxN).Draw(t, "n")
				o.N = &w.n
			}
			switch rapid.IntRange(0, 2).Draw(t, "has ts") {
			case 1:
				w.at = testStored - rapid.Int64Range(-10_000, 30*day).Draw(t, "ts")
				o.TS = w.at
			case 2:
				w.at = testStored - rapid.Int64Range(-10_000, 30*day).Draw(t, "ts")
				zone := time.FixedZone("", 60*rapid.IntRange(-14*60, 14*60).Draw(t, "zone"))
				o.TS = time.UnixMilli(w.at).In(zone)
			}
			switch rapid.IntRange(0, 2).Draw(t, "note") {
			case 1:
				o.Note = rapid.String().Draw(t, "text")
			case 2:
				o.Note = map[string]any{"key": rapid.String().Draw(t, "nested"), "list": []any{1.5, nil, "]},", true}}
			}
			w.at = min(w.at, testStored)
			objects, want = append(objects, o), append(want, w)
		}
		array, err := json.Marshal(objects)
		require.NoError(t, err)
		indented, _ := json.MarshalIndent(objects, "", "  ")
		var lines bytes.Buffer
		encoder := json.NewEncoder(&lines)
		encoder.SetEscapeHTML(rapid.Bool().Draw(t, "escape"))
		for _, o := range objects {
			require.NoError(t, encoder.Encode(o))
		}
		d := NewDecoder(Limits{testMaxAhead, len(objects), testLimits.Place, nil})
		for form, body := range map[string][]byte{"array": array, "indented": indented, "lines": lines.Bytes()} {
			d.Decode("subject", testStored, body)
			if hits, rejects := outcome(d); !slices.Equal(hits, want) || len(rejects) != 0 {
				t.Fatalf("%s: %s\nhits %v\nwant %v\nrejects %v", form, body, hits, want, rejects)
			}
		}
		// One more than allowed, and nothing counts.
		d = NewDecoder(Limits{testMaxAhead, len(objects) - 1, testLimits.Place, nil})
		d.Decode("subject", testStored, array)
		if _, rejects := outcome(d); len(d.hits) != 0 || len(rejects) != 1 || rejects[0] != (refused{0, TooLarge, string(array)}) {
			t.Fatalf("too large: hits %d, rejects %v", len(d.hits), rejects)
		}
	})
}

// Details are for people: they say times and durations as people do.
func TestFutureDetail(t *testing.T) {
	for body, want := range map[string]string{
		`{"ts":1763942370837}`:          "ts 1763942370837 (2025-11-23T23:59:30.837Z) is 3 days later than the hit was stored (2025-11-21T00:00:00Z); at most 10 seconds are allowed (INGEST_MAX_AHEAD)",
		`{"ts":"9999-12-31T23:59:59Z"}`: "ts 253402300799000 (9999-12-31T23:59:59Z) is 7974 years later than ",
	} {
		_, rejects := testDecoder().Decode("subject", testStored, []byte(body))
		if len(rejects) != 1 || !strings.HasPrefix(rejects[0].Detail, want) {
			t.Errorf("%+v, want %q", rejects, want)
		}
	}
}

// errOf is the error of a call of which nothing else matters.
func errOf[T any](_ T, err error) error { return err }
