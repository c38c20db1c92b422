package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/inspect"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/windowtest"
)

// flood is a namespace whose names are bounded.
type flood struct {
	*rig
	layout window.Layout
	sent   int64
}

func newFlood(t *testing.T, most int) *flood {
	f := &flood{rig: newRig(t)}
	f.createStream("HITS", "hits.>")
	tiers, err := window.ParseTiers("1m/1h,1h/1d")
	require.NoError(t, err)
	uniques, err := window.ParseUniqueTiers("1h/1d")
	require.NoError(t, err)
	f.layout = window.Layout{Tiers: tiers, UniqueTiers: uniques, Shards: 2}
	require.NoError(t, errors.Join(f.store.EnsureLayout(t.Context(), f.layout), f.store.AddStream(t.Context(), "HITS")))
	f.store.Bounds = window.NameBounds{{Prefix: "web.", Max: most}}
	return f
}

// send counts two hits, with a unique value, of each counter, as a worker that has just started.
func (f *flood) send(counters ...string) {
	f.t.Helper()
	ctx := f.t.Context()
	stream, err := f.js.Stream(ctx, "HITS")
	require.NoError(f.t, err)
	batch, to := window.NewBatch(f.layout), window.Cursor{Created: stream.CachedInfo().Created.UnixNano()}
	for _, name := range counters {
		value := fmt.Sprint("u", f.sent)
		ack := f.publish("hits.x", fmt.Sprintf(`{"key":%q,"n":2,"unique":%q}`, name, value))
		m, err := stream.GetMsg(ctx, ack.Sequence)
		require.NoError(f.t, err)
		at, hash := m.Time.UnixMilli(), window.HashCounter([]byte(name))
		batch.Add([]byte(name), hash, at, at, 2)
		batch.AddUnique([]byte(name), hash, at, at, unique.Of([]byte(value)))
		to.Seq, to.Stored, to.Latest, to.AsOf = m.Sequence, m.Time.UnixNano(), m.Time.UnixNano(), at
		f.sent += 2
	}
	for shard := range f.layout.Shards {
		w, err := commit.OpenWriter(ctx, f.store, f.layout, "HITS", shard)
		require.NoError(f.t, err)
		_, err = w.Commit(ctx, batch.Shard(shard), to)
		require.NoError(f.t, err)
	}
}

func names(prefix string, from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprint(prefix, i))
	}
	return out
}

// hitsIn are the hits in the cells of 1h of the counters whose names begin with a prefix. None may have a
// log.
func (f *flood) hitsIn(prefix string) (n int64) {
	for _, key := range f.keys("test:{*}:h:1h:*:" + prefix + "*") {
		for _, value := range f.client.HVals(f.t.Context(), key).Val() {
			n += mustInt(f.t, value)
		}
	}
	return n
}

func mustInt(t *testing.T, text string) (n int64) {
	_, err := fmt.Sscan(text, &n)
	require.NoError(t, err)
	return n
}

// Names that overflow are no difference, in one pass and in many. What their overflow lacks is one, and
// what it or a listed name has too many.
func TestOverflowsHaveTheHitsOfRefusedNames(t *testing.T) {
	t.Parallel()
	f := newFlood(t, 20)
	f.send(names("web.page", 0, 6)...)
	f.send(names("shop.", 0, 30)...)
	for i := range 4 {
		f.send(names("web.x", 40*i, 40*i+60)...)
		f.send(names("web.page", 0, 6)...)
	}
	f.send("web.~other.1", "web.~other.2", "web.~other.3") // of which some are ordinary names
	require.Greater(t, f.hitsIn("web.~other."), int64(300))
	one := f.mustFindNothing()
	require.Equal(t, f.sent, one.hits, one.text)
	require.Equal(t, "", one.text)
	many := f.mustFindNothing(func(a *auditor) { a.memory = 12 << 10 })
	require.Greater(t, many.took, 1)
	require.Equal(t, one.String(), many.String())

	f.makeBusy("web.page1", "shop.1")
	overflow := f.layout.Overflow("web.", f.layout.ShardOf(window.HashCounter([]byte("web.page1"))))
	ctx, restore := t.Context(), f.keep()
	for _, c := range []struct {
		name   string
		change func()
		want   int64
		parts  []string
	}{
		{"a hit less in an overflow", func() { f.increment("test:{*}:h:1m:*:"+overflow, -1) }, 1, []string{
			`counter "` + overflow + `" and those of its shard with its prefix, tier 1m/1h`,
		}},
		{"a hit more in an overflow", func() { f.increment("test:{*}:h:1h:*:"+overflow, 1) }, 1, []string{overflow, "tier 1h/1d"}},
		{"an overflow that is lost", func() { f.client.Del(ctx, f.keys("test:{*}:h:1h:*:"+overflow)...) }, some, []string{overflow}},
		{"a hit more in a listed counter", func() { f.increment("test:{*}:h:1h:*:web.page1", 1) }, 1, []string{
			`counter "web.page1", tier 1h/1d`,
		}},
		{"a hit less in a listed counter", func() { f.increment("test:{*}:h:1h:*:web.page1", -1) }, 1, []string{overflow, "tier 1h/1d"}},
		{"a hit less under no bound", func() { f.increment("test:{*}:h:1h:*:shop.1", -1) }, 1, []string{`counter "shop.1"`}},
		{"a counter that is lost with its name", func() {
			f.client.Del(ctx, append(f.keys("test:{*}:h:*:web.page1"), f.keys("test:{*}:u:*:web.page1")...)...)
			for _, key := range append(f.keys("test:{*}:names:*"), f.keys("test:{*}:unames:*")...) {
				f.client.ZRem(ctx, key, "web.page1")
			}
		}, some, []string{overflow}},
		{"a register more", func() { f.client.PFAdd(ctx, f.keys("test:{*}:u:1h:*:web.page1")[0], "x") }, 1, []string{
			`counter "web.page1", unique tier 1h/1d`, "1 are higher",
		}},
	} {
		c.change()
		f.mustFind(c.want, c.parts...)
		if t.Failed() {
			t.Fatalf("after %s", c.name)
		}
		restore()
	}
	f.mustFindNothing()
}

