package windowtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// Layout is that of a rig's namespace: what ingest writes by default, with fewer shards.
var Layout = window.Layout{
	Tiers:       Must(window.ParseTiers(window.DefaultTiers)),
	UniqueTiers: Must(window.ParseUniqueTiers(window.DefaultUniqueTiers)),
	Shards:      4,
}

// Must is for values that no test changes.
func Must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// ErrOf is the error of a call of which nothing else matters.
func ErrOf[T any](_ T, err error) error { return err }

// MustName checks that an error names the key that something else has written.
func MustName(t *testing.T, key string, err error) {
	t.Helper()
	var foreign *window.ForeignError
	require.ErrorAs(t, err, &foreign)
	require.Equal(t, key, foreign.Key)
}

func ShardOf(counter string) int { return Layout.ShardOf(window.HashCounter([]byte(counter))) }

// SameShardAs returns another counter of the same shard.
func SameShardAs(counter string) string {
	beside := "b"
	for ShardOf(beside) != ShardOf(counter) {
		beside += "b"
	}
	return beside
}

// CursorKey is the key of the cursor that moves when hits of a counter are committed.
func CursorKey(counter string) string { return fmt.Sprintf("test:{%d}:cursor:HITS", ShardOf(counter)) }

func CursorAt(seq uint64, at time.Time) window.Cursor {
	return window.Cursor{Created: 1, Seq: seq, Stored: at.UnixNano(), AsOf: at.UnixMilli()}
}

// AddHits adds n hits of a counter to a batch, which were stored, perhaps long after they happened.
func AddHits(b *window.Batch, counter string, at, stored, n int64) {
	b.Add([]byte(counter), window.HashCounter([]byte(counter)), at, stored, n)
}

// RegisterOf is the register that a visitor sets.
func RegisterOf(visitor int) unique.Register { return unique.Of(fmt.Append(nil, visitor)) }

// AddVisits adds hits of a counter's visitors, from one number to another, to a batch.
func AddVisits(b *window.Batch, counter string, at time.Time, from, to int) {
	hash := window.HashCounter([]byte(counter))
	for i := from; i < to; i++ {
		AddHits(b, counter, at.UnixMilli(), at.UnixMilli(), 1)
		b.AddUnique([]byte(counter), hash, at.UnixMilli(), at.UnixMilli(), RegisterOf(i))
	}
}

// Rig is an empty Redis with a namespace of one stream.
type Rig struct {
	*Backend
	T      *testing.T
	Layout window.Layout
	Store  *schema.Store
	Reader *read.Reader // by which the local clock stands still
}

func NewRig(t *testing.T, b *Backend) *Rig {
	t.Helper()
	r := &Rig{Backend: b, T: t}
	r.reset(Layout)
	began := time.Now()
	r.Reader.Local = func() time.Time { return began }
	return r
}

func (r *Rig) reset(l window.Layout) {
	r.T.Helper()
	ctx := r.T.Context()
	require.NoError(r.T, r.FlushAll(ctx))
	r.Layout, r.Store = l, schema.NewStore(r.Client, "test")
	require.NoError(r.T, r.Store.EnsureLayout(ctx, l))
	require.NoError(r.T, r.Store.AddStream(ctx, "HITS"))
	r.Reader = read.NewReader(r.Store)
}

// WithLogs empties the namespace, whose logs then have at most so many bytes. With 1, all hits go into the
// tiers.
func (r *Rig) WithLogs(most int) {
	r.T.Helper()
	r.reset(Layout)
	r.Store.MaxLogBytes = most
}

// At lets Redis's clock say now while ask runs.
func (r *Rig) At(now time.Time, ask func()) {
	r.Clock.Hold(&now)
	defer r.Clock.Hold(nil)
	ask()
}

// Session has a writer for each shard of a stream, as a worker's session has.
type Session struct {
	r       *Rig
	Writers []*commit.Writer
	Seq     uint64 // of the last commit
}

// Open begins a session where the cursors are.
func (r *Rig) Open(stream string) *Session {
	r.T.Helper()
	s := &Session{r: r}
	for shard := range r.Layout.Shards {
		w, err := commit.OpenWriter(r.T.Context(), r.Store, r.Layout, stream, shard)
		require.NoError(r.T, err)
		s.Writers = append(s.Writers, w)
		cursor, _ := w.Cursor()
		s.Seq = max(s.Seq, cursor.Seq)
	}
	return s
}

// Of returns the writer that counts a counter.
func (s *Session) Of(counter string) *commit.Writer { return s.Writers[ShardOf(counter)] }

// Try commits n hits of a counter, as of the moment at which they happened.
func (s *Session) Try(counter string, at time.Time, n int64) (commit.Commit, error) {
	s.Seq++
	return s.Of(counter).Commit(s.r.T.Context(), s.r.HitsOf(counter, at, n), CursorAt(s.Seq, at))
}

func (s *Session) Commit(counter string, at time.Time, n int64) commit.Commit {
	s.r.T.Helper()
	out, err := s.Try(counter, at, n)
	require.NoError(s.r.T, err)
	return out
}

// CommitBatch commits a batch, and a cursor that is the same on all shards.
func (s *Session) CommitBatch(b *window.Batch, to window.Cursor) {
	s.r.T.Helper()
	s.Seq = to.Seq
	for shard, w := range s.Writers {
		require.NoError(s.r.T, ErrOf(w.Commit(s.r.T.Context(), b.Shard(shard), to)))
	}
}

