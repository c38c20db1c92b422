package window_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// A commit takes two round trips. Expiries go out once for hashes in use, which are listpacks.
func (r *rig) TestCommitCountsInEveryTier(t *testing.T) {
	now, s, hook := time.Now(), r.open("HITS"), r.addInterrupts(t)
	var commands []int
	for n := range int64(3) {
		hook.arm(-1, nil)
		got := s.commit("a", now, 1+n)
		if got.Hits != 1+n || got.Attempts != 1 || got.Failed != nil || hook.trips.Load() != 2 {
			t.Errorf("commit: %+v in %d round trips", got, hook.trips.Load())
		}
		commands = append(commands, got.Commands)
	}
	// The first lists the name, too, with its expiry, and notes for erasers that there is a new cursor.
	if first := commands[0] - len(layout.Tiers) - 3; commands[1] != first || commands[2] != first {
		t.Errorf("%d commands; want %d more in the first commit", commands, len(layout.Tiers)+3)
	}
	r.mustHold("a", now, 6)
	keys := stack.Scan(t, r.client, "test:*:h:*")
	require.Len(t, keys, len(layout.Tiers))
	r.mustExpire(keys)
	for _, key := range keys {
		encoding, err := r.client.ObjectEncoding(t.Context(), key).Result()
		if (err != nil || encoding != "listpack") && r.cannot == nil { // the stand-in has no OBJECT ENCODING
			t.Errorf("%s is kept as %s, %v", key, encoding, err)
		}
	}
}

// After a loss another writer can arrive at the same cursor over other hits. What
// the first remembers of expiries and names is then not so.
func (r *rig) TestSameCursorOverOtherHitsFences(t *testing.T) {
	now, first := time.Now(), r.open("HITS")
	first.commit("a", now, 1)
	require.NoError(t, r.flushAll(t.Context()))
	second := r.open("HITS")
	second.commit(sameShardAs("a"), now, 1)
	require.ErrorIs(t, errOf(first.try("a", now, 1)), commit.ErrFenced, "over another writer's hits")
	// Idle writers may each move as_of, and none fences the other.
	third, later := r.open("HITS"), cursorAt(1, now)
	for i, s := range []*session{second, third, second, third} {
		later.AsOf += int64(i)
		require.NoError(t, s.of("a").Write(t.Context(), later))
	}
}

func (r *rig) TestLossInRedisRewinds(t *testing.T) {
	for name, lose := range map[string]func() error{
		"all":             func() error { return r.flushAll(t.Context()) },
		"the last commit": func() error { return r.client.HSet(t.Context(), cursorKey(shardOf("a")), "seq", 1).Err() },
	} {
		now, s := time.Now(), newRig(t, r.backend).open("HITS")
		s.commit("a", now, 1)
		s.commit("a", now, 1)
		require.NoError(t, lose())
		require.ErrorIs(t, errOf(s.try("a", now, 1)), commit.ErrRewound, "a writer ahead of Redis, which has lost %s", name)
	}
}

// The versions and rejects in a cursor are part of what its writer relies on: if Redis loses these alone, or
// another writer has written them, the writer goes no further.
func (r *rig) TestLossOfVersionsOrRejectsFences(t *testing.T) {
	now := time.Now()
	r.open("HITS").commit("a", now, 1)
	for name, change := range map[string]func(*window.Cursor){
		"a version": func(c *window.Cursor) { c.Naming += "a version" },
		"a reject":  func(c *window.Cursor) { c.Refused += 3 },
	} {
		s, other := r.open("HITS"), r.open("HITS").of("a")
		w := s.of("a")
		at, _ := w.Cursor()
		at.Refused++ // so that the writer has the cursor already
		require.NoError(t, w.Write(t.Context(), at))
		before := r.client.HGetAll(t.Context(), cursorKey(shardOf("a"))).Val()
		change(&at)
		require.NoError(t, w.Write(t.Context(), at))
		if got, _ := r.open("HITS").of("a").Cursor(); got != at {
			t.Errorf("%s: the cursor is %+v, want %+v", name, got, at)
		}
		otherAt, _ := other.Cursor()
		change(&otherAt)
		require.ErrorIs(t, other.Write(t.Context(), otherAt), commit.ErrFenced, "over %s of another writer", name)
		require.NoError(t, r.client.HSet(t.Context(), cursorKey(shardOf("a")), before).Err()) // the last commit alone is lost
		at.Seq++
		b, shard := batchOf("a", now.UnixMilli(), 1)
		require.ErrorIs(t, errOf(w.Commit(t.Context(), b.Shard(shard), at)), commit.ErrFenced, "over %s that is lost", name)
	}
}

