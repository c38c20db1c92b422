package consume

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// BenchmarkCommitFarRedis flushes ten hits per shard to a Redis whose every byte is 2 ms on its way, in
// each direction: another zone of a data centre. An operation is one flush of all shards.
//
//	go test ./internal/consume -run '^$' -bench CommitFarRedis -benchtime 100x
func BenchmarkCommitFarRedis(b *testing.B) {
	far := delayed(b, stack.Redis(b).Addr(), 2*time.Millisecond)
	store := schema.NewStore(stack.ProgramClient(b, "redis://"+far+"/0"), "bench")
	shards := benchLayout.Shards
	writers := make([]*commit.Writer, shards)
	for i := range writers {
		var err error
		if writers[i], err = commit.OpenWriter(b.Context(), store, benchLayout, "HITS", i); err != nil {
			b.Fatal(err)
		}
	}
	batch := window.NewBatch(benchLayout)
	var mu sync.Mutex
	var took []time.Duration // of the commits
	for seq := uint64(1); b.Loop(); seq++ {
		now := time.Now()
		batch.Reset()
		for i := range 10 * shards {
			name := fmt.Appendf(nil, "api-%d", i)
			batch.Add(name, window.HashCounter(name), now.UnixMilli(), now.UnixMilli(), 1)
		}
		to := window.Cursor{Created: 1, Seq: seq, Stored: now.UnixNano(), AsOf: now.UnixMilli()}
		if err := eachShard(b.Context(), shards, commitConcurrency, func(ctx context.Context, shard int) error {
			done, err := writers[shard].Commit(ctx, batch.Shard(shard), to)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, done.Took)
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms/commit")
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "commits/s")
}

// delayed returns the address of a proxy that delivers everything later, in both directions.
func delayed(b *testing.B, target string, by time.Duration) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				return
			}
			go carryLater(server, client, by)
			go carryLater(client, server, by)
		}
	}()
	return l.Addr().String()
}

// carryLater copies one direction until it ends, and closes it.
func carryLater(to io.WriteCloser, from io.Reader, by time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1<<10)
	go func() {
		defer to.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data) // after an error the reader ends, too
		}
	}()
	defer close(pieces)
	for {
		data := make([]byte, 16<<10)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		pieces <- piece{time.Now().Add(by), data[:n]}
	}
}
