package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
	"tallyroll/internal/worker"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// rig is a NATS and a namespace in a Redis.
type rig struct {
	t      *testing.T
	nats   stack.Endpoint
	redis  stack.Endpoint
	js     jetstream.JetStream
	client redis.UniversalClient
	store  *schema.Store
}

func newRig(t *testing.T) *rig {
	nats, database := stack.SharedNATS(t), stack.SharedRedis(t)
	return newRigOn(t, nats, nats.JetStream(), database, database.Client())
}

func newRigOn(t *testing.T, nats stack.Endpoint, js jetstream.JetStream, redis stack.Endpoint, client redis.UniversalClient) *rig {
	return &rig{t: t, nats: nats, js: js, redis: redis, client: client, store: schema.NewStore(client, "test")}
}

// start starts a worker inside the test process, and returns what stops it.
func (r *rig) start(env ...string) (stop func(), reload chan<- os.Signal) {
	r.t.Helper()
	var settings worker.Settings
	err := setting.Parse(&settings, append([]string{
		"NATS_URL=" + r.nats.URL(), "REDIS_URL=" + r.redis.URL(), "TALLYROLL_NAMESPACE=test", "SHARDS=4",
		"INGEST_FLUSH_INTERVAL=20ms", fmt.Sprintf("INGEST_ADDR=127.0.0.1:%d", stack.FreePort(r.t)),
	}, env...)...)
	require.NoError(r.t, err)
	tiers, err := window.ParseTiers(settings.Tiers)
	require.NoError(r.t, err)
	uniques, err := window.ParseUniqueTiers(settings.UniqueTiers)
	require.NoError(r.t, err)
	if _, err := r.store.Layout(r.t.Context()); errors.Is(err, schema.ErrNoLayout) { // else there was a worker before
		layout := window.Layout{Tiers: tiers, UniqueTiers: uniques, Shards: settings.Shards}
		require.NoError(r.t, schema.NewStore(r.client, "test").EnsureLayout(r.t.Context(), layout))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, signals := make(chan error, 1), make(chan os.Signal)
	go func() {
		ended <- worker.Run(ctx, settings, zerolog.New(zerolog.NewTestWriter(r.t)).Level(zerolog.WarnLevel), nil, signals)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				r.t.Errorf("the worker ended with %v", err)
			}
		case <-time.After(stack.Hung):
			r.t.Error("the worker does not stop")
		}
	})
	r.t.Cleanup(stop)
	return stop, signals
}

// createStream creates a stream.
func (r *rig) createStream(name, subject string) jetstream.Stream {
	r.t.Helper()
	s, err := r.js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
	require.NoError(r.t, err)
	return s
}

// publish publishes a message and waits until it is stored.
func (r *rig) publish(subject, body string, header ...string) *jetstream.PubAck {
	r.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i+1 < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	ack, err := r.js.PublishMsg(r.t.Context(), m)
	require.NoError(r.t, err)
	return ack
}

// drawMessage makes a message with hits of all kinds, some of which are refused.
func drawMessage(rng *rand.Rand, counters int) string {
	now := time.Now().UnixMilli()
	var body strings.Builder
	for range 1 + rng.IntN(8) {
		fmt.Fprintf(&body, `{"key":"c%d"`, rng.IntN(counters))
		switch rng.IntN(12) {
		case 0:
			fmt.Fprintf(&body, `,"n":%d`, 1+rng.IntN(9))
		case 1:
			fmt.Fprintf(&body, `,"ts":%d`, now-rng.Int64N(90_000))
		case 2:
			fmt.Fprintf(&body, `,"ts":%d`, now-rng.Int64N(40*24*3600_000)) // the oldest are late for every tier
		case 3:
			fmt.Fprintf(&body, `,"ts":%d`, now+rng.Int64N(20_000)) // half of them too far ahead
		case 4:
			fmt.Fprintf(&body, `,"n":%d`, -rng.IntN(2))
		}
		if rng.IntN(3) > 0 {
			fmt.Fprintf(&body, `,"unique":"u%d"`, rng.IntN(5000))
		}
		if rng.IntN(4) == 0 {
			body.WriteString(`,"all":false`)
		}
		body.WriteString("}\n")
	}
	return body.String()
}

// publishDrawn publishes messages with hits of all kinds.
func (r *rig) publishDrawn(seed uint64, subject string, messages, counters int) {
	r.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	for range messages {
		_, err := r.js.PublishAsync(subject, []byte(drawMessage(rng, counters)))
		require.NoError(r.t, err)
	}
	select {
	case <-r.js.PublishAsyncComplete():
	case <-time.After(stack.Hung):
		r.t.Fatal("messages are not acknowledged")
	}
}