// A writer that takes a cursor leaves it where it is, and fences all others.
func (r *rig) TestTakenCursorFences(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	old, older := r.open("HITS").of("a"), r.open("HITS").of("a")
	require.NoError(t, old.Acquire(ctx, cursorAt(4, now)), "there is none yet")
	require.ErrorIs(t, older.Acquire(ctx, cursorAt(4, now)), commit.ErrFenced, "a cursor that another writer has created")
	require.NoError(t, old.Write(ctx, cursorAt(5, now)))
	young := r.open("HITS").of("a")
	require.NoError(t, young.Acquire(ctx, cursorAt(5, now)))
	if c, exists := r.open("HITS").of("a").Cursor(); !exists || c != cursorAt(5, now) {
		t.Errorf("the cursor is %+v, %v", c, exists)
	}
	require.ErrorIs(t, old.Write(ctx, cursorAt(6, now)), commit.ErrFenced, "a writer whose cursor was taken")
	require.NoError(t, young.Write(ctx, cursorAt(6, now)))
}

// mustName checks that an error names the key that something else has written.
func mustName(t *testing.T, key string, err error) {
	t.Helper()
	var foreign *window.ForeignError
	require.ErrorAs(t, err, &foreign)
	require.Equal(t, key, foreign.Key)
}

// Waiting does not mend a key that something else has written to.
func (r *rig) TestForeignCursorEndsTheWriter(t *testing.T) {
	now, s, key := time.Now(), r.open("HITS"), cursorKey(shardOf("a"))
	s.commit("a", now, 1)
	for _, write := range []func() error{
		func() error { return r.client.HSet(t.Context(), key, "seq", "x").Err() },
		func() error { return r.client.Set(t.Context(), key, "not ours", 0).Err() },
	} {
		require.NoError(t, write())
		mustName(t, key, errOf(s.try("a", now, 1)))
		mustName(t, key, errOf(commit.OpenWriter(t.Context(), r.store, layout, "HITS", shardOf("a"))))
	}
}

// A command that fails, because something else has written to its key, is reported. If the reply is lost,
// that is found out from the cells: also if another worker has gone on from the transaction meanwhile. Cells
// that were erased since prove no loss.
func (r *rig) TestFailedCommandIsReported(t *testing.T) {
	now, next := time.Now(), r.addTrouble()
	for i, c := range []struct{ foreign, lost, fenced, erased bool }{
		{foreign: true},
		{lost: true},
		{lost: true, foreign: true},
		{lost: true, fenced: true},
		{lost: true, fenced: true, foreign: true},
		{lost: true, erased: true},
		{lost: true, erased: true, fenced: true},
	} {
		s, counter := r.open("HITS"), fmt.Sprint("a", i)
		s.commit(counter, now, 1)
		for _, key := range stack.Scan(t, r.client, "test:*:h:1h:*:"+counter) {
			if c.foreign {
				require.NoError(t, r.client.Set(t.Context(), key, "not ours", time.Hour).Err())
			}
		}
		s.of(counter).OnRetry = func(error) {
			if c.erased {
				r.erase(counter)
			}
			if c.fenced {
				require.NoError(t, r.open("HITS").of(counter).Write(t.Context(), cursorAt(s.seq+1, now)))
			}
		}
		next.Store(&trouble{lost: c.lost})
		got, err := s.try(counter, now, 1)
		if errors.Is(err, commit.ErrFenced) != c.fenced || err != nil && !c.fenced || (got.Failed != nil) != c.foreign {
			t.Errorf("%+v: %v, failed %v", c, err, got.Failed)
		}
		if got.Failed != nil && !strings.Contains(got.Failed.Error(), "WRONGTYPE") {
			t.Errorf("%+v: %v", c, got.Failed)
		}
		if c.erased {
			require.Empty(t, r.left(counter))
		} else {
			require.EqualValues(t, 2, r.total(counter, time.Minute, now.Add(time.Second)).Upper, "%+v", c)
		}
	}
}

