package query

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// cursorOf says, on every shard, how far a stream has been counted.
func cursorOf(t *testing.T, store *window.Store, stream string, c window.Cursor) {
	t.Helper()
	layout := testLayout(t)
	if err := store.EnsureLayout(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	if err := store.AddStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	for shard := range layout.Shards {
		w, err := store.OpenWriter(t.Context(), layout, stream, shard)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(t.Context(), window.NewBatch(layout).Shard(shard), c); err != nil {
			t.Fatal(err)
		}
	}
}

// An answer is complete from the very moment on from which nothing is known to be
// missing, and not a millisecond before; as_of is that of the slowest stream.
func TestCompleteExactly(t *testing.T) {
	now := testNow().Truncate(time.Millisecond)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const old = 100 * 24 * time.Hour
	cursor := func(created time.Time, incompleteBefore time.Time, asOf time.Time) window.Cursor {
		c := window.Cursor{Created: created.UnixNano(), Seq: 1, Stored: created.UnixNano(), AsOf: asOf.UnixMilli()}
		if !incompleteBefore.IsZero() {
			c.IncompleteBefore = incompleteBefore.UnixMilli()
		}
		return c
	}
	var never time.Time
	for _, c := range []struct {
		name    string
		streams []window.Cursor
		since   time.Time // complete from here on
		asOf    time.Time
	}{
		{"nothing is missing", []window.Cursor{cursor(ago(old), never, now)}, ago(24 * time.Hour), now},
		{"counting began inside", []window.Cursor{cursor(ago(10*time.Hour), never, now)}, ago(10 * time.Hour), now},
		{"discarded by retention or a purge", []window.Cursor{cursor(ago(old), ago(3*time.Hour), ago(time.Second))}, ago(3 * time.Hour), ago(time.Second)},
		{"a stream was added", []window.Cursor{cursor(ago(old), never, now), cursor(ago(time.Hour), never, ago(2*time.Second))}, ago(24 * time.Hour), ago(2 * time.Second)},
		{"the added one has discarded", []window.Cursor{cursor(ago(old), never, now), cursor(ago(time.Hour), ago(30*time.Minute), now)}, ago(30 * time.Minute), now},
		{"both have", []window.Cursor{cursor(ago(old), ago(5*time.Hour), now), cursor(ago(old), ago(4*time.Hour), now)}, ago(4 * time.Hour), now},
		{"discarded before counting began", []window.Cursor{cursor(ago(2*time.Hour), ago(9*time.Hour), now)}, ago(2 * time.Hour), now},
	} {
		t.Run(c.name, func(t *testing.T) {
			redis := stack.Redis(t)
			store := window.NewStore(redis.Client(), namespace)
			for i, cursor := range c.streams {
				cursorOf(t, store, fmt.Sprintf("HITS_%d", i), cursor)
			}
			h := onRedis(t, redis.URL(), now).handler()
			for from, want := range map[time.Time]bool{
				c.since: true, c.since.Add(time.Minute): true,
				c.since.Add(-time.Millisecond): false, c.since.Add(-time.Minute): false,
			} {
				if from.Before(ago(24 * time.Hour)) {
					continue // no tier reaches back so far
				}
				got := answered(t, ask1(h, http.MethodGet, fmt.Sprintf("/v1/total?key=a&from=%d", from.UnixMilli()), ""))
				if got.Totals[0].Complete != want || !got.AsOf.Equal(c.asOf) {
					t.Errorf("from %v: complete %t as of %v, want %t as of %v", from, got.Totals[0].Complete, got.AsOf, want, c.asOf)
				}
			}
		})
	}
}

// A stream that is listed and has no cursor yet may hold hits of any time.
func TestNotCompleteBeforeAStreamIsRead(t *testing.T) {
	redis, now := stack.Redis(t), testNow()
	store := window.NewStore(redis.Client(), namespace)
	cursorOf(t, store, "HITS_0", window.Cursor{Created: now.Add(-time.Hour).UnixNano(), Seq: 1, Stored: 1, AsOf: now.UnixMilli()})
	if err := store.AddStream(t.Context(), "HITS_1"); err != nil {
		t.Fatal(err)
	}
	h := onRedis(t, redis.URL(), now).handler()
	got := answered(t, ask1(h, http.MethodGet, "/v1/total?key=a&window=1m", ""))
	if got.Totals[0].Complete || got.AsOf.UnixMilli() != 0 {
		t.Errorf("complete %t as of %v", got.Totals[0].Complete, got.AsOf)
	}
}

// Every resource says 503 in time where Redis is away, and answers by itself when it is back.
func TestEveryResourceWithoutRedis(t *testing.T) {
	redis, now := stack.Redis(t), testNow()
	seed(t, redis.Client(), now, sample{"a", now.Add(-time.Minute), 3})
	s := onRedis(t, redis.URL(), now)
	watched(t, s)
	h := s.handler()
	redis.Pause()
	for _, target := range []string{"/v1/total?key=a&window=10m", "/v1/series?key=a", "/v1/series?key=a&format=svg", "/v1/live?key=a&window=10m"} {
		start := time.Now()
		resp := ask1(h, http.MethodGet, target, "")
		refused(t, resp, http.StatusServiceUnavailable)
		if took := time.Since(start); took > patience || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: refused after %v, Retry-After %q", target, took, resp.Header.Get("Retry-After"))
		}
	}
	redis.Resume()
	eventuallyReady(t, h, http.StatusOK)
	for _, target := range []string{"/v1/total?key=a&window=10m", "/v1/series?key=a", "/v1/series?key=a&format=svg"} {
		stack.Eventually(t, time.Minute, target+" to be answered", func() (bool, string) {
			resp := ask1(h, http.MethodGet, target, "")
			return resp.StatusCode == http.StatusOK, resp.Status
		})
	}
}
