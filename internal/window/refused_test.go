package window_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window/cluster"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// limited is a rig whose user's rights a test can change, and the server's own client.
func limited(t *testing.T) (*rig, *redis.Client, func(rights ...any)) {
	server := stack.Redis(t)
	stack.NewUser(t, server, "limited", "secret", stack.RightsOf(t, "tallyroll")...)
	admin := server.Client()
	change := func(rights ...any) {
		require.NoError(t, admin.Do(context.Background(), append([]any{"acl", "setuser", "limited", "~*"}, rights...)...).Err())
	}
	change("+@all") // of a test, more than of a program
	return newRig(t, &backend{client: stack.ProgramClient(t, "redis://limited:secret@"+server.Addr()+"/0")}), admin, change
}

// Redis runs what follows a refused MULTI on its own, and what follows a refused WATCH unwatched. Connections
// that were refused are not used again: replies may be left on them, or MULTI in force.
func TestNothingIsWrittenOnAConnectionThatRefusesTransactions(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"multi", "exec", "watch"} {
		r, admin, change := limited(t)
		now, s := time.Now(), r.open("HITS")
		first, _ := batchOf("a", now.UnixMilli(), 1)
		s.commitBatch(first, cursorAt(1, now)) // on all shards
		state := func() map[string]string {
			out := map[string]string{}
			for _, key := range stack.Scan(t, r.client, "test:*") {
				out[key] = admin.Dump(t.Context(), key).Val()
			}
			return out
		}
		before := state()
		change("-" + command)
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		s.of("a").OnRetry = func(err error) {
			require.ErrorContains(t, err, "NOPERM")
			require.ErrorContains(t, err, command)
			if tries++; tries == 3 {
				cancel()
			}
		}
		b, shard := batchOf("a", now.UnixMilli(), 5)
		_, err := s.of("a").Commit(ctx, b.Shard(shard), cursorAt(7, now))
		require.ErrorIs(t, err, context.Canceled)
		_, err = erase.Eraser{Reader: r.reader}.Erase(t.Context(), []string{"a"})
		require.ErrorContains(t, err, "NOPERM", command)
		_, _, err = retier.Run(t.Context(), r.store, layout.Tiers[:1], func(string, int) {})
		require.ErrorContains(t, err, "NOPERM", command)
		if command != "watch" { // claims need none: they are true whatever else is written
			_, err = r.store.Claims.Write(t.Context(), map[string]schema.Claim{"HITS": {Seq: 1}}, nil)
			require.ErrorContains(t, err, "NOPERM", command)
		}
		require.Equal(t, before, state(), command)
		change("+" + command)
		s.of("a").OnRetry = func(error) {}
		s.commit("a", now, 2)
		r.mustHold("a", now, 3)
	}
}

// If the right goes between the check and the transaction, the cursor shows that hits may count twice, and
// the next reader of the connection gets its own reply.
func TestATransactionThatRanWithoutMultiIsMarked(t *testing.T) {
	t.Parallel()
	r, admin, change := limited(t)
	now, s := time.Now(), r.open("HITS")
	s.commit("a", now, 1)
	r.addHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if cmds[len(cmds)-1].Name() == "exec" {
			change("-multi")
		}
		return send(cmds)
	})
	torn := func() bool {
		c, _, err := schema.ParseCursor("", admin.HMGet(t.Context(), cursorKey(shardOf("a")), schema.CursorFields...))
		require.NoError(t, err)
		return c.IsTorn()
	}
	require.False(t, torn())
	err := errOf(s.try("a", now, 5))
	require.ErrorIs(t, err, cluster.ErrBare)
	require.ErrorContains(t, err, "NOPERM")
	require.True(t, torn())
	for range 3 {
		require.Equal(t, "answer", r.client.Echo(t.Context(), "answer").Val())
	}
	change("+multi")
	require.NoError(t, admin.HSet(t.Context(), cursorKey(shardOf("a")), "closed", admin.HGet(t.Context(), cursorKey(shardOf("a")), "opened").Val()).Err())
	_, err = erase.Eraser{Reader: r.reader}.Erase(t.Context(), []string{"a"})
	require.ErrorIs(t, err, cluster.ErrBare)
	require.True(t, torn(), "after an erasure")
	change("+multi")
}

// EXECABORT does not say why: the first refusal inside the transaction does.
func TestTheErrorOfARefusedTransactionHasTheCause(t *testing.T) {
	t.Parallel()
	for cause, option := range map[string][2]string{
		"NOREPLICAS Not enough good replicas": {"min-replicas-to-write", "1"},
		"OOM command not allowed":             {"maxmemory", "1"},
		"NOPERM":                              {},
	} {
		r, admin, change := limited(t)
		now, s := time.Now(), r.open("HITS")
		s.commit("a", now, 1)
		if change("-hincrby"); option[0] != "" {
			change("+hincrby")
			require.NoError(t, admin.ConfigSet(t.Context(), option[0], option[1]).Err())
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		s.of("a").OnRetry = cancel
		b, shard := batchOf("a", now.UnixMilli(), 5)
		require.Error(t, errOf(s.of("a").Commit(ctx, b.Shard(shard), cursorAt(7, now))))
		require.ErrorContains(t, context.Cause(ctx), "hincrby: "+cause)
		require.False(t, errors.Is(context.Cause(ctx), cluster.ErrBare))
	}
}
