package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
)

// lines are objects that count, objects that do not, and what is no object. internal/hit has what each of them is.
var lines = []string{
	`{"key":"a"}`, ` {"key":"\ufffd","n":3,"ts":1763683200000,"unique":"u-17"} `, `{"\u006bey":"a","n":1099511627776,"ts":"2025-11-21T00:00:00Z"}`,
	`{"key":"\ud83d\ude00","id":"7","other":[1,{"key":"no"}]}`, `{"key":"a","key":"b","n":2,"n":5}`, `{"key":"` + strings.Repeat("é", 256) + `"}`,
	`{"key":""}`, `{"key":"a\u0085"}`, "{\"key\":\"\xff\"}", `{"key":"\ud83d"}`, `{"key":"a","n":0}`, `{"key":"a","n":1.0}`, `{"key":"a","n":"7"}`,
	`{"key":"a","ts":253402300800000}`, `{"key":"a","ts":"2025-11-21"}`, `{"key":"a","unique":""}`, `{"key":"a","unique":"\ud83d"}`, `{"key":"a","unique":7}`,
	`{"key":"a","count":7}`, `{"Key":"a"}`, `{"key":"a","uniques":1}`, `[{"key":"a"}]`, `{"key":"a"}{"key":"b"}`, `{"key":"a"`, `{"key":"a",}`, `{}`, `null`, `7`, "k", "\ufeff{}",
}

// mutate changes some bytes of a line.
func mutate(t *rapid.T, line string) string {
	b := []byte(line)
	for range rapid.IntRange(1, 3).Draw(t, "mutations") {
		i := rapid.IntRange(0, len(b)).Draw(t, "place")
		j := min(len(b), i+rapid.IntRange(0, 3).Draw(t, "length"))
		with := rapid.OneOf(
			rapid.SampledFrom([]string{"", `"`, `\`, `\u`, `\ud83d`, "{", "}", "[", "]", ":", ",", "0", "-", ".", "e", " ", "\x00", "\x7f", "\xff", "\ufffd", "\u0085", `"key":`, `"n":`, `"ts":`, `"unique":`, "null"}),
			rapid.Just(line[min(i, len(line)):min(j, len(line))]),
		).Draw(t, "with")
		b = slices.Replace(b, i, j, []byte(with)...)
	}
	return string(b)
}

// lastStored is after all times that a hit can have, so that each hit has its own.
const lastStored = hit.MaxTime

// counted is a hit as it is to be counted, in a form that can be compared.
func counted(h hit.Hit) string {
	if h.At == hit.NoTime {
		h.At = lastStored
	}
	if h.Unique != nil {
		return fmt.Sprintf("%q n %d at %d of %q", h.Counter, h.N, h.At, h.Unique)
	}
	return fmt.Sprintf("%q n %d at %d", h.Counter, h.N, h.At)
}

// ingested decodes a body as a worker does whose tiers hold everything.
func ingested(body []byte) (hits []string, rejects []hit.Reject) {
	decoder := hit.NewDecoder(hit.Limits{MaxHits: 1000, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
	found, rejects := decoder.Decode("", lastStored, body) // no subject: a hit without a key has no counter, as in publish
	for _, h := range found {
		hits = append(hits, counted(h))
	}
	return hits, rejects
}

// publishing feeds lines through the program up to the messages' bodies, and returns
// what ingest counts of these.
func publishing(t rapid.TB, parse func([]byte) (hit.Hit, error), lines ...string) (hits []string, bad badLines) {
	batch := &batcher{maxHits: 3, maxBytes: 1 << 20, submit: func(m *outbox.Message) error {
		counts, rejects := ingested(m.Body)
		require.Empty(t, rejects, "%v %v", lines, m.Body)
		hits = append(hits, counts...)
		return nil
	}}
	feed := newFeeder(context.Background(), batch, 0)
	require.NoError(t, errors.Join(feed.lines(strings.NewReader(strings.Join(lines, "\n")), parse, feed.take), batch.flush()))
	return hits, feed.bad
}

// compareLine holds a line that publish reads against the same line among others as any producer sends it.
func compareLine(t rapid.TB, text string) {
	text = strings.ReplaceAll(text, "\n", "\f")                                // so that it is one line
	sent, bad := publishing(t, hit.NewParser().Parse, `{"key":"first"}`, text) // a first line may have a byte-order mark
	hits, rejects := ingested([]byte(`{"key":"first"}` + "\n" + text))
	if !slices.Equal(sent, hits) || int(bad.count) != len(rejects) {
		t.Fatalf("%q: by publish %v, and bad lines %+v; ingest counts %v and rejects %+v", text, sent, bad, hits, rejects)
	}
}

// What publish takes and sends, ingest counts as the same; what ingest would refuse, publish refuses.
func TestPublishTakesWhatIngestCounts(t *testing.T) {
	t.Parallel()
	for _, text := range lines {
		compareLine(t, text)
	}
	rapid.Check(t, func(t *rapid.T) { compareLine(t, mutate(t, rapid.SampledFrom(lines).Draw(t, "line"))) })
}

func FuzzPublishTakesWhatIngestCounts(f *testing.F) {
	for _, text := range lines {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { compareLine(t, text) })
}

// Whatever stands in the lines of the other formats: what is sent counts.
func TestPublishSendsOnlyWhatCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := mutate(t, rapid.OneOf(rapid.String(), rapid.Just(strings.Repeat("é", 256))).Draw(t, "name"))
		name = strings.NewReplacer("\n", "", "\r", "").Replace(name)
		if got, bad := publishing(t, parseName, "first", name); len(got)+int(bad.count) != 2 && !hit.Blank([]byte(name)) ||
			len(got) == 2 && got[1] != counted(hit.Hit{Counter: []byte(name), N: 1, At: hit.NoTime}) {
			t.Fatalf("%q: %v, bad %+v", name, got, bad)
		}
		year := rapid.SampledFrom([]string{"0000", "0001", "2015", "9999"}).Draw(t, "year")
		day := rapid.SampledFrom([]string{"01/Jan", "31/Dec"}).Draw(t, "day")
		clock := rapid.SampledFrom([]string{"00:00:00 +0000", "00:00:00 +0001", "23:59:59 +0000", "23:59:60 +0000", "23:59:59 -0001"}).Draw(t, "clock")
		access := fmt.Sprintf(`h - - [%s/%s:%s] "GET /%s HTTP/1.1" 200 1`, day, year, clock, name)
		if got, bad := publishing(t, combinedParser("path", ""), access); len(got)+int(bad.count) != 1 {
			t.Fatalf("%q: %v, bad %+v", access, got, bad)
		}
	})
}
