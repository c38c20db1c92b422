package window_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

var layout = func() window.Layout {
	tiers, err := window.ParseTiers("1s/1m,1m/1h,15m/1d,6h/30d", window.DefaultMaxCells)
	if err != nil {
		panic(err)
	}
	return window.Layout{Tiers: tiers, Shards: 4}
}()

// rig is a namespace in a real Redis with one stream, and the hits committed to it.
type rig struct {
	t      *testing.T
	server *stack.RedisServer
	client *redis.Client
	store  *window.Store
	reader *window.Reader
}

func newRig(t *testing.T) *rig {
	server := stack.Redis(t)
	client := server.Client()
	store := window.NewStore(client, "test")
	ctx := t.Context()
	if err := store.EnsureLayout(ctx, layout); err != nil {
		t.Fatal(err)
	}
	if err := store.AddStream(ctx, "HITS"); err != nil {
		t.Fatal(err)
	}
	return &rig{t, server, client, store, window.NewReader(store)}
}

// writers opens a writer for every shard.
func (r *rig) writers() []*window.Writer {
	r.t.Helper()
	out := make([]*window.Writer, layout.Shards)
	for i := range out {
		w, err := r.store.OpenWriter(r.t.Context(), layout, "HITS", i)
		if err != nil {
			r.t.Fatal(err)
		}
		out[i] = w
	}
	return out
}

func batchOf(counter string, at, n int64) (*window.Batch, int) {
	b := window.NewBatch(layout)
	hash := window.HashCounter([]byte(counter))
	b.Add([]byte(counter), hash, at, at, n)
	return b, layout.ShardOf(hash)
}

func cursorAt(seq uint64, at time.Time) window.Cursor {
	return window.Cursor{Created: 1, Seq: seq, Stored: at.UnixNano(), AsOf: at.UnixMilli()}
}

func (r *rig) total(counter string, w time.Duration, now time.Time) window.Answer {
	r.t.Helper()
	out, err := r.reader.Answer(r.t.Context(), now.UnixMilli(), []window.Question{{
		Counter: counter, Range: window.Range{From: now.Add(-w).UnixMilli(), To: now.UnixMilli()},
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	return out.Answers[0]
}

func TestACommitCountsInEveryTier(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 3)
	got, err := r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(1, now))
	if err != nil || got.Hits != 3 || got.Attempts != 1 || got.Failed != nil {
		t.Fatalf("commit: %+v, %v", got, err)
	}
	for _, w := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 720 * time.Hour} {
		if a := r.total("a", w, now.Add(time.Second)); a.Lower != 3 || a.Upper != 3 {
			t.Errorf("window %v: %+v", w, a)
		}
	}
	for _, key := range stack.Scan(t, r.client, "test:*:h:*") {
		ttl, err := r.client.TTL(t.Context(), key).Result()
		if err != nil || ttl <= 0 {
			t.Errorf("%s expires in %v, %v", key, ttl, err)
		}
		encoding, err := r.client.ObjectEncoding(t.Context(), key).Result()
		if err != nil || encoding != "listpack" {
			t.Errorf("%s is kept as %s, %v", key, encoding, err)
		}
	}
}

func TestExpiryGoesOutOnceForAHashInUse(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	commands := func(seq uint64) int {
		got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq, now))
		if err != nil {
			t.Fatal(err)
		}
		return got.Commands
	}
	first, second := commands(1), commands(2)
	if first-second != len(layout.Tiers)+2 { // and the name with its expiry
		t.Errorf("the first commit has %d commands and the second %d; want %d fewer", first, second, len(layout.Tiers)+2)
	}
	for _, key := range stack.Scan(t, r.client, "test:*:h:*") {
		if ttl := r.client.TTL(t.Context(), key).Val(); ttl <= 0 {
			t.Errorf("%s has no expiry", key)
		}
	}
}

func TestAnotherWorkersCursorFences(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	old, young := r.writers()[shard], r.writers()[shard]
	if _, err := young.Commit(t.Context(), b.Shard(shard), cursorAt(5, now)); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Commit(t.Context(), b.Shard(shard), cursorAt(3, now)); !errors.Is(err, window.ErrFenced) {
		t.Fatalf("a writer whose cursor was moved: %v", err)
	}
	if a := r.total("a", time.Minute, now.Add(time.Second)); a.Upper != 1 {
		t.Errorf("counted %+v; want 1", a)
	}
}

func TestALossInRedisRewinds(t *testing.T) {
	for name, lose := range map[string]func(*rig, int) error{
		"all": func(r *rig, _ int) error { return r.client.FlushAll(r.t.Context()).Err() },
		"the last commit": func(r *rig, shard int) error {
			return r.client.HSet(r.t.Context(), fmt.Sprintf("test:{%d}:cursor:HITS", shard), "seq", 1).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			now := time.Now()
			b, shard := batchOf("a", now.UnixMilli(), 1)
			w := r.writers()[shard]
			for seq := range uint64(2) {
				if _, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq+1, now)); err != nil {
					t.Fatal(err)
				}
			}
			if err := lose(r, shard); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(3, now)); !errors.Is(err, window.ErrRewound) {
				t.Fatalf("a writer ahead of Redis: %v", err)
			}
		})
	}
}

