package limit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A script does little, however much there is to do: what has left the window is removed bit by bit, and
// much is given back by many scripts. Each counts right meanwhile.
func TestScriptsGiveBackAndRemoveInSteps(t *testing.T) {
	t.Parallel()
	limiter, server := realServer(t)
	limiter.timeout = after(time.Minute) // many scripts belong to one decision
	client := server.Client()
	const hits = 20_000
	for _, policy := range []Policy{Log, Stream} {
		l := adhoc(t, time.Hour, hits, policy) // so that nothing leaves while a slow machine fills it
		take := takeOf(l, "alice", 1)
		key := limiter.key(&take)

		fillAt(t, client, policy, key, time.Now().Add(-l.Window-time.Second), hits)
		require.EqualValues(t, hits-1, mustTake(t, limiter, take).Decisions[0].Remaining, policy)
		if size := sizeOf(t.Context(), client, policy, key).Val(); policy == Log && size < hits-2*giveStep {
			t.Errorf("%s: %d hits are kept: one script removed %d", policy, size, hits-size)
		}
		for range hits / giveStep {
			mustTake(t, limiter, take)
		}
		require.EqualValues(t, hits/giveStep+1, sizeOf(t.Context(), client, policy, key).Val(), policy)
		require.NoError(t, limiter.Reset(t.Context(), take))

		fillAt(t, client, policy, key, time.Now(), hits)
		sent := watchCommands(limiter.store.client)
		take.N = 5 - hits
		if d := mustTake(t, limiter, take).Decisions[0]; d.Remaining != hits-5 || d.Upper != 5 {
			t.Errorf("%s: after all but 5 were given back: %+v", policy, d)
		}
		if scripts := len(sent.scripts()); scripts < hits/giveStep {
			t.Errorf("%s: %d hits were given back by %d scripts", policy, hits-5, scripts)
		}
		if size := sizeOf(t.Context(), client, policy, key).Val(); size > 6 {
			t.Errorf("%s: %d are kept", policy, size)
		}
	}
}

// fillAt writes hits of one moment.
func fillAt(t *testing.T, client redis.UniversalClient, policy Policy, key string, at time.Time, hits int) {
	t.Helper()
	pipe := client.Pipeline()
	for i := range hits {
		if i%1000 == 999 { // so that no write has to wait long for a slow server
			require.NoError(t, errOf(pipe.Exec(t.Context())))
		}
		if policy == Log {
			pipe.ZAdd(t.Context(), key, redis.Z{Score: float64(at.UnixMilli()), Member: 1_000_000_000_000_000 + i})
		} else {
			pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: key, ID: fmt.Sprintf("%d-%d", at.UnixMilli(), i), Values: []any{"n", 1, "c", i + 1}})
		}
	}
	require.NoError(t, errOf(pipe.Exec(t.Context())))
}

// A request cannot ask for more hits than a script may count.
func TestTakeOfMoreThanLogTakesIsRefused(t *testing.T) {
	t.Parallel()
	limiter, _ := realServer(t)
	minute, hour := adhoc(t, time.Minute, MaxExactHits, Log), adhoc(t, time.Hour, MaxExactHits, Log)
	for _, c := range []struct {
		a, b int64
		says string
	}{
		{MaxLogTake, 0, ""},
		{MaxLogTake + 1, 0, "1001 hits of the policy log at once: at most 1000 are allowed"},
		{MaxLogTake - 1, 1, ""},
		{MaxLogTake - 1, 2, "1001 hits"},
		{MaxLogTake, -MaxLogTake - 1, ""},
	} {
		_, err := limiter.Take(t.Context(), []Take{takeOf(minute, "alice", c.a), takeOf(hour, "alice", c.b)})
		var bad *TakeError
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%+v: %v", c, err)
		case c.says != "" && (!errors.As(err, &bad) || bad.Field != "n" || err.Error()[:len(c.says)] != c.says):
			t.Errorf("%+v: %v", c, err)
		}
	}
	other := adhoc(t, time.Minute, MaxExactHits, Stream)
	require.True(t, mustTake(t, limiter, takeOf(other, "alice", MaxExactHits)).Allowed)
}

// What is undone are the hits that were counted then. Later hits stay for as long as they would have, or
// longer.
func testTakeBack(t *testing.T, policy Policy, fresh func(*testing.T) *world) {
	w, l := fresh(t), adhoc(t, time.Minute, 10, policy)
	take, ctx := takeOf(l, "alice", 4), t.Context()
	key := w.limiter.key(&take)
	w.take(takeOf(l, "alice", 1))
	w.at(10_000)
	states, _, err := w.limiter.store.run(ctx, count, request{takes: []Take{take}, keys: []string{key}}, 0)
	if err != nil || states[0].counted != 4 || states[0].at != w.clock {
		t.Fatalf("%+v, %v", states, err)
	}
	w.at(20_000)
	w.take(takeOf(l, "alice", 2))
	w.at(21_000)
	w.take(takeOf(l, "alice", 3))
	w.limiter.fallback.remote.undo([]Take{take}, []string{key}, states)
	for _, c := range []struct{ at, remaining int64 }{{21_000, 4}, {59_999, 4}, {61_000, 5}, {79_999, 5}, {82_000, 10}} {
		w.at(c.at)
		require.EqualValues(t, c.remaining, w.remaining(l, "alice"))
	}

	// After a reset, nothing of it is there. Hits of others are not mistaken for it.
	require.NoError(t, w.limiter.Reset(ctx, take))
	w.at(90_000)
	w.take(takeOf(l, "alice", 2))
	w.limiter.fallback.remote.undo([]Take{take}, []string{key}, states)
	require.EqualValues(t, 8, w.remaining(l, "alice"))
}

// If the caller gets no answer about hits that it gave back, these count again.
func TestHitsGivenBackInVainCountAgain(t *testing.T) {
	t.Parallel()
	client := backends[0].start(t)
	for _, policy := range Policies() {
		w, l := newWorld(t, client, "again"), adhoc(t, time.Minute, 5000, policy)
		for range 5 {
			w.take(takeOf(l, "alice", 1000))
		}
		give := takeOf(l, "alice", -4000)
		key := w.limiter.key(&give)
		states, err := w.limiter.fallback.remote.decideOnce(t.Context(), &request{takes: []Take{give}, keys: []string{key}, count: true})
		if err != nil || states[0].counted != -4000 {
			t.Fatalf("%s: %+v, %v", policy, states, err)
		}
		w.take(takeOf(l, "alice", 1000))
		w.limiter.fallback.remote.undo([]Take{give}, []string{key}, states)
		require.EqualValues(t, 6000, w.look(takeOf(l, "alice", 0)).Decisions[0].Upper, policy)
	}
}
