package collect

import (
	"maps"
	"testing"
	"time"

	"tallyroll/internal/hit"
)

// What is taken, a worker counts, hit by hit, from the body as it came and from the lines that are stored.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		"", "[]", `{"key":"a"}`, `{"key":"a","n":3,"ts":1763683200000}`, `{"key":"a","ts":1763683200}`, "{\"key\":\"a\"}\r\n\r\n{\"key\":\"b\",\"n\":2}\n", "{\n\"key\":\"a\"\n}",
		`[{"key":"a"},{"key":"b","ts":"2026-11-21T10:00:00Z"}]`, `[{"key":"\ud83d\ude00\"\\\/"}]`, `[{"key":"a"}`, `[{"key":"a"}] x`, `{"key":"a","key":"b"}`, "{\"key\":\"\u2028\"}",
		`{"key":"a","n":1099511627776,"x":[{"key":"]"}]}`,
	} {
		f.Add(body)
	}
	const maxHits = 5
	f.Fuzz(func(t *testing.T, body string) {
		hits, p := parse(hit.NewParser(), []byte(body), maxHits)
		if p != nil {
			if len(hits) > 0 || p.Detail == "" || p.Status < 400 || p.Status > 499 {
				t.Errorf("%d hits, %+v", len(hits), p)
			}
			return
		}
		stored := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli() // later than any hit's time
		d := hit.NewDecoder(hit.Limits{MaxAhead: time.Second, MaxHits: maxHits, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
		type counted struct {
			key string
			at  int64
		}
		decoded := func(body []byte) map[counted]int64 {
			out := make(map[counted]int64)
			found, rejects := d.Decode("", stored, body)
			if len(rejects) > 0 || len(found) != len(hits) {
				t.Fatalf("a worker finds %d hits and %d rejects %+v; %d hits were taken", len(found), len(rejects), rejects, len(hits))
			}
			for _, h := range found {
				out[counted{string(h.Counter), h.At}] += h.N
			}
			return out
		}
		taken := make(map[counted]int64)
		for _, h := range hits {
			at := h.At
			if at == hit.NoTime {
				at = stored
			}
			taken[counted{string(h.Counter), min(at, stored)}] += h.N
		}
		e := newEntry(&gate{maxBytes: 1 << 30}, hits, "")
		if asItCame, asStored := decoded([]byte(body)), decoded(e.lines); !maps.Equal(asItCame, taken) || !maps.Equal(asStored, taken) {
			t.Errorf("taken %v, as it came %v, as stored %v", taken, asItCame, asStored)
		}
	})
}
