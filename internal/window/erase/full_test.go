package erase_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// A full Redis refuses every command inside MULTI. An erasure frees memory all the same, hits count again,
// and a commit that comes before its script makes it read again.
func TestErasuresFreeAFullRedis(t *testing.T) {
	t.Parallel()
	for _, logBytes := range []int{1, 1024} {
		b := windowtest.NewBackend(stack.ProgramClient(t, stack.Redis(t).URL()))
		r := windowtest.NewRig(t, b)
		r.WithLogs(logBytes)
		ctx, now, s := t.Context(), time.Now(), r.Open("HITS")
		limit := func(bytes string) { require.NoError(t, r.Client.ConfigSet(ctx, "maxmemory", bytes).Err()) }
		s.Commit("shop.orders", now, 7)
		flood := window.NewBatch(r.Layout)
		for i := range 1000 {
			name := fmt.Sprint("web.", i, strings.Repeat("x", 100))
			windowtest.AddVisits(flood, name, now, i, i+1)
		}
		s.CommitBatch(flood, windowtest.CursorAt(2, now))
		limit("1")
		full, stop := context.WithCancelCause(ctx)
		s.Of("a").OnRetry = func(err error) { stop(err) }
		require.Error(t, windowtest.ErrOf(s.Of("a").Commit(full, r.HitsOf("a", now, 1), windowtest.CursorAt(3, now))))
		require.ErrorContains(t, context.Cause(full), "OOM")
		between := 0
		b.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
			if strings.HasPrefix(cmds[0].Name(), "eval") && between == 0 {
				between++
				limit("0")
				for shard, w := range r.Open("HITS").Writers {
					_, err := w.Commit(ctx, window.NewBatch(r.Layout).Shard(shard), windowtest.CursorAt(4, now))
					require.NoError(t, err)
				}
				limit("1")
			}
			return send(cmds)
		})
		out, err := erase.Eraser{Reader: r.Reader}.EraseListed(ctx, "web.", "")
		require.NoError(t, err)
		require.Equal(t, 1000, out.Counters)
		require.Equal(t, 1, between)
		require.Empty(t, stack.Scan(t, r.Client, "test:*:web.*"))
		for _, key := range stack.Scan(t, r.Client, "test:*:cursor:*") {
			torn := r.Client.HMGet(ctx, key, "opened", "closed").Val()
			require.Equal(t, torn[0], torn[1], key)
		}
		limit("0")
		r.Open("HITS").Commit("shop.orders", now, 1)
		require.EqualValues(t, 8, r.Total("shop.orders", time.Hour, now.Add(time.Second)).Upper)
		top, err := r.Top(720*time.Hour, now.Add(time.Second), 10)
		require.NoError(t, err)
		require.Len(t, top.Counters, 1)
	}
}
