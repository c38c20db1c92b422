package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/inspect"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/retier"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// What workers have counted is what the streams hold, whatever the hits were, in one pass and in many.
func TestWhatWorkersCountedHasNoDifference(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start("INGEST_MAX_COMMANDS=40") // commits in parts
	for i := range 5 {
		r.publishDrawn(uint64(i), "hits.c", 100, 200)
	}
	r.publish("hits.c", `{"key":"c1"}`, "Tallyroll-Namespace", "other") // which counts elsewhere
	r.awaitApplied("HITS")
	stop()
	one := r.mustFindNothing()
	if one.took != 1 || one.counters != 200 || one.hits == 0 || one.gone != 0 || one.incomplete != 0 {
		t.Errorf("%d passes, %s\n%s", one.took, one.String(), one.text)
	}
	many := r.mustFindNothing(func(a *auditor) { a.memory = 40 << 10 })
	if many.took < 2 || many.hits != one.hits || many.counters != one.counters {
		t.Errorf("%d passes, %s, want as in one: %s", many.took, many.String(), one.String())
	}
}

// A bucket's removed keys, and a message of which a republish left out the body, are no hits.
func TestWhatHasNoValueIsNoHit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	bucket, err := r.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "hits", History: 5})
	require.NoError(t, err)
	for key, remove := range map[string]func(context.Context, string, ...jetstream.KVDeleteOpt) error{
		"a": bucket.Delete, "b": bucket.Purge, "c": nil,
	} {
		_, err := bucket.Put(t.Context(), key, nil)
		require.NoError(t, err)
		if remove != nil {
			require.NoError(t, remove(t.Context(), key))
		}
	}
	_, err = r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"},
		RePublish: &jetstream.RePublish{Destination: "hits.>", HeadersOnly: true}})
	require.NoError(t, err)
	r.publish("orders.x", `{"key":"paid","n":3}`)
	r.publish("orders.x", "")
	r.start("INGEST_STREAMS=HITS,KV_hits")
	r.awaitApplied("HITS")
	r.awaitApplied("KV_hits")
	// a and c were put once; purging b removed its value
	if got := r.mustFindNothing(); got.hits != 3 || got.counters != 3 {
		t.Errorf("%s\n%s", got.String(), got.text)
	}
}

// If Redis lacks all that the streams show, the ranges of names are cut so that memory suffices.
func TestMemoryIsBoundedIfRedisLacksCells(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	r.publishDrawn(1, "hits.c", 2000, 600)
	r.awaitApplied("HITS")
	stop()
	whole := r.mustFindNothing()
	require.NoError(t, r.client.Del(t.Context(), append(r.keys("test:{*}:h:*"), r.keys("test:{*}:s:*")...)...).Err())
	const memory = 60 << 10
	most := 0
	got := r.audit(func(a *auditor) { a.memory, a.filled = memory, func(bytes int) { most = max(most, bytes) } })
	if got.err != nil || got.took < 5 || got.hits != whole.hits || got.counters != whole.counters || got.differences < 600*3 || most > memory {
		t.Errorf("%v, %d passes, %d bytes, %s, want as %s", got.err, got.took, most, got.String(), whole.String())
	}
}

// A log or a sum that is changed by hand shows in its tiers, and text that is not a log is named.
func TestChangedLogsAndSumsAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	now := time.Now().UnixMilli()
	for i := range 80 {
		r.publish("hits.x", fmt.Sprintf(`{"key":"c%d","ts":%d}`, i%40, now))
	}
	r.awaitApplied("HITS")
	stop()
	r.mustFindNothing()
	ctx, key := t.Context(), r.keys("test:{*}:s:*:c7")[0]
	text, restore := r.client.Get(ctx, key).Val(), r.keep()
	shard := strings.Split(strings.SplitAfter(key, "{")[1], "}")[0]
	all := func(cell string) string { return r.keys(fmt.Sprintf("test:{%s}:h:%s:*:", shard, cell))[0] }
	for name, c := range map[string]struct {
		change func()
		parts  []string
	}{
		"a cell that comes again": {func() { r.client.Append(ctx, key, text[1:]) }, []string{`counter "c7", tier 1m/1h`, `counter "c7", tier 1h/32d`, "Redis has 4 hits, the streams 2"}},
		"no cell":                 {func() { r.client.Set(ctx, key, text[:1], redis.KeepTTL) }, []string{`counter "c7", tier 1h/32d`, "Redis has 0 hits, the streams 2"}},
		"no header":               {func() { r.client.Set(ctx, key, text[1:], redis.KeepTTL) }, []string{key, "not a sparse log"}},
		"no expiry":               {func() { r.client.Persist(ctx, key) }, []string{key, "it never expires"}},
		"no name":                 {func() { r.client.Del(ctx, r.keys("test:{*}:names:*")...) }, []string{key, "its counter is not listed among the names"}},
		"all hits": {func() { r.client.HIncrBy(ctx, all("1m"), r.client.HKeys(ctx, all("1m")).Val()[0], 1) },
			[]string{"all hits of shard " + shard + ", tier 1m/1h"}},
		"a DEL of all hits":       {func() { r.client.Del(ctx, all("1h")) }, []string{"all hits of shard " + shard + ", tier 1h/32d", "Redis has 0 hits"}},
		"all hits without expiry": {func() { r.client.Persist(ctx, all("15m")) }, []string{"it never expires"}},
	} {
		c.change()
		got := r.audit()
		for _, part := range c.parts {
			require.Contains(t, got.text, part, name)
		}
		restore()
		r.mustFindNothing()
	}
}

