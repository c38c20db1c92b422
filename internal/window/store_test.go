package window_test

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) {
	retier.ReplicationTime = 20 * time.Millisecond
	stack.Main(m)
}

// TestStore runs every exported method of a rig, one suite for every kind of Redis.
func TestStore(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *backend{
		"one server": startServer, "cluster": startCluster, "stand-in": startStandIn,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			for i := range reflect.TypeFor[*rig]().NumMethod() {
				method := reflect.TypeFor[*rig]().Method(i)
				t.Run(method.Name, func(t *testing.T) {
					if why, ok := b.cannot[method.Name]; ok {
						t.Skip("the stand-in cannot: " + why)
					}
					method.Func.Interface().(func(*rig, *testing.T))(newRig(t, b), t)
				})
			}
		})
	}
}

// backend is a Redis that the cases use one after the other, through the
// programs' own client.
type backend struct {
	client      redis.UniversalClient
	clock       *stack.RedisClock // of the client
	stop, start func(key string)  // the server that holds the key
	cannot      map[string]string // cases, and why not
}

func startServer(t *testing.T) *backend {
	server := stack.Redis(t)
	return &backend{
		client: stack.ProgramClient(t, server.URL()),
		stop:   func(string) { server.Stop() },
		start:  func(string) { server.Start() },
	}
}

func startCluster(t *testing.T) *backend {
	cluster := stack.Cluster(t, 0)
	var stopped *stack.RedisServer
	return &backend{
		client: stack.ProgramClient(t, cluster.URL()),
		stop:   func(key string) { stopped = cluster.MasterOf(key); stopped.Stop() },
		start:  func(string) { stopped.Start(); cluster.WaitOK() },
	}
}

const hasNoRegisters = "its HyperLogLog hashes otherwise and cannot be read"

// startStandIn is what cmd/dev runs where there is no redis-server.
func startStandIn(t *testing.T) *backend {
	server := miniredis.RunT(t)
	return &backend{
		client: stack.ProgramClient(t, "redis://"+server.Addr()),
		stop:   func(string) { server.Close() },
		start: func(string) {
			if err := server.Restart(); err != nil {
				t.Error(err)
			}
		},
		cannot: map[string]string{
			"TestUniquesOfEachStep":               "its PFCOUNT of several keys counts some twice",
			"TestCommitCountsInEveryTier":         "OBJECT ENCODING is unknown to it",
			"TestCommitCountsOnceAfterACut":       "CLIENT KILL is unknown to it",
			"TestNothingIsCommittedWithoutAWatch": "ACL is unknown to it",
			"TestRegistersAreThoseOfTheValues":    hasNoRegisters,
			"TestOnlyNewRegistersAreSent":         hasNoRegisters,
			"TestLostRegistersComeBack":           hasNoRegisters,
			"TestForeignUniqueCellIsReported":     hasNoRegisters,
		},
	}
}

// eachServer calls do with the client of every server that holds data.
func (b *backend) eachServer(ctx context.Context, do func(context.Context, *redis.Client) error) error {
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, do)
	}
	return do(ctx, b.client.(*redis.Client))
}

// flushAll empties every server.
func (b *backend) flushAll(ctx context.Context) error {
	return b.eachServer(ctx, func(ctx context.Context, server *redis.Client) error { return server.FlushAll(ctx).Err() })
}

var layout = window.Layout{
	Tiers:       must(window.ParseTiers(window.DefaultTiers)),
	UniqueTiers: must(window.ParseUniqueTiers(window.DefaultUniqueTiers)),
	Shards:      4,
}

// must is for values that no test changes.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// rig is an empty Redis with a namespace of one stream.
type rig struct {
	*backend
	t      *testing.T
	store  *schema.Store
	reader *read.Reader // by which the local clock stands still
}

// at lets Redis's clock say now while ask runs.
func (r *rig) at(now time.Time, ask func()) {
	r.clock.Hold(&now)
	defer r.clock.Hold(nil)
	ask()
}

func newRig(t *testing.T, b *backend) *rig {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, b.flushAll(ctx))
	store := schema.NewStore(b.client, "test")
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	if b.clock == nil {
		b.clock = stack.WatchClock(b.client)
	}
	reader, began := read.NewReader(store), time.Now()
	reader.Local = func() time.Time { return began }
	return &rig{b, t, store, reader}
}

// hook sees each request, which is a command or a pipeline. It goes out when send is called.
type hook func(ctx context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(ctx, []redis.Cmder{cmd}, func(cmds []redis.Cmder) error { return next(ctx, cmds[0]) })
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(ctx, cmds, func(cmds []redis.Cmder) error { return next(ctx, cmds) })
	}
}

// addHook adds a hook to whatever sends commands: the clients of a cluster's masters, or the client.
func (b *backend) addHook(t *testing.T, h hook) {
	t.Helper()
	add := func(_ context.Context, server *redis.Client) error { server.AddHook(h); return nil }
	require.NoError(t, b.eachServer(t.Context(), add))
}

