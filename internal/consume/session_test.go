package consume

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// soon bounds every wait: long beside the slowest step (a stall is noticed after three seconds).
const soon = 2 * time.Minute

// rig is a stream on a real NATS, and a namespace in a real Redis.
type rig struct {
	t      *testing.T
	nats   *stack.NATSEmbedded
	redis  *stack.RedisServer
	js     jetstream.JetStream
	store  *window.Store
	reader *window.Reader
	logs   logs // of all workers
}

// logs are lines that workers write; they are the test's, too.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// count is how many lines have a part.
func (l *logs) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// await waits for a line that has all of the parts.
func (l *logs) await(t *testing.T, parts ...string) {
	t.Helper()
	stack.Eventually(t, soon, fmt.Sprintf("a line with %q", parts), func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for line := range strings.Lines(l.text.String()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				return true, ""
			}
		}
		return false, "no such line"
	})
}

func newRig(t *testing.T) *rig { return newRigOn(t, stack.NATS(t)) }

func newRigOn(t *testing.T, nats *stack.NATSEmbedded) *rig {
	r := &rig{t: t, nats: nats, redis: stack.Redis(t)}
	r.js = r.nats.JetStream()
	r.store = window.NewStore(r.redis.Client(), "test")
	r.reader = window.NewReader(r.store)
	return r
}

func (r *rig) createStream(maxAge time.Duration) jetstream.Stream {
	r.t.Helper()
	handle, err := r.js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, MaxAge: maxAge})
	if err != nil {
		r.t.Fatal(err)
	}
	return handle
}

// publish publishes messages of one hit each, all of the counter c.
func (r *rig) publish(messages int) {
	r.t.Helper()
	for range messages {
		if _, err := r.js.PublishAsync("hits.c", nil); err != nil {
			r.t.Fatal(err)
		}
	}
	select {
	case <-r.js.PublishAsyncComplete():
	case <-time.After(soon):
		r.t.Fatal("published messages are not acknowledged")
	}
}

// running is a worker inside the test process.
type running struct {
	t    *testing.T
	addr string
	stop func()

	reload chan<- os.Signal // as SIGHUP
}

func (r *rig) start(env ...string) *running {
	r.t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", stack.FreePort(r.t))
	settings := parse(r.t, append([]string{
		"NATS_URL=" + r.nats.URL(), "REDIS_URL=" + r.redis.URL(), "TALLYROLL_NAMESPACE=test", "SHARDS=4",
		"INGEST_FLUSH_INTERVAL=20ms", "INGEST_ADDR=" + addr,
	}, env...)...)
	ctx, cancel := context.WithCancel(context.Background())
	ended, reload := make(chan error, 1), make(chan os.Signal)
	go func() {
		ended <- Run(ctx, settings, zerolog.New(zerolog.MultiLevelWriter(zerolog.NewTestWriter(r.t), &r.logs)), nil, reload)
	}()
	w := &running{t: r.t, addr: addr, reload: reload}
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				r.t.Errorf("the worker ended with %v", err)
			}
		case <-time.After(soon):
			r.t.Error("the worker does not stop")
		}
	})
	r.t.Cleanup(w.stop)
	return w
}

// metric is the value of a metric, summed over its labels.
func (w *running) metric(name string) float64 {
	w.t.Helper()
	response, err := http.Get("http://" + w.addr + "/metrics")
	if err != nil {
		return -1 // not up yet
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(string(body)) {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "tallyroll_"), "ingest_")
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				w.t.Fatal(err)
			}
			sum += value
		}
	}
	return sum
}

// discarded waits until the worker says that it has missed so many messages: it does
// just after the commit.
func (w *running) discarded(want float64) {
	w.t.Helper()
	stack.Eventually(w.t, soon, fmt.Sprintf("%v messages discarded", want), func() (bool, string) {
		got := w.metric("discarded_messages_total")
		return got == want, fmt.Sprint(got)
	})
}

// answer is the total of c over the last 20 hours.
func (r *rig) answer() (window.Answers, error) {
	return r.reader.Answer(r.t.Context(), []window.Question{{Counter: "c", Span: window.Last(20 * time.Hour)}})
}

