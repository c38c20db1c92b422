package commit_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

var layout = windowtest.Layout

const hasNoRegisters = "its HyperLogLog hashes otherwise and cannot be read"

type rig struct{ *windowtest.Rig }

// TestStore runs every test of a rig, one suite for every kind of Redis.
func TestStore(t *testing.T) {
	windowtest.Suite[rig](t, map[string]string{
		"TestCommitCountsInEveryTier":         "OBJECT ENCODING is unknown to it",
		"TestCommitCountsOnceAfterACut":       "CLIENT KILL is unknown to it",
		"TestNothingIsCommittedWithoutAWatch": "ACL is unknown to it",
		"TestRegistersAreThoseOfTheValues":    hasNoRegisters,
		"TestOnlyNewRegistersAreSent":         hasNoRegisters,
		"TestLostRegistersComeBack":           hasNoRegisters,
		"TestForeignUniqueCellIsReported":     hasNoRegisters,

		"TestCountersSaturate":       "its HINCRBY overflows",
		"TestForeignFieldIsReported": "its HINCRBY has an error of its own",
	})
}

// A commit takes two round trips. Hashes are listpacks.
func (r *rig) TestCommitCountsInEveryTier(t *testing.T) {
	r.WithLogs(1)
	now, s, hook := time.Now(), r.Open("HITS"), r.AddInterrupts(t)
	var commands []int
	for n := range int64(3) {
		hook.Disarm()
		got := s.Commit("a", now, 1+n)
		if got.Hits != 1+n || got.Attempts != 1 || got.Failed != nil || hook.Trips.Load() != 2 {
			t.Errorf("commit: %+v in %d round trips", got, hook.Trips.Load())
		}
		commands = append(commands, got.Commands)
	}
	// The first lists the name, which expires, and notes for erasers that there is a new cursor.
	const once = 3
	if first := commands[0] - once; commands[1] != first || commands[2] != first {
		t.Errorf("%d commands; want %d more in the first commit", commands, once)
	}
	r.MustHold("a", now, 6)
	keys := stack.Scan(t, r.Client, "test:*:h:*")
	require.Len(t, keys, 2*len(layout.Tiers))
	r.MustExpire(keys)
	for _, key := range keys {
		encoding, err := r.Client.ObjectEncoding(t.Context(), key).Result()
		require.NoError(t, err)
		require.Equal(t, "listpack", encoding, key)
	}
}

// After a loss another writer can arrive at the same cursor over other hits. What
// the first remembers of expiries and names is then not so.
func (r *rig) TestSameCursorOverOtherHitsFences(t *testing.T) {
	now, first := time.Now(), r.Open("HITS")
	first.Commit("a", now, 1)
	require.NoError(t, r.FlushAll(t.Context()))
	second := r.Open("HITS")
	second.Commit(windowtest.SameShardAs("a"), now, 1)
	require.ErrorIs(t, windowtest.ErrOf(first.Try("a", now, 1)), commit.ErrFenced, "over another writer's hits")
	// Idle writers may each move as_of, and none fences the other.
	third, later := r.Open("HITS"), windowtest.CursorAt(1, now)
	for i, s := range []*windowtest.Session{second, third, second, third} {
		later.AsOf += int64(i)
		require.NoError(t, s.Of("a").Write(t.Context(), later))
	}
}

func (r *rig) TestLossInRedisRewinds(t *testing.T) {
	for name, lose := range map[string]func() error{
		"all": func() error { return r.FlushAll(t.Context()) },
		"the last commit": func() error {
			return r.Client.HSet(t.Context(), windowtest.CursorKey("a"), "seq", 1).Err()
		},
	} {
		now, s := time.Now(), windowtest.NewRig(t, r.Backend).Open("HITS")
		s.Commit("a", now, 1)
		s.Commit("a", now, 1)
		require.NoError(t, lose())
		require.ErrorIs(t, windowtest.ErrOf(s.Try("a", now, 1)), commit.ErrRewound, "a writer ahead of Redis, which has lost %s", name)
	}
}

