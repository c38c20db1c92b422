package commit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

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
			w, err := commit.OpenWriter(ctx, schema.NewStore(client, "bench"), one, "HITS", 0)
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
				cursor = windowtest.CursorAt(uint64(round)+1, now)
			}
			fill(0)
			require.NoError(b, windowtest.ErrOf(w.Commit(ctx, batch.Shard(0), cursor)))
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
