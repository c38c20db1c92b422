package window_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// beforeTiers have more cells than a hash has now; their namespaces needed TIERS_MAX_CELLS=7200.
const beforeTiers = "1s/1h,1m/1d"

// before is a namespace as it was written before hashes were bounded: each spans two windows.
type before struct {
	*rig
	hits map[int64]int64 // by Unix second
}

// openBefore writes the record and the hits of two hours by the format that was documented then.
func openBefore(t *testing.T, now time.Time) *before {
	client := stack.Redis(t).Client()
	b := &before{&rig{backend: &backend{client: client, clock: stack.WatchClock(client)}, t: t, store: window.NewStore(client, "test")}, map[int64]int64{}}
	began := time.Now()
	b.reader = window.NewReader(b.store)
	b.reader.Local = func() time.Time { return began }
	record := `{"version":1,"tiers":"` + beforeTiers + `","shards":1,"hash":"xxhash64","id":"BEFORE"}`
	if err := client.Set(t.Context(), "test:layout", record, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.store.AddStreamSince(t.Context(), "HITS", now.Add(-3*time.Hour).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	pipe := client.Pipeline()
	for i := range int64(2 * 3600) {
		b.hit(now.Unix()-1-i, 1+rand.Int64N(5))
	}
	for at, n := range b.hits {
		for _, tier := range []struct{ cell, window int64 }{{1, 3600}, {60, 86_400}} {
			cell := map[int64]string{1: "1s", 60: "1m"}[tier.cell]
			key := fmt.Sprintf("test:{0}:h:%s:%d:c", cell, at/(2*tier.window))
			pipe.HIncrBy(t.Context(), key, fmt.Sprint(at/tier.cell%(2*tier.window/tier.cell)), n)
			pipe.ExpireAt(t.Context(), key, time.Unix((at/(2*tier.window)+1)*2*tier.window+tier.window+300, 0))
		}
	}
	pipe.HSet(t.Context(), "test:{0}:cursor:HITS", "created", now.Add(-3*time.Hour).UnixNano(), "seq", 7200, "stored", now.UnixNano(),
		"as_of", now.UnixMilli(), "incomplete_before", 0, "ahead", "", "by", "BEFORE")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *before) hit(second, n int64) { b.hits[second] += n }

// check asks for windows of whole seconds, and compares the answers with the hits.
func (b *before) check(now time.Time, windows ...time.Duration) {
	b.t.Helper()
	for _, w := range windows {
		var want int64
		for at, n := range b.hits {
			if at >= now.Add(-w).Unix() && at < now.Unix() {
				want += n
			}
		}
		if got := b.total("c", w, now); got.Lower != want || got.Upper != want || !got.Complete {
			b.t.Errorf("the last %s at %s: %+v; want exactly %d", w, now, got, want)
		}
	}
}

// checkFall asks how long it takes until a window has no more hits than those that it still has after a while.
func (b *before) checkFall(now time.Time, length, while time.Duration) {
	b.t.Helper()
	var most int64
	for at, n := range b.hits {
		if at >= now.Add(while-length).Unix() && at < now.Unix() {
			most += n
		}
	}
	var wait time.Duration
	var err error
	b.at(now, func() { _, wait, err = b.reader.Fall(b.t.Context(), "c", length, most) })
	if err != nil || wait > while || wait <= while-time.Second { // the last cell to go counts in proportion
		b.t.Errorf("%s falls to %d after %s, %v; want %s or a second less", length, most, wait, err, while)
	}
}

// A namespace from before is read and written on as it is: its hashes go on to span two windows.
func TestANamespaceFromBeforeStaysAsItIs(t *testing.T) {
	// In the middle of its epochs, and in the future: nothing may have expired by Redis's own clock.
	now := time.Now().Truncate(24 * time.Hour).Add(36*time.Hour + 30*time.Minute)
	b := openBefore(t, now)
	windows := []time.Duration{time.Second, 59 * time.Second, 256 * time.Second, 257 * time.Second, time.Hour, 2 * time.Hour}
	b.check(now, windows...)
	keys := len(stack.Scan(t, b.client, "test:*:h:*"))

	tiers, err := window.ParseTiers(beforeTiers)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := b.store.OpenLayout(t.Context(), window.Layout{Tiers: tiers, Shards: 1})
	if err != nil || b.store.ID() != "BEFORE" {
		t.Fatalf("%v, id %q", err, b.store.ID())
	}
	if err := b.store.EnsureLayout(t.Context(), layout); err != nil {
		t.Errorf("the layout that it has: %v", err)
	}
	if err := b.store.EnsureLayout(t.Context(), window.Layout{Tiers: tiers, Shards: 1}); !errors.Is(err, window.ErrRemade) {
		t.Errorf("hashes of other lengths: %v; want ErrRemade", err)
	}
	w, err := b.store.OpenWriter(t.Context(), layout, "HITS", 0)
	if err != nil {
		t.Fatal(err)
	}
	batch, c := window.NewBatch(layout), []byte("c")
	for i := range int64(1000) { // into cells of then, and some seconds that have had hits already
		at := now.Unix() - 700 + i
		batch.Add(c, window.HashCounter(c), at*1000, at*1000, 3)
		b.hit(at, 3)
	}
	at, _ := w.Cursor()
	at.Seq, at.Stored, at.AsOf = at.Seq+1000, now.Add(300*time.Second).UnixNano(), now.Add(300*time.Second).UnixMilli()
	if _, err := w.Commit(t.Context(), batch.Shard(0), at); err != nil {
		t.Fatal(err)
	}
	b.check(now.Add(300*time.Second), windows...)
	if again := stack.Scan(t, b.client, "test:*:h:*"); len(again) != keys {
		t.Errorf("%d hashes, and %d before: %q", len(again), keys, again)
	}
}

// The record of a namespace says how many cells a hash spans if that is less than two windows. Without
// such tiers it is what it was before, so workers of older versions go on with it.
func TestTheRecordTellsTheEpochs(t *testing.T) {
	client := stack.Redis(t).Client()
	for tiers, want := range map[string]string{
		window.DefaultTiers:  `{"version":1,"tiers":"1s/1m,1m/1h,15m/1d,6h/32d","shards":16,"hash":"xxhash64","id":"ID"}`,
		"1s/1h,1m/1d,1h/92d": `{"version":2,"tiers":"1s/1h,1m/1d,1h/92d","shards":16,"hash":"xxhash64","id":"ID","epoch_cells":256}`,
	} {
		store := window.NewStore(client, strings.ReplaceAll(tiers[:5], "/", "_"))
		parsed, err := window.ParseTiers(tiers)
		if err != nil {
			t.Fatal(err)
		}
		layout := window.Layout{Tiers: parsed, Shards: 16}
		for range 2 {
			if err := store.EnsureLayout(t.Context(), layout); err != nil {
				t.Fatal(err)
			}
		}
		key := strings.ReplaceAll(tiers[:5], "/", "_") + ":layout"
		if got := strings.ReplaceAll(client.Get(t.Context(), key).Val(), store.ID(), "ID"); got != want {
			t.Errorf("%s", got)
		}
		if cells, err := store.Layout(t.Context()); err != nil || fmt.Sprintf("%+v", cells) != fmt.Sprintf("%+v", layout) {
			t.Errorf("%+v, %v", cells, err)
		}
	}
	for _, bad := range []string{
		`{"version":1,"tiers":"1s/1h","shards":1,"hash":"xxhash64","id":"A","epoch_cells":256}`,
		`{"version":2,"tiers":"1s/1h","shards":1,"hash":"xxhash64","id":"A"}`,
		`{"version":2,"tiers":"1s/1h","shards":1,"hash":"xxhash64","id":"A","epoch_cells":-1}`,
		`{"version":2,"tiers":"1s/1m","shards":1,"hash":"xxhash64","id":"A","epoch_cells":256}`,
		`{"version":3,"tiers":"1s/1h","shards":1,"hash":"xxhash64","id":"A","epoch_cells":256}`,
	} {
		if err := client.Set(t.Context(), "bad:layout", bad, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := window.NewStore(client, "bad").Layout(t.Context()); !errors.Is(err, window.ErrBadLayout) {
			t.Errorf("%s: %v; want ErrBadLayout", bad, err)
		}
	}
}

// A tier of many cells, on a real server: every hash is a listpack of at most 256 fields, and every window is exact.
func TestManyCells(t *testing.T) {
	now := time.Now().Truncate(time.Hour).Add(24 * time.Hour)
	tiers, err := window.ParseTiers("1s/1h,1m/1d")
	if err != nil {
		t.Fatal(err)
	}
	client := stack.Redis(t).Client()
	b := &before{&rig{backend: &backend{client: client, clock: stack.WatchClock(client)}, t: t, store: window.NewStore(client, "test")}, map[int64]int64{}}
	began := time.Now()
	b.reader = window.NewReader(b.store)
	b.reader.Local = func() time.Time { return began }
	layout := window.Layout{Tiers: tiers, Shards: 1}
	if err := b.store.EnsureLayout(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	if err := b.store.AddStreamSince(t.Context(), "HITS", now.Add(-2*time.Hour).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	w, err := b.store.OpenWriter(t.Context(), layout, "HITS", 0)
	if err != nil {
		t.Fatal(err)
	}
	batch, c := window.NewBatch(layout), []byte("c")
	for i := range int64(3601) {
		at, n := now.Unix()-1-i, 1+rand.Int64N(5)
		batch.Add(c, window.HashCounter(c), at*1000, at*1000, n)
		b.hit(at, n)
	}
	at := window.Cursor{Created: now.Add(-2 * time.Hour).UnixNano(), Seq: 1, Stored: now.UnixNano(), AsOf: now.UnixMilli()}
	if _, err := w.Commit(t.Context(), batch.Shard(0), at); err != nil {
		t.Fatal(err)
	}
	b.check(now, time.Second, 255*time.Second, 256*time.Second, 257*time.Second, 1800*time.Second, time.Hour)
	b.checkFall(now.Add(23*time.Second), time.Hour, 30*time.Minute)
	hashes := stack.Scan(t, client, "test:*:h:1s:*")
	if len(hashes) < 15 || len(hashes) > 16 {
		t.Errorf("%d hashes of seconds", len(hashes))
	}
	for _, key := range hashes {
		encoding, err := client.ObjectEncoding(t.Context(), key).Result()
		fields := client.HLen(t.Context(), key).Val()
		expires := client.ExpireTime(t.Context(), key).Val()
		epoch, _ := strconv.ParseInt(strings.Split(key, ":")[4], 10, 64)
		end := time.Duration((epoch+1)*256) * time.Second
		if encoding != "listpack" || err != nil || fields > window.EpochCells {
			t.Errorf("%s is a %s of %d fields, %v", key, encoding, fields, err)
		}
		if over := expires - end - time.Hour - 5*time.Minute; over < 0 || over > 257*time.Second {
			t.Errorf("%s expires %s after its end", key, expires-end)
		}
	}
}
