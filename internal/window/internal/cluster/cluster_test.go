package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// What only a cluster does to a shard: its slot moves, and with it, one after
// the other, its keys.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	nodes := stack.Cluster(t, 0)
	b := windowtest.NewBackend(stack.ProgramClient(t, nodes.URL()))
	startMove := func(key string) *stack.SlotMove { return nodes.MoveSlot(key, nodes.Other(key)) }
	cursor := windowtest.CursorKey("a")

	for name, half := range map[string]func(hashes []string) []string{
		"the cursor first": func([]string) []string { return []string{cursor} },
		"the cursor last":  func(hashes []string) []string { return hashes },
		"one hash first":   func(hashes []string) []string { return hashes[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			r := windowtest.NewRig(t, b)
			now, s := time.Now(), r.Open("HITS")
			s.Commit("a", now, 1)
			move := startMove(cursor)
			move.Keys(half(stack.Scan(t, b.Client, "test:*:h:*"))...)
			for _, w := range []time.Duration{time.Minute, time.Hour} {
				if a := r.Total("a", w, now.Add(time.Second)); a.Upper != 1 || !a.Complete {
					t.Errorf("with a part of the keys moved: %+v, want 1", a)
				}
			}

			// A commit waits until they have all moved, and then counts once.
			failed := make(chan error, 1000)
			s.Of("a").OnRetry = func(err error) { failed <- err }
			done := make(chan error, 1)
			go func() { done <- windowtest.ErrOf(s.Try("a", now, 1)) }()
			t.Logf("refused: %v", <-failed)
			<-failed
			move.Finish()
			require.NoError(t, <-done)
			require.EqualValues(t, 2, r.Total("a", time.Minute, now.Add(time.Second)).Upper)
		})
	}

	// While some cells of a counter are on one node and some on another, no node counts them together.
	t.Run("uniques of a slot that moves", func(t *testing.T) {
		r := windowtest.NewRig(t, b)
		now := windowtest.UniqueNow()
		r.Write("HITS", windowtest.CursorAt(1, now))
		var who []string
		for i := range 500 {
			who = append(who, fmt.Sprint(i))
		}
		r.AddVisitors("a", now.Add(-time.Minute), who[:400]...)
		r.AddVisitors("a", now.Add(-40*time.Minute), who[300:]...)
		ask := func() window.Answer {
			t.Helper()
			got, err := r.Uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)})
			require.NoError(t, err)
			require.True(t, got.Answers[0].Complete)
			return got.Answers[0]
		}
		before := ask()
		key := windowtest.UniqueKey("a", r.Layout.UniqueTiers[0], now.Add(-40*time.Minute))
		move := startMove(key)
		require.Equal(t, before, ask(), "before any key has moved")
		for _, moved := range []string{key, cursor} {
			move.Keys(moved)
			require.Equal(t, before, ask(), "after %s has moved", moved)
		}
		move.Finish()
		require.Equal(t, before, ask(), "after all have moved")
	})

	// The list of streams, which is asked for last, must not be older than any cursor, though all nodes are
	// asked at once. Nor must a cursor that is redirected be read after counts that are not.
	t.Run("the order of reads", func(t *testing.T) {
		r := windowtest.NewRig(t, b)
		r.Open("HITS").Commit("a", time.Now(), 1)
		hash := stack.Scan(t, b.Client, "test:*:h:*")[0]
		read := func(p redis.Pipeliner, args ...any) *redis.RawCmd {
			cmd := redis.NewRawCmd(t.Context(), args...)
			_ = p.Process(t.Context(), cmd)
			return cmd
		}
		check := func(moving bool) {
			t.Helper()
			const wantSeq = "$1\r\n1\r\n"
			var seq, counts *redis.RawCmd
			knewCursor, knewCounts := false, false
			require.NoError(t, windowtest.ErrOf(r.Store.Client.ReadInOrder(t.Context(), func(p redis.Pipeliner) {
				seq = read(p, "hget", cursor, "seq")
			}, func(p redis.Pipeliner) {
				knewCursor = string(seq.Val()) == wantSeq // and not that it has moved
				counts = read(p, "hgetall", hash)
			}, func(redis.Pipeliner) {
				knewCounts = strings.HasPrefix(string(counts.Val()), "*2\r\n")
			})))
			require.Equal(t, wantSeq, string(seq.Val()))
			require.True(t, knewCounts, "before the list was asked for")
			require.True(t, knewCursor || !moving, "before the counts were asked for")
		}
		check(false)
		move := startMove(cursor)
		move.Keys(cursor)
		check(true)
		move.Finish()
	})

	t.Run("what the nodes are asked", func(t *testing.T) {
		master, err := b.Client.(*redis.ClusterClient).MasterForKey(t.Context(), windowtest.CursorKey("a"))
		require.NoError(t, err)
		require.Zero(t, master.Options().MaxRetries, "the clients of the nodes repeat nothing")
		store, node := windowtest.NewRig(t, b).Store, nodes.Nodes[1]
		n, err := store.Client.Servers(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, n, "masters")
		require.NoError(t, node.Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
		_, err = store.Client.CheckServer(t.Context())
		var eviction *window.EvictionError
		if !errors.As(err, &eviction) || !strings.Contains(err.Error(), node.Addr()) {
			t.Errorf("%v; want it to name %s", err, node.Addr())
		}
	})
}

