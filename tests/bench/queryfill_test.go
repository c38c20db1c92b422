package bench_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
)

// fillQueried writes what questions are about, in the default tiers.
func (r *rig) fillQueried(t *testing.T, counters int) {
	t.Helper()
	r.fillTiers(t, mustTiers(t, window.DefaultTiers), densest, counters)
}

// fillTiers writes the hits of counters through the production writer: the dense ones, which come first, have
// some in every cell of every tier, 100 to 149 per second, and the others in the last hour.
func (r *rig) fillTiers(t *testing.T, tiers window.Tiers, dense, counters int) {
	t.Helper()
	ctx := t.Context()
	layout, store := window.Layout{Tiers: tiers, Shards: queriedShards}, window.NewStore(r.rdb, namespace)
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	writers := make([]*window.Writer, layout.Shards)
	for shard := range writers {
		w, err := store.OpenWriter(ctx, layout, "HITS", shard)
		require.NoError(t, err)
		writers[shard] = w
	}
	batch, cells := window.NewBatch(layout), 0
	began, now := time.Now(), time.Now().UnixMilli()
	cursor := window.Cursor{Created: began.Add(-60 * day).UnixNano()}
	commit := func() {
		cursor.Seq++
		cursor.Stored, cursor.AsOf = began.UnixNano(), now
		for shard, w := range writers {
			if _, err := w.Commit(ctx, batch.Shard(shard), cursor); err != nil {
				t.Fatal(err)
			}
		}
		batch.Reset()
		cells = 0
	}
	add := func(i int, at, n int64) {
		name := []byte(counterName(i))
		batch.Add(name, window.HashCounter(name), at, now, n)
		if cells++; cells == 20_000 {
			commit()
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
	commit()
}
