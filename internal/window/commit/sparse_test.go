package commit_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// A counter that is new has one key, and is in every answer; then its log is folded, and log and hashes add
// up. Another writer learns the size from Redis.
func (r *rig) TestCounterHasALog(t *testing.T) {
	r.WithLogs(12)
	now := time.Now()
	s := r.Open("HITS")
	hit := now.Add(-3 * time.Second).Truncate(2 * time.Second) // the next second has the same hashes
	first := s.Commit("rare", hit, 2)
	later := s.Commit("rare", hit, 1)
	const once = 1 + 2 + 1
	require.Equal(t, first.Commands-once, later.Commands,
		"SET, the name and its expiry, and the note for erasers come once")
	hashes := func() []string { return stack.Scan(t, r.Client, "test:*:h:*:rare") }
	require.Len(t, r.LogsOf("rare"), 1)
	require.Empty(t, hashes())
	r.MustExpire(r.LogsOf("rare"))
	require.Equal(t, int64(3), r.Total("rare", time.Hour, now).Upper)
	second := r.Open("HITS")
	for range 3 {
		second.Commit("rare", hit.Add(time.Second), 1)
	}
	require.Len(t, hashes(), len(layout.Tiers), "of a counter whose log was folded")
	for _, length := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 32 * 24 * time.Hour} {
		a := r.Total("rare", length, now)
		require.Equal(t, window.Estimate{Total: 6, Lower: 6, Upper: 6}, a.Estimate, "in %s", length)
	}
	// What lies between two hits of the log is known to the second, whatever the tier.
	from := now.Add(-20 * 24 * time.Hour).Truncate(time.Second).Add(1500 * time.Millisecond)
	r.Store.MaxLogBytes = window.MaxLogBytes
	s = r.Open("HITS")
	s.Commit("old", from.Add(-time.Minute), 5)
	s.Commit("old", from.Add(time.Minute), 7)
	span := window.Between(from.UnixMilli(), window.Now)
	got, err := r.Reader.Answer(t.Context(), []window.Question{{Counter: "old", Span: span}})
	require.NoError(t, err)
	require.Equal(t, window.Estimate{Total: 7, Lower: 7, Upper: 7}, got.Answers[0].Estimate)
	series, err := r.Reader.Series(t.Context(), []window.SeriesQuestion{{Counter: "rare", Span: window.Last(time.Hour)}})
	require.NoError(t, err)
	sum := int64(0)
	for _, n := range series[0].Counts {
		sum += n
	}
	require.Equal(t, int64(6), sum)
	top, err := r.Reader.Top(t.Context(), window.Last(time.Hour), 3)
	require.NoError(t, err)
	require.Equal(t, "rare", top.Counters[0].Counter)
	names, err := r.Reader.Names(t.Context(), read.NamesQuestion{Limit: 9})
	require.NoError(t, err)
	require.Equal(t, []string{"old", "rare"}, names.Counters)
}

// What another program has written to the key of a log counts nowhere, and both sides name the key.
func (r *rig) TestForeignLogIsReported(t *testing.T) {
	for what, write := range map[string]func(key string) error{
		"a string":        func(key string) error { return r.Client.Set(t.Context(), key, "\x0e\x0e\x0e", 0).Err() },
		"an empty string": func(key string) error { return r.Client.Set(t.Context(), key, "", 0).Err() },
		"a hash":          func(key string) error { return r.Client.HSet(t.Context(), key, "a", 1).Err() },
	} {
		for _, before := range []bool{true, false} { // the writer's first hit
			r.WithLogs(100)
			now := time.Now()
			r.Open("HITS").Commit("a", now, 1)
			logs := r.LogsOf("a")
			require.NoError(t, r.Client.Del(t.Context(), logs...).Err())
			s := r.Open("HITS")
			if !before {
				s.Commit("a", now, 1)
			}
			require.NoError(t, r.Client.Del(t.Context(), logs...).Err())
			require.NoError(t, write(logs[0]))
			got, err := s.Try("a", now, 3)
			require.NoError(t, err, what)
			require.NotNil(t, got.Failed, "%s, %v", what, before)
			windowtest.MustName(t, logs[0], got.Failed)
			_, err = r.Reader.Answer(t.Context(), []window.Question{{Counter: "a", Span: window.Last(time.Minute)}})
			if what != "an empty string" { // which was deleted
				require.ErrorContains(t, err, logs[0], "%s, %v", what, before)
			}
		}
	}
}

