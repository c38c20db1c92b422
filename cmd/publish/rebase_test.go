package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
)

// textOrNil is a unique value; nil for none.
func textOrNil(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

func TestRebaseKeepsDifferences(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type in struct {
			name   string
			n      int64
			ts     int64
			unique string // empty: none
		}
		hits := rapid.SliceOf(rapid.Custom(func(t *rapid.T) in {
			return in{
				name:   rapid.SampledFrom([]string{"a", "b", "c", "/d?e"}).Draw(t, "name"),
				n:      rapid.Int64Range(1, hit.MaxN).Draw(t, "n"),
				ts:     rapid.OneOf(rapid.Just(int64(hit.NoTime)), rapid.Int64Range(hit.MinTime, hit.MaxTime)).Draw(t, "ts"),
				unique: rapid.SampledFrom([]string{"", "", "a", "u-1", "u-2"}).Draw(t, "unique"),
			}
		})).Draw(t, "hits")
		moment := rapid.Int64Range(hit.MinTime, hit.MaxTime).Draw(t, "moment")
		log := newHitLog()
		latest := int64(hit.NoTime)
		for _, h := range hits {
			latest = max(latest, h.ts)
			require.NoError(t, log.add(hit.Hit{Counter: []byte(h.name), N: h.n, At: h.ts, Unique: textOrNil(h.unique)}))
		}
		var want []in
		for _, h := range hits {
			if h.ts != hit.NoTime {
				h.ts += moment - latest
			}
			if h.ts == hit.NoTime || h.ts >= hit.MinTime { // none is later than the moment
				want = append(want, h)
			}
		}
		dropped := log.rebase(moment)

		var got []in
		err := log.replay(func(h hit.Hit) error {
			got = append(got, in{string(h.Counter), h.N, h.At, string(h.Unique)})
			return nil
		})
		if err != nil || !slices.Equal(got, want) || dropped != len(hits)-len(want) {
			t.Fatalf("%d dropped: %v, want %v: %v", dropped, got, want, err)
		}
	})
}

// A hit that would be shifted to before the year 1 is reported, not sent for workers to reject.
func TestFeedRebaseOutOfRange(t *testing.T) {
	t.Parallel()
	log := `{"key":"a","ts":"0001-01-01T00:00:00Z"}` + "\n" + `{"key":"b","ts":"2026-11-21T10:00:00Z"}` + "\n" + `{"key":"c"}`
	var published []byte
	batch := &batcher{maxHits: 10, maxBytes: 1 << 20, submit: func(m *outbox.Message) error { published = m.Body; return nil }}
	feed := newFeeder(t.Context(), batch, 0)
	held, err := feed.all(mustParse(t, "--format", "ndjson", "--rebase", "2026-11-21T09:59:59.5Z"), strings.NewReader(log), boot.NewBar(io.Discard, "hits"))
	if err != nil || batch.flush() != nil {
		t.Fatal(err)
	}
	if want := `{"key":"b","ts":1795255199500}` + "\n" + `{"key":"c"}`; held != 2 || string(published) != want {
		t.Errorf("%d held, %s published; want %s", held, published, want)
	}
	require.Contains(t, (report{bad: feed.bad}).String(), "skipped 1 bad lines (first: shifted by --rebase: the time is outside the years 1 to 9999)")
}