// A commit finds the new master, whether the old one died or became a replica
// that answers READONLY.
func TestCommitsFollowTheSentinels(t *testing.T) {
	t.Parallel()
	sentinels := stack.Sentinels(t, 1)
	r := windowtest.NewRig(t, windowtest.NewBackend(stack.ProgramClient(t, sentinels.URL())))
	now, s := time.Now(), r.Open("HITS")
	s.Of("a").OnRetry = func(err error) { t.Logf("refused: %v", err) }
	commit := func() {
		t.Helper()
		s.Commit("a", now, 1)
		// Replication is asynchronous, and what a replica lacks is not the subject
		// here. WAIT is for the writes of its own connection: all before it come first.
		var replicas *redis.Cmd
		require.NoError(t, windowtest.ErrOf(r.Client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "marker", s.Seq, 0)
			replicas = p.Do(t.Context(), "wait", 1, 4000)
			return nil
		})))
		n, err := replicas.Int()
		require.NoError(t, err)
		require.Equal(t, 1, n, "replicas have the commit")
	}
	commit()
	old := sentinels.Master()
	sentinels.FailOver()
	commit()
	require.NotEqual(t, old.Addr(), sentinels.Master().Addr())
	sentinels.Master().Kill()
	s.Commit("a", now, 1)
	require.EqualValues(t, 3, r.Total("a", time.Minute, now.Add(time.Second)).Upper)
}

// A balancer has forgotten the connections, or the reply to a transaction is lost with its connection. Reads
// are repeated. A commit looks at the cursor once more, counts once, and calls it no outage.
func TestConnectionsThatAreGoneAreNoOutage(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	balancer := stack.NewBalancer(t, server.Addr())
	r := windowtest.NewRig(t, windowtest.NewBackend(stack.ProgramClient(t, "redis://"+balancer.Addr()+"/0")))
	exec := r.AddTrouble(t)
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	s.Of("a").OnRetry = func(err error) { t.Error(err) }
	for i, lose := range []func(){
		balancer.Forget,
		balancer.CutReply,
		func() { exec.Store(&windowtest.Trouble{Before: balancer.Forget}) }, // EXEC is not executed
		func() { exec.Store(&windowtest.Trouble{Before: balancer.CutReply}) },
	} {
		lose()
		before := s.Seq
		got := s.Commit("a", now, 1)
		require.EqualValues(t, 1, got.Hits)
		require.Equal(t, before+1, s.Seq)
		r.MustHold("a", now, int64(i+2))
	}
	for name, ask := range map[string]func(context.Context) error{
		"totals": func(ctx context.Context) error {
			return windowtest.ErrOf(r.Reader.Answer(ctx, []window.Question{{Counter: "a", Span: window.Last(time.Hour)}}))
		},
		"top": func(ctx context.Context) error { return windowtest.ErrOf(r.Reader.Top(ctx, window.Last(time.Hour), 1)) },
		"names": func(ctx context.Context) error {
			return windowtest.ErrOf(r.Reader.Names(ctx, read.NamesQuestion{Limit: 1}))
		},
	} {
		// The other commands of a question come after the first, so each of them is the one that fails in turn.
		var commands int
		var gone int
		r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
			if commands++; commands == gone {
				balancer.Forget()
			}
			return send(cmds)
		})
		require.NoError(t, ask(t.Context()), name)
		for all := commands; gone < all; {
			gone, commands = gone+1, 0
			require.NoError(t, ask(t.Context()), "%s, request %d", name, gone)
		}
		gone = 0
	}
}

