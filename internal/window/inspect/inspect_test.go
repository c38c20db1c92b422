package inspect_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/inspect"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

type rig struct{ *windowtest.Rig }

// TestStore runs every test of a rig, one suite for every kind of Redis.
func TestStore(t *testing.T) {
	windowtest.Suite[rig](t, map[string]string{
		"TestEveryCellIsRead": "its HyperLogLog hashes otherwise and cannot be read",
		"TestOddKeysAreFound": "PEXPIRETIME is unknown to it",
	})
}

// startInspecting returns an inspector of a namespace with hits of "rare" in a log, of "busy" in hashes, and
// with a visitor of "visited".
func (r *rig) startInspecting(now time.Time) *inspect.Inspector {
	r.T.Helper()
	r.WithLogs(12)
	s, at := r.Open("HITS"), now.Add(-time.Second)
	s.Commit("rare", at, 2)
	for range 8 {
		s.Commit("busy", at, 1)
	}
	visits := window.NewBatch(r.Layout)
	windowtest.AddVisits(visits, "visited", at, 0, 1)
	s.CommitBatch(visits, windowtest.CursorAt(s.Seq+1, now))
	return inspect.New(r.Store, r.Layout, []string{"HITS", "OTHER"})
}

// Whether a counter has a log or hashes, each tier has all of its hits. Keys that cannot be read are named.
func (r *rig) TestEveryCellIsRead(t *testing.T) {
	now := time.Now()
	inspector := r.startInspecting(now)
	all := func(uint64) bool { return true }
	read := func(counter string) inspect.Found {
		t.Helper()
		found, err := inspector.Read(t.Context(), windowtest.ShardOf(counter), []string{counter}, now.UnixMilli(), 0, all)
		require.NoError(t, err)
		require.True(t, found.Places[0].Exists)
		require.EqualValues(t, 10, found.Places[0].Seq)
		require.False(t, found.Places[1].Exists)
		return found
	}
	for counter, want := range map[string]int64{"rare": 2, "busy": 8, "visited": 1, "nobody": 0} {
		found := read(counter).Counters[0]
		sums := make([]int64, len(r.Layout.Tiers))
		for _, c := range found.Cells {
			sums[c.Tier] += c.N
		}
		require.Equal(t, slices.Repeat([]int64{want}, len(sums)), sums, counter)
		require.Empty(t, found.Bad)
	}
	uniques, visitor := read("visited").Counters[0].Uniques, new(unique.Sketch)
	visitor.Add(windowtest.RegisterOf(0))
	require.Len(t, uniques, len(r.Layout.UniqueTiers))
	for _, cell := range uniques {
		require.True(t, cell.Sketch.Equal(visitor))
	}
	foreign := slices.Concat(r.LogsOf("visited"), stack.Scan(t, r.Client, "test:*:u:*:visited"))
	for _, key := range foreign {
		require.NoError(t, r.Client.Set(t.Context(), key, "x", 0).Err())
	}
	var named []string
	for _, bad := range read("visited").Counters[0].Bad {
		named = append(named, bad.Key)
	}
	require.ElementsMatch(t, foreign, named)
	places, _, _, err := inspector.Cursors(t.Context(), windowtest.ShardOf("rare"))
	require.NoError(t, err)
	require.Equal(t, windowtest.CursorAt(10, now), places[0].Cursor)
	names, more, err := inspector.Names(t.Context(), "busy", 1, now.UnixMilli(), 0)
	require.NoError(t, err)
	require.Equal(t, []string{"rare"}, names)
	require.True(t, more)
}

// What writers leave is in order. A key is odd if it expires never or too early, if its counter is not
// listed, or if no writer has such keys; and no longer when that has been mended.
func (r *rig) TestOddKeysAreFound(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	inspector := r.startInspecting(now)
	sweep := func() (odd []inspect.Oddity) {
		t.Helper()
		require.NoError(t, inspector.Sweep(ctx, func(s inspect.Swept) error { odd = append(odd, s.Odd...); return nil }))
		return odd
	}
	require.Empty(t, sweep())
	log := r.LogsOf("rare")[0]
	shard, _, _ := strings.Cut(log, "}")
	expires := r.Client.ExpireTime(ctx, log).Val()
	again := func() error { return r.Client.ExpireAt(ctx, log, time.Unix(0, 0).Add(expires)).Err() }
	r.Open("HITS").Commit(windowtest.SameShardAs("rare"), now.Add(-time.Second), 1) // names are never empty
	names := stack.Scan(t, r.Client, shard+"}:names:*")[0]
	score := r.Client.ZScore(ctx, names, "rare").Val()
	for what, c := range map[string]struct{ spoil, mend func() error }{
		"it never expires": {func() error { return r.Client.Persist(ctx, log).Err() }, again},
		"it expires at":    {func() error { return r.Client.Expire(ctx, log, time.Hour).Err() }, again},
		"its counter is not listed": {func() error { return r.Client.ZRem(ctx, names, "rare").Err() },
			func() error { return r.Client.ZAdd(ctx, names, redis.Z{Score: score, Member: "rare"}).Err() }},
		"no tier of the namespace has cells of 7s": {func() error { return r.Client.Set(ctx, shard+"}:h:7s:1:a", "", 0).Err() },
			func() error { return r.Client.Del(ctx, shard+"}:h:7s:1:a").Err() }},
	} {
		require.NoError(t, c.spoil())
		odd := sweep()
		require.Len(t, odd, 1, what)
		require.Contains(t, odd[0].What, what)
		still, err := inspector.Recheck(ctx, odd[0])
		require.NoError(t, err)
		require.True(t, still, what)
		require.NoError(t, c.mend())
		still, err = inspector.Recheck(ctx, odd[0])
		require.NoError(t, err)
		require.False(t, still, what)
		require.Empty(t, sweep())
	}
}
