package window_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
)

// top asks when Redis's clock says now.
func (r *rig) top(w time.Duration, now time.Time, limit int) (out read.Top, err error) {
	r.at(now, func() { out, err = r.reader.Top(r.t.Context(), window.Last(w), limit) })
	return out, err
}

// checkTop compares a top list with what is known of every counter.
func checkTop(t *testing.T, top read.Top, all map[string]window.Answer) {
	t.Helper()
	listed := make(map[string]bool)
	for i, c := range top.Counters {
		listed[c.Counter] = true
		if c.Answer != all[c.Counter] {
			t.Errorf("%s has %+v in the list and %+v by itself", c.Counter, c.Answer, all[c.Counter])
		}
		if i == 0 {
			continue
		}
		if before := top.Counters[i-1]; before.Total < c.Total || before.Total == c.Total && before.Counter >= c.Counter {
			t.Errorf("%s with %d comes before %s with %d", before.Counter, before.Total, c.Counter, c.Total)
		}
	}
	for counter, a := range all {
		if a.Upper > top.Floor && !listed[counter] {
			t.Errorf("%s is missing with %+v; the floor is %d", counter, a.Total, top.Floor)
		}
	}
}

// TestTopAgainstTheTruth fills two streams and compares the list with the totals
// of all counters. TOP_COUNTERS=1000000 TOP_HITS=2000000 measures what it costs with so many.
func TestTopAgainstTheTruth(t *testing.T) {
	t.Parallel()
	counters, hits := 100_000, 50_000 // docs/design.md has more
	for name, n := range map[string]*int{"TOP_COUNTERS": &counters, "TOP_HITS": &hits} {
		if text := os.Getenv(name); text != "" {
			require.NoError(t, errOf(fmt.Sscan(text, n)))
		}
	}
	for name, exponent := range map[string]float64{"Zipf 1.01": 1.01, "Zipf 1.1": 1.1, "uniform": 0} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, startServer(t))
			require.NoError(t, r.store.AddStream(t.Context(), "HITS_2"))
			random := rand.New(rand.NewPCG(1, 2))
			draw := func() uint64 { return random.Uint64N(uint64(counters)) }
			if exponent > 0 {
				draw = rand.NewZipf(random, exponent, 1, uint64(counters-1)).Uint64
			}
			now, seen := time.Now(), make(map[string]bool)
			sessions := []*session{r.open("HITS"), r.open("HITS_2")}
			batches := []*window.Batch{window.NewBatch(layout), window.NewBatch(layout)}
			for i := range hits {
				s, batch, counter := sessions[i%2], batches[i%2], fmt.Sprintf("c%d", draw())
				seen[counter] = true
				at := now.UnixMilli() - random.Int64N(2*time.Hour.Milliseconds())
				batch.Add([]byte(counter), window.HashCounter([]byte(counter)), at, at, 1)
				if i/2%5000 == 4999 || i >= hits-2 {
					s.commitBatch(batch, cursorAt(s.seq+1, time.Now()))
					batch.Reset()
				}
			}
			for _, w := range []time.Duration{time.Hour, 24 * time.Hour} {
				began := time.Now()
				top, err := r.top(w, now, 20)
				took := time.Since(began)
				require.NoError(t, err)
				all := make(map[string]window.Answer)
				for chunk := range slices.Chunk(slices.Collect(maps.Keys(seen)), 2000) {
					questions := make([]window.Question, len(chunk))
					for i, c := range chunk {
						questions[i] = window.Question{Counter: c, Span: window.Last(w)}
					}
					found, err := r.answer(now, questions...)
					require.NoError(t, err)
					for i, a := range found.Answers {
						all[chunk[i]] = a
					}
				}
				require.Len(t, top.Counters, 20)
				checkTop(t, top, all)
				t.Logf("%s, %d counters, %d hits, window %s: floor %d, first %d, last %d, %s", name, len(seen), hits,
					human.FormatDuration(w), top.Floor, top.Counters[0].Total, top.Counters[19].Total, took.Round(time.Millisecond))
			}
		})
	}
}

