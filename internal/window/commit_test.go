package window_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

func aCommitCountsInEveryTier(t *testing.T, r *rig) {
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
	r.mustExpire(stack.Scan(t, r.client, "test:*:h:*"))
}

func hashesAreListpacks(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 3)
	require.NoError(t, errOf(r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	keys := stack.Scan(t, r.client, "test:*:h:*")
	if len(keys) != len(layout.Tiers) {
		t.Errorf("%d hashes, want one a tier", len(keys))
	}
	for _, key := range keys {
		encoding, err := r.client.ObjectEncoding(t.Context(), key).Result()
		if err != nil || encoding != "listpack" {
			t.Errorf("%s is kept as %s, %v", key, encoding, err)
		}
	}
}

func expiryGoesOutOnceForAHashInUse(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	commands := func(seq uint64) int {
		got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq, now))
		require.NoError(t, err)
		return got.Commands
	}
	first, second := commands(1), commands(2)
	// And the name with its expiry, and the note for erasers that there is a new cursor.
	if first-second != len(layout.Tiers)+3 {
		t.Errorf("the first commit has %d commands and the second %d; want %d fewer", first, second, len(layout.Tiers)+3)
	}
	r.mustExpire(stack.Scan(t, r.client, "test:*:h:*"))
}

// After a loss another writer can arrive at the same cursor over other hits. What
// the first remembers of expiries and names is then not so.
func theSamePlaceOverOtherHitsFences(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	first := r.writers()[shard]
	require.NoError(t, errOf(first.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	require.NoError(t, r.flushAll(t.Context()))
	second := r.writers()[shard]
	other := window.NewBatch(layout)
	for i := 0; other.Shard(shard).Hits() == 0; i++ {
		name := fmt.Appendf(nil, "other%d", i)
		if hash := window.HashCounter(name); layout.ShardOf(hash) == shard {
			other.Add(name, hash, now.UnixMilli(), now.UnixMilli(), 1)
		}
	}
	require.NoError(t, errOf(second.Commit(t.Context(), other.Shard(shard), cursorAt(1, now))))
	require.ErrorIs(t, errOf(first.Commit(t.Context(), b.Shard(shard), cursorAt(2, now))), window.ErrFenced, "over another writer's hits")
	// Idle writers may each move as_of, and none fences the other.
	third, later := r.writers()[shard], cursorAt(1, now)
	empty := window.NewBatch(layout).Shard(shard)
	for i, w := range []*window.Writer{second, third, second, third} {
		later.AsOf += int64(i)
		require.NoError(t, errOf(w.Commit(t.Context(), empty, later)))
	}
}

func aLossInRedisRewinds(t *testing.T, r *rig) {
	for name, lose := range map[string]func(*rig, int) error{
		"all": func(r *rig, _ int) error { return r.flushAll(r.t.Context()) },
		"the last commit": func(r *rig, shard int) error {
			return r.client.HSet(r.t.Context(), cursorKey(shard), "seq", 1).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, r.backend)
			now := time.Now()
			b, shard := batchOf("a", now.UnixMilli(), 1)
			w := r.writers()[shard]
			for seq := range uint64(2) {
				require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(seq+1, now))))
			}
			require.NoError(t, lose(r, shard))
			if _, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(3, now)); !errors.Is(err, window.ErrRewound) {
				t.Fatalf("a writer ahead of Redis: %v", err)
			}
		})
	}
}