// failAll gives commands an error in place of what came back.
func failAll(cmds []redis.Cmder, err error) error {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// trouble is what happens to a transaction.
type trouble struct {
	before, after func()
	lost          bool // its reply
}

// addTrouble returns where the trouble of the next transaction is put.
func (r *rig) addTrouble() *atomic.Pointer[trouble] {
	r.t.Helper()
	next := new(atomic.Pointer[trouble])
	r.addHook(r.t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if cmds[len(cmds)-1].Name() != "exec" {
			return send(cmds)
		}
		now := next.Swap(nil)
		if now == nil {
			now = new(trouble)
		}
		if now.before != nil {
			now.before()
		}
		err := send(cmds)
		if now.after != nil {
			now.after()
		}
		if now.lost {
			return failAll(cmds, io.ErrUnexpectedEOF)
		}
		return err
	})
	return next
}

func cursorKey(shard int) string { return fmt.Sprintf("test:{%d}:cursor:HITS", shard) }

func shardOf(counter string) int { return layout.ShardOf(window.HashCounter([]byte(counter))) }

// session has a writer for each shard of a stream, as a worker's session has.
type session struct {
	r       *rig
	writers []*commit.Writer
	seq     uint64 // of the last commit
}

// open begins a session where the cursors are.
func (r *rig) open(stream string) *session {
	r.t.Helper()
	s := &session{r: r}
	for shard := range layout.Shards {
		w, err := commit.OpenWriter(r.t.Context(), r.store, layout, stream, shard)
		require.NoError(r.t, err)
		s.writers = append(s.writers, w)
		cursor, _ := w.Cursor()
		s.seq = max(s.seq, cursor.Seq)
	}
	return s
}

// of returns the writer that counts a counter.
func (s *session) of(counter string) *commit.Writer { return s.writers[shardOf(counter)] }

// try commits n hits of a counter, as of the moment at which they happened.
func (s *session) try(counter string, at time.Time, n int64) (commit.Commit, error) {
	b, shard := batchOf(counter, at.UnixMilli(), n)
	s.seq++
	return s.writers[shard].Commit(s.r.t.Context(), b.Shard(shard), cursorAt(s.seq, at))
}

func (s *session) commit(counter string, at time.Time, n int64) commit.Commit {
	s.r.t.Helper()
	out, err := s.try(counter, at, n)
	require.NoError(s.r.t, err)
	return out
}

// commitBatch commits a batch, and a cursor that is the same on all shards.
func (s *session) commitBatch(b *window.Batch, to window.Cursor) {
	s.r.t.Helper()
	s.seq = to.Seq
	for shard, w := range s.writers {
		require.NoError(s.r.t, errOf(w.Commit(s.r.t.Context(), b.Shard(shard), to)))
	}
}

// write moves the cursors of a stream, with writers that are returned.
func (r *rig) write(stream string, to window.Cursor) *session {
	r.t.Helper()
	s := r.open(stream)
	s.commitBatch(window.NewBatch(layout), to)
	return s
}

// commitAll commits a batch of stream HITS by a new session, as commitBatch does, in a namespace of any
// layout.
func commitAll(ctx context.Context, store *schema.Store, l window.Layout, b *window.Batch, to window.Cursor) error {
	for shard := range l.Shards {
		w, err := commit.OpenWriter(ctx, store, l, "HITS", shard)
		if err == nil {
			_, err = w.Commit(ctx, b.Shard(shard), to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func batchOf(counter string, at, n int64) (*window.Batch, int) {
	b := window.NewBatch(layout)
	b.Add([]byte(counter), window.HashCounter([]byte(counter)), at, at, n)
	return b, shardOf(counter)
}

func cursorAt(seq uint64, at time.Time) window.Cursor {
	return window.Cursor{Created: 1, Seq: seq, Stored: at.UnixNano(), AsOf: at.UnixMilli()}
}

func (r *rig) total(counter string, w time.Duration, now time.Time) window.Answer {
	r.t.Helper()
	out, err := r.answer(now, window.Question{Counter: counter, Span: window.Last(w)})
	require.NoError(r.t, err)
	return out.Answers[0]
}

// answer asks when Redis's clock says now.
func (r *rig) answer(now time.Time, questions ...window.Question) (out window.Answers, err error) {
	r.at(now, func() { out, err = r.reader.Answer(r.t.Context(), questions) })
	return out, err
}

// mustHold checks the hits of a counter in the windows of all tiers.
func (r *rig) mustHold(counter string, now time.Time, want int64) {
	r.t.Helper()
	for _, w := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 720 * time.Hour} {
		a := r.total(counter, w, now.Add(time.Second))
		require.Equal(r.t, [2]int64{want, want}, [2]int64{a.Lower, a.Upper}, "%s in %v", counter, w)
	}
}

// errOf is the error of a call of which nothing else matters.
func errOf[T any](_ T, err error) error { return err }

func (r *rig) mustExpire(keys []string) {
	r.t.Helper()
	for _, key := range keys {
		require.Positive(r.t, r.client.TTL(r.t.Context(), key).Val(), "%s does not expire", key)
	}
}