// A commit waits for Redis. If its reply is lost, it is looked at again, and adds nothing twice. If its
// context ends, it may have been applied or not: what its writer remembers of it is of no use to the next
// commit.
func (r *rig) TestCommitsOutlastRedis(t *testing.T) {
	now, s := time.Now(), r.open("HITS")
	s.commit("a", now, 7)
	r.stop(cursorKey(shardOf("a")))
	ctx, cancel := context.WithCancel(t.Context())
	s.of("a").OnRetry = func(error) { cancel() }
	b, shard := batchOf("a", now.UnixMilli(), 7)
	require.ErrorIs(t, errOf(s.of("a").Commit(ctx, b.Shard(shard), cursorAt(2, now))), context.Canceled)
	lost := make(chan error, 100)
	s.of("a").OnRetry = func(err error) { lost <- err }
	done := make(chan error, 1)
	go func() { done <- errOf(s.try("a", now, 7)) }()
	require.ErrorContains(t, <-lost, "shard")
	r.start(cursorKey(shardOf("a")))
	require.NoError(t, <-done)
	// A summary that counted more would call for a look at a counter of fewer hits.
	top, err := r.top(time.Hour, now.Add(time.Second), 1)
	if err != nil || top.Floor != 0 || len(top.Counters) != 1 || top.Counters[0].Upper != 14 {
		t.Errorf("%+v, %v", top, err)
	}
	keys := stack.Scan(t, r.client, "test:*:top:*")
	require.Len(t, keys, 2, "one of each level")
	for _, key := range keys {
		require.Equal(t, "\x01\x00\x01a\x0e", r.client.Get(t.Context(), key).Val(), key)
	}
}

// A summary that cannot be read is left as it is, the hits count, and the loss is reported. An erasure leaves
// it, too.
func (r *rig) TestForeignSummaryIsLeftAsItIs(t *testing.T) {
	ctx, now, s := t.Context(), time.Now(), r.open("HITS")
	s.commit("a", now, 1)
	keys := stack.Scan(t, r.client, "test:*:top:*")
	for _, c := range []struct {
		write func(key string) error
		read  func(key string) string
		want  string
	}{
		{func(key string) error { return r.client.Set(ctx, key, "\x02", redis.KeepTTL).Err() },
			func(key string) string { return r.client.Get(ctx, key).Val() }, "version 2"},
		{func(key string) error {
			require.NoError(t, r.client.Del(ctx, key).Err())
			return r.client.HSet(ctx, key, "field", "\x02").Err()
		}, func(key string) string { return r.client.HGet(ctx, key, "field").Val() }, "WRONGTYPE"},
	} {
		for _, key := range keys {
			require.NoError(t, c.write(key))
		}
		got := s.commit("a", now, 1)
		if got.Failed == nil || !slices.Contains(keys, got.Failed.Key) || !strings.Contains(got.Failed.Error(), c.want) {
			t.Errorf("%v; want %s", got.Failed, c.want)
		}
		for _, key := range keys {
			require.Equal(t, "\x02", c.read(key), "%s was overwritten", key)
		}
	}
	require.EqualValues(t, 3, r.total("a", time.Minute, now.Add(time.Second)).Upper)
	require.Error(t, errOf(r.top(time.Second, now, 1)), "the reader takes a foreign summary for silence")
	require.NoError(t, r.client.Set(ctx, keys[0], "not ours", time.Hour).Err()) // the others are of another type
	require.Equal(t, 1, r.erase("a"))
	require.Empty(t, stack.Scan(t, r.client, "test:*:h:*:a"))
	require.Len(t, stack.Scan(t, r.client, "test:*:top:*"), len(keys))
}

func (r *rig) TestNamesAreListed(t *testing.T) {
	now, b := time.Now(), window.NewBatch(layout)
	add := func(counter string, at time.Time) {
		b.Add([]byte(counter), window.HashCounter([]byte(counter)), at.UnixMilli(), at.UnixMilli(), 1)
	}
	longest := layout.Tiers[len(layout.Tiers)-1].Window
	var want []string
	for i := range 500 {
		name := fmt.Sprintf("shop.%03d", i)
		add(name, now.Add(-time.Duration(i%40)*24*time.Hour)) // some before the longest window
		if time.Duration(i%40+1)*24*time.Hour < longest {
			want = append(want, name)
		}
	}
	for _, other := range []string{"shop", "shop-", "shoq", "größe ☃"} {
		add(other, now)
	}
	r.open("HITS").commitBatch(b, cursorAt(1, now))
	all := func(prefix string, limit int) (out []string) {
		t.Helper()
		q := read.NamesQuestion{Prefix: prefix, Limit: limit}
		for range 1000 {
			var page read.Names
			var err error
			r.at(now, func() { page, err = r.reader.Names(t.Context(), q) })
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Counters), limit)
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
		require.Equal(t, want, got, "pages of %d", limit)
	}
	require.Equal(t, "[größe ☃] [shoq] []", fmt.Sprint(all("gr", 5), all("shoq", 5), all("z", 5)))
	r.mustExpire(append(stack.Scan(t, r.client, "test:*:names:*"), stack.Scan(t, r.client, "test:*:top:*")...))
}
