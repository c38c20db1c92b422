package main

import (
	"testing"

	"pgregory.net/rapid"
)

func TestRebaseKeepsDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type in struct {
			name string
			n    int64
			ts   int64
		}
		hits := rapid.SliceOf(rapid.Custom(func(t *rapid.T) in {
			return in{
				name: rapid.SampledFrom([]string{"a", "b", "c", "/d?e"}).Draw(t, "name"),
				n:    rapid.Int64Range(1, maxCount).Draw(t, "n"),
				ts:   rapid.OneOf(rapid.Just(int64(noTime)), rapid.Int64Range(minTime, maxTime)).Draw(t, "ts"),
			}
		})).Draw(t, "hits")
		moment := rapid.Int64Range(minTime, maxTime).Draw(t, "moment")
		log := newHitLog()
		for _, h := range hits {
			if err := log.add(hit{key: []byte(h.name), n: h.n, ts: h.ts}); err != nil {
				t.Fatal(err)
			}
		}
		log.rebase(moment)

		latest, timed := int64(noTime), false
		shift, i := int64(0), 0
		err := log.replay(func(h hit) error {
			want := hits[i]
			i++
			if string(h.key) != want.name || h.n != want.n || (h.ts == noTime) != (want.ts == noTime) {
				t.Fatalf("hit %d is %+v, want %+v", i, h, want)
			}
			if h.ts == noTime {
				return nil
			}
			if timed && h.ts-want.ts != shift {
				t.Fatalf("hit %d is shifted by %d, another by %d", i, h.ts-want.ts, shift)
			}
			shift, timed, latest = h.ts-want.ts, true, max(latest, h.ts)
			return nil
		})
		if err != nil || i != len(hits) {
			t.Fatalf("%d of %d hits: %v", i, len(hits), err)
		}
		if timed && latest != moment {
			t.Fatalf("the latest hit is at %d, want %d", latest, moment)
		}
	})
}