// A hash expires while Redis hangs with EXEC, which makes it again, and the reply is lost.
func (r *rig) TestExpiryIsHealedAfterALostReply(t *testing.T) {
	now, s := time.Now(), r.open("HITS")
	defer r.clock.Ahead(0)
	s.commit("a", now, 1)
	r.addTrouble().Store(&trouble{
		before: func() {
			for _, key := range stack.Scan(t, r.client, "test:*:h:*") {
				require.NoError(t, r.client.Del(t.Context(), key).Err()) // it expires
			}
		},
		after: func() { r.clock.Ahead(100 * 24 * time.Hour) }, // before the commit is tried again
		lost:  true,
	})
	s.commit("a", now, 1)
	for _, key := range stack.Scan(t, r.client, "test:*:h:*") {
		if left := r.client.TTL(t.Context(), key).Val(); left == -1 {
			t.Errorf("%s stays for ever", key)
		}
	}
}

func (r *rig) TestAnswersFollowTheNamespace(t *testing.T) {
	now := time.Now()
	var questions []window.Question // about all shards
	for i := range 20 {
		questions = append(questions, window.Question{Counter: fmt.Sprint(i), Span: window.Last(time.Minute)})
	}
	check := func(when string, asOf int64) {
		t.Helper()
		a, err := r.answer(now, questions...)
		if err != nil || a.AsOf != asOf || a.Answers[0].Complete != (asOf > 0) {
			t.Errorf("%s: %+v, %v; want as_of %d", when, a, err, asOf)
		}
	}
	check("before any commit", 0)
	earliest := now.Add(-10 * time.Second)
	for shard, w := range r.open("HITS").writers {
		later := time.Duration((shard+2)%layout.Shards) * time.Second
		require.NoError(t, w.Write(t.Context(), cursorAt(1, earliest.Add(later))))
	}
	check("as of the earliest of the shards", earliest.UnixMilli())
	require.NoError(t, r.store.AddStream(t.Context(), "HITS_2"))
	check("with a new stream, which holds as_of back until it is counted", 0)
	require.NoError(t, r.flushAll(t.Context()))
	require.ErrorIs(t, errOf(r.answer(now, questions...)), schema.ErrNoLayout, "after a flush")
	other := layout
	other.Shards = 1
	require.NoError(t, r.store.EnsureLayout(t.Context(), other))
	check("with another layout", 0)
}

// A worker that has found the clock of NATS set back writes an earlier as_of.
func (r *rig) TestAsOfFallsWithTheClockOfNATS(t *testing.T) {
	now, w := time.Now(), r.open("HITS").of("a")
	next := cursorAt(1, now)
	for _, later := range []time.Duration{time.Minute, -time.Minute} {
		next.AsOf = now.Add(later).UnixMilli()
		require.NoError(t, w.Write(t.Context(), next))
	}
	got, _ := r.open("HITS").of("a").Cursor()
	require.Equal(t, now.Add(-time.Minute).UnixMilli(), got.AsOf)
}

// interrupts does something once, before a command of the requests that follow. A transaction is one
// command, because Redis runs nothing else within it.
type interrupts struct {
	trips atomic.Int32 // requests about the namespace since arm
	left  atomic.Int32 // commands before the one that is to wait; negative if none is
	do    func()
}

func (b *backend) addInterrupts(t *testing.T) *interrupts {
	t.Helper()
	h := new(interrupts)
	h.arm(-1, nil)
	b.addHook(t, h.send)
	return h
}

// arm lets do happen before the command with this number, from 0.
func (h *interrupts) arm(before int, do func()) {
	h.do = do
	h.trips.Store(0)
	h.left.Store(int32(before))
}

func (h *interrupts) send(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
	ours := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
		return cmd.Name() == "unwatch" || slices.ContainsFunc(cmd.Args(), func(arg any) bool {
			key, _ := arg.(string)
			return strings.HasPrefix(key, "test:{")
		})
	})
	if !ours {
		return send(cmds)
	}
	h.trips.Add(1)
	size := len(cmds)
	if cmds[len(cmds)-1].Name() == "exec" {
		size = 1
	}
	if h.left.Load() < 0 {
		return send(cmds)
	}
	at := int(h.left.Add(int32(-size))) + size
	if at >= size {
		return send(cmds)
	}
	var first error
	if at > 0 {
		first = send(cmds[:at])
	}
	h.do()
	return errors.Join(first, send(cmds[at:]))
}