// A key that is not the log of this writer's last commit may be gone when the writer asks about it: its hits
// are lost, unless it has expired or was erased since.
func (r *rig) TestForeignLogThatIsDeletedBeforeItsCheck(t *testing.T) {
	next, now := r.AddTrouble(t), time.Now()
	for what, c := range map[string]struct {
		gone func(key string)
		lost bool
	}{
		"deleted": {func(key string) { r.Client.Del(t.Context(), key) }, true},
		"erased":  {func(string) { require.Equal(t, 1, r.Erase("a")) }, false},
		"expired": {func(key string) {
			r.Client.Del(t.Context(), key)
			later := now.Add(365 * 24 * time.Hour)
			r.Clock.Hold(&later)
		}, false},
	} {
		r.WithLogs(100)
		r.Open("MORE").Commit("a", now, 1)
		log := r.LogsOf("a")[0]
		if c.lost {
			require.NoError(t, r.Client.Set(t.Context(), log, "foreign", 0).Err())
		}
		next.Store(&windowtest.Trouble{After: func() { c.gone(log) }})
		got := r.Open("HITS").Commit("a", now, 1)
		r.Clock.Hold(nil)
		require.Equal(t, c.lost, got.Failed != nil, what)
	}
}

// A key stays suspect until it holds a log: each load that is lost in it is reported. A text as long as the
// log is found when the log is to be folded.
func (r *rig) TestForeignLogStaysSuspect(t *testing.T) {
	r.WithLogs(100)
	now, s := time.Now(), r.Open("HITS")
	at := func(i int) time.Time { return now.Add(time.Duration(i-60) * time.Second) }
	s.Commit("a", at(0), 1)
	log := r.LogsOf("a")[0]
	had := r.Client.Get(t.Context(), log).Val()
	require.NoError(t, r.Client.Set(t.Context(), log, "no", 0).Err())
	for i := range 3 {
		windowtest.MustName(t, log, s.Commit("a", at(i+1), 1).Failed)
	}
	require.NoError(t, r.Client.Set(t.Context(), log, had, time.Hour).Err())
	require.Nil(t, s.Commit("a", at(4), 1).Failed)
	require.Equal(t, int64(2), r.Total("a", time.Hour, now).Upper)
	length := r.Client.StrLen(t.Context(), log).Val()
	require.NoError(t, r.Client.Set(t.Context(), log, strings.Repeat("n", int(length)), 0).Err())
	for i := range 40 {
		if got := s.Commit("a", at(i+5), 1); got.Failed != nil {
			windowtest.MustName(t, log, got.Failed)
			windowtest.MustName(t, log, s.Commit("a", at(i+6), 1).Failed)
			return
		}
	}
	require.Fail(t, "no commit has looked at the log")
}