// The versions and rejects in a cursor are part of what its writer relies on: if Redis loses these alone, or
// another writer has written them, the writer goes no further.
func (r *rig) TestLossOfVersionsOrRejectsFences(t *testing.T) {
	now := time.Now()
	r.Open("HITS").Commit("a", now, 1)
	for name, change := range map[string]func(*window.Cursor){
		"a version": func(c *window.Cursor) { c.Naming += "a version" },
		"a reject":  func(c *window.Cursor) { c.Refused += 3 },
		"settings":  func(c *window.Cursor) { c.Settings += "settings" },
	} {
		s, other := r.Open("HITS"), r.Open("HITS").Of("a")
		w := s.Of("a")
		at, _ := w.Cursor()
		at.Refused++ // so that the writer has the cursor already
		require.NoError(t, w.Write(t.Context(), at))
		before := r.Client.HGetAll(t.Context(), windowtest.CursorKey("a")).Val()
		change(&at)
		require.NoError(t, w.Write(t.Context(), at))
		if got, _ := r.Open("HITS").Of("a").Cursor(); got != at {
			t.Errorf("%s: the cursor is %+v, want %+v", name, got, at)
		}
		otherAt, _ := other.Cursor()
		change(&otherAt)
		require.ErrorIs(t, other.Write(t.Context(), otherAt), commit.ErrFenced, "over %s of another writer", name)
		require.NoError(t, r.Client.HSet(t.Context(), windowtest.CursorKey("a"), before).Err()) // the last commit alone is lost
		at.Seq++
		require.ErrorIs(t, windowtest.ErrOf(w.Commit(t.Context(), r.HitsOf("a", now, 1), at)), commit.ErrFenced, "over %s that is lost", name)
	}
}

// A writer that takes a cursor leaves it where it is, and fences all others.
func (r *rig) TestTakenCursorFences(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	old, older := r.Open("HITS").Of("a"), r.Open("HITS").Of("a")
	require.NoError(t, old.Acquire(ctx, windowtest.CursorAt(4, now)), "there is none yet")
	require.ErrorIs(t, older.Acquire(ctx, windowtest.CursorAt(4, now)), commit.ErrFenced, "a cursor that another writer has created")
	require.NoError(t, old.Write(ctx, windowtest.CursorAt(5, now)))
	young := r.Open("HITS").Of("a")
	require.NoError(t, young.Acquire(ctx, windowtest.CursorAt(5, now)))
	if c, exists := r.Open("HITS").Of("a").Cursor(); !exists || c != windowtest.CursorAt(5, now) {
		t.Errorf("the cursor is %+v, %v", c, exists)
	}
	require.ErrorIs(t, old.Write(ctx, windowtest.CursorAt(6, now)), commit.ErrFenced, "a writer whose cursor was taken")
	require.NoError(t, young.Write(ctx, windowtest.CursorAt(6, now)))
}

// Waiting does not mend a key that something else has written to.
func (r *rig) TestForeignCursorEndsTheWriter(t *testing.T) {
	now, s, key := time.Now(), r.Open("HITS"), windowtest.CursorKey("a")
	s.Commit("a", now, 1)
	for _, write := range []func() error{
		func() error { return r.Client.HSet(t.Context(), key, "seq", "x").Err() },
		func() error { return r.Client.Set(t.Context(), key, "not ours", 0).Err() },
	} {
		require.NoError(t, write())
		windowtest.MustName(t, key, windowtest.ErrOf(s.Try("a", now, 1)))
		windowtest.MustName(t, key, windowtest.ErrOf(commit.OpenWriter(t.Context(), r.Store, layout, "HITS", windowtest.ShardOf("a"))))
	}
}