// Each thing that is changed by hand is found and named, and nothing else is.
func TestEachChangeByHandIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	now := time.Now().UnixMilli() // of all: no cell ends in between
	for i := range 200 {
		r.publish("hits.x", fmt.Sprintf(`{"key":"c%d","ts":%d,"unique":"u%d"}`, i%40, now, i))
	}
	r.awaitApplied("HITS")
	stop()
	r.makeBusy("c7")
	r.mustFindNothing()
	ctx, client := t.Context(), r.client
	layout, err := r.store.Layout(ctx)
	require.NoError(t, err)
	hash := func(cell string) string { return r.keys("test:{*}:h:" + cell + ":*:c7")[0] }
	shard := layout.ShardOf(window.HashCounter([]byte("c7")))
	field := func(key string) string { return client.HKeys(ctx, key).Val()[0] }
	visitors := func(cell string) string { return r.keys("test:{*}:u:" + cell + ":*:c7")[0] }
	expiry := func(key string) time.Time { return time.Unix(0, 0).Add(client.ExpireTime(ctx, key).Val()) }
	// shared returns the first key of the shard that matches each pattern.
	shared := func(patterns ...string) (out []string) {
		for _, pattern := range patterns {
			out = append(out, r.keys(fmt.Sprintf("test:{%d}:%s", shard, pattern))[0])
		}
		return out
	}
	restore := r.keep()
	for _, c := range []struct {
		name   string
		change func()
		want   int64
		parts  []string
	}{
		{"one HINCRBY", func() { client.HIncrBy(ctx, hash("1m"), field(hash("1m")), 1) }, 1, []string{`counter "c7", tier 1m/1h, cell 20`, "Redis has 6 hits, the streams 5"}},
		{"a new field", func() { client.HIncrBy(ctx, hash("1h"), "3", 4) }, 1, []string{`counter "c7", tier 1h/32d`, "Redis has 4 hits, the streams 0"}},
		{"a counter of nobody", func() {
			hash := window.HashCounter([]byte("nobody"))
			now := time.Now().UnixMilli() / 3_600_000
			key := fmt.Sprintf("test:{%d}:h:1h:%d:nobody", layout.ShardOf(hash), now/256)
			client.HSet(ctx, key, now%256, 9)
			client.Expire(ctx, key, 60*24*time.Hour)
		}, 2, []string{`counter "nobody", tier 1h/32d`, "Redis has 9 hits, the streams 0", ":nobody: its counter is not listed"}},
		{"an HDEL", func() { client.HDel(ctx, hash("15m"), field(hash("15m"))) }, 1, []string{`counter "c7", tier 15m/1d`, "Redis has 0 hits, the streams 5"}},
		{"a DEL", func() { client.Del(ctx, hash("1h")) }, 1, []string{`counter "c7", tier 1h/32d`, "Redis has 0 hits, the streams 5"}},
		{"a counter that is gone with its name", func() {
			for _, cell := range []string{"1m", "15m", "1h"} {
				client.Del(ctx, hash(cell))
			}
			for _, key := range r.keys("test:{*}:h:1s:*:c7") {
				client.Del(ctx, key)
			}
			client.Del(ctx, r.keys("test:{*}:u:*:c7")...)
			for _, key := range r.keys("test:{*}:names:*") {
				client.ZRem(ctx, key, "c7")
			}
		}, some, []string{`counter "c7", unique tier 1h/1d`, `counter "c7", tier 1m/1h`, `counter "c7", tier 1h/32d`, "Redis has 0 hits, the streams 5"}},
		{"a name", func() {
			for _, key := range r.keys("test:{*}:names:*") {
				client.ZRem(ctx, key, "c7")
			}
		}, 1, []string{":c7: its counter is not listed among the names"}},
		{"a register that is raised", func() { client.PFAdd(ctx, visitors("1h"), "somebody") }, 1, []string{
			`counter "c7", unique tier 1h/1d, cell 20`, "Redis has 6 registers, the streams 5: 0 are lower than in the streams or missing, 1 are higher",
		}},
		{"a unique cell that is lost", func() { client.Del(ctx, visitors("5m")) }, 1, []string{
			`counter "c7", unique tier 5m/1h, cell 20`, "Redis has 0 registers, the streams 5: 5 are lower",
		}},
		{"all unique cells of a counter", func() { client.Del(ctx, r.keys("test:{*}:u:*:c7")...) }, 3, []string{
			`counter "c7", unique tier 5m/1h`, `counter "c7", unique tier 1h/1d`, `counter "c7", unique tier 1d/32d`, "Redis has 0 registers",
		}},
		{"a unique cell of another counter", func() {
			expires := expiry(visitors("1d"))
			client.Do(ctx, "copy", r.keys("test:{*}:u:1d:*:c8")[0], visitors("1d"), "replace")
			client.ExpireAt(ctx, visitors("1d"), expires)
		}, 1, []string{`counter "c7", unique tier 1d/32d, cell 20`, "Redis has 5 registers, the streams 5: 5 are lower than in the streams or missing, 5 are higher"}},
		{"a unique cell that nobody raises", func() {
			key := strings.Replace(visitors("1h"), ":c7", ":c8", 1)
			key = strings.Replace(key, fmt.Sprintf("{%d}", shard), fmt.Sprintf("{%d}", layout.ShardOf(window.HashCounter([]byte("c8")))), 1)
			key = strings.Replace(key, fmt.Sprint(now/3_600_000), fmt.Sprint(now/3_600_000-1), 1)
			client.PFAdd(ctx, key, "x")
			client.Expire(ctx, key, 48*time.Hour)
		}, 1, []string{`counter "c8", unique tier 1h/1d`, "Redis has 1 registers, the streams 0"}},
		{"a unique cell's expiry", func() { client.Persist(ctx, visitors("1h")) }, 1, []string{":c7: it never expires"}},
		{"a unique cell that is no HyperLogLog", func() { client.SetArgs(ctx, visitors("1h"), "x", redis.SetArgs{KeepTTL: true}) }, 2, []string{":c7 is not Tallyroll's", "Redis has 0 registers, the streams 5"}},
		{"a unique cell of no tier", func() { client.PFAdd(ctx, fmt.Sprintf("test:{%d}:u:3h:9:c7", shard), "x") }, 1, []string{"no tier of the namespace has cells of 3h"}},
		{"an expiry", func() { client.Persist(ctx, hash("1h")) }, 1, []string{":c7: it never expires"}},
		{"an expiry that is too early", func() { client.Expire(ctx, hash("1h"), time.Hour) }, 1, []string{":c7: it expires at 20", ", and windows need it until 20"}},
		{"an expiry a second too early", func() {
			client.ExpireAt(ctx, hash("1m"), expiry(hash("1m")).Add(-time.Second))
		}, 1, []string{":c7: it expires at 20"}},
		{"a unique cell's early expiry", func() { client.Expire(ctx, visitors("1d"), time.Hour) }, 1, []string{":u:1d:", ":c7: it expires at 20"}},
		{"a later expiry, as after a RESTORE", func() { client.Expire(ctx, hash("1h"), 100*24*time.Hour) }, 0, nil},
		{"early expiries of what counters share", func() {
			for _, key := range shared("names:*", "unames:*", "top:*") {
				client.Expire(ctx, key, time.Hour)
			}
		}, 3, []string{":names:", ":unames:", ":top:", ": it expires at 20"}},
		{"no expiries of what counters share", func() {
			for _, key := range shared("names:*", "unames:*", "top:*") {
				client.Persist(ctx, key)
			}
		}, 3, []string{":names:", ":unames:", ":top:", ": it never expires"}},
		{"sets of no name", func() {
			client.Set(ctx, fmt.Sprintf("test:{%d}:unames:x", shard), "", time.Hour)
			client.Set(ctx, fmt.Sprintf("test:{%d}:top:3h:1:HITS", shard), "", time.Hour)
		}, 2, []string{":unames:x: no worker writes", "no tier of the namespace has cells of 3h"}},
		{"a name of unique values", func() {
			for _, key := range r.keys("test:{*}:unames:*") {
				client.ZRem(ctx, key, "c7")
			}
		}, 1, []string{":u:1d:", ":c7: its counter is not listed among the names"}},
		{"all names of unique values", func() { client.Del(ctx, r.keys("test:{*}:unames:*")...) }, 40, []string{":c7: its counter is not listed", ":c8: its counter is not listed"}},
		{"no number", func() { client.HSet(ctx, hash("1h"), "x", "y") }, 1, []string{":c7 is not Tallyroll's", `field "x" is "y"`}},
		{"another type", func() { client.SetArgs(ctx, hash("1h"), "x", redis.SetArgs{KeepTTL: true}) }, 2, []string{":c7 is not Tallyroll's", "WRONGTYPE", "Redis has 0 hits, the streams 5"}},
		{"a cursor that goes back", func() {
			client.HIncrBy(ctx, r.store.Keys.Cursor(shard, "HITS"), "seq", -1)
		}, some, []string{"cursor " + r.store.Keys.Cursor(shard, "HITS") + ": it names message 199 as stored at"}},
		{"a cursor that goes on", func() {
			client.HIncrBy(ctx, r.store.Keys.Cursor(shard, "HITS"), "seq", 5)
		}, 1, []string{"cursor " + r.store.Keys.Cursor(shard, "HITS") + ": at message 205, and the stream ends with 200"}},
		{"a cursor that is lost", func() { client.Del(ctx, r.store.Keys.Cursor(shard, "HITS")) }, some, []string{`counter "c7"`, "Redis has 5 hits, the streams 0"}},
		{"the list of streams", func() { client.Del(ctx, "test:streams") }, 1, []string{"stream HITS has cursors, and is not listed"}},
		{"a hash of another shard", func() {
			client.HSet(ctx, fmt.Sprintf("test:{%d}:h:1h:9:c7", (shard+1)%4), "0", 1)
		}, 1, []string{fmt.Sprintf("its counter belongs to shard %d", shard)}},
		{"a hash of no tier", func() { client.HSet(ctx, fmt.Sprintf("test:{%d}:h:3h:9:c7", shard), "0", 1) }, 1, []string{"no tier of the namespace has cells of 3h"}},
	} {
		c.change()
		r.mustFind(c.want, c.parts...)
		if t.Failed() {
			t.Fatalf("after %s", c.name)
		}
		restore()
	}
	r.mustFindNothing()
}