func TestACommitOutlastsRedis(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 7)
	w := r.writers()[shard]
	lost := make(chan error, 100)
	w.OnRetry = func(err error) { lost <- err }
	r.server.Stop()
	done := make(chan error, 1)
	go func() {
		_, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))
		done <- err
	}()
	if err := <-lost; !strings.Contains(err.Error(), "shard") {
		t.Errorf("the retry's error names no shard: %v", err)
	}
	r.server.Start()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if a := r.total("a", time.Minute, now.Add(time.Second)); a.Upper != 7 {
		t.Errorf("counted %+v; want 7", a)
	}
}

func TestCommitGivesUpWithItsContext(t *testing.T) {
	r := newRig(t)
	b, shard := batchOf("a", time.Now().UnixMilli(), 1)
	w := r.writers()[shard]
	r.server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	w.OnRetry = func(error) { cancel() }
	if _, err := w.Commit(ctx, b.Shard(shard), cursorAt(1, time.Now())); !errors.Is(err, context.Canceled) {
		t.Errorf("commit without Redis: %v", err)
	}
}

func TestWhatHasExpiredIsSkipped(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	old := now.Add(-3 * time.Hour) // stored then, committed now: the two finest tiers have expired
	b, shard := batchOf("a", old.UnixMilli(), 1)
	if _, err := r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(1, now)); err != nil {
		t.Fatal(err)
	}
	keys := stack.Scan(t, r.client, "test:*:h:*")
	for _, key := range keys {
		if strings.Contains(key, ":h:1s:") {
			t.Errorf("%s was written after its deadline", key)
		}
	}
	if a := r.total("a", 24*time.Hour, now); a.Upper != 1 {
		t.Errorf("counted %+v; want 1", a)
	}
}

func TestACommandThatFailsIsReported(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	if _, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now)); err != nil {
		t.Fatal(err)
	}
	for _, key := range stack.Scan(t, r.client, "test:*:h:6h:*") {
		if err := r.client.Set(t.Context(), key, "not ours", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(2, now))
	if err != nil || got.Failed == nil || !strings.Contains(got.Failed.Error(), "WRONGTYPE") {
		t.Fatalf("commit onto a key of another type: %+v, %v", got, err)
	}
	if a := r.total("a", time.Minute, now.Add(time.Second)); a.Upper != 2 {
		t.Errorf("the other tiers have %+v; want 2", a)
	}
}

func TestLayoutIsFixed(t *testing.T) {
	r := newRig(t)
	if err := r.store.EnsureLayout(t.Context(), layout); err != nil {
		t.Errorf("the same layout again: %v", err)
	}
	other := layout
	other.Shards = 5
	var mismatch *window.LayoutMismatchError
	if err := r.store.EnsureLayout(t.Context(), other); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "SHARDS=4") {
		t.Errorf("another layout: %v", err)
	}
}

func TestAnswersFollowTheNamespace(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	ask := func() (window.Answers, error) {
		return r.reader.Answer(t.Context(), now.UnixMilli(), []window.Question{{Counter: "a", Range: window.Range{From: now.UnixMilli() - 60_000, To: now.UnixMilli()}}})
	}
	if a, err := ask(); err != nil || a.AsOf != 0 || a.Answers[0].Complete {
		t.Errorf("before any commit: %+v, %v", a, err)
	}
	empty := window.NewBatch(layout)
	for shard, w := range r.writers() {
		if _, err := w.Commit(t.Context(), empty.Shard(shard), cursorAt(1, now)); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := ask(); err != nil || a.AsOf != now.UnixMilli() || !a.Answers[0].Complete {
		t.Errorf("after a commit: %+v, %v", a, err)
	}
	// A stream that joins holds as_of back until it is counted.
	if err := r.store.AddStream(t.Context(), "HITS_2"); err != nil {
		t.Fatal(err)
	}
	if a, err := ask(); err != nil || a.AsOf != 0 || a.Answers[0].Complete {
		t.Errorf("with a new stream: %+v, %v", a, err)
	}
	if err := r.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(); !errors.Is(err, window.ErrNoLayout) {
		t.Errorf("after a flush: %v", err)
	}
	other := layout
	other.Shards = 1
	if err := r.store.EnsureLayout(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(); err != nil {
		t.Errorf("with another layout: %v", err)
	}
}

func TestCompleteComparesWithWhatIsMissing(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	began := now.Add(-30 * time.Minute)
	missing := now.Add(-10 * time.Minute)
	b, shard := batchOf("a", now.UnixMilli(), 1)
	next := cursorAt(1, now)
	next.Created, next.IncompleteBefore = began.UnixNano(), 0
	w := r.writers()[shard]
	if _, err := w.Commit(t.Context(), b.Shard(shard), next); err != nil {
		t.Fatal(err)
	}
	if !r.total("a", 29*time.Minute, now).Complete || r.total("a", 31*time.Minute, now).Complete {
		t.Error("complete does not follow the beginning of counting")
	}
	next.Seq, next.IncompleteBefore = 2, missing.UnixMilli()
	if _, err := w.Commit(t.Context(), b.Shard(shard), next); err != nil {
		t.Fatal(err)
	}
	if !r.total("a", 9*time.Minute, now).Complete || r.total("a", 11*time.Minute, now).Complete {
		t.Error("complete does not follow the messages discarded unread")
	}
}
