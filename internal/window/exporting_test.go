package window_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// exportHit is a hit that was stored, perhaps long after it happened.
type exportHit struct {
	counter       string
	at, stored, n int64
}

var exportNames = []string{"a", "b", "shop.", "shop.cart", "shop.checkout.eu", "shoq", `"quoted", twice`, "ß", "z"}

var genExportLayout = rapid.Custom(func(t *rapid.T) window.Layout {
	tiers, err := window.ParseTiers(rapid.SampledFrom([]string{
		window.DefaultTiers, "1s/1h,1m/1d,1h/92d", "1m/1h,1h/1d", "15m/1d", "7s/70s,1m/1h,1d/30d", "90s/1h,30m/2d",
	}).Draw(t, "tiers"))
	require.NoError(t, err)
	return window.Layout{Tiers: tiers.Cut(rapid.SampledFrom([]int64{window.EpochCells, 24, 5}).Draw(t, "cells of a hash")), Shards: rapid.IntRange(1, 5).Draw(t, "shards")}
})

// A row for each counter and closed step that has hits, with exactly those hits: whatever tiers, hashes, shards, range,
// step and prefix, and however small the pages are. The sum of a counter's rows is its total of the same range.
func TestExportIsExact(t *testing.T) {
	t.Parallel()
	client := stack.ProgramClient(t, stack.Redis(t).URL())
	clock := stack.WatchClock(client)
	exported, cut, equal := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		require.NoError(rt, client.FlushAll(ctx).Err())
		layout := genExportLayout.Draw(rt, "layout")
		now := time.Now().Truncate(time.Second).Add(time.Duration(rapid.IntRange(0, 999).Draw(rt, "ms")) * time.Millisecond)
		clock.Hold(&now)
		asOf := now.Add(-time.Duration(rapid.SampledFrom([]int{0, 1, 3, 100, 2000}).Draw(rt, "as_of ago")) * time.Second)
		longest := layout.Tiers[len(layout.Tiers)-1].Window
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)) // rapid would draw few hits, and all of now
		near := func(label string, until int64) int64 {                     // of each tier's time alike
			reach := rapid.SampledFrom(layout.Tiers).Draw(rt, label+" tier").Window.Milliseconds()
			return until - 1 - random.Int64N(reach)
		}

		store := window.NewStore(client, "test")
		require.NoError(rt, store.EnsureLayout(ctx, layout))
		require.NoError(rt, store.AddStream(ctx, "HITS"))
		batch := window.NewBatch(layout)
		var hits []exportHit
		for range random.IntN(200) {
			h := exportHit{counter: exportNames[random.IntN(len(exportNames))], n: 1 + random.Int64N(1<<40)}
			h.at = now.UnixMilli() - 1 - random.Int64N(layout.Tiers[random.IntN(len(layout.Tiers))].Window.Milliseconds())
			h.stored = h.at + random.Int64N(now.UnixMilli()-h.at)
			if random.IntN(2) == 0 {
				h.stored = h.at
			}
			batch.Add([]byte(h.counter), window.HashCounter([]byte(h.counter)), h.at, h.stored, h.n)
			hits = append(hits, h)
		}
		cursor := window.Cursor{Created: now.Add(-2 * longest).UnixNano(), Seq: 1, Stored: asOf.UnixNano(), AsOf: asOf.UnixMilli()}
		for shard := range layout.Shards {
			w, err := store.OpenWriter(ctx, layout, "HITS", shard)
			if err == nil {
				_, err = w.Commit(ctx, batch.Shard(shard), cursor)
			}
			require.NoError(rt, err)
		}

		reader := window.NewReader(store)
		reader.Local = func() time.Time { return now }
		q := window.ExportQuestion{From: window.Now, To: window.Now, Prefix: rapid.SampledFrom([]string{"", "", "shop", "shop.", "zz"}).Draw(rt, "prefix")}
		if rapid.IntRange(0, 2).Draw(rt, "has to") == 0 {
			q.To = rapid.OneOf(rapid.Just(now.UnixMilli()), rapid.Just(near("to", now.UnixMilli()))).Draw(rt, "to")
		}
		if rapid.IntRange(0, 4).Draw(rt, "has from") > 0 {
			q.From = near("from", min(q.To, now.UnixMilli()))
		}
		if rapid.IntRange(0, 2).Draw(rt, "has step") == 0 {
			cell := rapid.SampledFrom(layout.Tiers).Draw(rt, "step of").Cell
			q.Step = cell * time.Duration(rapid.SampledFrom([]int{1, 2, 3, 4, 15, 24, 96}).Draw(rt, "cells"))
		}
		e, err := reader.BeginExport(ctx, q)
		var bad *window.QuestionError
		if errors.As(err, &bad) {
			rt.Skip(bad) // out of reach, or no step: other tests look at that
		}
		require.NoError(rt, err)
		step := e.Step.Milliseconds()
		switch {
		case e.Range.From%step != 0 || e.Range.To%step != 0 || e.Range.From > e.Range.To || e.Range.To > max(asOf.UnixMilli(), e.Range.From):
			rt.Fatalf("%+v as of %d", e, asOf.UnixMilli())
		case q.From != window.Now && (e.Range.From > q.From || e.Range.From <= q.From-step):
			rt.Fatalf("%+v for from %d", e, q.From)
		case q.To != window.Now && !e.Cut && (e.Range.To < q.To || e.Range.To >= q.To+step):
			rt.Fatalf("%+v for to %d", e, q.To)
		case e.Cut && e.Range.To+step <= asOf.UnixMilli():
			rt.Fatalf("%+v is cut too much: as of %d", e, asOf.UnixMilli())
		}

		reader.MaxCells = rapid.SampledFrom([]int64{0, 0, 2000, 900}).Draw(rt, "cells of a page")
		type cell struct {
			counter string
			from    int64
		}
		got, sums := make(map[cell]int64), make(map[string]int64)
		var last window.ExportRow
		for at, pages := (window.ExportPlace{}), 0; ; pages++ {
			page, err := reader.ExportPage(ctx, e, at)
			var much *window.TooMuchError
			if errors.As(err, &much) && reader.MaxCells > 0 {
				rt.Skip(much) // not even a step of one counter
			}
			require.NoError(rt, err)
			for _, row := range page.Rows {
				if row.Counter < last.Counter || row.Counter == last.Counter && row.From <= last.From {
					rt.Fatalf("%+v after %+v", row, last)
				}
				last = row
				got[cell{row.Counter, row.From}] = row.Hits
				sums[row.Counter] += row.Hits
			}
			if !page.Complete && e.Range.From >= cursor.Created/1e6 && page.AsOf == asOf.UnixMilli() {
				rt.Fatalf("page %+v is not complete", page)
			}
			if !page.More {
				break
			}
			if pages > 10_000 {
				rt.Fatalf("still more behind %+v", page.Next)
			}
			at = page.Next
		}
		want := make(map[cell]int64)
		for _, h := range hits {
			if strings.HasPrefix(h.counter, q.Prefix) && h.at >= e.Range.From && h.at < e.Range.To {
				want[cell{h.counter, h.at - h.at%step}] += h.n
			}
		}
		if !maps.Equal(got, want) {
			rt.Fatalf("%+v: got %v, want %v", e, got, want)
		}
		exported += len(got)
		if e.Cut {
			cut++
		}
		reader.MaxCells = 0
		for _, counter := range exportNames {
			if !strings.HasPrefix(counter, q.Prefix) || e.Range.From == e.Range.To {
				continue
			}
			found, err := reader.Answer(ctx, []window.Question{{Counter: counter, Span: window.Between(e.Range.From, e.Range.To)}})
			if errors.As(err, &bad) {
				break // hashes outlive windows
			}
			require.NoError(rt, err)
			a := found.Answers[0]
			if sums[counter] < a.Lower || sums[counter] > a.Upper {
				rt.Fatalf("%q: the rows of %+v add up to %d, the total is %+v", counter, e, sums[counter], a.Estimate)
			}
			if a.Lower == a.Upper {
				equal++
			}
		}
	})
	if exported < 100 || cut == 0 || equal < 100 {
		t.Errorf("only %d rows, %d exports cut, %d equal totals", exported, cut, equal)
	}
}