// A command that fails, because something else has written to its key, is reported, and that of a lost reply
// with the key's next hit. A hit whose reply is lost counts once, also if another worker has gone on
// meanwhile, and stays erased.
func (r *rig) TestFailedCommandIsReported(t *testing.T) {
	r.WithLogs(1)
	now, next := time.Now(), r.AddTrouble(t)
	for i, c := range []struct{ foreign, lost, fenced, erased bool }{
		{foreign: true},
		{lost: true},
		{lost: true, foreign: true},
		{lost: true, fenced: true},
		{lost: true, erased: true},
		{lost: true, erased: true, fenced: true},
	} {
		s, counter := r.Open("HITS"), fmt.Sprint("a", i)
		s.Commit(counter, now, 1)
		for _, key := range stack.Scan(t, r.Client, "test:*:h:1h:*:"+counter) {
			if c.foreign {
				require.NoError(t, r.Client.Set(t.Context(), key, "not ours", time.Hour).Err())
			}
		}
		s.Of(counter).OnRetry = func(error) {
			if c.erased {
				r.Erase(counter)
			}
			if c.fenced {
				require.NoError(t, r.Open("HITS").Of(counter).Write(t.Context(), windowtest.CursorAt(s.Seq+1, now)))
			}
		}
		next.Store(&windowtest.Trouble{Lost: c.lost})
		got, err := s.Try(counter, now, 1)
		if errors.Is(err, commit.ErrFenced) != c.fenced || err != nil && !c.fenced || (got.Failed != nil) != (c.foreign && !c.lost) {
			t.Errorf("%+v: %v, failed %v", c, err, got.Failed)
		}
		if c.erased {
			require.Empty(t, r.Left(counter))
			continue
		}
		require.EqualValues(t, 2, r.Total(counter, time.Minute, now.Add(time.Second)).Upper, "%+v", c)
		if c.foreign {
			require.ErrorContains(t, s.Commit(counter, now, 1).Failed, "WRONGTYPE")
		}
	}
}

// A hash expires while Redis hangs with EXEC, which makes it again, and the reply is lost.
func (r *rig) TestExpiryIsHealedAfterALostReply(t *testing.T) {
	r.WithLogs(1)
	now, s := time.Now(), r.Open("HITS")
	defer r.Clock.Ahead(0)
	s.Commit("a", now, 1)
	r.AddTrouble(t).Store(&windowtest.Trouble{
		Before: func() {
			for _, key := range stack.Scan(t, r.Client, "test:*:h:*") {
				require.NoError(t, r.Client.Del(t.Context(), key).Err()) // it expires
			}
		},
		After: func() { r.Clock.Ahead(100 * 24 * time.Hour) }, // before the commit is tried again
		Lost:  true,
	})
	s.Commit("a", now, 1)
	for _, key := range stack.Scan(t, r.Client, "test:*:h:*") {
		if left := r.Client.TTL(t.Context(), key).Val(); left == -1 {
			t.Errorf("%s stays for ever", key)
		}
	}
}

// A worker that has found the clock of NATS set back writes an earlier as_of.
func (r *rig) TestAsOfFallsWithTheClockOfNATS(t *testing.T) {
	now, w := time.Now(), r.Open("HITS").Of("a")
	next := windowtest.CursorAt(1, now)
	for _, later := range []time.Duration{time.Minute, -time.Minute} {
		next.AsOf = now.Add(later).UnixMilli()
		require.NoError(t, w.Write(t.Context(), next))
	}
	got, _ := r.Open("HITS").Of("a").Cursor()
	require.Equal(t, now.Add(-time.Minute).UnixMilli(), got.AsOf)
}

func (r *rig) TestCommitCountsOnceWithAnotherWriter(t *testing.T) { r.mustCountOnce(func() {}) }

