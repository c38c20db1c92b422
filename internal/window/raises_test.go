package window_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// visits are a counter's visitors, from one number to another, as a batch of hits.
func visits(counter string, at time.Time, from, to int) (*window.Batch, int) {
	b := window.NewBatch(layout)
	visit(b, counter, at, from, to)
	return b, layout.ShardOf(window.HashCounter([]byte(counter)))
}

func visit(b *window.Batch, counter string, at time.Time, from, to int) {
	hash := window.HashCounter([]byte(counter))
	for i := from; i < to; i++ {
		b.AddUnique([]byte(counter), hash, at.UnixMilli(), at.UnixMilli(), 1, unique.Of(fmt.Append(nil, i)))
	}
}

func sketchOf(from, to int) *unique.Sketch {
	s := new(unique.Sketch)
	for i := from; i < to; i++ {
		s.Add(unique.Of(fmt.Append(nil, i)))
	}
	return s
}

// sketch reads a unique cell of a counter, which must expire.
func (r *rig) sketch(tier int, counter string, at time.Time) *unique.Sketch {
	r.t.Helper()
	t := layout.UniqueTiers[tier]
	key := fmt.Sprintf("test:{%d}:u:%s:%d:%s", layout.ShardOf(window.HashCounter([]byte(counter))), window.FormatDuration(t.Cell), at.UnixMilli()/t.Cell.Milliseconds(), counter)
	text, err := r.client.Get(r.t.Context(), key).Result()
	if err == redis.Nil {
		return new(unique.Sketch)
	}
	s, bad := unique.Decode(text)
	if err != nil || bad != nil {
		r.t.Fatal(key, err, bad)
	}
	end := (at.UnixMilli()/t.Cell.Milliseconds() + 1) * t.Cell.Milliseconds()
	kept := time.UnixMilli(end).Add(t.Window)
	if expires := time.Now().Add(r.client.TTL(r.t.Context(), key).Val()); expires.Before(kept) || expires.After(kept.Add(t.Cell+6*time.Minute)) {
		r.t.Errorf("%s expires at %v, want some minutes after %v", key, expires, kept)
	}
	return s
}

// holdSketches notes cells of the counter that do not hold exactly the visitors.
func (r *rig) holdSketches(counter string, at time.Time, from, to int) {
	r.t.Helper()
	want := sketchOf(from, to)
	for i, tier := range layout.UniqueTiers {
		if got := r.sketch(i, counter, at); !got.Equal(want) {
			r.t.Errorf("the cell of %s of %s has %d registers, want %d", tier, counter, got.Len(), want.Len())
		}
	}
}

func registersAreThoseOfTheValues(t *testing.T, r *rig) {
	now := time.Now()
	writers := r.writers()
	seq := uint64(0)
	for i, n := range []int{1, 10, 500, 3000, 40_000} {
		counter := fmt.Sprintf("v%d", i)
		for _, part := range [][2]int{{0, n / 2}, {n / 3, n}, {0, n}} {
			b, shard := visits(counter, now, part[0], part[1])
			seq++
			got, err := writers[shard].Commit(t.Context(), b.Shard(shard), cursorAt(seq, now))
			if err != nil || got.Failed != nil || got.Hits != int64(part[1]-part[0]) {
				t.Fatalf("commit: %+v, %v", got, err)
			}
			if most := b.Shard(shard).Commands() + 5; got.Commands > most { // with the cursor's, and the note of a new one
				t.Errorf("%d commands, and at most %d were foretold", got.Commands, most)
			}
		}
		r.holdSketches(counter, now, 0, n)
	}
	// In parts, which take turns with a large counter.
	b := window.NewBatch(layout)
	for i := range 200 {
		visit(b, fmt.Sprintf("few%d", i), now, 0, i%7)
	}
	visit(b, "many", now, 0, 30_000)
	parts, largest := 0, 0
	for shard, w := range r.writers() {
		place, _ := w.Cursor()
		place.Created = 1
		require.NoError(t, w.Take(t.Context(), place))
		for part, to := range b.Shard(shard).Split(place, cursorAt(seq+1000, now), 100) {
			require.NoError(t, errOf(w.Commit(t.Context(), part, to)))
			if part.Commands() > 100 {
				largest++
			}
			parts++
		}
	}
	if parts < 20 || parts > 1000 || largest != 1 {
		t.Errorf("%d parts, %d of which are large", parts, largest)
	}
	for i := range 200 {
		r.holdSketches(fmt.Sprintf("few%d", i), now, 0, i%7)
	}
	r.holdSketches("many", now, 0, 30_000)
}