// A name that got room later has some of its hits, and the overflow the others.
func TestNamesThatGotRoomLaterHaveNoDifference(t *testing.T) {
	t.Parallel()
	f := newFlood(t, 20)
	f.send(names("web.", 0, 60)...)
	f.store.Bounds[0].Max = 40
	f.send(names("web.", 0, 60)...)
	f.store.Bounds = append(f.store.Bounds, window.NameBound{Prefix: "", Max: 10}) // overlaps
	f.store.Bounds[0].Max = 50
	f.send(append(names("web.", 0, 60), names("shop.", 0, 40)...)...)
	f.store.Bounds = f.store.Bounds[1:]
	f.send(names("web.", 0, 90)...)
	got := f.mustFindNothing()
	require.Equal(t, f.sent, got.hits, got.text)
	require.Equal(t, "", got.text)
	restore := f.keep()
	f.increment("test:{0}:h:1h:*:web.~other.*", -1)
	f.mustFind(1)
	restore()

	erased, err := (erase.Eraser{Reader: read.NewReader(f.store)}).Erase(t.Context(), names("web.", 0, 60))
	require.NoError(t, err)
	require.Greater(t, erased.Counters, 20)
	f.send(names("web.", 0, 60)...)
	require.Positive(t, f.mustFindNothing().erased)
}

// Commits between the cursors of the overflows and those of the other counters are no difference.
func TestOverflowsMayGrowMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFlood(t, 40)
	f.send(names("web.", 0, 100)...)
	n := 0
	got := f.mustFindNothing(func(a *auditor) {
		a.memory, a.filled = 8<<10, func(int) {
			f.send(names("web.", 3*n, 110)...)
			n++
		}
	})
	require.Greater(t, got.took, 2)

	// Before the names are listed, and again before the cells of listed ones are read.
	commits, sending := 0, false
	f.client.AddHook(windowtest.Hook(func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		isAudit := slices.ContainsFunc(cmds, func(c redis.Cmder) bool {
			return c.Name() == "zrangebylex" || c.Name() == "getrange" && commits > 0
		})
		if isAudit && !sending && commits < 2 {
			commits++
			f.store.Bounds[0].Max += 10
			sending = true
			f.send(names("web.", 0, 140)...)
			sending = false
		}
		return send(cmds)
	}))
	f.mustFindNothing()
	require.Equal(t, 2, commits)
	f.increment("test:{0}:h:1h:*:web.~other.*", -1)
	f.mustFind(1)
	f.store.Bounds = append(f.store.Bounds, window.NameBound{Prefix: "shop.", Max: 1})
	err := f.audit(func(a *auditor) { a.filled = func(int) { f.send(names("shop.", 0, 40)...) } }).err
	require.ErrorIs(t, err, errUnjudged)
	require.ErrorContains(t, err, "run again")
}

// A listed counter's cell may have expired while the overflow still has its own: they cannot be compared.
func TestOverflowsAreComparedWhileNoCounterHasExpired(t *testing.T) {
	t.Parallel()
	layout := windowtest.Layout
	tier, stored := layout.Tiers[0], int64(1_790_000_000_000)
	epoch := tier.EpochAt(stored)
	all := findOverflows(layout, []schema.Overflow{{Prefix: "web."}})
	o := overflowOf(all[0], []byte("web."))
	var name string // of the overflow's shard, with an earlier deadline
	for i := 0; ; i++ {
		name = fmt.Sprint("web.", i)
		hash := window.HashCounter([]byte(name))
		if layout.ShardOf(hash) == 0 && tier.Deadline(epoch, hash) < tier.Deadline(epoch, window.HashCounter([]byte(o.names[0]))) {
			break
		}
	}
	h := hit.Hit{Counter: []byte(name), Hash: window.HashCounter([]byte(name)), At: stored, N: 1}
	for at, want := range map[int64]int64{tier.Deadline(epoch, 0) - 1: 1, tier.Deadline(epoch, h.Hash): 0} {
		all := findOverflows(layout, []schema.Overflow{{Prefix: "web."}})
		o := overflowOf(all[0], []byte("web."))
		l := newLedger(layout, all, "", 1<<20)
		l.open = true
		places := []inspect.Place{{Cursor: window.Cursor{Seq: 9}, Exists: true}}
		o.snapshot = l.snapshots[l.addSnapshot(0, places, at, at*1000, true)]
		id := window.CellID{Tier: 0, Cell: tier.CellAt(stored)}
		l.cell(&o.sum, keyOf(id)).redis = 1 // of two hits; the listed counter's is lost, or has expired
		l.addListed(inspect.FoundCounter{Name: name}, l.latest[0], false)
		l.subtract(0, 1, stored, &h)
		l.subtract(0, 2, stored, &h)
		var list strings.Builder
		r := newReport(&list, 100)
		b := bounds{incomplete: make([]int64, layout.Shards), erased: make([]int64, layout.Shards)}
		require.Empty(t, r.compare(l, b))
		o.sum.cells = slices.DeleteFunc(o.sum.cells, func(c cell) bool { return c.key != keyOf(id) })
		r.compareOverflows(l, at*1000, b)
		require.Equal(t, want, r.differences, list.String())
	}
}