// EXEC must not go out on a new connection, where no key is watched.
func (r *rig) TestCommitCountsOnceAfterACut(t *testing.T) {
	r.mustCountOnce(func() {
		require.NoError(t, r.EachServer(t.Context(), func(ctx context.Context, server *redis.Client) error {
			return server.ClientKillByFilter(ctx, "type", "normal").Err() // all but the one that asks
		}))
	})
}

// mustCountOnce lets another writer commit the same hit before each of a commit's commands in turn, and then
// something else happen. The hit counts once.
func (r *rig) mustCountOnce(then func()) {
	now, hook := time.Now(), r.AddInterrupts(r.T)
	for before := 0; ; before++ {
		counter := fmt.Sprintf("a%d", before)
		s, another := r.Open("HITS"), r.Open("HITS")
		hook.Arm(before, func() {
			another.Commit(counter, now, 1)
			then()
		})
		_, err := s.Try(counter, now, 1)
		interrupted := hook.Disarm()
		if errors.Is(err, commit.ErrFenced) != interrupted || err != nil && !interrupted {
			r.T.Errorf("before command %d: %v", before, err)
		}
		if a := r.Total(counter, time.Minute, now.Add(time.Second)); a.Upper != 1 {
			r.T.Errorf("another writer before command %d: the hit counts %d times", before, a.Upper)
		}
		if !interrupted {
			require.GreaterOrEqual(r.T, before, 5, "commands: WATCH, TIME, HMGET, a GET or more, the transaction")
			return
		}
	}
}

// A WATCH that stayed on the pooled connection would spoil the next transaction on it.
func (r *rig) TestCommitThatGivesUpWatchesNothing(t *testing.T) {
	now, old, young := time.Now(), r.Open("HITS"), r.Open("HITS")
	young.Commit("a", now, 1)
	hook := r.AddInterrupts(t)
	require.ErrorIs(t, windowtest.ErrOf(old.Try("a", now, 1)), commit.ErrFenced)
	require.EqualValues(t, 2, hook.Trips.Load(), "requests: the look and UNWATCH")
	for range 3 { // the pool gives out the connection that came back last
		require.Zero(t, young.Commit("a", now, 1).Conflicts)
	}
}

// If Redis refuses WATCH and answers the reads behind it, nothing may follow from them.
func (r *rig) TestNothingIsCommittedWithoutAWatch(t *testing.T) {
	now, s := time.Now(), r.Open("HITS")
	setRights := func(change string) {
		require.NoError(t, r.EachServer(t.Context(), func(ctx context.Context, server *redis.Client) error {
			return server.Do(ctx, "acl", "setuser", "default", change).Err()
		}))
	}
	refused := 0
	s.Of("a").OnRetry = func(err error) {
		refused++
		require.True(t, redis.IsPermissionError(err), "refused for another reason: %v", err)
		setRights("+watch")
	}
	setRights("-watch")
	require.Equal(t, 1, s.Commit("a", now, 1).Attempts)
	require.Equal(t, 1, refused)
	require.EqualValues(t, 1, r.Total("a", time.Minute, now.Add(time.Second)).Upper)
}

// If Redis refuses the password of a new connection, go-redis gives commands of a pipeline no error. That is
// neither a missing cursor nor one of another writer: the commit waits, and counts once.
func TestCommitWaitsWhileThePasswordIsRefused(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	admin := server.Client()
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "counter", "on", ">right", "allkeys", "allcommands").Err())
	var password atomic.Value
	password.Store("right")
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1,
		CredentialsProvider: func() (string, string) { return "counter", password.Load().(string) }})
	defer client.Close()
	r := windowtest.NewRig(t, windowtest.NewBackend(client))
	now, s, refused := time.Now(), r.Open("HITS"), 0
	s.Of("c").OnRetry = func(err error) {
		refused++
		require.ErrorContains(t, err, "WRONGPASS")
		password.Store("right")
	}
	for seq := range 3 {
		if seq > 0 {
			password.Store("wrong")
			require.NoError(t, admin.Do(t.Context(), "client", "kill", "user", "counter").Err())
		}
		require.Nil(t, s.Commit("c", now, 1).Failed)
	}
	require.GreaterOrEqual(t, refused, 2, "attempts were refused, one or two of each commit")
	r.MustHold("c", now, 3)
}