// awaitApplied waits until all shards have applied all of the streams.
func (r *rig) awaitApplied(streams ...string) {
	r.t.Helper()
	for _, name := range streams {
		s, err := r.js.Stream(r.t.Context(), name)
		require.NoError(r.t, err)
		last := s.CachedInfo().State.LastSeq
		stack.Eventually(r.t, "the cursors to reach the end", func() (bool, string) {
			for shard := range 4 {
				seq, _ := r.client.HGet(r.t.Context(), r.store.Keys.Cursor(shard, name), "seq").Uint64()
				if seq != last {
					return false, fmt.Sprintf("shard %d is at %d of %d", shard, seq, last)
				}
			}
			return true, ""
		})
	}
}

// result is what an audit has found.
type result struct {
	report
	text string
	err  error
	took int // passes
}

// audit judges the namespace.
func (r *rig) audit(change ...func(*auditor)) result {
	r.t.Helper()
	var text bytes.Buffer
	a := &auditor{
		store: schema.NewStore(r.client, "test"), js: r.js, namespace: "test",
		limits: consume.Limits{MaxAhead: 10 * time.Second, MaxHits: 10_000}, memory: 64 << 20,
		log: zerolog.New(zerolog.NewTestWriter(r.t)), bar: progress.NewBar(io.Discard, ""), pace: newPace(0), report: newReport(&text, 1000),
	}
	for _, f := range change {
		f(a)
	}
	err := a.audit(r.t.Context())
	a.report.notes()
	return result{a.report, text.String(), err, a.passes}
}

// mustFindNothing makes sure that an audit finds nothing, and returns it.
func (r *rig) mustFindNothing(change ...func(*auditor)) result {
	r.t.Helper()
	got := r.audit(change...)
	if got.err != nil || got.differences != 0 {
		r.t.Fatalf("%v, %d differences:\n%s", got.err, got.differences, got.text)
	}
	return got
}

// some is a number of differences that depends on the hits.
const some = -1

// mustFind makes sure that an audit finds so many differences and names all of these parts.
func (r *rig) mustFind(differences int64, parts ...string) {
	r.t.Helper()
	got := r.audit()
	if got.err != nil || got.differences != differences && (differences != some || got.differences == 0) {
		r.t.Errorf("%v, %d differences, want %d:\n%s", got.err, got.differences, differences, got.text)
	}
	for _, part := range parts {
		require.Contains(r.t, got.text, part)
	}
}

// keys are the keys that match a pattern.
func (r *rig) keys(pattern string) []string {
	r.t.Helper()
	return stack.Scan(r.t, r.client, pattern)
}

// makeBusy moves the hits of counters from their logs into the tiers, where those of busy ones are. No worker
// may run.
func (r *rig) makeBusy(counters ...string) {
	r.t.Helper()
	ctx := r.t.Context()
	layout, err := r.store.Layout(ctx)
	require.NoError(r.t, err)
	logs, _ := layout.SparseTier()
	for _, counter := range counters {
		hash := window.HashCounter([]byte(counter))
		for _, key := range r.keys("test:{*}:s:*:" + counter) {
			epoch, err := strconv.ParseInt(strings.Split(key, ":")[3], 10, 64)
			require.NoError(r.t, err)
			cells, err := logs.ParseLog(r.client.Get(ctx, key).Val())
			require.NoError(r.t, err)
			for _, tier := range layout.Tiers {
				for _, c := range cells {
					h := window.CellHash{Shard: layout.ShardOf(hash), Counter: counter, Tier: tier}
					var field int64
					h.Epoch, field = tier.EpochAndField(tier.CellAt(logs.CellStart(logs.CellIn(epoch, c.Field))))
					to := r.store.Keys.Hash(h)
					require.NoError(r.t, r.client.HIncrBy(ctx, to, strconv.FormatInt(field, 10), c.N).Err())
					require.NoError(r.t, r.client.ExpireAt(ctx, to, time.Unix(tier.Deadline(h.Epoch, hash), 0)).Err())
				}
			}
			require.NoError(r.t, r.client.Del(ctx, key).Err())
		}
	}
}

// increment adds to the first field of the first hash that matches a pattern.
func (r *rig) increment(pattern string, n int64) {
	r.t.Helper()
	key := r.keys(pattern)[0]
	require.NoError(r.t, r.client.HIncrBy(r.t.Context(), key, r.client.HKeys(r.t.Context(), key).Val()[0], n).Err())
}

// keep returns what restores all keys as they are now. No worker may run.
func (r *rig) keep() (restore func()) {
	r.t.Helper()
	ctx, client := r.t.Context(), r.client
	type kept struct {
		dump    string
		expires int64 // Unix milliseconds; 0: never
	}
	all := make(map[string]kept)
	for _, key := range r.keys("test:*") {
		all[key] = kept{client.Dump(ctx, key).Val(), max(0, client.PExpireTime(ctx, key).Val().Milliseconds())}
	}
	return func() {
		r.t.Helper()
		for _, key := range r.keys("test:*") {
			if _, was := all[key]; !was {
				client.Del(ctx, key)
			}
		}
		for key, was := range all {
			require.NoError(r.t, client.Do(ctx, "restore", key, was.expires, was.dump, "replace", "absttl").Err())
		}
	}
}
