package window_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// names are the counters of n hits, drawn from as many counters by Zipf's law
// with exponent 1.1, as those of a web site's pages are.
func names(n, counters int) [][]byte {
	draw := func() uint64 { return 0 }
	if counters > 1 {
		draw = rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(counters-1)).Uint64
	}
	out := make([][]byte, n)
	for i := range out {
		out[i] = fmt.Appendf(nil, "api-%d", draw())
	}
	return out
}

// BenchmarkBatchAdd coalesces hits; ns/op is per hit. A batch is emptied after
// as many hits as a worker reads in one flush interval of 250 ms at full speed.
func BenchmarkBatchAdd(b *testing.B) {
	const flush = 50_000
	now := time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, counters := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			hits := names(flush, counters)
			hashes := make([]uint64, len(hits))
			for i, name := range hits {
				hashes[i] = window.HashCounter(name)
			}
			batch := window.NewBatch(layout)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i == flush {
					batch.Reset()
					i = 0
				}
				at := now + int64(i/200) // the 250 ms that these hits came in
				batch.Add(hits[i], hashes[i], at, at, 1)
			}
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	now := time.Date(2025, 11, 21, 10, 7, 23, 0, time.UTC).UnixMilli()
	for _, tiers := range []string{window.DefaultTiers, "1s/1h,1m/1d,1h/92d"} {
		parsed, err := window.ParseTiers(tiers)
		require.NoError(b, err)
		layout := window.Layout{Tiers: parsed, Shards: layout.Shards}
		for _, w := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour} {
			b.Run("tiers="+tiers+"/window="+window.FormatDuration(w), func(b *testing.B) {
				r := window.Range{From: now - w.Milliseconds(), To: now}
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, errOf(layout.Plan("api-1", r, now)))
				}
			})
		}
	}
}

// BenchmarkCommit commits batches to a real Redis, as the transactions cannot
// be seen without one: ns/op has Redis's own time in it, the allocations are
// this package's and the client's alone. new: each commit is the first to its
// hashes, so that half of the commands are expiries; seen: none is.
func BenchmarkCommit(b *testing.B) {
	server := stack.Redis(b, stack.RedisArgs("--appendonly", "no"))
	one := window.Layout{Tiers: layout.Tiers, Shards: 1}
	for _, test := range []struct {
		name     string
		counters int // by four tiers
		fresh    bool
	}{
		{"commands=2000/hashes=seen", 500, false},
		{"commands=2000/hashes=new", 250, true},
	} {
		b.Run(test.name, func(b *testing.B) {
			ctx, client := b.Context(), server.Client()
			require.NoError(b, client.FlushAll(ctx).Err())
			w, err := window.NewStore(client, "bench").OpenWriter(ctx, one, "HITS", 0)
			require.NoError(b, err)
			now := time.Now()
			batch := window.NewBatch(one)
			var cursor window.Cursor
			fill := func(round int) {
				batch.Reset()
				for i := range test.counters {
					name := fmt.Appendf(nil, "api-%d", i)
					if test.fresh {
						name = fmt.Appendf(nil, "api-%d-%d", round, i)
					}
					batch.Add(name, window.HashCounter(name), now.UnixMilli(), now.UnixMilli(), 1)
				}
				cursor = cursorAt(uint64(round)+1, now)
			}
			fill(0)
			require.NoError(b, errOf(w.Commit(ctx, batch.Shard(0), cursor)))
			b.ReportAllocs()
			commands := 0
			for round := 1; b.Loop(); round++ {
				b.StopTimer()
				fill(round)
				b.StartTimer()
				done, err := w.Commit(ctx, batch.Shard(0), cursor)
				if err != nil || done.Hits != int64(test.counters) {
					b.Fatalf("%+v: %v", done, err)
				}
				commands = done.Commands
			}
			b.ReportMetric(float64(commands), "commands/op")
		})
	}
}
