package commit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

const foldedAt = 48 // bytes of a log: some fifteen hits

// fill commits hits of a, one per load, until its log is folded, and returns how many.
func (r *rig) fill(s *windowtest.Session, now time.Time) (hits int64) {
	for ; hits < 40 && len(stack.Scan(r.T, r.Client, "test:*:h:*:a")) == 0; hits++ {
		require.Nil(r.T, s.Commit("a", now.Add(time.Duration(hits-60)*time.Second), 1).Failed)
	}
	require.NotEmpty(r.T, stack.Scan(r.T, r.Client, "test:*:h:*:a"), "nothing was folded")
	return hits
}

func (r *rig) mustHaveEverywhere(t testing.TB, now time.Time, want int64) {
	t.Helper()
	for _, length := range []time.Duration{time.Hour, 24 * time.Hour, 32 * 24 * time.Hour} {
		require.Equal(t, want, r.Total("a", length, now.Add(time.Second)).Upper, "in %s", length)
	}
}

// A fold loses nothing and counts nothing twice. It sets the expiry of every hash and of the log. Logs stay
// short.
func (r *rig) TestFold(t *testing.T) {
	r.WithLogs(foldedAt)
	now, s := time.Now(), r.Open("HITS")
	n := r.fill(s, now)
	r.mustHaveEverywhere(t, now, n)
	for _, key := range append(stack.Scan(t, r.Client, "test:*:h:*:a"), r.LogsOf("a")...) {
		require.NoError(t, r.Client.Persist(t.Context(), key).Err())
	}
	largest := int64(0)
	for i := range int64(100) {
		require.Nil(t, s.Commit("a", now.Add(time.Duration(i-100)*time.Second), 1).Failed)
		largest = max(largest, r.sizeOfLogs(t))
	}
	r.mustHaveEverywhere(t, now, n+100)
	r.MustExpire(append(stack.Scan(t, r.Client, "test:*:h:*:a"), r.LogsOf("a")...))
	require.LessOrEqual(t, largest, int64(foldedAt+10))
}

// What the transaction itself adds to a field that a fold sets is in the value. A cell that cannot hold more
// is saturated, and is not lowered.
func (r *rig) TestFoldWithLateHits(t *testing.T) {
	r.WithLogs(foldedAt)
	now, s := time.Now(), r.Open("HITS")
	n := r.fill(s, now)
	late := now.Add(-2 * time.Hour) // no more in the finest tier
	for i := range int64(30) {
		b := window.NewBatch(r.Layout)
		windowtest.AddHits(b, "a", now.Add(time.Duration(i-40)*time.Second).UnixMilli(), now.UnixMilli(), 1)
		windowtest.AddHits(b, "a", late.UnixMilli(), now.UnixMilli(), 1)
		windowtest.AddHits(b, "a", now.Add(-70*time.Minute).UnixMilli(), now.UnixMilli(), 1)
		s.Seq++
		_, err := s.Of("a").Commit(t.Context(), b.Shard(windowtest.ShardOf("a")), windowtest.CursorAt(s.Seq, now))
		require.NoError(t, err)
	}
	require.Equal(t, n+90, r.Total("a", 24*time.Hour, now.Add(time.Second)).Upper)
	require.Equal(t, n+90, r.Total("a", 32*24*time.Hour, now.Add(time.Second)).Upper)
	hashes := stack.Scan(t, r.Client, "test:*:h:*:a")
	for _, key := range hashes {
		for field := range r.Client.HGetAll(t.Context(), key).Val() {
			require.NoError(t, r.Client.HSet(t.Context(), key, field, int64(window.Saturated)+7).Err())
		}
	}
	for i := range 40 {
		require.Nil(t, s.Commit("a", now.Add(time.Duration(i-60)*time.Second), 1).Failed)
	}
	for _, key := range hashes {
		for field, value := range r.Client.HGetAll(t.Context(), key).Val() {
			if len(value) > 9 {
				require.Equal(t, fmt.Sprint(int64(window.Saturated)+7), value, "%s of %s", field, key)
			}
		}
	}
}

// Whatever another stream does to the log or to the hashes while a log is folded, nothing is lost and nothing
// counts twice.
func (r *rig) TestFoldMeetsAnotherStream(t *testing.T) {
	next := r.AddTrouble(t)
	for what, meddle := range map[string]func(other *windowtest.Session, now time.Time){
		"appends": func(other *windowtest.Session, now time.Time) { other.Commit("a", now.Add(-50*time.Second), 1) },
		"adds to the hashes": func(other *windowtest.Session, now time.Time) {
			r.Store.MaxLogBytes = 1 // as a load too large for a log
			other.Commit("a", now.Add(-50*time.Second), 1)
			r.Store.MaxLogBytes = foldedAt
		},
	} {
		r.WithLogs(foldedAt)
		now, s, other := time.Now(), r.Open("HITS"), r.Open("MORE")
		n, conflicts := r.fill(s, now), 0
		for i := range 40 {
			next.Store(&windowtest.Trouble{Before: func() { meddle(other, now) }})
			conflicts += s.Commit("a", now.Add(time.Duration(i-60)*time.Second), 1).Conflicts
			n += 2
		}
		require.NotZero(t, conflicts, what)
		r.mustHaveEverywhere(t, now, n)
	}
}