// A commit waits for Redis. If its reply is lost, it is looked at again, and adds nothing twice. If its
// context ends, it may have been applied or not: what its writer remembers of it is of no use to the next
// commit.
func (r *rig) TestCommitsOutlastRedis(t *testing.T) {
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 7)
	r.Stop(windowtest.CursorKey("a"))
	ctx, cancel := context.WithCancel(t.Context())
	s.Of("a").OnRetry = func(error) { cancel() }
	require.ErrorIs(t, windowtest.ErrOf(s.Of("a").Commit(ctx, r.HitsOf("a", now, 7), windowtest.CursorAt(2, now))), context.Canceled)
	lost := make(chan error, 100)
	s.Of("a").OnRetry = func(err error) { lost <- err }
	done := make(chan error, 1)
	go func() { done <- windowtest.ErrOf(s.Try("a", now, 7)) }()
	require.ErrorContains(t, <-lost, "shard")
	r.Start(windowtest.CursorKey("a"))
	require.NoError(t, <-done)
	// A summary that counted more would call for a look at a counter of fewer hits.
	top, err := r.Top(time.Hour, now.Add(time.Second), 1)
	if err != nil || top.Floor != 0 || len(top.Counters) != 1 || top.Counters[0].Upper != 14 {
		t.Errorf("%+v, %v", top, err)
	}
	keys := stack.Scan(t, r.Client, "test:*:top:*")
	require.Len(t, keys, 2, "one of each level")
	for _, key := range keys {
		require.Equal(t, "\x01\x00\x01a\x0e", r.Client.Get(t.Context(), key).Val(), key)
	}
}

// A summary that cannot be read is left as it is, the hits count, and the loss is reported. An erasure leaves
// it, too.
func (r *rig) TestForeignSummaryIsLeftAsItIs(t *testing.T) {
	ctx, now, s := t.Context(), time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	keys := stack.Scan(t, r.Client, "test:*:top:*")
	for _, c := range []struct {
		write func(key string) error
		read  func(key string) string
		want  string
	}{
		{func(key string) error { return r.Client.Set(ctx, key, "\x02", redis.KeepTTL).Err() },
			func(key string) string { return r.Client.Get(ctx, key).Val() }, "version 2"},
		{func(key string) error {
			require.NoError(t, r.Client.Del(ctx, key).Err())
			return r.Client.HSet(ctx, key, "field", "\x02").Err()
		}, func(key string) string { return r.Client.HGet(ctx, key, "field").Val() }, "WRONGTYPE"},
	} {
		for _, key := range keys {
			require.NoError(t, c.write(key))
		}
		got, foreign := s.Commit("a", now, 1), (*window.ForeignError)(nil)
		if !errors.As(got.Failed, &foreign) || !slices.Contains(keys, foreign.Key) || !strings.Contains(foreign.Error(), c.want) {
			t.Errorf("%v; want %s", got.Failed, c.want)
		}
		for _, key := range keys {
			require.Equal(t, "\x02", c.read(key), "%s was overwritten", key)
		}
	}
	require.EqualValues(t, 3, r.Total("a", time.Minute, now.Add(time.Second)).Upper)
	require.Error(t, windowtest.ErrOf(r.Top(time.Second, now, 1)), "the reader takes a foreign summary for silence")
	require.NoError(t, r.Client.Set(ctx, keys[0], "not ours", time.Hour).Err()) // the others are of another type
	require.Equal(t, 1, r.Erase("a"))
	require.Empty(t, stack.Scan(t, r.Client, "test:*:h:*:a"))
	require.Len(t, stack.Scan(t, r.Client, "test:*:top:*"), len(keys))
}