// Write moves the cursors of a stream, with writers that are returned.
func (r *Rig) Write(stream string, to window.Cursor) *Session {
	r.T.Helper()
	s := r.Open(stream)
	s.CommitBatch(window.NewBatch(r.Layout), to)
	return s
}

// HitsOf is the batch of a counter's shard with n of its hits.
func (r *Rig) HitsOf(counter string, at time.Time, n int64) *window.ShardBatch {
	b := window.NewBatch(r.Layout)
	AddHits(b, counter, at.UnixMilli(), at.UnixMilli(), n)
	return b.Shard(ShardOf(counter))
}

// CommitAll commits a batch of a stream with new writers of all shards, in a namespace of any layout.
func CommitAll(ctx context.Context, store *schema.Store, l window.Layout, stream string, b *window.Batch,
	to window.Cursor) error {
	for shard := range l.Shards {
		w, err := commit.OpenWriter(ctx, store, l, stream, shard)
		if err == nil {
			_, err = w.Commit(ctx, b.Shard(shard), to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Rig) Total(counter string, w time.Duration, now time.Time) window.Answer {
	r.T.Helper()
	out, err := r.Answer(now, window.Question{Counter: counter, Span: window.Last(w)})
	require.NoError(r.T, err)
	return out.Answers[0]
}

// Answer asks when Redis's clock says now.
func (r *Rig) Answer(now time.Time, questions ...window.Question) (out window.Answers, err error) {
	r.At(now, func() { out, err = r.Reader.Answer(r.T.Context(), questions) })
	return out, err
}

// Uniques asks when Redis's clock says now.
func (r *Rig) Uniques(now time.Time, questions ...window.Question) (out window.Answers, err error) {
	r.At(now, func() { out, err = r.Reader.Uniques(r.T.Context(), questions) })
	return out, err
}

// Top asks when Redis's clock says now.
func (r *Rig) Top(w time.Duration, now time.Time, limit int) (out read.Top, err error) {
	r.At(now, func() { out, err = r.Reader.Top(r.T.Context(), window.Last(w), limit) })
	return out, err
}

// MustHold checks the hits of a counter in the windows of all tiers.
func (r *Rig) MustHold(counter string, now time.Time, want int64) {
	r.T.Helper()
	for _, w := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 720 * time.Hour} {
		a := r.Total(counter, w, now.Add(time.Second))
		require.Equal(r.T, [2]int64{want, want}, [2]int64{a.Lower, a.Upper}, "%s in %v", counter, w)
	}
}

func (r *Rig) MustExpire(keys []string) {
	r.T.Helper()
	for _, key := range keys {
		require.Positive(r.T, r.Client.TTL(r.T.Context(), key).Val(), "%s does not expire", key)
	}
}

// Erase returns how many of the counters had anything.
func (r *Rig) Erase(counters ...string) int {
	r.T.Helper()
	out, err := erase.Eraser{Reader: r.Reader}.Erase(r.T.Context(), counters)
	require.NoError(r.T, err)
	return out.Counters
}

// Left returns which keys have anything of a counter.
func (r *Rig) Left(counter string) (out []string) {
	r.T.Helper()
	ctx := r.T.Context()
	out = append(stack.Scan(r.T, r.Client, "test:*:h:*:"+counter), r.LogsOf(counter)...)
	for _, key := range stack.Scan(r.T, r.Client, "test:*:names:*") {
		if slices.Contains(r.Client.ZRange(ctx, key, 0, -1).Val(), counter) {
			out = append(out, key)
		}
	}
	for _, key := range stack.Scan(r.T, r.Client, "test:*:top:*") {
		if strings.Contains(r.Client.Get(ctx, key).Val(), counter) {
			out = append(out, key)
		}
	}
	return out
}

// LogsOf are the counter's keys of logs.
func (r *Rig) LogsOf(counter string) []string {
	return stack.Scan(r.T, r.Client, "test:*:s:*:"+counter)
}

// AddVisitors puts visitors of a counter into the unique cells of a moment, as a commit of their hits does.
func (r *Rig) AddVisitors(counter string, at time.Time, who ...string) {
	r.T.Helper()
	AddVisitors(r.T, r.Client, r.Layout.UniqueTiers, counter, at, who...)
}

// AddVisitors is that of a Rig, for other clients.
func AddVisitors(t testing.TB, client redis.UniversalClient, tiers window.Tiers, counter string, at time.Time,
	who ...string) {
	t.Helper()
	args := make([]any, len(who))
	for i, w := range who {
		args[i] = unique.Of([]byte(w)).Argument()
	}
	for _, tier := range tiers {
		require.NoError(t, client.PFAdd(t.Context(), UniqueKey(counter, tier, at), args...).Err())
	}
}

func UniqueKey(counter string, tier window.Tier, at time.Time) string {
	cell := at.UnixMilli() / tier.Cell.Milliseconds()
	return fmt.Sprintf("test:{%d}:u:%s:%d:%s", ShardOf(counter), human.FormatDuration(tier.Cell), cell, counter)
}

// UniqueNow is half past ten and two minutes of today: of an hour that ends then, cells of 5m are cut at its
// beginning.
func UniqueNow() time.Time {
	return time.Now().UTC().Truncate(24 * time.Hour).Add(10*time.Hour + 32*time.Minute)
}
