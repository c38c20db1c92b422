package erase_test

import (
	"context"
	"fmt"
	"strconv"
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

// New names fill Redis, which then refuses every command inside MULTI. An erasure frees memory all the same,
// hits count again, and a commit that comes before the erasure's script makes it read again.
func TestErasuresFreeAFullRedis(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(*testing.T) *windowtest.Backend{
		"one server": windowtest.Server, "cluster": windowtest.Cluster,
	} {
		for _, logBytes := range []int{1, 1024} {
			t.Run(fmt.Sprint(kind, ", logs of ", logBytes), func(t *testing.T) {
				t.Parallel()
				fillAndErase(t, start(t), logBytes)
			})
		}
	}
}

func fillAndErase(t *testing.T, b *windowtest.Backend, logBytes int) {
	r := windowtest.NewRig(t, b)
	r.WithLogs(logBytes)
	ctx, now, s := t.Context(), time.Now(), r.Open("HITS")
	limit := func(bytes func(used int) int) {
		require.NoError(t, b.EachServer(ctx, func(ctx context.Context, server *redis.Client) error {
			_, text, _ := strings.Cut(server.Info(ctx, "memory").Val(), "used_memory:")
			text, _, _ = strings.Cut(text, "\r\n")
			used, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			return server.ConfigSet(ctx, "maxmemory", strconv.Itoa(bytes(used))).Err()
		}))
	}
	fuller := func(int) int { return 1 } // than what was refused
	none := func(int) int { return 0 }
	s.Commit("shop.orders", now, 7)
	limit(func(used int) int { return used + 3<<20 })
	flooding, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for _, w := range s.Writers {
		w.OnRetry = func(err error) { stop(err) }
	}
	for seq := uint64(2); flooding.Err() == nil; seq++ {
		flood := window.NewBatch(r.Layout)
		for i := range 200 {
			windowtest.AddVisits(flood, fmt.Sprint("web.", seq, "-", i, strings.Repeat("x", 100)), now, i, i+1)
		}
		for shard, w := range s.Writers {
			_, err := w.Commit(flooding, flood.Shard(shard), windowtest.CursorAt(seq, now))
			require.True(t, err == nil || flooding.Err() != nil, "%v", err)
		}
	}
	require.ErrorContains(t, context.Cause(flooding), "OOM")
	limit(fuller)
	require.Regexp(t, `^maxmemory is 1B, and (99|100) % of \d+ names read begin with "web\."$`, r.Store.DescribeFull(ctx, r.Layout, windowtest.ShardOf("shop.orders")))

	between, again := 0, 0
	b.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		script, ok := cmds[0].(*redis.Cmd)
		if ok && between == 0 {
			between++
			limit(none)
			more := window.NewBatch(r.Layout)
			windowtest.AddHits(more, "shop.orders", now.UnixMilli(), now.UnixMilli(), 5)
			r.Open("HITS").CommitBatch(more, windowtest.CursorAt(1000, now))
			limit(fuller)
		}
		err := send(cmds)
		if ok && script.Val() == int64(-1) {
			again++
		}
		return err
	})
	eraser, erased := erase.Eraser{Reader: r.Reader}, 0
	for next, more := "", true; more; more = next != "" {
		out, err := eraser.EraseListed(ctx, "web.", next)
		require.NoError(t, err)
		erased, next = erased+out.Counters, out.Next
	}
	require.Greater(t, erased, 500)
	require.Equal(t, 1, again)
	require.Empty(t, stack.Scan(t, r.Client, "test:*:web.*"))
	for _, key := range stack.Scan(t, r.Client, "test:*names:*") {
		require.Equal(t, []string{"shop.orders"}, r.Client.ZRange(ctx, key, 0, -1).Val(), key)
	}
	for _, key := range stack.Scan(t, r.Client, "test:*:cursor:*") {
		torn := r.Client.HMGet(ctx, key, "opened", "closed").Val()
		require.Equal(t, torn[0], torn[1], key)
	}
	limit(none)
	r.Open("HITS").Commit("shop.orders", now, 1)
	r.MustHold("shop.orders", now, 13)
	top, err := r.Top(720*time.Hour, now.Add(time.Second), 10)
	require.NoError(t, err)
	require.Len(t, top.Counters, 1)
	require.EqualValues(t, 13, top.Counters[0].Answer.Upper)
}