func whatHasExpiredIsSkipped(t *testing.T, r *rig) {
	now := time.Now()
	old := now.Add(-3 * time.Hour) // stored then, committed now: the two finest tiers have expired
	b, shard := batchOf("a", old.UnixMilli(), 1)
	require.NoError(t, errOf(r.writers()[shard].Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	keys := stack.Scan(t, r.client, "test:*:h:*")
	for _, key := range keys {
		if strings.Contains(key, ":h:1s:") {
			t.Errorf("%s was written after its deadline", key)
		}
	}
	require.EqualValues(t, 1, r.total("a", 24*time.Hour, now).Upper)
}

func aCommandThatFailsIsReported(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	for _, key := range stack.Scan(t, r.client, "test:*:h:1h:*") {
		require.NoError(t, r.client.Set(t.Context(), key, "not ours", time.Hour).Err())
	}
	got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(2, now))
	if err != nil || got.Failed == nil || !strings.Contains(got.Failed.Error(), "WRONGTYPE") {
		t.Fatalf("commit onto a key of another type: %+v, %v", got, err)
	}
	require.EqualValues(t, 2, r.total("a", time.Minute, now.Add(time.Second)).Upper)
}

// Waiting does not mend a key that something else has written to: the writer says which one it is.
func aForeignCursorEndsTheWriter(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	key := fmt.Sprintf("test:{%d}:cursor:HITS", shard)
	for _, write := range []func() error{
		func() error { return r.client.HSet(t.Context(), key, "seq", "x").Err() },
		func() error { return r.client.Set(t.Context(), key, "not ours", 0).Err() },
	} {
		require.NoError(t, write())
		var foreign *window.ForeignError
		if _, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(2, now)); !errors.As(err, &foreign) || foreign.Key != key {
			t.Errorf("commit: %v", err)
		}
		foreign = nil
		if _, err := r.store.OpenWriter(t.Context(), layout, "HITS", shard); !errors.As(err, &foreign) || foreign.Key != key {
			t.Errorf("open: %v", err)
		}
	}
}

// losesAReply lets one transaction through and drops what came back of it.
type losesAReply struct{ armed atomic.Bool }

func (*losesAReply) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*losesAReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (l *losesAReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if cmds[0].Name() != "multi" || !l.armed.Swap(false) {
			return err
		}
		for _, cmd := range cmds {
			cmd.SetErr(io.ErrUnexpectedEOF)
		}
		return io.ErrUnexpectedEOF
	}
}

// What the reply would have told is found out from the cells: also where another
// worker has gone on from the transaction meanwhile.
func aLostReplyHidesNoFailedCommand(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(losesAReply)
	r.addHook(hook)
	for i, test := range []struct {
		name    string
		damage  func(key string) error
		another bool // worker commits before this one looks again
		failed  bool
	}{
		{"nothing is wrong", nil, false, false},
		{"another type", func(key string) error { return r.client.Set(t.Context(), key, "not ours", time.Hour).Err() }, false, true},
		{"fenced, nothing is wrong", nil, true, false},
		{"fenced, another type", func(key string) error { return r.client.Set(t.Context(), key, "not ours", time.Hour).Err() }, true, true},
	} {
		counter := fmt.Sprintf("a%d", i)
		b, shard := batchOf(counter, now.UnixMilli(), 1)
		w := r.writers()[shard]
		from := uint64(10 * (i + 1))
		require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), cursorAt(from, now))))
		for _, key := range stack.Scan(t, r.client, "test:*:h:*:"+counter) {
			if test.damage != nil {
				require.NoError(t, test.damage(key))
			}
		}
		w.OnRetry = func(error) {
			if !test.another {
				return
			}
			other := r.writers()[shard]
			require.NoError(t, errOf(other.Commit(t.Context(), window.NewBatch(layout).Shard(shard), cursorAt(from+2, now))))
		}
		hook.armed.Store(true)
		got, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(from+1, now))
		if errors.Is(err, window.ErrFenced) != test.another || err != nil && !test.another {
			t.Errorf("%s: %v", test.name, err)
		}
		if (got.Failed != nil) != test.failed {
			t.Errorf("%s: failed %v", test.name, got.Failed)
		}
	}
}