// A key that expires too early is found, though it is gone after its cells were compared; one that a worker
// has mended meanwhile is no difference.
func TestEarlyExpiryIsFoundThoughTheKeyIsGoneAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	r.publish("hits.a", "")
	r.awaitApplied("HITS")
	stop()
	r.makeBusy("a")
	ctx, key := t.Context(), r.keys("test:{*}:h:1h:*:a")[0]
	expires := r.client.ExpireTime(ctx, key).Val()
	for _, c := range []struct {
		meanwhile func()
		want      int64
	}{
		{func() { r.client.ExpireAt(ctx, key, time.Unix(0, 0).Add(expires)) }, 0},
		{func() { r.client.Del(ctx, key) }, 1},
	} {
		r.client.Expire(ctx, key, time.Hour)
		got := r.audit(func(a *auditor) { a.filled = func(int) { c.meanwhile() } })
		require.NoError(t, got.err)
		require.Equal(t, c.want, got.differences, got.text)
	}
}

// What a stream no longer holds is said, and not called a difference. What it still shows must be in Redis.
func TestDiscardedMessagesAreUndecided(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	for range 30 {
		r.publish("hits.a", "")
	}
	r.awaitApplied("HITS")
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSequence(21)))
	got := r.mustFindNothing()
	if got.gone == 0 || got.goneHits == 0 || got.hits != 10 || got.counters != 1 {
		t.Errorf("%+v\n%s", got.report, got.text)
	}
	require.Contains(t, got.text, "undecided: ")
	require.Contains(t, got.text, "stream HITS begins with message 21")

	// A hit that the stream holds and Redis lacks.
	restore := r.keep()
	stop()
	r.makeBusy("a")
	r.increment("test:{*}:h:1h:*:a", -21)
	r.mustFind(1, `counter "a", tier 1h/32d`, "Redis has 9 hits, the streams 10")
	restore()

	// A message from the middle.
	require.NoError(t, s.DeleteMsg(t.Context(), 25))
	if got := r.mustFindNothing(); got.hits != 9 {
		t.Errorf("%d hits, want 9", got.hits)
	}
	// And all of them, but the last place.
	require.NoError(t, s.Purge(t.Context()))
	if got := r.mustFindNothing(); got.hits != 0 || got.gone == 0 {
		t.Errorf("%+v\n%s", got.report, got.text)
	}
}

