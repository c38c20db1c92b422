package window_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/inspect"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
)

// sparseLayout is that of a new namespace.
var sparseLayout = func() window.Layout { l := layout; l.Sparse = true; return l }()

// withLogs makes the rig's namespace one with logs of at most so many bytes.
func (r *rig) withLogs(most int) {
	r.t.Helper()
	require.NoError(r.t, r.flushAll(r.t.Context()))
	require.NoError(r.t, r.store.EnsureLayout(r.t.Context(), sparseLayout))
	require.NoError(r.t, r.store.AddStream(r.t.Context(), "HITS"))
	r.store.MaxLogBytes = most
	r.reader = read.NewReader(r.store)
}

// logWriter is a writer of the counter's shard.
type logWriter struct {
	*rig
	*commit.Writer
	counter string
}

func (r *rig) logWriter(counter string) *logWriter {
	r.t.Helper()
	w, err := commit.OpenWriter(r.t.Context(), r.store, sparseLayout, "HITS", shardOf(counter))
	require.NoError(r.t, err)
	return &logWriter{r, w, counter}
}

// try commits n hits of a moment.
func (w *logWriter) try(at time.Time, n int64) (commit.Commit, error) {
	b := window.NewBatch(sparseLayout)
	b.Add([]byte(w.counter), window.HashCounter([]byte(w.counter)), at.UnixMilli(), at.UnixMilli(), n)
	cursor, _ := w.Cursor()
	return w.Commit(w.t.Context(), b.Shard(shardOf(w.counter)), cursorAt(cursor.Seq+1, at))
}

func (w *logWriter) commit(at time.Time, n int64) commit.Commit {
	w.t.Helper()
	out, err := w.try(at, n)
	require.NoError(w.t, err)
	return out
}

// keysOf are the counter's keys of cells: logs and hashes.
func (w *logWriter) keysOf() (logs, hashes []string) {
	return stack.Scan(w.t, w.client, "test:*:s:*:"+w.counter), stack.Scan(w.t, w.client, "test:*:h:*:"+w.counter)
}

// A rare counter has one key, and is in every answer; a busy one has hashes, and both add up. Another writer
// learns the size from Redis.
func (r *rig) TestRareCounterHasALog(t *testing.T) {
	r.withLogs(12)
	now := time.Now()
	w := r.logWriter("rare")
	first := w.commit(now.Add(-3*time.Second), 2)
	later := w.commit(now.Add(-2*time.Second), 1)
	once := 1 + 2 + 1 + len(sparseLayout.Tiers)
	require.Equal(t, first.Commands-once, later.Commands, "SET, the name and its expiry, the note for erasers, and the sum's expiries come once")
	logs, hashes := w.keysOf()
	require.Len(t, logs, 1)
	require.Empty(t, hashes)
	r.mustExpire(logs)
	require.Equal(t, int64(3), r.total("rare", time.Hour, now).Upper)
	second := r.logWriter("rare")
	for range 3 {
		second.commit(now.Add(-time.Second), 1)
	}
	_, hashes = w.keysOf()
	require.Len(t, hashes, len(layout.Tiers), "of a counter that has become busy")
	for _, length := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 32 * 24 * time.Hour} {
		a := r.total("rare", length, now)
		require.Equal(t, window.Estimate{Total: 6, Lower: 6, Upper: 6}, a.Estimate, "in %s", length)
	}
	// What lies between two hits of the log is known to the second, whatever the tier.
	from := now.Add(-20 * 24 * time.Hour).Truncate(time.Second).Add(1500 * time.Millisecond)
	w = r.logWriter("old")
	w.commit(from.Add(-time.Minute), 5)
	w.commit(from.Add(time.Minute), 7)
	got, err := r.reader.Answer(t.Context(), []window.Question{{Counter: "old", Span: window.Between(from.UnixMilli(), window.Now)}})
	require.NoError(t, err)
	require.Equal(t, window.Estimate{Total: 7, Lower: 7, Upper: 7}, got.Answers[0].Estimate)
	series, err := r.reader.Series(t.Context(), []window.SeriesQuestion{{Counter: "rare", Span: window.Last(time.Hour)}})
	require.NoError(t, err)
	sum := int64(0)
	for _, n := range series[0].Counts {
		sum += n
	}
	require.Equal(t, int64(6), sum)
	top, err := r.reader.Top(t.Context(), window.Last(time.Hour), 3)
	require.NoError(t, err)
	require.Equal(t, "rare", top.Counters[0].Counter)
	names, err := r.reader.Names(t.Context(), read.NamesQuestion{Limit: 9})
	require.NoError(t, err)
	require.Equal(t, []string{"old", "rare"}, names.Counters)
	found, err := inspect.New(r.store, sparseLayout, []string{"HITS"}).Read(t.Context(), shardOf("rare"), []string{"rare"}, now.UnixMilli(), 0, func(uint64) bool { return false })
	require.NoError(t, err)
	sums := make([]int64, len(layout.Tiers))
	for _, c := range found.Counters[0].Cells {
		sums[c.Tier] += c.N
	}
	require.Equal(t, []int64{6, 6, 6, 6}, sums, "cells of each tier, for an audit")
}

