package window_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// feed commits hits in the order given, in batches, and as more than one
// session would: every few batches the writers are opened anew.
type feed struct {
	*rig
	stream   string
	seq      uint64
	sessions []*window.Writer
	batch    *window.Batch
	hits     int
	batches  int
}

func (r *rig) feed(stream string) *feed {
	r.t.Helper()
	require.NoError(r.t, r.store.AddStream(r.t.Context(), stream))
	return &feed{rig: r, stream: stream, batch: window.NewBatch(layout)}
}

func (f *feed) add(counter string, at, n int64) {
	f.batch.Add([]byte(counter), window.HashCounter([]byte(counter)), at, at, n)
	if f.hits++; f.hits%5000 == 0 {
		f.flush()
	}
}

func (f *feed) flush() {
	f.t.Helper()
	if f.batches++; f.batches%10 == 1 {
		f.sessions = nil
		for i := range layout.Shards {
			w, err := f.store.OpenWriter(f.t.Context(), layout, f.stream, i)
			require.NoError(f.t, err)
			f.sessions = append(f.sessions, w)
		}
	}
	f.seq++
	for i, w := range f.sessions {
		require.NoError(f.t, errOf(w.Commit(f.t.Context(), f.batch.Shard(i), cursorAt(f.seq, time.Now()))))
	}
	f.batch.Reset()
}

func (r *rig) top(w time.Duration, now time.Time, limit int) window.Top {
	r.t.Helper()
	top, err := r.topOf(window.Last(w), now, limit)
	require.NoError(r.t, err)
	return top
}

// topOf asks when Redis's clock says now.
func (r *rig) topOf(asked window.Span, now time.Time, limit int) (out window.Top, err error) {
	r.at(now, func() { out, err = r.reader.Top(r.t.Context(), asked, limit) })
	return out, err
}

// totals are those of all counters in a window, by name.
func (r *rig) totals(counters []string, w time.Duration, now time.Time) map[string]window.Answer {
	r.t.Helper()
	out := make(map[string]window.Answer)
	for chunk := range slices.Chunk(counters, 2000) {
		questions := make([]window.Question, len(chunk))
		for i, c := range chunk {
			questions[i] = window.Question{Counter: c, Span: window.Last(w)}
		}
		found, err := r.answer(now, questions...)
		require.NoError(r.t, err)
		for i, a := range found.Answers {
			out[chunk[i]] = a
		}
	}
	return out
}

// checkTop compares a top list with what is known of every counter.
func checkTop(t *testing.T, top window.Top, all map[string]window.Answer, limit int) (above, missing int) {
	t.Helper()
	if len(top.Counters) > limit {
		t.Errorf("%d counters; at most %d were asked for", len(top.Counters), limit)
	}
	listed := make(map[string]bool)
	for i, c := range top.Counters {
		listed[c.Counter] = true
		if c.Answer != all[c.Counter] {
			t.Errorf("%s has %+v in the list and %+v by itself", c.Counter, c.Answer, all[c.Counter])
		}
		if i > 0 {
			before := top.Counters[i-1]
			if before.Total < c.Total || before.Total == c.Total && before.Counter >= c.Counter {
				t.Errorf("%s with %d comes before %s with %d", before.Counter, before.Total, c.Counter, c.Total)
			}
		}
	}
	for counter, a := range all {
		if a.Upper > top.Floor {
			if above++; !listed[counter] {
				missing++
				t.Errorf("%s is missing with %+v; the floor is %d", counter, a.Total, top.Floor)
			}
		}
	}
	return above, missing
}

// loads are how many hits the counters get, compared with each other.
func loads(counters int) map[string]func(*rand.Rand) func() uint64 {
	zipf := func(s float64) func(*rand.Rand) func() uint64 {
		return func(r *rand.Rand) func() uint64 { return rand.NewZipf(r, s, 1, uint64(counters-1)).Uint64 }
	}
	return map[string]func(*rand.Rand) func() uint64{
		"Zipf 1.01": zipf(1.01), "Zipf 1.1": zipf(1.1),
		"uniform": func(r *rand.Rand) func() uint64 { return func() uint64 { return r.Uint64N(uint64(counters)) } },
	}
}