func answersFollowTheNamespace(t *testing.T, r *rig) {
	now := time.Now()
	ask := func() (window.Answers, error) {
		return r.answer(now, window.Question{Counter: "a", Span: window.Last(time.Minute)})
	}
	if a, err := ask(); err != nil || a.AsOf != 0 || a.Answers[0].Complete {
		t.Errorf("before any commit: %+v, %v", a, err)
	}
	empty := window.NewBatch(layout)
	for shard, w := range r.writers() {
		require.NoError(t, errOf(w.Commit(t.Context(), empty.Shard(shard), cursorAt(1, now))))
	}
	if a, err := ask(); err != nil || a.AsOf != now.UnixMilli() || !a.Answers[0].Complete {
		t.Errorf("after a commit: %+v, %v", a, err)
	}
	// A stream that joins holds as_of back until it is counted.
	require.NoError(t, r.store.AddStream(t.Context(), "HITS_2"))
	if a, err := ask(); err != nil || a.AsOf != 0 || a.Answers[0].Complete {
		t.Errorf("with a new stream: %+v, %v", a, err)
	}
	require.NoError(t, r.flushAll(t.Context()))
	require.ErrorIs(t, errOf(ask()), window.ErrNoLayout, "after a flush")
	other := layout
	other.Shards = 1
	require.NoError(t, r.store.EnsureLayout(t.Context(), other))
	if _, err := ask(); err != nil {
		t.Errorf("with another layout: %v", err)
	}
}

func oneAnswerFromAllShards(t *testing.T, r *rig) {
	now := time.Now()
	from := now.Add(-time.Minute).Truncate(time.Minute) // where cells of each tier begin: which of them answers depends on how long this takes
	all := window.NewBatch(layout)
	var questions []window.Question
	for i := range 100 {
		name := fmt.Sprintf("c%d", i)
		all.Add([]byte(name), window.HashCounter([]byte(name)), now.UnixMilli(), now.UnixMilli(), int64(i+1))
		questions = append(questions, window.Question{Counter: name, Span: window.Between(from.UnixMilli(), window.Now)})
	}
	for shard, w := range r.writers() {
		require.NoError(t, errOf(w.Commit(t.Context(), all.Shard(shard), cursorAt(1, now.Add(time.Duration(shard)*time.Second)))))
	}
	got, err := r.answer(now.Add(5*time.Second), questions...)
	if err != nil || got.AsOf != now.UnixMilli() {
		t.Fatalf("as of %d, %v; want the earliest of the shards, %d", got.AsOf, err, now.UnixMilli())
	}
	for i, a := range got.Answers {
		if a.Lower != int64(i+1) || a.Upper != int64(i+1) {
			t.Errorf("c%d has %+v, want %d", i, a.Total, i+1)
		}
	}
}

func completeComparesWithWhatIsMissing(t *testing.T, r *rig) {
	now := time.Now()
	began := now.Add(-30 * time.Minute)
	missing := now.Add(-10 * time.Minute)
	b, shard := batchOf("a", now.UnixMilli(), 1)
	next := cursorAt(1, now)
	next.Created, next.IncompleteBefore = began.UnixNano(), 0
	w := r.writers()[shard]
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), next)))
	if !r.total("a", 29*time.Minute, now).Complete || r.total("a", 31*time.Minute, now).Complete {
		t.Error("complete does not follow the beginning of counting")
	}
	next.Seq, next.IncompleteBefore = 2, missing.UnixMilli()
	require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), next)))
	if !r.total("a", 9*time.Minute, now).Complete || r.total("a", 11*time.Minute, now).Complete {
		t.Error("complete does not follow the messages discarded unread")
	}
}

// A worker that has found the clock of NATS set back writes an earlier as_of.
func asOfFallsWithTheClockOfNATS(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	empty := window.NewBatch(layout)
	asOf := func() int64 {
		t.Helper()
		w, err := r.store.OpenWriter(t.Context(), layout, "HITS", shard)
		require.NoError(t, err)
		c, _ := w.Cursor()
		return c.AsOf
	}
	w := r.writers()[shard]
	next := cursorAt(1, now)
	commit := func(b *window.Batch, later time.Duration) {
		t.Helper()
		next.AsOf = now.Add(later).UnixMilli()
		require.NoError(t, errOf(w.Commit(t.Context(), b.Shard(shard), next)))
	}
	commit(b, time.Minute)
	commit(empty, -time.Minute)
	if got, want := asOf(), now.Add(-time.Minute).UnixMilli(); got != want {
		t.Errorf("as_of is %d, want %d: it was to fall", got, want)
	}
}