func (r *rig) TestCommitCountsOnceWithAnotherWriter(t *testing.T) { r.mustCountOnce(func() {}) }

// EXEC must not go out on a new connection, where no key is watched.
func (r *rig) TestCommitCountsOnceAfterACut(t *testing.T) {
	r.mustCountOnce(func() {
		require.NoError(t, r.eachServer(t.Context(), func(ctx context.Context, server *redis.Client) error {
			return server.ClientKillByFilter(ctx, "type", "normal").Err() // all but the one that asks
		}))
	})
}

// mustCountOnce lets another writer commit the same hit before each of a commit's commands in turn, and then
// something else happen. The hit counts once.
func (r *rig) mustCountOnce(then func()) {
	now, hook := time.Now(), r.addInterrupts(r.t)
	for before := 0; ; before++ {
		counter := fmt.Sprintf("a%d", before)
		s, another := r.open("HITS"), r.open("HITS")
		hook.arm(before, func() {
			another.commit(counter, now, 1)
			then()
		})
		_, err := s.try(counter, now, 1)
		interrupted := hook.left.Swap(-1) < 0
		if errors.Is(err, commit.ErrFenced) != interrupted || err != nil && !interrupted {
			r.t.Errorf("before command %d: %v", before, err)
		}
		if a := r.total(counter, time.Minute, now.Add(time.Second)); a.Upper != 1 {
			r.t.Errorf("another writer before command %d: the hit counts %d times", before, a.Upper)
		}
		if !interrupted {
			require.GreaterOrEqual(r.t, before, 5, "commands: WATCH, TIME, HMGET, a GET or more, the transaction")
			return
		}
	}
}

// A WATCH that stayed on the pooled connection would spoil the next transaction on it.
func (r *rig) TestCommitThatGivesUpWatchesNothing(t *testing.T) {
	now, old, young := time.Now(), r.open("HITS"), r.open("HITS")
	young.commit("a", now, 1)
	hook := r.addInterrupts(t)
	require.ErrorIs(t, errOf(old.try("a", now, 1)), commit.ErrFenced)
	require.EqualValues(t, 2, hook.trips.Load(), "requests: the look and UNWATCH")
	for range 3 { // the pool gives out the connection that came back last
		require.Zero(t, young.commit("a", now, 1).Conflicts)
	}
}

// If Redis refuses WATCH and answers the reads behind it, nothing may follow from them.
func (r *rig) TestNothingIsCommittedWithoutAWatch(t *testing.T) {
	now, s := time.Now(), r.open("HITS")
	setRights := func(change string) {
		require.NoError(t, r.eachServer(t.Context(), func(ctx context.Context, server *redis.Client) error {
			return server.Do(ctx, "acl", "setuser", "default", change).Err()
		}))
	}
	refused := 0
	s.of("a").OnRetry = func(err error) {
		refused++
		require.True(t, redis.IsPermissionError(err), "refused for another reason: %v", err)
		setRights("+watch")
	}
	setRights("-watch")
	require.Equal(t, 1, s.commit("a", now, 1).Attempts)
	require.Equal(t, 1, refused)
	require.EqualValues(t, 1, r.total("a", time.Minute, now.Add(time.Second)).Upper)
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
	r := newRig(t, &backend{client: client})
	now, s, refused := time.Now(), r.open("HITS"), 0
	s.of("c").OnRetry = func(err error) {
		refused++
		require.ErrorContains(t, err, "WRONGPASS")
		password.Store("right")
	}
	for seq := range 3 {
		if seq > 0 {
			password.Store("wrong")
			require.NoError(t, admin.Do(t.Context(), "client", "kill", "user", "counter").Err())
		}
		require.Nil(t, s.commit("c", now, 1).Failed)
	}
	require.GreaterOrEqual(t, refused, 2, "attempts were refused, one or two of each commit")
	r.mustHold("c", now, 3)
}