// TestTopAgainstTheTruth feeds two streams and compares the list with the totals
// of all counters. TOP_COUNTERS=1000000 TOP_HITS=2000000 measures what it costs with so many.
func TestTopAgainstTheTruth(t *testing.T) {
	t.Parallel()
	counters, hits := 100_000, 50_000 // docs/design.md has more
	for name, n := range map[string]*int{"TOP_COUNTERS": &counters, "TOP_HITS": &hits} {
		if text := os.Getenv(name); text != "" {
			require.NoError(t, errOf(fmt.Sscan(text, n)))
		}
	}
	for name, load := range loads(counters) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, startServer(t))
			rng := rand.New(rand.NewPCG(1, 2))
			next := load(rng)
			now := time.Now()
			seen := make(map[string]bool)
			feeds := []*feed{r.feed("HITS"), r.feed("HITS_2")}
			for i := range hits {
				counter := fmt.Sprintf("c%d", next())
				seen[counter] = true
				age := rng.Int64N(2 * time.Hour.Milliseconds())
				feeds[i%2].add(counter, now.UnixMilli()-age, 1)
			}
			for _, f := range feeds {
				f.flush()
			}
			var names []string
			for c := range seen {
				names = append(names, c)
			}
			t.Logf("%s: names take %d bytes each, and %d bytes for a stream's summaries of a segment on all shards", name,
				r.memory("test:*:names:*")/int64(len(seen)), r.memory("test:*:top:1h:*:HITS")/int64(len(stack.Scan(t, r.client, "test:{0}:top:1h:*:HITS"))))
			for _, w := range []time.Duration{time.Hour, 24 * time.Hour} {
				began := time.Now()
				top := r.top(w, now, 20)
				took := time.Since(began)
				above, missing := checkTop(t, top, r.totals(names, w, now), 20)
				if len(top.Counters) != 20 {
					t.Errorf("%d counters in the list", len(top.Counters))
				}
				t.Logf("%s, %d counters, %d hits, window %s: floor %d, %d above it, %d missing, first %d, last %d, %s", name, len(seen), hits,
					window.FormatDuration(w), top.Floor, above, missing, top.Counters[0].Total, top.Counters[len(top.Counters)-1].Total, took.Round(time.Millisecond))
			}
		})
	}
}

// memory is what the keys of a pattern take, by Redis's own account.
func (r *rig) memory(pattern string) (bytes int64) {
	r.t.Helper()
	for _, key := range stack.Scan(r.t, r.client, pattern) {
		n, err := r.client.MemoryUsage(r.t.Context(), key, 0).Result()
		require.NoError(r.t, err)
		bytes += n
	}
	return bytes
}

func theTopOfAFew(t *testing.T, r *rig) {
	now := time.Now()
	f := r.feed("HITS")
	for i := range 10 {
		f.add(fmt.Sprintf("c%d", i), now.UnixMilli(), int64(1+i/2))
	}
	f.add("before", now.Add(-90*time.Minute).UnixMilli(), 100)
	f.flush()
	now = now.Add(time.Second)
	list := func(limit int) string {
		top := r.top(time.Hour, now, limit)
		out := fmt.Sprint(top.Floor, ":")
		for _, c := range top.Counters {
			out += fmt.Sprintf(" %s=%d", c.Counter, c.Total)
		}
		return out
	}
	if got := list(3); got != "4: c8=5 c9=5 c6=4" {
		t.Error(got)
	}
	if got := list(50); got != "0: c8=5 c9=5 c6=4 c7=4 c4=3 c5=3 c2=2 c3=2 c0=1 c1=1" {
		t.Error(got)
	}
	if got := r.top(24*time.Hour, now, 1); got.Counters[0].Counter != "before" || got.Floor != 5 {
		t.Errorf("a day: %+v", got)
	}
	top, err := r.topOf(window.Between(0, window.Now), now, 1)
	if err == nil || !strings.Contains(err.Error(), "reaches back") {
		t.Errorf("beyond reach: %+v, %v", top, err)
	}
}

// A commit waits for Redis. If its reply is lost, it is looked at again, and adds nothing twice.
func summariesOutlastRedis(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 7)
	w := r.writers()[shard]
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	lost := make(chan error, 100)
	w.OnRetry = func(err error) { lost <- err }
	r.stop(cursorKey(shard))
	done := make(chan error, 1)
	go func() {
		_, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(2, now))
		done <- err
	}()
	if err := <-lost; !strings.Contains(err.Error(), "shard") {
		t.Errorf("the retry's error names no shard: %v", err)
	}
	r.start(cursorKey(shard))
	require.NoError(t, <-done)
	// A summary that counted more would call for a look at a counter of fewer hits.
	if top := r.top(time.Hour, now.Add(time.Second), 1); top.Floor != 0 || len(top.Counters) != 1 || top.Counters[0].Upper != 14 {
		t.Errorf("%+v", top)
	}
	key := stack.Scan(t, r.client, "test:*:top:15m:*")
	if len(key) != 1 || r.client.Get(t.Context(), key[0]).Val() != "\x01\x00\x01a\x0e" {
		t.Errorf("%v has %q", key, r.client.Get(t.Context(), key[0]).Val())
	}
}