// A stream that was deleted holds as_of back no more; what it counted, and what
// is missing of it, stay.
func anEndedStreamHoldsNothingBack(t *testing.T, r *rig) {
	now := time.Now()
	old, began := now.Add(-20*time.Minute), now.Add(-time.Hour)
	ask := func(back time.Duration) window.Answers {
		t.Helper()
		a, err := r.answer(now, window.Question{Counter: "a", Span: window.Last(back)})
		require.NoError(t, err)
		return a
	}
	require.NoError(t, r.store.AddStream(t.Context(), "OLD"))
	r.shardsOf("OLD", window.Cursor{Created: began.UnixNano(), Seq: 9, Stored: old.UnixNano(), AsOf: old.UnixMilli()})
	r.shardsOf("HITS", window.Cursor{Created: now.Add(-time.Minute).UnixNano(), Seq: 1, Stored: now.UnixNano(), AsOf: now.UnixMilli()})
	if a := ask(50 * time.Minute); a.AsOf != old.UnixMilli() || !a.Answers[0].Complete {
		t.Errorf("while it lives: %+v", a)
	}

	end := func(gone bool) bool {
		t.Helper()
		ended, err := r.store.EndStream(t.Context(), "OLD", now.UnixMilli(), began.UnixMilli(), func() (bool, error) { return gone, nil })
		require.NoError(t, err)
		return ended
	}
	if end(false) || !end(true) || end(true) {
		t.Error("a stream ends once, and only when it is gone")
	}
	if a := ask(50 * time.Minute); a.AsOf != now.UnixMilli() || a.Answers[0].Complete {
		t.Errorf("after its end, with cursors from before: %+v", a)
	}
	r.shardsOf("OLD", window.Cursor{Created: began.UnixNano(), Seq: 9, Stored: old.UnixNano(), AsOf: old.UnixMilli(), Ended: true})
	if a := ask(50 * time.Minute); a.AsOf != now.UnixMilli() || !a.Answers[0].Complete {
		t.Errorf("after its end: %+v", a)
	}
	if a := ask(70 * time.Minute); a.Answers[0].Complete {
		t.Error("counting did not begin before the ended stream")
	}
	r.shardsOf("OLD", window.Cursor{Created: began.UnixNano(), Seq: 9, Stored: old.UnixNano(), AsOf: old.UnixMilli(), Ended: true, IncompleteBefore: old.UnixMilli()})
	if a := ask(50 * time.Minute); a.AsOf != now.UnixMilli() || a.Answers[0].Complete {
		t.Errorf("with hits missing of it: %+v", a)
	}

	require.NoError(t, r.store.AddStream(t.Context(), "OLD"))
	r.shardsOf("OLD", window.Cursor{Created: began.UnixNano(), Seq: 9, Stored: old.UnixNano(), AsOf: old.UnixMilli(), IncompleteBefore: old.UnixMilli()})
	if a := ask(10 * time.Minute); a.AsOf != old.UnixMilli() {
		t.Errorf("alive again: %+v", a)
	}
	// Somebody lists it as live while it is being ended.
	ended, err := r.store.EndStream(t.Context(), "OLD", now.UnixMilli(), began.UnixMilli(), func() (bool, error) { return true, r.store.AddStream(t.Context(), "OLD") })
	if err != nil || ended {
		t.Errorf("ended over a worker that has it: %v, %v", ended, err)
	}

	for _, name := range []string{"OLD", "HITS"} {
		if ok, err := r.store.EndStream(t.Context(), name, now.UnixMilli()+5, 0, func() (bool, error) { return true, nil }); err != nil || !ok {
			t.Fatalf("end %s: %v, %v", name, ok, err)
		}
	}
	if a := ask(10 * time.Minute); a.AsOf != now.UnixMilli()+5 {
		t.Errorf("with no stream left: %+v", a)
	}
	listed, err := r.store.Streams(t.Context())
	if err != nil || len(listed) != 2 || listed["OLD"].Ended == 0 || listed["HITS"].Ended == 0 {
		t.Errorf("listed: %+v, %v", listed, err)
	}
}
