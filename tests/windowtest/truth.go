package windowtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// Hit is n hits of a counter that were stored, perhaps long after they happened.
type Hit struct {
	Counter       string
	At, Stored, N int64
	Excluded      bool // from the sum of all hits
}

// SumOf counts the hits of a range one by one, by counter and all of them.
func SumOf(hits []Hit, r window.Range) map[string]int64 {
	sums := make(map[string]int64)
	for _, h := range hits {
		if h.At >= r.From && h.At < r.To {
			sums[h.Counter] += h.N
			if !h.Excluded {
				sums[window.AllHits] += h.N
			}
		}
	}
	return sums
}

// TruthNames are the counters of a Truth.
var TruthNames = []string{"a", "b", "shop.", "shop.cart", "shop.checkout.eu", "shoq", `"quoted", twice`, "ß", "z"}

// drawnTiers are what a namespace has, or is changed to.
var drawnTiers = []string{
	window.DefaultTiers, "1s/1h,1m/1d,1h/92d", "1m/1h,1h/1d", "15m/1d", "7s/70s,1m/1h,1d/30d", "90s/1h,30m/2d",
	"1m/2h,1h/32d", "1m/1h,1h/32d,1d/5y", "1d/5y", "10s/10m,5m/1d,7h/35d", "1s/1m,1m/1h,15m/1d,6h/32d",
}

var (
	GenTiers = rapid.Custom(func(t *rapid.T) window.Tiers {
		return Must(window.ParseTiers(rapid.SampledFrom(drawnTiers).Draw(t, "tiers")))
	})
	GenLayout = rapid.Custom(func(t *rapid.T) window.Layout {
		cells := rapid.SampledFrom([]int64{window.EpochCells, 24, 5}).Draw(t, "cells of a hash")
		return window.Layout{Tiers: GenTiers.Draw(t, "tiers").Cut(cells),
			Shards: rapid.IntRange(1, 5).Draw(t, "shards")}
	})
)

// Truth is a namespace, and every hit that its stream has stored and that was applied.
type Truth struct {
	Store     *schema.Store
	Reader    *read.Reader
	Now, AsOf time.Time
	Since     int64 // when counting began
	seq       uint64
	Hits      []Hit
}

// NewTruth is an empty namespace at a moment of Redis's clock.
func NewTruth(t rapid.TB, b *Backend, layout window.Layout, now time.Time) *Truth {
	ctx := context.Background()
	require.NoError(t, b.FlushAll(ctx))
	b.Clock.Hold(&now)
	store := schema.NewStore(b.Client, "test")
	w := &Truth{Store: store, Reader: read.NewReader(store), Now: now, AsOf: now}
	w.Since = now.AddDate(-20, 0, 0).UnixMilli()
	w.Reader.Local = func() time.Time { return now }
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	return w
}

// Count applies hits, of which each tier that holds them gets its own.
func (w *Truth) Count(ctx context.Context, random *rand.Rand, n int) error {
	layout, err := w.Store.Layout(ctx)
	if err != nil {
		return err
	}
	batch := window.NewBatch(layout)
	for range n {
		h := Hit{Counter: TruthNames[random.IntN(len(TruthNames))], N: 1 + random.Int64N(1<<40)}
		reach := layout.Tiers[random.IntN(len(layout.Tiers))].Window.Milliseconds() // of each tier's time alike
		h.At = w.Now.UnixMilli() - 1 - random.Int64N(reach*5/4)
		h.Stored = h.At + random.Int64N(w.Now.UnixMilli()-h.At)
		if random.IntN(2) == 0 {
			h.Stored = h.At
		}
		if layout.Holds(window.HashCounter([]byte(h.Counter)), h.At, h.Stored) {
			if h.Excluded = random.IntN(4) == 0; h.Excluded {
				batch.AddExcluded([]byte(h.Counter), window.HashCounter([]byte(h.Counter)), h.At, h.Stored, h.N)
			} else {
				AddHits(batch, h.Counter, h.At, h.Stored, h.N)
			}
			w.Hits = append(w.Hits, h)
		}
	}
	w.seq++
	cursor := window.Cursor{Created: w.Since * 1e6, Seq: w.seq, Stored: w.AsOf.UnixNano(), AsOf: w.AsOf.UnixMilli()}
	return CommitAll(ctx, w.Store, layout, "HITS", batch, cursor)
}

// Check compares answers about drawn ranges with the truth: none that is called complete may lack a hit, and
// any lower bound is one. It returns how many were complete.
func (w *Truth) Check(ctx context.Context, random *rand.Rand, ranges int) (complete int, err error) {
	layout, err := w.Reader.Look(ctx)
	if err != nil {
		return 0, err
	}
	now := w.Now.UnixMilli()
	for range ranges {
		longest := layout.Tiers[random.IntN(len(layout.Tiers))].Window.Milliseconds()
		from := now - 1 - random.Int64N(longest)
		if random.IntN(4) == 0 {
			from = now - longest
		}
		to := window.Now
		if random.IntN(2) == 0 && from < now-1 {
			to = from + 1 + random.Int64N(now-from)
		}
		sums := SumOf(w.Hits, window.Range{From: from, To: min(to, now)})
		names := append([]string{window.AllHits}, TruthNames...)
		lines := names[:2]
		var questions []window.Question
		for _, name := range names {
			questions = append(questions, window.Question{Counter: name, Span: window.Between(from, to)})
		}
		got, err := w.Reader.Answer(ctx, questions)
		if err != nil {
			return complete, err
		}
		for i, a := range got.Answers {
			want := sums[names[i]]
			if a.Lower > want || a.Complete && (a.Upper < want || a.Total > a.Upper || a.Total < a.Lower) {
				return complete, fmt.Errorf("%q from %d ago: %+v, want %d (tiers %s)",
					names[i], now-from, a, want, layout.Tiers)
			}
			if a.Complete {
				complete++
			}
		}
		top, err := w.Reader.Top(ctx, window.Between(from, to), 3)
		if err != nil {
			return complete, err
		}
		for _, c := range top.Counters {
			delete(sums, c.Counter)
		}
		delete(sums, window.AllHits) // it is in no list
		for name, n := range sums {
			if top.Complete && n > top.Floor {
				return complete, fmt.Errorf("the top %+v lacks %s with %d (tiers %s)", top, name, n, layout.Tiers)
			}
		}
		var steps []window.SeriesQuestion
		for _, name := range lines {
			steps = append(steps, window.SeriesQuestion{
				Counter: name, Span: window.Between(from, to), Reach: window.WhileHeldIfFitting,
			})
		}
		series, err := w.Reader.Series(ctx, steps)
		if err != nil {
			return complete, err
		}
		for line, s := range series {
			for i, n := range s.Counts {
				step := window.Range{From: s.Start(i), To: s.Start(i) + s.Step.Milliseconds()}
				want := SumOf(w.Hits, step)[lines[line]]
				if n > want || n < want && i >= s.CompleteFrom() {
					return complete, fmt.Errorf("step %d of %q, %+v: want %d (tiers %s)",
						i, lines[line], s, want, layout.Tiers)
				}
			}
		}
	}
	return complete, nil
}
