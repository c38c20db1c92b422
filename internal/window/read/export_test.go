package read_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/windowtest"
)

// A row for each counter and closed step that has hits, with exactly those hits: whatever tiers, hashes,
// shards, range, step and prefix, and however small the pages are. The sum of a counter's rows is its total
// of the same range.
func TestExportIsExact(t *testing.T) {
	t.Parallel()
	b := windowtest.Server(t)
	exported, cut, equal := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		layout := windowtest.GenLayout.Draw(rt, "layout")
		ms := time.Duration(rapid.IntRange(0, 999).Draw(rt, "ms")) * time.Millisecond
		w := windowtest.NewTruth(rt, b, layout, time.Now().Truncate(time.Second).Add(ms))
		w.AsOf = w.Now.Add(-time.Duration(rapid.SampledFrom([]int{0, 1, 3, 100, 2000}).Draw(rt, "as_of ago")) * time.Second)
		w.Since = w.Now.Add(-2 * layout.Tiers[len(layout.Tiers)-1].Window).UnixMilli()
		now, asOf, reader := w.Now.UnixMilli(), w.AsOf.UnixMilli(), w.Reader
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)) // rapid would draw few hits, and all of now
		near := func(label string, until int64) int64 {                     // of each tier's time alike
			reach := rapid.SampledFrom(layout.Tiers).Draw(rt, label+" tier").Window.Milliseconds()
			return until - 1 - random.Int64N(reach)
		}
		require.NoError(rt, w.Count(ctx, random, random.IntN(200)))

		q := read.ExportQuestion{From: window.Now, To: window.Now}
		q.Prefix = rapid.SampledFrom([]string{"", "", "shop", "shop.", "zz"}).Draw(rt, "prefix")
		if rapid.IntRange(0, 2).Draw(rt, "has to") == 0 {
			q.To = rapid.SampledFrom([]int64{now, near("to", now)}).Draw(rt, "to")
		}
		if rapid.IntRange(0, 4).Draw(rt, "has from") > 0 {
			q.From = near("from", min(q.To, now))
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
		case e.Range.From%step != 0 || e.Range.To%step != 0:
			rt.Fatalf("%+v does not consist of steps", e)
		case e.Range.From > e.Range.To || e.Range.To > max(asOf, e.Range.From):
			rt.Fatalf("%+v as of %d", e, asOf)
		case q.From != window.Now && (e.Range.From > q.From || e.Range.From <= q.From-step):
			rt.Fatalf("%+v for from %d", e, q.From)
		case q.To != window.Now && !e.Cut && (e.Range.To < q.To || e.Range.To >= q.To+step):
			rt.Fatalf("%+v for to %d", e, q.To)
		case e.Cut && e.Range.To+step <= asOf:
			rt.Fatalf("%+v is cut too much: as of %d", e, asOf)
		}

		reader.MaxCells = rapid.SampledFrom([]int64{0, 0, 2000, 900}).Draw(rt, "cells of a page")
		pages := 0
		rows, err := readExport(ctx, reader, e, func(page read.ExportPage) error {
			if pages++; pages > 10_000 {
				return fmt.Errorf("still more behind %+v", page.Next)
			}
			if !page.Complete && e.Range.From >= w.Since && page.AsOf == asOf {
				return fmt.Errorf("page %+v is not complete", page)
			}
			return nil
		})
		var much *window.TooMuchError
		if errors.As(err, &much) && reader.MaxCells > 0 {
			rt.Skip(much) // not even a step of one counter
		}
		require.NoError(rt, err)
		type cell struct {
			counter string
			from    int64
		}
		got, want, sums := make(map[cell]int64), make(map[cell]int64), make(map[string]int64)
		for _, row := range rows {
			got[cell{row.Counter, row.From}] = row.Hits
			sums[row.Counter] += row.Hits
		}
		for _, h := range w.Hits {
			if strings.HasPrefix(h.Counter, q.Prefix) && h.At >= e.Range.From && h.At < e.Range.To {
				want[cell{h.Counter, h.At - h.At%step}] += h.N
			}
		}
		require.Equal(rt, want, got, "%+v", e)
		exported += len(got)
		if e.Cut {
			cut++
		}
		reader.MaxCells = 0
		for _, counter := range windowtest.TruthNames {
			if !strings.HasPrefix(counter, q.Prefix) || e.Range.From == e.Range.To {
				continue
			}
			span := window.Between(e.Range.From, e.Range.To)
			found, err := reader.Answer(ctx, []window.Question{{Counter: counter, Span: span}})
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

// readExport reads all rows of an export, which must come in order.
func readExport(ctx context.Context, reader *read.Reader, e read.Export, check func(read.ExportPage) error) (
	rows []read.ExportRow, err error,
) {
	for at := (read.ExportPlace{}); ; {
		page, err := reader.ExportPage(ctx, e, at)
		if err == nil {
			err = check(page)
		}
		if err != nil {
			return nil, err
		}
		for _, row := range page.Rows {
			if n := len(rows); n > 0 && (row.Counter < rows[n-1].Counter || row.Counter == rows[n-1].Counter && row.From <= rows[n-1].From) {
				return nil, fmt.Errorf("%+v after %+v", row, rows[n-1])
			}
			rows = append(rows, row)
		}
		if !page.More {
			return rows, nil
		}
		at = page.Next
	}
}

func (r *rig) TestExportHasWhatIsClosed(t *testing.T) {
	ctx, s := t.Context(), r.Open("HITS")
	now := time.Now().UTC().Truncate(time.Minute).Add(30 * time.Second)
	asOf, batch := now.Add(-20*time.Second), window.NewBatch(layout)
	for i, counter := range []string{"open", "b", "a"} {
		at := asOf.Add(-time.Minute * time.Duration(i))
		windowtest.AddHits(batch, counter, at.UnixMilli(), asOf.UnixMilli(), int64(i+1))
	}
	s.CommitBatch(batch, windowtest.CursorAt(1, asOf))
	hour := read.ExportQuestion{From: now.Add(-time.Hour).UnixMilli(), To: now.UnixMilli(), Step: time.Minute}
	r.At(now, func() {
		e, err := r.Reader.BeginExport(ctx, hour)
		require.NoError(t, err)
		rows, err := readExport(ctx, r.Reader, e, func(read.ExportPage) error { return nil })
		require.NoError(t, err)
		got := ""
		for _, row := range rows {
			got += fmt.Sprintf("%s +%ds %d\n", row.Counter, (row.From-e.Range.From)/1000, row.Hits)
		}
		if !e.Cut || e.Range.To != now.Truncate(time.Minute).UnixMilli() || got != "a +3480s 3\nb +3540s 2\n" {
			t.Errorf("%+v, to %s:\n%s", e, time.UnixMilli(e.Range.To), got)
		}
		e.Range.To += 60_000 // as if as_of had gone back since
		require.ErrorIs(t, windowtest.ErrOf(r.Reader.ExportPage(ctx, e, read.ExportPlace{})), read.ErrReopened)
		for want, q := range map[string]read.ExportQuestion{
			"is later than now": {From: hour.From, To: hour.To + 7_200_000},
			"is not before to":  {From: hour.To + 1000, To: window.Now},
		} {
			require.ErrorContains(t, windowtest.ErrOf(r.Reader.BeginExport(ctx, q)), want)
		}
	})
}