// limited is a rig whose user's rights a test can change, and the server's own client.
func limited(t *testing.T) (*windowtest.Rig, *redis.Client, func(rights ...any)) {
	server := stack.Redis(t)
	stack.NewUser(t, server, "limited", "secret", stack.RightsOf(t, "tallyroll")...)
	admin := server.Client()
	change := func(rights ...any) {
		require.NoError(t, admin.Do(context.Background(), append([]any{"acl", "setuser", "limited", "~*"}, rights...)...).Err())
	}
	change("+@all") // of a test, more than of a program
	return windowtest.NewRig(t, windowtest.NewBackend(stack.ProgramClient(t, "redis://limited:secret@"+server.Addr()+"/0"))), admin, change
}

// Redis runs what follows a refused MULTI on its own, and what follows a refused WATCH unwatched. Connections
// that were refused are not used again: replies may be left on them, or MULTI in force.
func TestNothingIsWrittenOnAConnectionThatRefusesTransactions(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"multi", "exec", "watch"} {
		r, admin, change := limited(t)
		now, s := time.Now(), r.Open("HITS")
		first := window.NewBatch(r.Layout)
		windowtest.AddHits(first, "a", now.UnixMilli(), now.UnixMilli(), 1)
		s.CommitBatch(first, windowtest.CursorAt(1, now)) // on all shards
		state := func() map[string]string {
			out := map[string]string{}
			for _, key := range stack.Scan(t, r.Client, "test:*") {
				out[key] = admin.Dump(t.Context(), key).Val()
			}
			return out
		}
		before := state()
		change("-" + command)
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		s.Of("a").OnRetry = func(err error) {
			require.ErrorContains(t, err, "NOPERM")
			require.ErrorContains(t, err, command)
			if tries++; tries == 3 {
				cancel()
			}
		}
		_, err := s.Of("a").Commit(ctx, r.HitsOf("a", now, 5), windowtest.CursorAt(7, now))
		require.ErrorIs(t, err, context.Canceled)
		_, err = erase.Eraser{Reader: r.Reader}.Erase(t.Context(), []string{"a"})
		require.ErrorContains(t, err, "NOPERM", command)
		_, _, err = retier.Run(t.Context(), r.Store, r.Layout.Tiers[:1], func(string, int) {})
		require.ErrorContains(t, err, "NOPERM", command)
		if command != "watch" { // claims need none: they are true whatever else is written
			_, err = r.Store.Claims.Write(t.Context(), map[string]schema.Claim{"HITS": {Seq: 1}}, nil)
			require.ErrorContains(t, err, "NOPERM", command)
		}
		require.Equal(t, before, state(), command)
		change("+" + command)
		s.Of("a").OnRetry = func(error) {}
		s.Commit("a", now, 2)
		r.MustHold("a", now, 3)
	}
}