// Hashes may have expired under a clock that was ahead. A writer must not rely on what it has set before.
func (r *rig) TestExpiriesAreSetAgainAfterAFallOfTheClock(t *testing.T) {
	r.WithLogs(1)
	now, s := time.Now(), r.Open("HITS")
	later := now.Add(100 * 24 * time.Hour)
	s.Commit("a", now, 3)
	r.At(later, func() {
		s.Commit(windowtest.SameShardAs("a"), later, 1)
		for _, key := range r.Left("a") {
			require.NoError(t, r.Client.Del(t.Context(), key).Err()) // it expires
		}
	})
	s.Commit("a", now, 4)
	require.GreaterOrEqual(t, len(r.Left("a")), len(layout.Tiers)+1)
	r.MustExpire(r.Left("a"))
}

// A counter of enough hits has no upper bound. The sum of all hits has none either, and other counters of the
// shard are exact. Draws go around the count at which a cell is saturated.
func (r *rig) TestCountersSaturate(t *testing.T) {
	most, next := hit.MaxN*int64(5)<<20, r.AddTrouble(t) // of a load: see consume.maxSum
	beside := windowtest.SameShardAs("a")
	for round := range stack.Rounds(8, 40) {
		r.WithLogs([]int{1, 1024}[round%2]) // the first hits in the tiers, or in a log
		random := rand.New(rand.NewPCG(1, uint64(round)))
		now, s, sum := time.Now(), r.Open("HITS"), new(big.Int)
		for n := range 6 {
			one := []int64{1, hit.MaxN, most / 5, most/5*2 - 1, window.Saturated, most}[random.IntN(6)]
			next.Store(&windowtest.Trouble{Lost: random.IntN(3) == 0})
			require.NoError(t, s.Commit("a", now, one).Failed)
			next.Store(&windowtest.Trouble{})
			require.NoError(t, s.Commit(beside, now, 1).Failed)
			sum.Add(sum, big.NewInt(one))
			for _, w := range []time.Duration{time.Minute, time.Hour, 720 * time.Hour} {
				at := now.Add(time.Second)
				a, all, other := r.Total("a", w, at), r.Total(window.AllHits, w, at), r.Total(beside, w, at)
				what := fmt.Sprintf("round %d, %v: %+v, all %+v, other %+v; counted %v", round, w, a, all, other, sum)
				require.Equal(t, [2]int64{int64(n + 1), int64(n + 1)}, [2]int64{other.Lower, other.Upper}, what)
				require.True(t, other.Complete, what)
				require.LessOrEqual(t, big.NewInt(a.Lower).Cmp(sum), 0, what)
				isExact := sum.IsInt64() && a.Upper == sum.Int64() && a.Lower == a.Upper && a.Complete
				isSaturated := a.IsSaturated() && !a.Complete
				if sum.Cmp(big.NewInt(window.Saturated)) < 0 {
					require.True(t, isExact, what)
				} else { // exact if the log and the cell are not saturated, and only their sum is large
					require.True(t, (isExact || isSaturated) && all.IsSaturated() && !all.Complete, what)
				}
			}
			_, err := r.Top(time.Hour, now.Add(time.Second), 10)
			require.NoError(t, err)
		}
	}
}

// A field that is not a number is another program's.
func (r *rig) TestForeignFieldIsReported(t *testing.T) {
	r.WithLogs(1)
	now, s := time.Now(), r.Open("HITS")
	s.Commit("a", now, 1)
	key := stack.Scan(t, r.Client, "test:*:h:1s:*:a")[0]
	for field := range r.Client.HGetAll(t.Context(), key).Val() {
		require.NoError(t, r.Client.HSet(t.Context(), key, field, "many").Err())
	}
	windowtest.MustName(t, key, s.Commit("a", now, 1).Failed)
}