// exported reads all pages of an export when Redis's clock says now.
func (r *rig) exported(now time.Time, q window.ExportQuestion) (e window.Export, rows []string) {
	r.t.Helper()
	r.at(now, func() {
		var err error
		e, err = r.reader.BeginExport(r.t.Context(), q)
		for at, more := (window.ExportPlace{}), err == nil; more; {
			var page window.ExportPage
			page, err = r.reader.ExportPage(r.t.Context(), e, at)
			for _, row := range page.Rows {
				rows = append(rows, fmt.Sprintf("%s +%ds %d", row.Counter, (row.From-e.Range.From)/1000, row.Hits))
			}
			at, more = page.Next, err == nil && page.More
		}
		require.NoError(r.t, err)
	})
	return e, rows
}

func anExportHasWhatIsClosed(t *testing.T, r *rig) {
	now := time.Now().UTC().Truncate(time.Minute).Add(30 * time.Second)
	writers := r.writers()
	commit := func(seq uint64, asOf time.Time, counters ...string) {
		t.Helper()
		batch := window.NewBatch(layout)
		for i, counter := range counters {
			batch.Add([]byte(counter), window.HashCounter([]byte(counter)), asOf.Add(-time.Minute*time.Duration(i)).UnixMilli(), asOf.UnixMilli(), int64(i+1))
		}
		for i, w := range writers {
			require.NoError(t, errOf(w.Commit(t.Context(), batch.Shard(i), cursorAt(seq, asOf))))
		}
	}
	commit(1, now.Add(-20*time.Second), "open", "b", "a")
	hour := window.ExportQuestion{From: now.Add(-time.Hour).UnixMilli(), To: now.UnixMilli(), Step: time.Minute}
	e, rows := r.exported(now, hour)
	closed := now.Truncate(time.Minute)
	if !e.Cut || e.Range.To != closed.UnixMilli() || !slices.Equal(rows, []string{"a +3480s 3", "b +3540s 2"}) {
		t.Errorf("%+v, to %s: %q", e, time.UnixMilli(e.Range.To), rows)
	}
	// A page that is read when as_of has gone back is refused.
	var err error
	r.at(now, func() {
		_, err = r.reader.ExportPage(t.Context(), window.Export{Range: window.Range{From: e.Range.From, To: e.Range.To + 60_000}, Step: time.Minute}, window.ExportPlace{})
	})
	require.ErrorIs(t, err, window.ErrReopened, "a page of what is open")
	for _, c := range []struct {
		name string
		q    window.ExportQuestion
		want string
	}{
		{"a step for which the cells do not reach back", window.ExportQuestion{From: hour.From, To: hour.To, Step: 90 * time.Second}, "the cells for a step of 90s do not reach back"},
		{"a step of which a day is not a multiple", window.ExportQuestion{From: hour.From, To: hour.To, Step: 7 * time.Minute}, "is not a step of an export"},
		{"an end ahead", window.ExportQuestion{From: hour.From, To: hour.To + 7_200_000}, "is later than now"},
		{"a start ahead", window.ExportQuestion{From: hour.To + 1000, To: window.Now}, "is not before to"},
		{"a fine step far back", window.ExportQuestion{From: hour.From - 30*86_400_000/2, To: hour.To, Step: time.Minute}, "reach"},
	} {
		var err error
		r.at(now, func() { _, err = r.reader.BeginExport(t.Context(), c.q) })
		var bad *window.QuestionError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