// settled waits until everything stored up to this call has been applied, and
// checks that the total is want then.
func (r *rig) settled(want int64) window.Answer {
	r.t.Helper()
	called := time.Now().UnixMilli()
	var got window.Answers
	stack.Eventually(r.t, soon, "as_of to pass what was published", func() (bool, string) {
		var err error
		got, err = r.answer()
		return err == nil && got.AsOf > called, fmt.Sprintf("%+v %v, called at %d", got, err, called)
	})
	if total := got.Answers[0].Estimate; total.Total != want || total.Lower != want || total.Upper != want {
		r.t.Fatalf("total %+v, want %d", total, want)
	}
	return got.Answers[0]
}

func (r *rig) cursor(shard int) window.Cursor {
	r.t.Helper()
	w, err := r.store.OpenWriter(r.t.Context(), testLayout, "HITS", shard)
	if err != nil {
		r.t.Fatal(err)
	}
	c, _ := w.Cursor()
	return c
}

// cursors waits until the cursors of all shards are at a sequence, and returns them. One
// without hits to commit is moved once a second.
func (r *rig) cursors(at uint64) []window.Cursor {
	r.t.Helper()
	all := make([]window.Cursor, testLayout.Shards)
	stack.Eventually(r.t, soon, fmt.Sprintf("the cursors of all shards to be at %d", at), func() (bool, string) {
		there := true
		for shard := range all {
			all[shard] = r.cursor(shard)
			there = there && all[shard].Seq == at
		}
		return there, fmt.Sprintf("%+v", all)
	})
	return all
}

func TestStreamMadeAnewUnderARunningWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	r.start()
	r.publish(100)
	r.settled(100)

	if err := r.js.DeleteStream(t.Context(), "HITS"); err != nil {
		t.Fatal(err)
	}
	anew := r.createStream(0)
	r.publish(150) // past the old cursor
	r.settled(250)
	created := anew.CachedInfo().Created
	for shard, c := range r.cursors(150) {
		if c.Created != created.UnixNano() || c.IncompleteBefore < created.UnixMilli() {
			t.Errorf("shard %d: cursor %+v; the stream was created at %d", shard, c, created.UnixNano())
		}
	}
}

func TestStreamPurgedWhileTheWorkerIsStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handle := r.createStream(0)
	w := r.start()
	r.publish(10)
	r.settled(10)
	w.stop()

	r.publish(20)
	if err := handle.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	purged := time.Now().UnixMilli()
	r.publish(5)
	w = r.start()
	if a := r.settled(15); a.Complete {
		t.Error("the answer says that it is complete")
	}
	w.discarded(20)
	for shard, c := range r.cursors(35) {
		if c.IncompleteBefore < purged {
			t.Errorf("shard %d: cursor %+v; purged at %d", shard, c, purged)
		}
	}
}

// withLoner is a server with a user that cannot join a fleet: it reads every
// stream, whoever else does.
func withLoner(t *testing.T) (nats *stack.NATSEmbedded, loner []string) {
	return stack.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "all"},
			{Username: "loner", Password: "loner", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.*.KV_tallyroll_test", "$KV.>"}},
			}},
		}
		o.NoAuthUser = "all"
	}), []string{"NATS_USER=loner", "NATS_PASSWORD=loner"}
}