// Cells that begin after the last message that is missing are decided.
func TestCellsAfterTheGapAreDecided(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.createStream("HITS", "hits.>")
	stop, _ := r.start("TIERS=1s/1h,1m/1d")
	ack := r.publish("hits.a", "")
	r.publish("hits.a", "")
	second := time.Now().Unix()
	stack.Eventually(t, "the next cell", func() (bool, string) { return time.Now().Unix() > second, "" })
	r.publish("hits.b", "")
	r.awaitApplied("HITS")
	stop()
	r.makeBusy("b")
	require.NoError(t, s.DeleteMsg(t.Context(), ack.Sequence))
	r.mustFindNothing()
	r.increment("test:{*}:h:1s:*:b", 1)
	r.mustFind(1, `counter "b", tier 1s/1h`, "Redis has 2 hits, the streams 1")
}

// A cell that a cursor marks as incomplete is no difference. Nor is one that a transaction explains of which
// Redis has run a part and that no commit has marked yet.
func TestCellsMarkedIncompleteAreNoDifference(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start("TIERS=1m/1h,1h/1d")
	r.publish("hits.a", "")
	r.awaitApplied("HITS")
	stop()
	r.makeBusy("a")
	ctx, client := t.Context(), r.client
	r.increment("test:{*}:h:1h:*:a", 1)
	r.mustFind(1)
	layout, err := r.store.Layout(ctx)
	require.NoError(t, err)
	cursor := r.store.Keys.Cursor(layout.ShardOf(window.HashCounter([]byte("a"))), "HITS")
	restore := r.keep()
	for name, mark := range map[string]func(){
		"the cursor marks it": func() { client.HSet(ctx, cursor, "incomplete_before", time.Now().UnixMilli()) },
		"a torn transaction":  func() { client.HIncrBy(ctx, cursor, "opened", 1) },
	} {
		mark()
		if got := r.mustFindNothing(); got.incomplete != 1 || !strings.Contains(got.text, "incomplete: 1 cells") {
			t.Errorf("%s: %d incomplete\n%s", name, got.incomplete, got.text)
		}
		restore()
	}
}