// If the right goes between the check and the transaction, the cursor shows that hits may count twice, and
// the next reader of the connection gets its own reply.
func TestATransactionThatRanWithoutMultiIsMarked(t *testing.T) {
	t.Parallel()
	r, admin, change := limited(t)
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if cmds[len(cmds)-1].Name() == "exec" {
			change("-multi")
		}
		return send(cmds)
	})
	torn := func() bool {
		c, _, err := schema.ParseCursor("", admin.HMGet(t.Context(), windowtest.CursorKey("a"), schema.CursorFields...))
		require.NoError(t, err)
		return c.IsTorn()
	}
	require.False(t, torn())
	err := windowtest.ErrOf(s.Try("a", now, 5))
	require.ErrorIs(t, err, window.ErrBare)
	require.ErrorContains(t, err, "NOPERM")
	require.True(t, torn())
	for range 3 {
		require.Equal(t, "answer", r.Client.Echo(t.Context(), "answer").Val())
	}
	change("+multi")
	require.NoError(t, admin.HSet(t.Context(), windowtest.CursorKey("a"), "closed", admin.HGet(t.Context(), windowtest.CursorKey("a"), "opened").Val()).Err())
	_, err = erase.Eraser{Reader: r.Reader}.Erase(t.Context(), []string{"a"})
	require.ErrorIs(t, err, window.ErrBare)
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
		now, s := time.Now(), r.Open("HITS")
		s.Commit("a", now, 1)
		if change("-hincrby"); option[0] != "" {
			change("+hincrby")
			require.NoError(t, admin.ConfigSet(t.Context(), option[0], option[1]).Err())
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		s.Of("a").OnRetry = cancel
		require.Error(t, windowtest.ErrOf(s.Of("a").Commit(ctx, r.HitsOf("a", now, 5), windowtest.CursorAt(7, now))))
		require.ErrorContains(t, context.Cause(ctx), "hincrby: "+cause)
		require.False(t, errors.Is(context.Cause(ctx), window.ErrBare))
	}
}

func TestUnsafeSettingsOfTheServerAreFound(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	client := server.Client()
	for name, c := range map[string]struct {
		policy, appendonly, save string
		refused                  bool
		warning                  string
	}{
		"as it should be": {policy: "noeviction", appendonly: "yes"},
		"snapshots":       {policy: "noeviction", appendonly: "no", save: "60 1000"},
		"no persistence":  {policy: "noeviction", appendonly: "no", warning: "persists nothing"},
		"some eviction":   {policy: "volatile-lru", appendonly: "yes", warning: "too low"},
		"any eviction":    {policy: "allkeys-lfu", appendonly: "yes", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			settings := map[string]string{"maxmemory-policy": c.policy, "appendonly": c.appendonly, "save": c.save}
			for name, value := range settings {
				require.NoError(t, client.ConfigSet(t.Context(), name, value).Err())
			}
			warnings, err := schema.NewStore(client, "test").Client.CheckServer(t.Context())
			var eviction *window.EvictionError
			if errors.As(err, &eviction) != c.refused {
				t.Errorf("refused: %v", err)
			}
			if text := strings.Join(warnings, "\n"); (text != "") != (c.warning != "") || !strings.Contains(text, c.warning) {
				t.Errorf("warnings %q; want %q", text, c.warning)
			}
			// Otherwise the child that rewrites the file outlives its server, and writes while the test's directory
			// goes.
			stack.Eventually(t, "no rewrite of the append-only file", func() (bool, string) {
				info, err := client.Info(t.Context(), "persistence").Result()
				return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0"), info
			})
		})
	}
	t.Run("settings are not shown", func(t *testing.T) {
		stack.NewUser(t, server, "tallyroll", "secret", "~*", "+@all", "-config")
		limited := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "tallyroll", Password: "secret"})
		defer limited.Close()
		warnings, err := schema.NewStore(limited, "test").Client.CheckServer(t.Context())
		require.NoError(t, err)
		require.Len(t, warnings, 1)
		require.Contains(t, warnings[0], "does not reveal")
	})
}