func TestTwoWorkersFenceEachOther(t *testing.T) {
	t.Parallel()
	nats, loner := withLoner(t)
	r := newRigOn(t, nats)
	r.createStream(0)
	workers := []*running{r.start("INGEST_WORKER=a"), r.start(append(loner, "INGEST_WORKER=b")...)}
	for _, w := range workers {
		stack.Eventually(t, soon, "both workers to take the stream", func() (bool, string) {
			n := w.metric("sessions_total")
			return n >= 1, fmt.Sprint(n)
		})
	}
	// One of them may count all of a short burst before the other looks: go on
	// until they have met.
	hits := 0
	stack.Eventually(t, soon, "the workers to be in each other's way", func() (bool, string) {
		r.publish(100)
		hits += 100
		conflicts := 0.0
		for _, w := range workers {
			conflicts += w.metric("cursor_conflicts_total")
		}
		return conflicts > 0, fmt.Sprintf("%v conflicts in %d hits", conflicts, hits)
	})
	r.settled(int64(hits))
	counted := 0.0
	for _, w := range workers {
		counted += w.metric("hits_total")
	}
	if counted != float64(hits) {
		t.Errorf("the workers say that they have counted %v", counted)
	}
	for _, w := range workers {
		w.stop()
	}
	if a, err := r.answer(); err != nil || a.Answers[0].Total != int64(hits) {
		t.Errorf("after both have stopped: %+v %v", a, err)
	}
}

func TestMessagesDeletedInTheMiddle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handle := r.createStream(0)
	r.publish(30)
	for _, seq := range []uint64{10, 11, 20} {
		if err := handle.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	w := r.start()
	if a := r.settled(27); a.Complete {
		t.Error("the answer says that it is complete")
	}
	w.discarded(3)
}

// The last messages of a stream are gone before they are read: nothing that is
// delivered shows the gap, and as_of must not wait for it.
func TestMessagesGoneAtTheEnd(t *testing.T) {
	t.Parallel()
	gone := func(handle jetstream.Stream, left uint64) {
		stack.Eventually(t, soon, "messages to expire", func() (bool, string) {
			info, err := handle.Info(t.Context())
			return err == nil && info.State.Msgs == left, fmt.Sprintf("%+v %v", info, err)
		})
	}
	t.Run("all expired", func(t *testing.T) {
		r := newRig(t)
		handle := r.createStream(time.Second)
		r.publish(10)
		gone(handle, 0)
		w := r.start()
		r.settled(0)
		w.discarded(10)
	})
	t.Run("the last deleted", func(t *testing.T) {
		r := newRig(t)
		handle := r.createStream(0)
		r.publish(10)
		for _, seq := range []uint64{9, 10} {
			if err := handle.DeleteMsg(t.Context(), seq); err != nil {
				t.Fatal(err)
			}
		}
		gone(handle, 8)
		w := r.start()
		if a := r.settled(8); a.Complete {
			t.Error("the answer says that it is complete")
		}
		r.publish(3)
		r.settled(11)
		w.discarded(2)
	})
	t.Run("all but the first deleted", func(t *testing.T) {
		r := newRig(t)
		handle := r.createStream(0)
		r.publish(3)
		w := r.start()
		r.settled(3)
		w.stop()
		r.publish(2)
		for _, seq := range []uint64{4, 5} {
			if err := handle.DeleteMsg(t.Context(), seq); err != nil {
				t.Fatal(err)
			}
		}
		w = r.start()
		r.settled(3)
		if sessions := w.metric("sessions_total"); sessions != 1 {
			t.Errorf("%v sessions, want 1", sessions)
		}
	})
}

// busy is a stream to which messages come, and are read, while it is asked for its state.
type busy struct {
	source
	asked func() // after the state was taken
	last  uint64
}

func (b *busy) look(context.Context) (streamCheck, error) {
	state := streamState{created: 1, first: 1, last: b.last, at: time.Now().UnixMilli()}
	b.last++
	b.asked()
	return streamCheck{state: state}, nil
}

// Messages that arrive while the watch looks at the stream are no roll-back.
func TestWatchOfABusyStream(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	buffer := newBuffer(testLayout, testLimits(2000), make([]window.Cursor, testLayout.Shards))
	buffer.add("HITS", testMessage(1))
	stream := &busy{last: 1}
	metrics := newMetrics(prometheus.NewRegistry())
	with := &setup{stream: "HITS", source: stream, maxIdle: stalledAfter, metrics: metrics, clocks: newClocks(metrics, zerolog.Nop())}
	end := func(err error) { t.Errorf("the watcher ends the session: %v", err); cancel() }
	var seen tail
	w := newWatcher(with, &standing{state: streamState{created: 1}}, buffer, &seen, new(committed), end)
	stream.asked = func() {
		buffer.add("HITS", testMessage(stream.last))
		if stream.last > 3 {
			cancel()
		}
	}
	synctest.Test(t, func(t *testing.T) { w.watch(ctx) })
	if last := seen.end(); last < 3 {
		t.Errorf("the watcher has seen the end at %d", last)
	}
}