// What was erased is no difference. Counters of other shards are judged as ever.
func TestErasedCountersAreUndecided(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start("TIERS=1m/1h,1h/1d")
	r.publishDrawn(1, "hits.c", 50, 100)
	r.publish("hits.a", "")
	r.awaitApplied("HITS")
	stop()
	if erased, err := (erase.Eraser{Reader: read.NewReader(r.store)}).Erase(t.Context(), []string{"a"}); err != nil || erased.Counters != 1 {
		t.Fatalf("%+v, %v", erased, err)
	}
	if got := r.mustFindNothing(); got.erased != 2 || !strings.Contains(got.text, "undecided: 2 cells have fewer hits") {
		t.Errorf("%d cells are undecided\n%s", got.erased, got.text)
	}
	layout, err := r.store.Layout(t.Context())
	require.NoError(t, err)
	shardOf := func(counter string) int { return layout.ShardOf(window.HashCounter([]byte(counter))) }
	other := "b"
	for shardOf(other) == shardOf("a") {
		other += "b"
	}
	stop, _ = r.start("TIERS=1m/1h,1h/1d")
	r.publish("hits."+other, "")
	r.awaitApplied("HITS")
	stop()
	r.makeBusy(other)
	r.client.Del(t.Context(), r.keys("test:{*}:h:1h:*:"+other)...)
	r.mustFind(1, other)
}

// Cells that a change of tiers has built are what the streams hold, before it is confirmed and after. Those
// from before a tier is complete are incomplete.
func TestCellsOfChangedTiersHaveNoDifference(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS", "hits.>")
	stop, _ := r.start("TIERS=1m/1h,1h/1d")
	r.publishDrawn(1, "hits.c", 50, 100)
	r.awaitApplied("HITS")
	stop()
	tiers, err := window.ParseTiers("2m/2h,1h/1d,1d/32d")
	require.NoError(t, err)
	tell := func(string, int) {}
	if _, changed, err := retier.Run(t.Context(), r.store, tiers, tell); err != nil || !changed {
		t.Fatal(changed, err)
	}
	before := r.mustFindNothing()
	stop, _ = r.start("TIERS=2m/2h,1h/1d,1d/32d")
	r.publishDrawn(2, "hits.c", 50, 100)
	r.awaitApplied("HITS")
	stop()
	if after := r.mustFindNothing(); before.counters == 0 || after.hits <= before.hits {
		t.Errorf("%s, and then %s", before.String(), after.String())
	}
	_, err = retier.Confirm(t.Context(), r.store, tell)
	require.NoError(t, err)
	r.mustFindNothing()
	r.increment("test:{*}:g1:h:1h:*", 1)
	r.mustFind(1, "tier 1h/1d")
}