// A commit that fails for good may have been applied or not: what its writer
// remembers is of no use to the next commit.
func aFailedCommitLeavesNoSummary(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 3)
	w := r.writers()[shard]
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	r.stop(cursorKey(shard))
	ctx, cancel := context.WithCancel(t.Context())
	w.OnRetry = func(error) { cancel() }
	if _, err := w.Commit(ctx, b.Shard(shard), cursorAt(2, now)); !errors.Is(err, context.Canceled) {
		t.Fatalf("a commit without Redis, whose context ends: %v", err)
	}
	r.start(cursorKey(shard))
	w.OnRetry = func(error) {}
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(2, now))))
	for _, key := range stack.Scan(t, r.client, "test:*:top:*") {
		if got := r.client.Get(t.Context(), key).Val(); got != "\x01\x00\x01a\x06" {
			t.Errorf("%s has %q, want 6 hits of a", key, got)
		}
	}
}

// A summary that cannot be read is left as it is, the hits count, and the loss is reported.
func aForeignSummaryIsLeftAsItIs(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	keys := stack.Scan(t, r.client, "test:*:top:*")
	for seq, foreign := range []struct {
		name  string
		write func(key string) error
		same  func(key string) bool
		want  string
	}{
		{"another version", func(key string) error { return r.client.Set(t.Context(), key, "\x02", redis.KeepTTL).Err() },
			func(key string) bool { return r.client.Get(t.Context(), key).Val() == "\x02" }, "version 2"},
		{"another type", func(key string) error {
			if err := r.client.Del(t.Context(), key).Err(); err != nil {
				return err
			}
			return r.client.HSet(t.Context(), key, "field", "not ours").Err()
		}, func(key string) bool { return r.client.HGet(t.Context(), key, "field").Val() == "not ours" }, "WRONGTYPE"},
	} {
		for _, key := range keys {
			require.NoError(t, foreign.write(key))
		}
		got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(uint64(2+seq), now))
		if err != nil || got.Failed == nil || !slices.Contains(keys, got.Failed.Key) || !strings.Contains(got.Failed.Error(), foreign.want) {
			t.Errorf("%s: %v, %v", foreign.name, got.Failed, err)
		}
		for _, key := range keys {
			if !foreign.same(key) {
				t.Errorf("%s: %s was overwritten", foreign.name, key)
			}
		}
	}
	require.EqualValues(t, 3, r.total("a", time.Minute, now.Add(time.Second)).Upper)
	if _, err := r.topOf(window.Last(time.Second), now, 1); err == nil {
		t.Error("the reader takes a foreign summary for silence")
	}
}

func namesAreListed(t *testing.T, r *rig) {
	now := time.Now()
	f := r.feed("HITS")
	longest := layout.Tiers[len(layout.Tiers)-1].Window
	var want []string
	for i := range 500 {
		name := fmt.Sprintf("shop.%03d", i)
		f.add(name, now.Add(-time.Duration(i%40)*24*time.Hour).UnixMilli(), 1) // some before the longest window
		if time.Duration(i%40+1)*24*time.Hour < longest {
			want = append(want, name)
		}
	}
	for _, other := range []string{"shop", "shop-", "shoq", "größe ☃"} {
		f.add(other, now.UnixMilli(), 1)
	}
	f.flush()
	all := func(prefix string, limit int) []string {
		t.Helper()
		var out []string
		q := window.NamesQuestion{Prefix: prefix, Limit: limit}
		for range 1000 {
			var page window.Names
			var err error
			r.at(now, func() { page, err = r.reader.Names(t.Context(), q) })
			require.NoError(t, err)
			if len(page.Counters) > limit {
				t.Fatalf("a page of %d", len(page.Counters))
			}
			if out = append(out, page.Counters...); page.Next == "" {
				return out
			}
			q.After = page.Next
		}
		t.Fatal("the pages have no end")
		return nil
	}
	for _, limit := range []int{1, 7, 100, 1000} {
		got := all("shop.", limit)
		// A name from the window's beginning may have hits in the cell that it cuts.
		got = slices.DeleteFunc(got, func(name string) bool {
			return !slices.Contains(want, name) && r.total(name, longest, now).Upper > 0
		})
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %d names %v; want %d", limit, len(got), got, len(want))
		}
	}
	if got := fmt.Sprint(all("gr", 5), all("shoq", 5), all("z", 5)); got != "[größe ☃] [shoq] []" {
		t.Error(got)
	}
	for _, key := range append(stack.Scan(t, r.client, "test:*:names:*"), stack.Scan(t, r.client, "test:*:top:*")...) {
		if ttl := r.client.TTL(t.Context(), key).Val(); ttl <= 0 {
			t.Errorf("%s has no expiry", key)
		}
	}
}