// A producer's bad hits are found again beside the good ones' count.
func TestRejectsAreStoredOnceAcrossWorkers(t *testing.T) {
	t.Parallel()
	nats, loner := withLoner(t)
	r := newRigOn(t, nats)
	r.createStream(0)
	for range 3 {
		if _, err := r.js.Publish(t.Context(), "hits.c", []byte(`[{},{"n":0},{},{"key":""}]`)); err != nil {
			t.Fatal(err)
		}
	}
	r.start("INGEST_WORKER=a")
	r.start(append(loner, "INGEST_WORKER=b")...)
	r.settled(6)
	if got := rejectsStored(t, r.js); got != 6 {
		t.Errorf("%d rejects stored, want 6", got)
	}
}

// noFeed stands in for a subscription.
type noFeed struct{ feed }

func (noFeed) stop() {}

// When a flush fails while the worker shuts down, the load after it must not be
// committed: the cursor would pass hits that were dropped.
func TestFailedFlushAtShutdownIsTheLast(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, redis: stack.Redis(t)}
	r.store = window.NewStore(r.redis.Client(), "test")
	layout := window.Layout{Tiers: testLayout.Tiers, Shards: 64} // many more than are committed at a time
	ctx, shutdown := context.WithCancel(t.Context())
	defer shutdown()
	metrics, none := newMetrics(prometheus.NewRegistry()), zerolog.Nop()
	s := &session{
		setup: setup{
			stream: "HITS", store: r.store, layout: layout,
			limits:  limits{flushInterval: time.Millisecond, maxCommands: 2000},
			metrics: metrics, outage: &outage{log: none}, log: none, waits: newWaits(),
			rejects: newRejectLog(none), clocks: newClocks(metrics, none), enter: func(phase) {},
		},
		standing: &standing{state: streamState{created: 1}, atOnce: commitConcurrency},
		buffer:   newBuffer(layout, testLimits(2000), make([]window.Cursor, layout.Shards)),
	}
	every := testMessage(1)
	for c, shards := 0, map[int]bool{}; len(shards) < layout.Shards; c++ {
		h := testHits(c)[0]
		shards[layout.ShardOf(h.Hash)] = true
		every.hits = append(every.hits, h)
	}
	later := every
	later.seq = 2
	s.listed = func(context.Context) bool { // asked once per flush, before the shards commit
		s.buffer.add("HITS", later)
		shutdown()
		return true
	}
	for shard := range layout.Shards {
		w, err := r.store.OpenWriter(ctx, layout, "HITS", shard)
		if err != nil {
			t.Fatal(err)
		}
		s.standing.writers = append(s.standing.writers, &shardWriter{Writer: w})
	}
	// Another worker takes shard 0.
	other, err := r.store.OpenWriter(ctx, layout, "HITS", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Commit(ctx, window.NewBatch(layout).Shard(0), window.Cursor{Created: 1, Seq: 7}); err != nil {
		t.Fatal(err)
	}

	s.buffer.add("HITS", every)
	if err := s.count(ctx, ctx, noFeed{}, newCommitter(&s.setup, s.standing, s.buffer, &s.tail)); err == nil {
		t.Error("the flush does not say that it failed")
	}
	for shard := range layout.Shards {
		w, err := r.store.OpenWriter(t.Context(), layout, "HITS", shard)
		if err != nil {
			t.Fatal(err)
		}
		if c, _ := w.Cursor(); c.Seq == 2 {
			t.Errorf("shard %d: the cursor has passed a load that was dropped", shard)
		}
	}
}

func rejectsStored(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	handle, err := js.Stream(t.Context(), rejects.Stream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := handle.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}