// A commit that has folded and whose reply was lost is repeated, and has folded once.
func (r *rig) TestLostReplyOfAFold(t *testing.T) {
	r.WithLogs(foldedAt)
	next := r.AddTrouble(t)
	now, s := time.Now(), r.Open("HITS")
	n := r.fill(s, now)
	for i := range 60 {
		next.Store(&windowtest.Trouble{Lost: true})
		require.Nil(t, s.Commit("a", now.Add(time.Duration(i-60)*time.Second), 1).Failed)
		n++
	}
	r.mustHaveEverywhere(t, now, n)
}

// A log whose cells cannot move, because something else is in the place of a hash, keeps its hits.
func (r *rig) TestFoldIntoAForeignHash(t *testing.T) {
	for what, write := range map[string]func(key string) error{
		"a string": func(key string) error { return r.Client.Set(t.Context(), key, "foreign", time.Hour).Err() },
		"a text in a field": func(key string) error {
			fields := r.Client.HKeys(t.Context(), key).Val()
			for field := range 2 * window.EpochCells {
				fields = append(fields, fmt.Sprint(field))
			}
			values := make([]any, 0, 2*len(fields))
			for _, field := range fields {
				values = append(values, field, "foreign")
			}
			return r.Client.HSet(t.Context(), key, values...).Err()
		},
	} {
		r.WithLogs(foldedAt)
		now, s := time.Now(), r.Open("HITS")
		n := r.fill(s, now)
		hashes := stack.Scan(t, r.Client, "test:*:h:*:a")
		for _, key := range hashes {
			require.NoError(t, r.Client.Rename(t.Context(), key, key+" aside").Err())
			require.NoError(t, write(key))
		}
		for i := range 20 {
			require.Nil(t, s.Commit("a", now.Add(time.Duration(i-20)*time.Second), 1).Failed, what)
		}
		for _, key := range hashes {
			require.NoError(t, r.Client.Rename(t.Context(), key+" aside", key).Err())
		}
		r.mustHaveEverywhere(t, now, n+20)
	}
}

// A reader that has read a log before it is folded, and the hashes after that, reads again: whether the log
// was as long, or has been short, and is as long again.
func (r *rig) TestFoldWhileAReaderAsks(t *testing.T) {
	for what, most := range map[string]int{"one load at a time": 1, "loads that fill the log at once": 9} {
		r.WithLogs(foldedAt)
		now, s := time.Now(), r.Open("HITS")
		n, loads := r.fill(s, now), 0
		var folding atomic.Bool
		r.betweenLogsAndHashes(t, func() {
			if !folding.CompareAndSwap(true, false) {
				return
			}
			for folded := false; !folded; {
				had := r.beginsOfLogs(t)
				for range most {
					s.Commit("a", now.Add(time.Duration(loads%60-60)*time.Second), 1)
					n, loads = n+1, loads+1
				}
				folded = r.beginsOfLogs(t) != had
			}
		})
		for range 10 {
			folding.Store(true)
			before := n
			got := r.Total("a", time.Hour, now.Add(time.Second)).Upper
			require.False(t, folding.Load())
			require.GreaterOrEqual(t, got, before, what)
			require.LessOrEqual(t, got, n, what)
		}
	}
}

// A fold never leaves the beginning of a log as it was, or a reader could not see it. Here the first hit of
// the log is the newest but one.
func (r *rig) TestFoldChangesTheBeginning(t *testing.T) {
	r.WithLogs(foldedAt)
	now, s := time.Now().Truncate(time.Second), r.Open("HITS")
	commit := func(ago int) { s.Commit("a", now.Add(-time.Duration(ago)*time.Second), 1) }
	n := int64(0)
	for round := range 12 {
		commit(round % 3)
		n++
		for i := range 60 {
			had, size := r.beginsOfLogs(t), r.sizeOfLogs(t)
			commit(200 - i)
			n++
			if r.sizeOfLogs(t) < size {
				require.NotEqual(t, had, r.beginsOfLogs(t))
			}
		}
	}
	r.mustHaveEverywhere(t, now, n)
}

// betweenLogsAndHashes calls a function whenever a reader has read logs, and not yet the hashes.
func (r *rig) betweenLogsAndHashes(t *testing.T, call func()) {
	r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		first := func(infix string) int {
			return slices.IndexFunc(cmds, func(c redis.Cmder) bool {
				return len(c.Args()) > 1 && strings.Contains(fmt.Sprint(c.Args()[1]), infix)
			})
		}
		log, hash := first("}:s:"), first("}:h:")
		if log < 0 || hash < 0 || cmds[0].Name() == "multi" {
			return send(cmds)
		}
		at := max(log, hash)
		if err := send(cmds[:at]); err != nil {
			return err
		}
		call()
		return send(cmds[at:])
	})
}

func (r *rig) sizeOfLogs(t testing.TB) (sum int64) {
	for _, key := range r.LogsOf("a") {
		sum += r.Client.StrLen(t.Context(), key).Val()
	}
	return sum
}

func (r *rig) beginsOfLogs(t testing.TB) (out string) {
	for _, key := range r.LogsOf("a") {
		out += r.Client.GetRange(t.Context(), key, 0, 3).Val()
	}
	return out
}
