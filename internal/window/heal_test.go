package window_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// loses does something before a transaction and after it, and loses the reply.
type loses struct{ before, after func() }

func (*loses) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*loses) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (l *loses) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		before := l.before
		if before == nil || cmds[0].Name() != "multi" {
			return next(ctx, cmds)
		}
		l.before = nil
		before()
		_ = next(ctx, cmds)
		l.after()
		lost := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
		for _, cmd := range cmds {
			cmd.SetErr(lost)
		}
		return lost
	}
}

// A hash expires while Redis hangs with EXEC, which makes it again, and the reply is lost.
func TestAnExpiryIsHealedAfterALostReply(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	client, hook := server.Client(), new(loses)
	client.AddHook(hook)
	clock := stack.WatchClock(client)
	store := window.NewStore(client, "test")
	tiers, err := window.ParseTiers("1s/1m")
	require.NoError(t, err)
	layout, err := store.OpenLayout(t.Context(), window.Layout{Tiers: tiers, Shards: 1})
	require.NoError(t, err)
	w, err := store.OpenWriter(t.Context(), layout, "HITS", 0)
	require.NoError(t, err)
	now := time.Now()
	commit := func(seq uint64) {
		t.Helper()
		batch := window.NewBatch(layout)
		batch.Add([]byte("c"), window.HashCounter([]byte("c")), now.UnixMilli(), now.UnixMilli(), 1)
		to := window.Cursor{Created: 1, Seq: seq, Stored: now.UnixNano(), AsOf: now.UnixMilli()}
		require.NoError(t, errOf(w.Commit(t.Context(), batch.Shard(0), to)))
	}
	commit(1)
	hook.before = func() {
		for _, key := range stack.Scan(t, client, "test:{0}:h:*") {
			if err := client.Del(t.Context(), key).Err(); err != nil { // it expires
				t.Fatal(err)
			}
		}
	}
	hook.after = func() { clock.Ahead(10 * time.Minute) } // before the commit is tried again
	commit(2)
	for _, key := range stack.Scan(t, client, "test:{0}:h:*") {
		if left := client.TTL(t.Context(), key).Val(); left < 0 {
			t.Errorf("%s stays for ever", key)
		}
	}
}