// A commit goes out in parts. If some of them are not applied yet, no counter differs.
func TestCommitWithPartsToComeHasNoDifference(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.createStream("HITS", "hits.>")
	ctx := t.Context()
	tiers, err := window.ParseTiers(window.DefaultTiers)
	require.NoError(t, err)
	layout := window.Layout{Tiers: tiers, Shards: 1}
	require.NoError(t, errors.Join(r.store.EnsureLayout(ctx, layout), r.store.AddStream(ctx, "HITS")))
	batch := window.NewBatch(layout)
	to := window.Cursor{Created: s.CachedInfo().Created.UnixNano()}
	for i := range 100 {
		name := fmt.Sprintf("c%d", i)
		ack := r.publish("hits.x", fmt.Sprintf(`{"key":%q}`, name))
		m, err := s.GetMsg(ctx, ack.Sequence)
		require.NoError(t, err)
		at := m.Time.UnixMilli()
		batch.Add([]byte(name), window.HashCounter([]byte(name)), at, at, 1)
		to.Seq, to.Stored, to.Latest, to.AsOf = m.Sequence, m.Time.UnixNano(), m.Time.UnixNano(), at
	}
	w, err := commit.OpenWriter(ctx, r.store, layout, "HITS", 0)
	require.NoError(t, err)
	applied := int64(0)
	for part, cursor := range batch.Shard(0).Split(window.Cursor{Created: to.Created}, to, 100) {
		_, err := w.Commit(ctx, part, cursor)
		require.NoError(t, err)
		applied += part.Hits()
		if got := r.mustFindNothing(); got.hits != applied || got.gone != 0 {
			t.Errorf("%d hits, want %d\n%s", got.hits, applied, got.text)
		}
	}
	require.EqualValues(t, 100, applied)
}

// After a stream was rolled back and the worker has reported the loss, audit finds no difference.
func TestRolledBackStreamHasNoDifferenceOnceMarkedIncomplete(t *testing.T) {
	t.Parallel()
	store, kept := t.TempDir(), t.TempDir()
	nats, database := stack.NATS(t, func(o *server.Options) { o.StoreDir = store }), stack.SharedRedis(t)
	r := newRigOn(t, nats, nats.JetStream(), database, database.Client())
	restart := func(change func() error) {
		t.Helper()
		nats.Stop()
		require.NoError(t, change())
		nats.Start()
		stack.Eventually(t, "the stream to be there again", func() (bool, string) {
			_, err := r.js.Stream(t.Context(), "HITS")
			return err == nil, fmt.Sprint(err)
		})
	}
	send := func(n int) {
		for range n {
			r.publish("hits.a", "")
		}
	}
	r.createStream("HITS", "hits.>")
	send(10)
	restart(func() error { return os.CopyFS(kept, os.DirFS(store)) })
	stop, _ := r.start()
	send(10)
	r.awaitApplied("HITS")
	stop()
	restart(func() error { return errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(kept))) })
	r.mustFind(1, "at message 20, and the stream ends with 10")
	r.start()
	send(5)
	r.awaitApplied("HITS")
	if got := r.mustFindNothing(); got.hits != 15 || got.incomplete == 0 {
		t.Errorf("%+v\n%s", got.report, got.text)
	}
}

// The shards of a cluster are on several servers.
func TestClusterIsAuditedOnAllItsServers(t *testing.T) {
	t.Parallel()
	cluster, nats := stack.Cluster(t, 0), stack.SharedNATS(t)
	r := newRigOn(t, nats, nats.JetStream(), cluster, cluster.Client())
	r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	for i := range 60 {
		r.publish("hits.x", fmt.Sprintf(`{"key":"c%d"}`, i%20))
	}
	r.awaitApplied("HITS")
	stop()
	r.makeBusy("c3")
	if got := r.mustFindNothing(); got.hits != 60 || got.counters != 20 {
		t.Errorf("%s\n%s", got.String(), got.text)
	}
	r.increment("test:{*}:h:1h:*:c3", 1)
	r.mustFind(1, `counter "c3", tier 1h/32d`)
}

