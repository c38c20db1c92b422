package window_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// counterHit is n hits that were stored, perhaps long after they happened.
type counterHit struct {
	counter       string
	at, stored, n int64
}

func (h counterHit) addTo(b *window.Batch) {
	b.Add([]byte(h.counter), window.HashCounter([]byte(h.counter)), h.at, h.stored, h.n)
}

// sumOf counts the hits of a range one by one, by counter and all of them.
func sumOf(hits []counterHit, r window.Range) map[string]int64 {
	sums := make(map[string]int64)
	for _, h := range hits {
		if h.at >= r.From && h.at < r.To {
			sums[h.counter] += h.n
			sums[window.AllHits] += h.n
		}
	}
	return sums
}

var truthNames = []string{"a", "b", "shop.", "shop.cart", "shop.checkout.eu", "shoq", `"quoted", twice`, "ß", "z"}

// drawnTiers are what a namespace has, or is changed to.
var drawnTiers = []string{
	window.DefaultTiers, "1s/1h,1m/1d,1h/92d", "1m/1h,1h/1d", "15m/1d", "7s/70s,1m/1h,1d/30d", "90s/1h,30m/2d",
	"1m/2h,1h/32d", "1m/1h,1h/32d,1d/5y", "1d/5y", "10s/10m,5m/1d,7h/35d", "1s/1m,1m/1h,15m/1d,6h/32d",
}

var (
	genTiers = rapid.Custom(func(t *rapid.T) window.Tiers {
		return must(window.ParseTiers(rapid.SampledFrom(drawnTiers).Draw(t, "tiers")))
	})
	genLayout = rapid.Custom(func(t *rapid.T) window.Layout {
		cells := rapid.SampledFrom([]int64{window.EpochCells, 24, 5}).Draw(t, "cells of a hash")
		return window.Layout{Tiers: genTiers.Draw(t, "tiers").Cut(cells), Shards: rapid.IntRange(1, 5).Draw(t, "shards"),
			Sparse: rapid.Bool().Draw(t, "sparse")}
	})
)

// truth is a namespace, and every hit that its stream has stored and that was applied.
type truth struct {
	store     *schema.Store
	reader    *read.Reader
	now, asOf time.Time
	since     int64 // when counting began
	seq       uint64
	hits      []counterHit
}

// newTruth is an empty namespace at a moment of Redis's clock.
func newTruth(t rapid.TB, b *backend, clock *stack.RedisClock, layout window.Layout, now time.Time) *truth {
	ctx := context.Background()
	require.NoError(t, b.flushAll(ctx))
	clock.Hold(&now)
	store := schema.NewStore(b.client, "test")
	w := &truth{store: store, reader: read.NewReader(store), now: now, asOf: now, since: now.AddDate(-20, 0, 0).UnixMilli()}
	w.reader.Local = func() time.Time { return now }
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	return w
}

// count applies hits, of which each tier that holds them gets its own.
func (w *truth) count(ctx context.Context, random *rand.Rand, n int) error {
	layout, err := w.store.Layout(ctx)
	if err != nil {
		return err
	}
	batch := window.NewBatch(layout)
	for range n {
		h := counterHit{counter: truthNames[random.IntN(len(truthNames))], n: 1 + random.Int64N(1<<40)}
		reach := layout.Tiers[random.IntN(len(layout.Tiers))].Window.Milliseconds() // of each tier's time alike
		h.at = w.now.UnixMilli() - 1 - random.Int64N(reach*5/4)
		h.stored = h.at + random.Int64N(w.now.UnixMilli()-h.at)
		if random.IntN(2) == 0 {
			h.stored = h.at
		}
		if layout.Holds(window.HashCounter([]byte(h.counter)), h.at, h.stored) {
			h.addTo(batch)
			w.hits = append(w.hits, h)
		}
	}
	w.seq++
	cursor := window.Cursor{Created: w.since * 1e6, Seq: w.seq, Stored: w.asOf.UnixNano(), AsOf: w.asOf.UnixMilli()}
	return commitAll(ctx, w.store, layout, batch, cursor)
}

// check compares answers about drawn ranges with the truth: none that is called complete may lack a hit, and
// any lower bound is one. It returns how many were complete.
func (w *truth) check(ctx context.Context, random *rand.Rand, ranges int) (complete int, err error) {
	layout, err := w.reader.Look(ctx)
	if err != nil {
		return 0, err
	}
	now := w.now.UnixMilli()
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
		sums := sumOf(w.hits, window.Range{From: from, To: min(to, now)})
		names, lines := truthNames, truthNames[:1]
		if layout.Sparse {
			names, lines = append([]string{window.AllHits}, names...), append([]string{window.AllHits}, lines...)
		}
		var questions []window.Question
		for _, name := range names {
			questions = append(questions, window.Question{Counter: name, Span: window.Between(from, to)})
		}
		got, err := w.reader.Answer(ctx, questions)
		if err != nil {
			return complete, err
		}
		for i, a := range got.Answers {
			want := sums[names[i]]
			if a.Lower > want || a.Complete && (a.Upper < want || a.Total > a.Upper || a.Total < a.Lower) {
				return complete, fmt.Errorf("%q from %d ago: %+v, want %d (tiers %s)", names[i], now-from, a, want, layout.Tiers)
			}
			if a.Complete {
				complete++
			}
		}
		top, err := w.reader.Top(ctx, window.Between(from, to), 3)
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
			steps = append(steps, window.SeriesQuestion{Counter: name, Span: window.Between(from, to), Reach: window.WhileHeldIfFitting})
		}
		series, err := w.reader.Series(ctx, steps)
		if err != nil {
			return complete, err
		}
		for line, s := range series {
			for i, n := range s.Counts {
				want := sumOf(w.hits, window.Range{From: s.Start(i), To: s.Start(i) + s.Step.Milliseconds()})[lines[line]]
				if n > want || n < want && i >= s.CompleteFrom() {
					return complete, fmt.Errorf("step %d of %q, %+v: want %d (tiers %s)", i, lines[line], s, want, layout.Tiers)
				}
			}
		}
	}
	return complete, nil
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

// dump is all of Redis but who has written the cursors: what a change that is abandoned must leave as it was.
func (b *backend) dump(ctx context.Context) (map[string]string, error) {
	out := make(map[string]string)
	var mu sync.Mutex
	err := b.eachServer(ctx, func(ctx context.Context, node *redis.Client) error {
		keys, err := node.Keys(ctx, "*").Result()
		if err != nil {
			return err
		}
		pipe := node.Pipeline()
		texts := make(map[string]func() string)
		for _, key := range keys {
			hash, text := pipe.HGetAll(ctx, key), pipe.Get(ctx, key)
			members, expires := pipe.ZRange(ctx, key, 0, -1), pipe.ExpireTime(ctx, key)
			texts[key] = func() string {
				fields := hash.Val()
				delete(fields, "by")
				return fmt.Sprint(fields, text.Val(), members.Val(), expires.Val()) // fmt sorts the fields
			}
		}
		_, _ = pipe.Exec(ctx) // each key is of one type only: the commands for the others fail
		mu.Lock()
		defer mu.Unlock()
		for key, text := range texts {
			out[key] = text()
		}
		return nil
	})
	return out, err
}
