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
	cluster := stack.Cluster(t, 0)
	b := &backend{client: stack.ProgramClient(t, cluster.URL())}

	for name, half := range map[string]func(cursor string, hashes []string) []string{
		"the cursor first": func(cursor string, _ []string) []string { return []string{cursor} },
		"the cursor last":  func(_ string, hashes []string) []string { return hashes },
		"one hash first":   func(_ string, hashes []string) []string { return hashes[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, b)
			now := time.Now()
			batch, shard := batchOf("a", now.UnixMilli(), 1)
			w := r.writers()[shard]
			require.NoError(t, errOf(w.Commit(t.Context(), batch.Shard(shard), cursorAt(1, now))))
			move := cluster.MoveSlot(cursorKey(shard), cluster.Other(cursorKey(shard)))
			move.Keys(half(cursorKey(shard), stack.Scan(t, b.client, "test:*:h:*"))...)
			for _, w := range []time.Duration{time.Minute, time.Hour} {
				if a := r.total("a", w, now.Add(time.Second)); a.Upper != 1 || !a.Complete {
					t.Errorf("with a part of the keys moved: %+v, want 1", a)
				}
			}

			// A commit waits until they have all moved, and then counts once.
			failed := make(chan error, 1000)
			w.OnRetry = func(err error) { failed <- err }
			done := make(chan error, 1)
			go func() {
				_, err := w.Commit(t.Context(), batch.Shard(shard), cursorAt(2, now))
				done <- err
			}()
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
		r.shardsOf("HITS", cursorAt(1, now))
		var who []string
		for i := range 500 {
			who = append(who, fmt.Sprint(i))
		}
		r.cameAt("a", now.Add(-time.Minute), who[:400]...)
		r.cameAt("a", now.Add(-40*time.Minute), who[300:]...)
		question := window.Question{Counter: "a", Span: window.Last(time.Hour)}
		before, err := r.uniques(now, question)
		require.NoError(t, err)
		key := uniqueKey("a", layout.UniqueTiers[0], now.Add(-40*time.Minute))
		move := cluster.MoveSlot(key, cluster.Other(key))
		for _, moved := range []string{"", key, cursorKey(layout.ShardOf(window.HashCounter([]byte("a"))))} {
			if moved != "" {
				move.Keys(moved)
			}
			got, err := r.uniques(now, question)
			if err != nil || got.Answers[0].Estimate != before.Answers[0].Estimate || !got.Answers[0].Complete {
				t.Errorf("after %q had moved: %+v, %v; before %+v", moved, got.Answers, err, before.Answers)
			}
		}
		move.Finish()
		if got, err := r.uniques(now, question); err != nil || got.Answers[0].Estimate != before.Answers[0].Estimate {
			t.Errorf("after all had moved: %+v, %v; before %+v", got.Answers, err, before.Answers)
		}
	})

	// A cursor that is redirected must not be read after counts that are not.
	t.Run("the cursor is read first", func(t *testing.T) {
		r := newRig(t, b)
		now := time.Now()
		batch, shard := batchOf("a", now.UnixMilli(), 1)
		require.NoError(t, errOf(r.writers()[shard].Commit(t.Context(), batch.Shard(shard), cursorAt(1, now))))
		hash := stack.Scan(t, b.client, "test:*:h:*")[0]
		move := cluster.MoveSlot(cursorKey(shard), cluster.Other(cursorKey(shard)))
		move.Keys(cursorKey(shard))
		var cursor, counts *redis.RawCmd
		known := false
		require.NoError(t, errOf(window.ReadInOrder(r.store, t.Context(), func(p redis.Pipeliner) {
			cursor = redis.NewRawCmd(t.Context(), "hget", cursorKey(shard), "seq")
			_ = p.Process(t.Context(), cursor)
		}, func(p redis.Pipeliner) {
			known = len(cursor.Val()) > 0
			counts = redis.NewRawCmd(t.Context(), "hgetall", hash)
			_ = p.Process(t.Context(), counts)
		}, func(redis.Pipeliner) {})))
		if !known || string(cursor.Val()) != "$1\r\n1\r\n" || !strings.HasPrefix(string(counts.Val()), "*2\r\n") {
			t.Errorf("cursor %q, known before the counts %q were asked for: %v", cursor.Val(), counts.Val(), known)
		}
		move.Finish()
	})

	// The nodes are asked at once, and the list of streams must not be older than any cursor.
	t.Run("what comes last is asked for when all else is known", func(t *testing.T) {
		r := newRig(t, b)
		r.writers()
		var cursor *redis.RawCmd
		known := false
		require.NoError(t, errOf(window.ReadInOrder(r.store, t.Context(), func(p redis.Pipeliner) {
			cursor = redis.NewRawCmd(t.Context(), "hgetall", cursorKey(0))
			_ = p.Process(t.Context(), cursor)
		}, func(redis.Pipeliner) {}, func(redis.Pipeliner) {
			known = len(cursor.Val()) > 0
		})))
		if !known {
			t.Error("it was asked for together with a cursor")
		}
	})

	t.Run("the clients of the nodes repeat nothing", func(t *testing.T) {
		node, err := b.client.(*redis.ClusterClient).MasterForKey(t.Context(), cursorKey(0))
		if err != nil || node.Options().MaxRetries != 0 {
			t.Errorf("%d retries, %v", node.Options().MaxRetries, err)
		}
	})

	t.Run("the masters are counted", func(t *testing.T) {
		if n, err := newRig(t, b).store.Servers(t.Context()); n != 3 || err != nil {
			t.Errorf("%d, %v; want 3", n, err)
		}
	})

	t.Run("the settings of every master are looked at", func(t *testing.T) {
		node := cluster.Nodes[1]
		require.NoError(t, node.Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
		_, err := newRig(t, b).store.CheckServer(t.Context())
		var eviction *window.EvictionError
		if !errors.As(err, &eviction) || !strings.Contains(err.Error(), node.Addr()) {
			t.Errorf("%v; want it to name %s", err, node.Addr())
		}
	})
}