// It needs no more rights than to read, and says so if it lacks them.
func TestAuditNeedsOnlyRightsToReadAndSaysIfItLacksThem(t *testing.T) {
	redis, nats := stack.Redis(t), stack.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "all"},
			{Username: "audit", Password: "audit", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{
					"$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.CONSUMER.CREATE.*.>",
					"$JS.API.CONSUMER.MSG.NEXT.*.*", "$JS.API.CONSUMER.DELETE.*.*",
				}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}},
			{Username: "none", Password: "none", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.>"}}}},
		}
		o.NoAuthUser = "all"
	})
	r := newRigOn(t, nats, nats.JetStream(), redis, redis.Client())
	r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	r.publish("hits.a", "")
	r.awaitApplied("HITS")
	stop()
	stack.NewUser(t, redis, "audit", "audit", "resetchannels", "~test:*",
		"-@all", "+@read", "+@transaction", "+@connection", "-@dangerous", "+time")
	run := func(natsUser, redisUser string) (string, error) {
		t.Helper()
		t.Setenv("NATS_URL", strings.Replace(r.nats.URL(), "://", "://"+natsUser+":"+natsUser+"@", 1))
		t.Setenv("REDIS_URL", strings.Replace(r.redis.URL(), "://", "://"+redisUser+"@", 1))
		t.Setenv("TALLYROLL_NAMESPACE", "test")
		var out bytes.Buffer
		err := Run(t.Context(), nil, &out, io.Discard)
		return out.String(), err
	}
	if out, err := run("audit", "audit:audit"); err != nil || out != "audit: 1 hits, 1 counters, 0 differences\n" {
		t.Errorf("%v, %q", err, out)
	}
	var usage setting.UsageError
	if out, err := run("none", "audit:audit"); !errors.As(err, &usage) {
		t.Errorf("without rights in NATS: %v, %q", err, out)
	}
	r.client.Do(t.Context(), "ACL", "SETUSER", "audit", "-hgetall")
	if out, err := run("audit", "audit:audit"); !errors.As(err, &usage) || !strings.Contains(err.Error(), "hgetall") {
		t.Errorf("without rights in Redis: %v, %q", err, out)
	}
}

// Streams share cells. One that was deleted leaves what is before its end undecided.
func TestStreamsShareCellsAndADeletedOneLeavesThemUndecided(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 3 {
		r.createStream(fmt.Sprintf("HITS_%d", i), fmt.Sprintf("hits.%d.>", i))
	}
	stop, _ := r.start()
	for i := range 9 {
		r.publishDrawn(uint64(i), fmt.Sprintf("hits.%d.c", i%3), 100, 50)
	}
	r.awaitApplied("HITS_0", "HITS_1", "HITS_2")
	all := r.mustFindNothing()
	require.Zero(t, all.gone)
	require.NoError(t, r.js.DeleteStream(t.Context(), "HITS_1"))
	if got := r.audit(); !errors.Is(got.err, errUnjudged) && got.gone == 0 {
		t.Errorf("a deleted stream that is listed as live: %v", got.err)
	}
	stack.Eventually(t, "the stream to be listed as ended", func() (bool, string) {
		value := r.client.HGet(t.Context(), "test:streams", "HITS_1").Val()
		return value != "" && !strings.HasPrefix(value, "live"), value
	})
	stop()
	got := r.mustFindNothing()
	if got.gone == 0 || got.hits >= all.hits || !strings.Contains(got.text, "stream HITS_1 was deleted") {
		t.Errorf("%+v, all had %d hits\n%s", got.report, all.hits, got.text)
	}
}

const firstRules = `
- stream: HITS
  subject: hits.orders.>
  time: at
  count:
    - key: shop.{shop}
    - key: items.{shop}
      n: items
`

// Messages are read by the rules and subjects by which the workers read them.
func TestMessagesAreReadByTheRulesAndSubjectsOfTheWorkers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.createStream("HITS", "hits.>")
	file := filepath.Join(t.TempDir(), "rules.yml")
	write := func(text string) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(firstRules)
	stop, reload := r.start("INGEST_RULES=" + file)
	order := func(n int) {
		for i := range n {
			r.publish("hits.orders.web", fmt.Sprintf(`{"shop":"s%d","items":%d,"at":%d}`, i%3, i%4, time.Now().UnixMilli()))
			r.publish("hits.plain", `{"n":2}`)
		}
	}
	order(20) // a quarter has no items, and is refused
	r.awaitApplied("HITS")
	r.mustFindNothing()
	write(strings.ReplaceAll(firstRules, "items.{shop}", "lines.{shop}"))
	reload <- syscall.SIGHUP
	order(20)
	config := s.CachedInfo().Config
	config.Subjects = []string{"hits.plain", "hits.orders.*"}
	_, err := r.js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	order(20)
	r.awaitApplied("HITS")
	stop()
	if got := r.mustFindNothing(); got.gone != 0 || got.incomplete != 0 {
		t.Errorf("%+v\n%s", got.report, got.text)
	}
	// Without the rules nobody can read the messages again.
	r.client.Del(t.Context(), "test:rules")
	if got := r.mustFindNothing(); got.gone == 0 || !strings.Contains(got.text, "cannot be read again: the rules") {
		t.Errorf("%+v\n%s", got.report, got.text)
	}
}

