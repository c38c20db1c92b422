package window_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// What only a cluster does to a shard: its slot moves, and with it, one after
// the other, its keys.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	nodes := stack.Cluster(t, 0)
	b := &backend{client: stack.ProgramClient(t, nodes.URL())}
	startMove := func(key string) *stack.SlotMove { return nodes.MoveSlot(key, nodes.Other(key)) }
	cursor := cursorKey(shardOf("a"))

	for name, half := range map[string]func(hashes []string) []string{
		"the cursor first": func([]string) []string { return []string{cursor} },
		"the cursor last":  func(hashes []string) []string { return hashes },
		"one hash first":   func(hashes []string) []string { return hashes[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, b)
			now, s := time.Now(), r.open("HITS")
			s.commit("a", now, 1)
			move := startMove(cursor)
			move.Keys(half(stack.Scan(t, b.client, "test:*:h:*"))...)
			for _, w := range []time.Duration{time.Minute, time.Hour} {
				if a := r.total("a", w, now.Add(time.Second)); a.Upper != 1 || !a.Complete {
					t.Errorf("with a part of the keys moved: %+v, want 1", a)
				}
			}

			// A commit waits until they have all moved, and then counts once.
			failed := make(chan error, 1000)
			s.of("a").OnRetry = func(err error) { failed <- err }
			done := make(chan error, 1)
			go func() { done <- errOf(s.try("a", now, 1)) }()
			t.Logf("refused: %v", <-failed)
			<-failed
			move.Finish()
			require.NoError(t, <-done)
			require.EqualValues(t, 2, r.total("a", time.Minute, now.Add(time.Second)).Upper)
		})
	}

	// While some cells of a counter are on one node and some on another, no node counts them together.
	t.Run("uniques of a slot that moves", func(t *testing.T) {
		r := newRig(t, b)
		now := uniqueNow()
		r.write("HITS", cursorAt(1, now))
		var who []string
		for i := range 500 {
			who = append(who, fmt.Sprint(i))
		}
		r.cameAt("a", now.Add(-time.Minute), who[:400]...)
		r.cameAt("a", now.Add(-40*time.Minute), who[300:]...)
		ask := func() window.Answer {
			t.Helper()
			got, err := r.uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)})
			require.NoError(t, err)
			require.True(t, got.Answers[0].Complete)
			return got.Answers[0]
		}
		before := ask()
		key := uniqueKey("a", layout.UniqueTiers[0], now.Add(-40*time.Minute))
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
		r := newRig(t, b)
		r.open("HITS").commit("a", time.Now(), 1)
		hash := stack.Scan(t, b.client, "test:*:h:*")[0]
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
			require.NoError(t, errOf(r.store.Client.ReadInOrder(t.Context(), func(p redis.Pipeliner) {
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
		master, err := b.client.(*redis.ClusterClient).MasterForKey(t.Context(), cursorKey(0))
		require.NoError(t, err)
		require.Zero(t, master.Options().MaxRetries, "the clients of the nodes repeat nothing")
		store, node := newRig(t, b).store, nodes.Nodes[1]
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
	r := newRig(t, &backend{client: stack.ProgramClient(t, sentinels.URL())})
	now, s := time.Now(), r.open("HITS")
	s.of("a").OnRetry = func(err error) { t.Logf("refused: %v", err) }
	commit := func() {
		t.Helper()
		s.commit("a", now, 1)
		// Replication is asynchronous, and what a replica lacks is not the subject
		// here. WAIT is for the writes of its own connection: all before it come first.
		var replicas *redis.Cmd
		require.NoError(t, errOf(r.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "marker", s.seq, 0)
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
	s.commit("a", now, 1)
	require.EqualValues(t, 3, r.total("a", time.Minute, now.Add(time.Second)).Upper)
}