func onlyWhatCanRaiseARegisterIsSent(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := visits("a", now, 0, 100)
	w := r.writers()[shard]
	commit := func(seq uint64) int {
		got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq, now))
		require.NoError(t, err)
		return got.Commands
	}
	commit(1)
	again := commit(2)
	b, _ = visits("a", now, 100, 101)
	if more := commit(3); more != again+2*len(layout.UniqueTiers) {
		t.Errorf("%d commands for nothing new, and %d for a new visitor; want two more per unique tier", again, more)
	}
	r.holdSketches("a", now, 0, 101)
	if b, _ = visits("a", now, 40, 60); commit(4) != again {
		t.Errorf("visitors that were known were sent")
	}
}

// After whatever may have taken registers away, the next hits bring theirs back.
func registersComeBackAfterAnyDoubt(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(losesAReply)
	r.addHook(hook)
	remove := func() { // as if they had expired
		for _, key := range stack.Scan(t, r.client, "test:*:u:*") {
			r.client.Del(t.Context(), key)
		}
	}
	beside := besideOf("a")
	for name, doubt := range map[string]func(commit func(counter string, at time.Time, from, to int)){
		"an erasure": func(func(string, time.Time, int, int)) {
			require.NoError(t, errOf(window.NewReader(r.store).Erase(t.Context(), []string{"a"})))
		},
		"the clock has fallen": func(commit func(string, time.Time, int, int)) {
			later := now.Add(100 * 24 * time.Hour)
			r.at(later, func() { commit(beside, later, 0, 1) })
			remove()
		},
		"a lost reply": func(commit func(string, time.Time, int, int)) {
			remove()
			hook.armed.Store(true)
			commit("a", now, 0, 1) // nothing new
		},
	} {
		r := newRig(t, r.backend)
		w := r.writers()[layout.ShardOf(window.HashCounter([]byte("a")))]
		seq := uint64(0)
		commit := func(counter string, at time.Time, from, to int) {
			b, shard := visits(counter, at, from, to)
			seq++
			require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(seq, at))), name)
		}
		commit("a", now, 0, 300)
		doubt(commit)
		commit("a", now, 0, 400)
		if !t.Failed() {
			r.holdSketches("a", now, 0, 400)
		}
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func aUniqueCellThatHasExpiredIsLeftOut(t *testing.T, r *rig) {
	now := time.Now()
	old := now.Add(-3 * time.Hour) // stored then, committed now: the cell of five minutes has expired
	b, shard := visits("a", old, 0, 1)
	require.NoError(t, errOf(r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	keys := stack.Scan(t, r.client, "test:*:u:*")
	if len(keys) != 2 {
		t.Errorf("%q were written, want one of an hour and one of a day", keys)
	}
	// A hit that is dated so, and was stored now, was never in the finest tier.
	b = window.NewBatch(layout)
	b.AddUnique([]byte("a"), window.HashCounter([]byte("a")), old.UnixMilli(), now.UnixMilli(), 1, unique.Of([]byte("x")))
	require.NoError(t, errOf(r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(2, now))))
	for _, key := range stack.Scan(t, r.client, "test:*:u:*") {
		if strings.Contains(key, ":u:5m:") {
			t.Errorf("%s was written", key)
		}
	}
}

func aForeignUniqueCellIsReported(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(losesAReply)
	r.addHook(hook)
	seq := uint64(0)
	for name, write := range map[string]func(ctx context.Context, key string) error{
		"of another type": func(ctx context.Context, key string) error {
			return r.client.HSet(ctx, key, "not", "ours").Err()
		},
		"another text": func(ctx context.Context, key string) error {
			return r.client.Set(ctx, key, "not ours", time.Hour).Err()
		},
		"none": nil,
	} {
		for _, lost := range []bool{false, true} {
			counter := fmt.Sprintf("%s %v", name, lost)
			b, shard := visits(counter, now, 0, 5)
			w := r.writers()[shard]
			seq++
			require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(seq, now))))
			for _, key := range stack.Scan(t, r.client, "test:*:u:1h:*:"+counter) {
				if write != nil {
					r.client.Del(t.Context(), key)
					require.NoError(t, write(t.Context(), key))
				}
			}
			b, _ = visits(counter, now, 3, 9)
			hook.armed.Store(lost)
			seq++
			got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq, now))
			if err != nil || (got.Failed != nil) != (write != nil) {
				t.Errorf("%s: %+v, %v", counter, got, err)
			}
			if got.Failed != nil && !strings.Contains(got.Failed.Error(), ":u:1h:") {
				t.Errorf("%s: %v", counter, got.Failed)
			}
			if write == nil {
				r.holdSketches(counter, now, 0, 9)
			}
		}
	}
}