// If a command of a transaction fails, its logs are still checked.
func (r *rig) TestLogIsCheckedAfterAFailedCommand(t *testing.T) {
	r.WithLogs(100)
	now, s := time.Now(), r.Open("HITS")
	other := windowtest.SameShardAs("a")
	s.Commit("a", now, 1)
	log := r.LogsOf("a")[0]
	require.NoError(t, r.Client.Del(t.Context(), log).Err())
	commit := func() commit.Commit {
		b := window.NewBatch(r.Layout)
		windowtest.AddHits(b, "a", now.UnixMilli(), now.UnixMilli(), 1)
		windowtest.AddHits(b, other, now.Add(-3*time.Hour).UnixMilli(), now.UnixMilli(), 1) // late
		s.Seq++
		got, err := s.Of("a").Commit(t.Context(), b.Shard(windowtest.ShardOf("a")), windowtest.CursorAt(s.Seq, now))
		require.NoError(t, err)
		return got
	}
	require.Error(t, commit().Failed)
	hash := stack.Scan(t, r.Client, "test:*:h:*:"+other)[0]
	require.NoError(t, r.Client.Set(t.Context(), hash, "foreign", 0).Err())
	s.Commit("a", now, 1)
	require.NoError(t, r.Client.Del(t.Context(), log).Err())
	windowtest.MustName(t, hash, commit().Failed)
	require.Empty(t, r.LogsOf("a"), "it had no header")
	require.Nil(t, s.Commit("a", now, 1).Failed)
	r.MustExpire(r.LogsOf("a"))
}

// A log that is gone comes back with a header, and its hits that are lost are reported.
func (r *rig) TestDeletedLogComesBack(t *testing.T) {
	r.WithLogs(100)
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	logs := r.LogsOf("a")
	require.NoError(t, r.Client.Del(t.Context(), logs...).Err())
	require.NotNil(t, s.Commit("a", now, 1).Failed)
	require.Nil(t, s.Commit("a", now, 1).Failed)
	require.Equal(t, int64(1), r.Total("a", time.Minute, now.Add(time.Second)).Upper)
	r.MustExpire(logs)
}

// A repeated commit chooses the same side, and only a commit that is known to have run changes sizes.
func (r *rig) TestLostReplyOfALog(t *testing.T) {
	r.WithLogs(8) // the header and two hits
	next := r.AddTrouble(t)
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	for range 3 {
		next.Store(&windowtest.Trouble{Lost: true})
		require.Nil(t, s.Commit("a", now, 1).Failed)
	}
	require.Equal(t, int64(4), r.Total("a", time.Minute, now.Add(time.Second)).Upper)
}

// A writer that has read EXEC's reply asks about a log that another stream began. If the connection breaks
// there, and Redis has lost the transaction, the writer repeats it with all expiries and registers.
func (r *rig) TestTransactionThatIsLostBeforeItsCheck(t *testing.T) {
	r.WithLogs(100)
	now := time.Now()
	begin := func() {
		require.NoError(t, r.FlushAll(t.Context()))
		require.NoError(t, r.Store.EnsureLayout(t.Context(), r.Layout))
		require.NoError(t, r.Store.AddStream(t.Context(), "HITS"))
		r.Open("MORE").Commit("a", now, 1)
	}
	begin()
	s := r.Open("HITS")
	var lost atomic.Bool
	r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if cmds[0].Name() == "getrange" && lost.CompareAndSwap(false, true) {
			begin()
			return windowtest.FailAll(cmds, io.ErrUnexpectedEOF)
		}
		return send(cmds)
	})
	b := window.NewBatch(r.Layout)
	windowtest.AddVisits(b, "a", now, 0, 3)
	got, err := s.Of("a").Commit(t.Context(), b.Shard(windowtest.ShardOf("a")), windowtest.CursorAt(1, now))
	require.NoError(t, err)
	require.Nil(t, got.Failed)
	require.True(t, lost.Load())
	require.Equal(t, int64(4), r.Total("a", time.Hour, now.Add(time.Second)).Upper)
	cells := stack.Scan(t, r.Client, "test:*:u:*:a")
	require.Len(t, cells, len(r.Layout.UniqueTiers))
	for _, key := range cells {
		require.Equal(t, int64(3), r.Client.PFCount(t.Context(), key).Val())
	}
	r.MustExpire(append(append(cells, r.LogsOf("a")...), stack.Scan(t, r.Client, "test:*:h:*")...))
}
