package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"tallyroll/internal/hit"
)

// FuzzParse reads any file. What is accepted must decode; what is refused must be one line.
func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add(shopRule)
	f.Add(severalRules)
	f.Add(oneRule("each: items\ntime: ^.at\nwhen: {a: 1, subject.1: x}\ncount: [{key: \"{{{@this}}}\", n: q, unique: \"{^.a}\", optional: true}]"))
	f.Add("- &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := Parse([]byte(text))
		if err != nil {
			var bad *FileError
			if !errors.As(err, &bad) || strings.Contains(err.Error(), "\n") || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q", err)
			}
			return
		}
		for _, r := range set.rules {
			d := NewDecoder(set.For(strings.NewReplacer("*", "A", "?", "A").Replace(r.stream)), testLimits(100))
			subject := strings.NewReplacer("*", "x", ">", "y.z").Replace(r.filter.text)
			d.Decode(Message{Subject: subject, Stored: now, Body: []byte(order)})
		}
	})
}

// FuzzDecode reads any body by rules that look at many places. It compares with encoding/json what a name is made of.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{order, `{"a":"x","b":{"c":1},"items":[{"a":true}]}`, "{}\n{}", "[{},{}]", `{"a":"\ud83d\ude00"}`, `{` + eventHead + `,"data":{"a":1}}`, `{` + eventHead + `,"data_base64":"eyJhIjoxfQ=="}`, ""} {
		f.Add(body)
	}
	const fields = "count: [{key: \"a.{a}\", optional: true}, {key: \"c.{b.c}\", n: b.n, optional: true}, {key: \"b.{b.0.a}\", optional: true}, {key: u, unique: \"{a}-{b.c}\", optional: true}]\n"
	texts := map[string]string{
		"json":   "- stream: S\n  subject: '>'\n" + indent(fields) + "- stream: S\n  subject: '>'\n  each: items\n  time: ^.t\n" + indent(fields),
		"single": "- stream: S\n  subject: '>'\n" + indent("count: [{key: \"{a}\"}]"),
		"cloud":  "- stream: S\n  subject: '>'\n  format: cloudevents\n" + indent(strings.NewReplacer("{b", "{data.b", "{a", "{data.a").Replace(fields)),
		"none":   "- stream: OTHER\n  subject: '>'\n" + indent(fields),
	}
	sets := map[string]*Set{}
	for name, text := range texts {
		sets[name] = mustParse(f, text)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for name, set := range sets {
			for _, h := range []headers{nil, {"ce-specversion": "1.0", "ce-type": "t", "ce-source": "s", "ce-id": body}} {
				d := NewDecoder(set.For("S"), testLimits(50))
				m := Message{Subject: "s", Counter: "plain", Stored: now, Body: []byte(body)}
				if h != nil {
					m.Header = h.get
				}
				hits, rejects, _ := d.Decode(m)
				for _, one := range hits {
					if hit.CheckName(one.Counter) != nil || one.N < 1 || one.N > hit.MaxN || one.At > now || one.Hash != 7 || one.Unique != nil && hit.CheckUnique(one.Unique) != nil {
						t.Fatalf("%s: %+v", name, one)
					}
				}
				for _, r := range rejects {
					if !strings.Contains(body, string(r.Body)) || r.Detail == "" {
						t.Fatalf("%s: %+v is no part of %q", name, r, body)
					}
				}
				if name == "single" && len(hits) == 1 && len(rejects) == 0 {
					sameName(t, body, hits[0].Counter)
				}
				first := outcome(hits, rejects, 0)
				hits, rejects, _ = d.Decode(m)
				if again := outcome(hits, rejects, 0); first != again {
					t.Fatalf("%s: first %s, then %s", name, first, again)
				}
			}
		}
	})
}

// sameName compares a counter that was made of the field a with what encoding/json finds there.
func sameName(t *testing.T, body string, got []byte) {
	t.Helper()
	var event map[string]any
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	err := decoder.Decode(&event)
	if err != nil { // an array of one
		var events []map[string]any
		decoder = json.NewDecoder(strings.NewReader(body))
		decoder.UseNumber()
		err = decoder.Decode(&events)
		if err == nil && len(events) == 1 {
			event = events[0]
		}
	}
	if err != nil {
		if utf8.ValidString(body) {
			t.Fatalf("%q is no JSON, but it counted %s: %v", body, got, err)
		}
		return
	}
	want := ""
	switch v := event["a"].(type) {
	case string:
		want = v
	case json.Number:
		want = v.String()
		if want == "-0" {
			want = "0"
		}
	case bool:
		want = map[bool]string{true: "true", false: "false"}[v]
	}
	if !bytes.Equal(got, hit.Shorten([]byte(want))) {
		t.Fatalf("%q counted %q, want %q", body, got, want)
	}
}
