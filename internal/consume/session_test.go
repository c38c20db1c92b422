package consume

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// busy is a stream to which messages come, and are read, while it is asked for its state.
type busy struct {
	source.Stream
	asked func() // after the state was taken
	last  uint64
}

func (b *busy) Check(context.Context) (source.Check, error) {
	state := source.State{Created: 1, First: 1, Last: b.last, At: time.Now().UnixMilli()}
	b.last++
	b.asked()
	return source.Check{State: state}, nil
}

// Messages that arrive while the watch looks at the stream are no roll-back.
func TestMessagesThatArriveDuringACheckAreNoRollBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	buffer := newBuffer(testLayout, testLimits(2000), make([]window.Cursor, testLayout.Shards))
	buffer.add("HITS", testMessage(1))
	stream := &busy{last: 1}
	metrics := NewMetrics(prometheus.NewRegistry())
	shared := &setup{
		Config: Config{Metrics: metrics}, stream: "HITS", source: stream, maxIdle: stalledAfter,
		clocks: newClocks(metrics, zerolog.Nop()),
	}
	end := func(err error) { t.Errorf("the watcher ends the session: %v", err); cancel() }
	var seen tail
	w := newWatcher(shared, &resumePlan{state: source.State{Created: 1}}, buffer, &seen, new(committed), end)
	stream.asked = func() {
		buffer.add("HITS", testMessage(stream.last))
		if stream.last > 3 {
			cancel()
		}
	}
	synctest.Test(t, func(t *testing.T) { w.watch(ctx) })
	if last := seen.lastSeq(); last < 3 {
		t.Errorf("the watcher has seen the end at %d", last)
	}
}

// noFeed stands in for a subscription.
type noFeed struct{ source.Feed }

func (noFeed) Stop() {}

// When a flush fails while the worker shuts down, the load after it must not be
// committed: the cursor would pass hits that were dropped.
func TestFailedFlushAtShutdownIsTheLast(t *testing.T) {
	t.Parallel()
	store := schema.NewStore(stack.Redis(t).Client(), "test")
	layout := window.Layout{Tiers: testLayout.Tiers, Shards: 64} // many more than are committed at a time
	ctx, shutdown := context.WithCancel(t.Context())
	defer shutdown()
	metrics, none := NewMetrics(prometheus.NewRegistry()), zerolog.Nop()
	s := &session{
		setup: setup{
			Config: Config{
				Store: store, Layout: layout, Limits: Limits{FlushInterval: time.Millisecond, MaxCommands: 2000},
				Metrics: metrics, Waits: NewWaits(), Log: none,
			},
			stream: "HITS", outage: &outage{log: none},
			rejects: newRejectLog(none), clocks: newClocks(metrics, none), enterPhase: func(phase) {},
		},
		plan:   &resumePlan{state: source.State{Created: 1}, concurrency: commitConcurrency},
		buffer: newBuffer(layout, testLimits(2000), make([]window.Cursor, layout.Shards)),
	}
	every := testMessage(1)
	for c, shards := 0, map[int]bool{}; len(shards) < layout.Shards; c++ {
		h := testHits(c)[0]
		shards[layout.ShardOf(h.Hash)] = true
		every.hits = append(every.hits, h)
	}
	later := every
	later.seq = 2
	s.Listed = func(context.Context) bool { // asked once per flush, before the shards commit
		s.buffer.add("HITS", later)
		shutdown()
		return true
	}
	for shard := range layout.Shards {
		w, err := commit.OpenWriter(ctx, store, layout, "HITS", shard)
		require.NoError(t, err)
		s.plan.writers = append(s.plan.writers, &shardWriter{Writer: w})
	}
	// Another worker takes shard 0.
	other, err := commit.OpenWriter(ctx, store, layout, "HITS", 0)
	require.NoError(t, err)
	require.NoError(t, errOf(other.Commit(ctx, window.NewBatch(layout).Shard(0), window.Cursor{Created: 1, Seq: 7})))

	s.buffer.add("HITS", every)
	if err := s.commitUntil(ctx, ctx, noFeed{}, newCommitter(&s.setup, s.plan, s.buffer, &s.tail)); err == nil {
		t.Error("the flush does not say that it failed")
	}
	for shard := range layout.Shards {
		w, err := commit.OpenWriter(t.Context(), store, layout, "HITS", shard)
		require.NoError(t, err)
		if c, _ := w.Cursor(); c.Seq == 2 {
			t.Errorf("shard %d: the cursor has passed a load that was dropped", shard)
		}
	}
}

// A session whose Redis takes everything and answers nothing ends in its time,
// whatever was under way.
func TestASessionStopsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	for _, since := range []time.Duration{0, 10 * time.Millisecond, time.Second, 4900 * time.Millisecond, 5100 * time.Millisecond, 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newSimWorld(simPlan{tiers: "1s/4s", shards: 2, maxCommands: 20, flush: 50 * time.Millisecond, workers: 1}, zerolog.Nop())
			w.publish(0)
			time.Sleep(3 * time.Second)
			w.redis.mu.Lock()
			w.redis.latency = time.Hour
			w.redis.mu.Unlock()
			w.publish(0)
			time.Sleep(since)
			began := time.Now()
			w.end(0, false, false)
			w.running.Wait()
			if took := time.Since(began); took > LastCommitWithin+source.ReleaseWithin {
				t.Errorf("hanging for %s: it took %s to stop", since, took)
			}
			w.redis.mu.Lock()
			w.redis.latency = 0
			w.redis.mu.Unlock()
			w.close()
		})
	}
}

// A hit waits for a multiple of what commits take, not for the flush interval.
func TestAHitIsCommittedBeforeTheInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(simPlan{tiers: "1s/4s", shards: 2, maxCommands: 20, flush: time.Minute, workers: 1}, zerolog.Nop())
		defer w.close()
		time.Sleep(3 * time.Second)
		for range 5 {
			w.publish(0)
			time.Sleep(300 * time.Millisecond)
			if !w.isCounted(w.messages) {
				t.Fatalf("%d messages are not counted", len(w.messages))
			}
		}
	})
}