// Audit finds no difference while workers count, come and go, and split their commits.
func TestAuditWithLiveWorkersFindsNoDifference(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream("HITS_0", "hits.0.>")
	r.createStream("HITS_1", "hits.1.>")
	r.start("INGEST_MAX_COMMANDS=60", "INGEST_FLUSH_INTERVAL=5ms")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(7, 7))
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond): // an audit reads all that there is: without a pause, ever more
			}
			if _, err := r.js.Publish(t.Context(), fmt.Sprintf("hits.%d.x", i%2), []byte(drawMessage(rng, 300))); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	defer func() {
		close(stop)
		<-done
	}()
	stack.Eventually(t, "hits to be counted", func() (bool, string) {
		logs, hashes := len(r.keys("test:{*}:s:*")), len(r.keys("test:{*}:h:*"))
		return logs > 200 && hashes > 50, fmt.Sprint(logs, " logs, ", hashes, " hashes")
	})
	for i := range 5 {
		got := r.mustFindNothing(func(a *auditor) {
			if i%2 == 1 {
				a.memory = 100 << 10
			}
		})
		if got.hits == 0 || got.counters == 0 || got.gone != 0 || got.incomplete != 0 {
			t.Errorf("%+v\n%s", got.report, got.text)
		}
	}
}

// What cannot be judged is said to be so.
func TestWhatCannotBeJudgedIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	says := func(part string) {
		t.Helper()
		require.ErrorContains(t, r.audit().err, part)
	}
	says("no worker has counted in the namespace test yet")
	layout := window.Layout{Tiers: func() window.Tiers { ts, _ := window.ParseTiers(window.DefaultTiers); return ts }(), Shards: 4}
	require.NoError(t, r.store.EnsureLayout(t.Context(), layout))
	says("no stream has a cursor")
	r.createStream("HITS", "hits.>")
	stop, _ := r.start()
	r.publish("hits.a", "")
	r.awaitApplied("HITS")
	stop()
	r.mustFindNothing()
	require.NoError(t, r.js.DeleteStream(t.Context(), "HITS"))
	says("this NATS does not have it")
	r.createStream("HITS", "hits.>")
	says("its cursors are about one created at")
	restore := r.keep()
	r.client.Set(t.Context(), "test:layout", `{"version":9}`, 0)
	says("this program reads version 3")
	restore()
	r.client.HSet(t.Context(), "test:streams", "HITS", time.Now().UnixMilli())
	says("all streams of the namespace test have ended")
}

// Sums of the streams and of Redis saturate, and agree: none is negative.
func TestSaturatedCellsAgree(t *testing.T) {
	t.Parallel()
	layout := windowtest.Layout
	const stored, n = 1_790_000_000_000, int64(1) << 60
	for _, redis := range []int64{window.Saturated, window.Saturated + 5, math.MaxInt64} {
		l := newLedger(layout, findOverflows(layout, nil), "", 1<<20)
		l.open = true
		h := hit.Hit{Counter: []byte("a"), Hash: window.HashCounter([]byte("a")), At: stored, N: n}
		for shard := range layout.Shards {
			places := []inspect.Place{{Cursor: window.Cursor{Seq: 100}, Exists: true}}
			l.addSnapshot(shard, places, stored/1000, stored+1000, true)
		}
		cells := layout.AppendCells(nil, h.Hash, stored, stored)
		found := inspect.FoundCounter{Name: "a"}
		for _, id := range cells {
			found.Cells = append(found.Cells, inspect.FoundCell{CellID: id, N: redis})
		}
		l.addListed(found, l.latest[layout.ShardOf(h.Hash)], false)
		for seq := range uint64(20) {
			l.subtract(0, seq, stored, &h)
		}
		var list strings.Builder
		r := newReport(&list, 10)
		b := bounds{incomplete: make([]int64, layout.Shards), erased: make([]int64, layout.Shards)}
		require.Empty(t, r.compare(l, b))
		require.Empty(t, list.String())
		require.Equal(t, "audit: 9223372036854775807 hits, 1 counters, 0 differences", r.String())
	}
}
