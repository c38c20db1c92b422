package main

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCheckKey(t *testing.T) {
	cases := []struct {
		name, key string
		ok        bool
	}{
		{"plain", "api-1", true},
		{"accents", "café/été", true},
		{"512 bytes", strings.Repeat("x", 512), true},
		{"513 bytes", strings.Repeat("x", 513), false},
		{"empty", "", false},
		{"tab", "a\tb", false},
		{"delete", "a\x7f", false},
		{"C1 after a letter that is not ASCII", "é\u0080", false},
		{"cut rune", "caf\xc3", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := checkKey([]byte(c.key)); (err == nil) != c.ok {
				t.Fatalf("%q: %v", c.key, err)
			}
		})
	}
}

func TestAppendHitIsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := hit{
			key: []byte(rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune(`"\/<>&`+"\x00\x1f\x7f\u2028\ufffd\U0001f600a")))).Draw(t, "key")),
			n:   rapid.Int64Range(1, maxCount).Draw(t, "n"),
			ts:  rapid.OneOf(rapid.Just(int64(noTime)), rapid.Int64Range(minTime, maxTime)).Draw(t, "ts"),
		}
		body := appendHit(nil, h)
		var got map[string]any
		decoder := json.NewDecoder(strings.NewReader(string(body)))
		decoder.UseNumber()
		if err := decoder.Decode(&got); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		want := map[string]any{"key": string(h.key)}
		if h.n != 1 {
			want["n"] = json.Number(jsonInt(h.n))
		}
		if h.ts != noTime {
			want["ts"] = json.Number(jsonInt(h.ts))
		}
		if len(got) != len(want) {
			t.Fatalf("%s: fields %v, want %v", body, got, want)
		}
		for k, v := range want {
			if got[k] != v {
				t.Fatalf("%s: %s is %v, want %v", body, k, got[k], v)
			}
		}
	})
}

// Any bytes at all must come out as encoding/json would read them back.
func FuzzAppendString(f *testing.F) {
	f.Add([]byte(`a"b\c`))
	f.Add([]byte("\x00\xff\xe2\x80\xa8"))
	f.Fuzz(func(t *testing.T, s []byte) {
		reference, err := json.Marshal(string(s))
		if err != nil {
			t.Fatal(err)
		}
		var got, want string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if err := json.Unmarshal(reference, &want); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

func jsonInt(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// One message of 200 hits, as it leaves the batcher.
func BenchmarkBatcher(b *testing.B) {
	batch := &batcher{maxHits: 200, maxBytes: 1 << 20, submit: func(m *message) error { messages.Put(m); return nil }}
	h := hit{key: []byte("/images/a.png?x=1&y=2"), n: 1, ts: 1763683200000}
	b.ReportAllocs()
	for b.Loop() {
		if err := batch.add(h); err != nil {
			b.Fatal(err)
		}
	}
}
