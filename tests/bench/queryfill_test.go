package bench_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// tiersOf are tiers of this package's own texts.
func tiersOf(text string) window.Tiers {
	tiers, err := window.ParseTiers(text)
	if err != nil {
		panic(err)
	}
	return tiers
}

// backfill writes hits of the past through the production writer.
type backfill struct {
	t       testing.TB
	store   *schema.Store
	batch   *window.Batch
	cells   int // of the batch
	writers []*commit.Writer
	cursor  window.Cursor
	now     time.Time // of its beginning
	clock   *stack.RedisClock
}

// backfill begins to write into a namespace that is empty.
func (r *rig) backfill(t testing.TB, layout window.Layout) *backfill {
	t.Helper()
	store, now := schema.NewStore(r.rdb, namespace), time.Now()
	require.NoError(t, store.EnsureLayout(t.Context(), layout))
	require.NoError(t, store.AddStream(t.Context(), "HITS"))
	b := &backfill{t: t, store: store, batch: window.NewBatch(layout), now: now}
	b.cursor = window.Cursor{Created: now.Add(-60 * day).UnixNano(), Stored: now.UnixNano(), AsOf: now.UnixMilli()}
	for shard := range layout.Shards {
		w, err := commit.OpenWriter(t.Context(), store, layout, "HITS", shard)
		require.NoError(t, err)
		b.writers = append(b.writers, w)
	}
	b.commit()
	return b
}

// backfillAt is backfill by a clock of Redis that live moves.
func (r *rig) backfillAt(t testing.TB, layout window.Layout) *backfill {
	t.Helper()
	options, own := *r.rdb.Options(), *r
	own.rdb = redis.NewClient(&options)
	t.Cleanup(func() { _ = own.rdb.Close() })
	clock := stack.WatchClock(own.rdb)
	b := own.backfill(t, layout)
	b.clock = clock
	return b
}

// livedCounters are counters with a hit per period each, spread over the period.
type livedCounters struct {
	first, counters int
	period          int64 // milliseconds
}

// live counts the hits of counters as they come from one moment to another. A load gathers for the shortest
// period, or for a quarter of an hour if that is longer.
func (b *backfill) live(from, to int64, sets ...livedCounters) {
	b.t.Helper()
	step := 24 * hour
	for _, c := range sets {
		step = max(15*minute, min(step, c.period))
	}
	for at := from; at < to; {
		end := min(at+step, to)
		for _, c := range sets {
			for i := range c.counters {
				phase := c.period * int64(i) / int64(c.counters)
				for hit := window.FloorDiv(at-phase+c.period-1, c.period)*c.period + phase; hit < end; hit += c.period {
					b.add(c.first+i, hit, hit, 1)
				}
			}
		}
		moment := time.UnixMilli(end)
		b.clock.Hold(&moment)
		b.cursor.Stored, b.cursor.AsOf = moment.UnixNano(), end
		b.commit()
		at = end
	}
}

// add adds n hits of counter i that came at a moment, seen from another one.
func (b *backfill) add(i int, at, now, n int64) {
	name := []byte(counterName(i))
	b.batch.Add(name, window.HashCounter(name), at, now, n)
	b.cells++
}

func (b *backfill) commit() {
	b.t.Helper()
	b.cursor.Seq++
	for shard, w := range b.writers {
		_, err := w.Commit(b.t.Context(), b.batch.Shard(shard), b.cursor)
		require.NoError(b.t, err)
	}
	b.batch.Reset()
	b.cells = 0
}

// fillQueried writes what questions are about, in the default tiers.
func (r *rig) fillQueried(t *testing.T, counters int) {
	t.Helper()
	r.fillTiers(t, window.DefaultTiers, densest, counters)
}

// fillTiers writes the hits of counters: the dense ones, which come first, have
// some in every cell of every tier, 100 to 149 per second, and the others in the last hour.
func (r *rig) fillTiers(t *testing.T, text string, dense, counters int) {
	t.Helper()
	r.empty(t)
	tiers := tiersOf(text)
	b := r.backfill(t, window.Layout{Tiers: tiers, Shards: shards})
	now := b.now.UnixMilli()
	add := func(i int, at, n int64) {
		b.add(i, at, now, n)
		if b.cells == 20_000 {
			b.commit()
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	at := now
	for _, tier := range tiers {
		for ; at > now-tier.Window.Milliseconds(); at -= tier.Cell.Milliseconds() {
			for i := range dense { // in turn: a batch looks a counter's cells through one by one
				add(i, at, (100+random.Int64N(50))*tier.Cell.Milliseconds()/second)
			}
		}
	}
	for i := dense; i < counters; i++ {
		add(i, now-int64(i)%hour, 1+10_000/int64(i))
	}
	b.commit()
}
