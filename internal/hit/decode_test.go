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

	"tallyroll/tests/cases"
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

func TestBodiesAreDecodedOrRefused(t *testing.T) {
	d := testDecoder() // one for all: nothing may be left over from the message before
	cases.Check(t, "decode", func(t *testing.T, _, given string) string { return decoded(t, d, given) })
}

// decoded is what a message is, in words. A replay decides the same.
func decoded(t *testing.T, d *Decoder, given string) string {
	t.Helper()
	body, words := []byte(given), [2]string{}
	for i := range words {
		d.Decode("subject", testStored, body)
		var out []string
		for _, h := range d.hits {
			require.Equal(t, xxhash.Sum64(h.Counter), h.Hash)
			out = append(out, hitText(h, testStored))
		}
		words[i] = strings.Join(out, " ")
		for _, r := range d.rejects {
			require.Contains(t, Reasons, r.Reason)
			require.NotEmpty(t, r.Detail)
			words[i] += fmt.Sprintf("\n%s/%d:%s\n%s", r.Reason, r.Item, r.Body, r.Detail)
		}
	}
	require.Equal(t, words[0], words[1], given)
	require.Equal(t, given, string(body), "the body was changed")
	return strings.Trim(words[0], "\n")
}

// hitText is a hit in words. usual is the time that goes without saying.
func hitText(h Hit, usual int64) string {
	if h.At == usual {
		return fmt.Sprintf("%s×%d", h.Counter, h.N)
	}
	return fmt.Sprintf("%s×%d@%d", h.Counter, h.N, h.At)
}

// What an object is, it is alone, as a line, and as an item; and what a worker counts, a producer takes.
func TestObjectMeansTheSameAloneAsALineAndAsAnItem(t *testing.T) {
	d, p := testDecoder(), NewParser()
	cases.Check(t, "objects", func(t *testing.T, section, given string) string {
		alone := decoded(t, d, given)
		for _, body := range []string{"{\"key\":\"a\"}\n" + given + "\r\n{\"key\":\"b\"}", `[{"key":"a"}, ` + given + ` ,{"key":"b"}]`} {
			hits, rejects := d.Decode("subject", testStored, []byte(body))
			if section == "what is no object" { // among others, the whole may be something else
				break
			}
			if len(rejects) == 0 {
				require.Len(t, hits, 3, body)
				require.Equal(t, alone, hitText(hits[1], testStored), body)
				continue
			}
			require.Len(t, hits, 2, body)
			require.Len(t, rejects, 1, body)
			require.Equal(t, 1, rejects[0].Item, body)
			require.Equal(t, alone, fmt.Sprintf("%s/0:%s\n%s", rejects[0].Reason, rejects[0].Body, rejects[0].Detail), body)
		}
		h, err := p.Parse([]byte(given))
		producers := ""
		if err == nil {
			producers = hitText(h, NoTime)
		} else {
			var refused *Refusal
			require.ErrorAs(t, err, &refused)
			producers = fmt.Sprintf("%s/0:%s\n%s", refused.Reason, given, refused.Detail)
		}
		if producers == alone {
			return alone
		}
		return alone + "\nproducer: " + producers
	})
}

// The subject is checked as a key is, whatever the body is.
func TestSubjectIsCheckedAsAKey(t *testing.T) {
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
		require.Equal(t, body, string(raw), "the body was changed")
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

// TestDecoderReadsWhatEncodingJSONWrites: whatever encoding/json writes decodes to what was written.
func TestDecoderReadsWhatEncodingJSONWrites(t *testing.T) {
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

// errOf is the error of a call of which nothing else matters.
func errOf[T any](_ T, err error) error { return err }