// What another program has written to the key of a log counts nowhere, and both sides name the key.
func (r *rig) TestForeignLogIsReported(t *testing.T) {
	for what, write := range map[string]func(key string) error{
		"a string":        func(key string) error { return r.client.Set(t.Context(), key, "\x0e\x0e\x0e", 0).Err() },
		"an empty string": func(key string) error { return r.client.Set(t.Context(), key, "", 0).Err() },
		"a hash":          func(key string) error { return r.client.HSet(t.Context(), key, "a", 1).Err() },
	} {
		for _, before := range []bool{true, false} { // the writer's first hit
			r.withLogs(100)
			now := time.Now()
			probe := r.logWriter("a")
			probe.commit(now, 1)
			logs, _ := probe.keysOf()
			require.NoError(t, r.client.Del(t.Context(), logs...).Err())
			w := r.logWriter("a")
			if !before {
				w.commit(now, 1)
			}
			require.NoError(t, r.client.Del(t.Context(), logs...).Err())
			require.NoError(t, write(logs[0]))
			got, err := w.try(now, 3)
			require.NoError(t, err, what)
			require.NotNil(t, got.Failed, "%s, %v", what, before)
			require.Equal(t, logs[0], got.Failed.Key)
			_, err = r.reader.Answer(t.Context(), []window.Question{{Counter: "a", Span: window.Last(time.Minute)}})
			if what != "an empty string" { // which was deleted
				require.ErrorContains(t, err, logs[0], "%s, %v", what, before)
			}
		}
	}
}

// A log that is gone comes back with a header, and its hits that are lost are reported.
func (r *rig) TestDeletedLogComesBack(t *testing.T) {
	r.withLogs(100)
	now, w := time.Now(), r.logWriter("a")
	w.commit(now, 1)
	logs, _ := w.keysOf()
	require.NoError(t, r.client.Del(t.Context(), logs...).Err())
	require.NotNil(t, w.commit(now, 1).Failed)
	require.Nil(t, w.commit(now, 1).Failed)
	require.Equal(t, int64(1), r.total("a", time.Minute, now.Add(time.Second)).Upper)
	r.mustExpire(logs)
}

// A writer that is fenced after a lost reply takes the hits for counted, wherever the other one has put them.
func (r *rig) TestFencedWriterFindsItsHitsOnEitherSide(t *testing.T) {
	next := r.addTrouble()
	for i, most := range [][2]int{{100, 0}, {0, 100}} { // the logs of the first writer, and of the other
		r.withLogs(most[0])
		now, counter := time.Now(), fmt.Sprintf("a%d", i)
		w := r.logWriter(counter)
		w.commit(now, 1)
		next.Store(&trouble{lost: true, before: func() {
			require.NoError(t, r.flushAll(t.Context())) // so that EXEC fails
			r.store.MaxLogBytes = most[1]
			other := r.logWriter(counter)
			require.NoError(t, r.store.EnsureLayout(t.Context(), sparseLayout))
			other.commit(now, 1)
			other.commit(now, 1)
			other.commit(now, 1)
		}})
		got, err := w.try(now, 1)
		require.ErrorIs(t, err, commit.ErrFenced)
		require.Nil(t, got.Failed, "with logs of %d bytes after %d", most[1], most[0])
	}
}

// A repeated commit chooses the same side, and only a commit that is known to have run changes sizes.
func (r *rig) TestLostReplyOfALog(t *testing.T) {
	r.withLogs(8) // the header and two hits
	next := r.addTrouble()
	now, w := time.Now(), r.logWriter("a")
	w.commit(now, 1)
	for range 3 {
		next.Store(&trouble{lost: true})
		require.Nil(t, w.commit(now, 1).Failed)
	}
	require.Equal(t, int64(4), r.total("a", time.Minute, now.Add(time.Second)).Upper)
}

// An erasure removes logs with everything else, and the writer begins again.
func (r *rig) TestErasureRemovesLogs(t *testing.T) {
	r.withLogs(100)
	now, w := time.Now(), r.logWriter("a")
	w.commit(now, 1)
	require.Equal(t, 1, r.erase("a"))
	require.Empty(t, r.left("a"))
	w.commit(now, 2)
	require.Equal(t, int64(2), r.total("a", time.Minute, now.Add(time.Second)).Upper)
	logs, _ := w.keysOf()
	require.Len(t, logs, 1)
	require.True(t, strings.Contains(logs[0], ":s:"))
	r.mustExpire(logs)
}
