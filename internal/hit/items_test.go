package hit

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestItemsOfABodyAreFound(t *testing.T) {
	for _, c := range []struct {
		body  string
		items []string
		rest  string
	}{
		{body: ""},
		{body: " \n"},
		{body: `{"key":"a"}`, items: []string{`{"key":"a"}`}},
		{body: "{\n\"key\":\"a\"\n}", items: []string{"{\n\"key\":\"a\"\n}"}},
		{body: "{\"key\":\"a\"}\r\n\n x \n{", items: []string{`{"key":"a"}`, "x", "{"}},
		{body: "x\n{}", items: []string{"x\n{}"}},
		{body: `[]`},
		{body: `[{"key":"a,]"} , 5,{]`, items: []string{`{"key":"a,]"}`, "5"}, rest: "[{]"},
		{body: `[{},[1,2]] {}`, items: []string{"{}", "[1,2]"}, rest: "[]{}"},
		{body: `[{},{}`, items: []string{"{}"}, rest: "[{}"},
	} {
		items, rest := Items([]byte(c.body))
		var got []string
		for _, i := range items {
			got = append(got, string(i))
		}
		if !slices.Equal(got, c.items) || string(rest) != c.rest {
			t.Errorf("%q: %q and %q, want %q and %q", c.body, got, rest, c.items, c.rest)
		}
	}
}

// Items and Decoder see the same items, in the same order.
func TestItemsAreThoseOfTheDecoder(t *testing.T) {
	limits := Limits{MaxHits: 1000, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }}
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.SampledFrom([]string{`{"key":"a"}`, `{"n":0}`, "{", "}", "[", "]", ",", "5", "\n", " ", `"`, `{"key":"],["}`})
		body := ""
		for _, p := range rapid.SliceOf(piece).Draw(t, "body") {
			body += p
		}
		items, rest := Items([]byte(body))
		hits, rejects := NewDecoder(limits).Decode("subject", 0, []byte(body))
		n := len(items)
		if rest != nil {
			n++
		}
		if n != len(hits)+len(rejects) && !(n == 0 && Blank([]byte(body))) {
			t.Fatalf("%q: %d items, %d hits and %d rejects", body, n, len(hits), len(rejects))
		}
		if rest == nil {
			return
		}
		hits, rejects = NewDecoder(limits).Decode("subject", 0, rest)
		if len(hits) != 0 || len(rejects) != 1 {
			t.Fatalf("%q: the rest %q makes %d hits and %d rejects", body, rest, len(hits), len(rejects))
		}
	})
}
