package worker

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
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// testLayout is that of a rig's namespace.
var testLayout = func() window.Layout {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		panic(err)
	}
	return window.Layout{Tiers: tiers, Shards: 4}
}()

// broker is a NATS server, or an account of one.
type broker interface {
	stack.Endpoint
	JetStream() jetstream.JetStream
}

// database is a Redis server, or a database of one.
type database interface {
	stack.Endpoint
	Client() *redis.Client
}

// rig is a stream on a real NATS, and a namespace in a real Redis.
type rig struct {
	t      *testing.T
	nats   broker
	redis  database
	js     jetstream.JetStream
	store  *schema.Store
	reader *read.Reader
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
	stack.Eventually(t, fmt.Sprintf("a line with %q", parts), func() (bool, string) {
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

// newRig is on servers that tests share: no other test sees what it does there, and it leaves the servers
// alone.
func newRig(t *testing.T) *rig { return newRigOn(t, stack.SharedNATS(t), stack.SharedRedis(t)) }

func newRigOn(t *testing.T, nats broker, redis database) *rig {
	r := &rig{t: t, nats: nats, redis: redis, js: nats.JetStream()}
	r.store = schema.NewStore(r.redis.Client(), "test")
	r.reader = read.NewReader(r.store)
	return r
}

func (r *rig) createStream(maxAge time.Duration) jetstream.Stream {
	r.t.Helper()
	handle, err := r.js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, MaxAge: maxAge})
	require.NoError(r.t, err)
	return handle
}

// publish publishes messages of one hit each, all of the counter c.
func (r *rig) publish(messages int) {
	r.t.Helper()
	for range messages {
		require.NoError(r.t, errOf(r.js.PublishAsync("hits.c", nil)))
	}
	select {
	case <-r.js.PublishAsyncComplete():
	case <-time.After(stack.Hung):
		r.t.Fatal("published messages are not acknowledged")
	}
}

// runningWorker is a worker inside the test process.
type runningWorker struct {
	t    *testing.T
	addr string
	stop func()

	reload chan<- os.Signal // as SIGHUP
}

func (r *rig) start(env ...string) *runningWorker {
	r.t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", stack.FreePort(r.t))
	settings := parseSettings(r.t, append([]string{
		"NATS_URL=" + r.nats.URL(), "REDIS_URL=" + r.redis.URL(), "TALLYROLL_NAMESPACE=test", "SHARDS=4",
		"INGEST_FLUSH_INTERVAL=20ms", "INGEST_ADDR=" + addr,
	}, env...)...)
	ctx, cancel := context.WithCancel(context.Background())
	ended, reload := make(chan error, 1), make(chan os.Signal)
	go func() {
		ended <- Run(ctx, settings, zerolog.New(zerolog.MultiLevelWriter(zerolog.NewTestWriter(r.t), &r.logs)), nil, reload)
	}()
	w := &runningWorker{t: r.t, addr: addr, reload: reload}
	w.stop = sync.OnceFunc(func() {
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
	r.t.Cleanup(w.stop)
	return w
}

// startCounting starts a worker that has counted so many messages of a new stream.
func (r *rig) startCounting(messages int, env ...string) *runningWorker {
	r.t.Helper()
	r.createStream(0)
	w := r.start(env...)
	r.publish(messages)
	r.awaitTotal(int64(messages))
	return w
}

// metric is the value of a metric, summed over its labels.
func (w *runningWorker) metric(name string) float64 {
	w.t.Helper()
	body, err := w.get("/metrics")
	if err != nil {
		return -1 // not up yet
	}
	sum := 0.0
	for line := range strings.Lines(body) {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "tallyroll_"), "ingest_")
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			require.NoError(w.t, err)
			sum += value
		}
	}
	return sum
}

// awaitMetric waits until the worker's metric has this value: it has just after the commit.
func (w *runningWorker) awaitMetric(name string, want float64) {
	w.t.Helper()
	stack.Eventually(w.t, fmt.Sprintf("%s to be %v", name, want), func() (bool, string) {
		got := w.metric(name)
		return got == want, fmt.Sprint(got)
	})
}

// answer is the total of c over the last 20 hours.
func (r *rig) answer() (window.Answers, error) {
	return r.reader.Answer(r.t.Context(), []window.Question{{Counter: "c", Span: window.Last(20 * time.Hour)}})
}

// awaitHits waits until c has this total, whether answers are complete or not.
func (r *rig) awaitHits(want int64) {
	r.t.Helper()
	stack.Eventually(r.t, fmt.Sprint(want, " hits"), func() (bool, string) {
		got, err := r.answer()
		return err == nil && got.Answers[0].Total == want, fmt.Sprintf("%+v %v", got, err)
	})
}

// awaitTotal waits until everything stored up to this call has been applied, and
// checks that the total is want then.
func (r *rig) awaitTotal(want int64) window.Answer {
	r.t.Helper()
	called := time.Now().UnixMilli()
	var got window.Answers
	stack.Eventually(r.t, "as_of to pass what was published", func() (bool, string) {
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
	w, err := commit.OpenWriter(r.t.Context(), r.store, testLayout, "HITS", shard)
	require.NoError(r.t, err)
	c, _ := w.Cursor()
	return c
}

// awaitCursors waits until the cursors of all shards satisfy a condition. One without hits to commit is moved
// once a second.
func (r *rig) awaitCursors(what string, condition func(window.Cursor) bool) {
	r.t.Helper()
	stack.Eventually(r.t, "the cursors of all shards to be "+what, func() (bool, string) {
		for shard := range testLayout.Shards {
			if c := r.cursor(shard); !condition(c) {
				return false, fmt.Sprintf("shard %d: %+v", shard, c)
			}
		}
		return true, ""
	})
}

// startNATSWithUser starts a server with a user who lacks some rights. Others need no name.
func startNATSWithUser(t *testing.T, name string, rights server.Permissions) *stack.NATSEmbedded {
	return stack.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "all", Password: "all"}, {Username: name, Password: name, Permissions: &rights}}
		o.NoAuthUser = "all"
	})
}

// newRigWithIsolatedUser is a rig with a user that cannot join a fleet: it reads every stream, even if other
// workers do.
func newRigWithIsolatedUser(t *testing.T) (r *rig, isolated []string) {
	rights := server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.*.KV_tallyroll_test", "$KV.>"}}}
	nats := startNATSWithUser(t, "isolated", rights)
	return newRigOn(t, nats, stack.SharedRedis(t)), []string{"NATS_USER=isolated", "NATS_PASSWORD=isolated"}
}

func (r *rig) countRejects() uint64 {
	r.t.Helper()
	handle, err := r.js.Stream(r.t.Context(), rejects.Stream)
	require.NoError(r.t, err)
	return handle.CachedInfo().State.Msgs
}

// awaitApplied waits until everything that was stored before is applied: as_of of all shards has passed now.
func (r *rig) awaitApplied() {
	r.t.Helper()
	called := time.Now().UnixMilli()
	var questions []window.Question
	for i := range 16 * testLayout.Shards { // enough names for every shard to have one
		questions = append(questions, window.Question{Counter: fmt.Sprint(i), Span: window.Last(time.Hour)})
	}
	stack.Eventually(r.t, "as_of to pass what was published", func() (bool, string) {
		got, err := r.reader.Answer(r.t.Context(), questions)
		return err == nil && got.AsOf > called, fmt.Sprintf("%d, %v, called at %d", got.AsOf, err, called)
	})
}

// checkTotals compares the totals of counters with what they must be.
func (r *rig) checkTotals(want map[string]int64) {
	r.t.Helper()
	var questions []window.Question
	for counter := range want {
		questions = append(questions, window.Question{Counter: counter, Span: window.Last(time.Hour)})
	}
	found, err := r.reader.Answer(r.t.Context(), questions)
	require.NoError(r.t, err)
	for i, a := range found.Answers {
		if counter := questions[i].Counter; a.Upper != want[counter] {
			r.t.Errorf("%s has %d hits, want %d", counter, a.Upper, want[counter])
		}
	}
}

func (w *runningWorker) get(path string) (string, error) {
	w.t.Helper()
	response, err := http.Get("http://" + w.addr + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	return string(body), nil
}

func (w *runningWorker) awaitReadiness(parts ...string) {
	w.t.Helper()
	stack.Eventually(w.t, fmt.Sprintf("/readyz to say %q", parts), func() (bool, string) {
		says, err := w.get("/readyz")
		lacks := slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(says, part) })
		return !lacks, fmt.Sprint(says, err)
	})
}

// parseSettings reads the worker's settings, validated, from an environment.
func parseSettings(t testing.TB, env ...string) (s Settings) {
	t.Helper()
	require.NoError(t, setting.Parse(&s, env...))
	return s
}

// errOf is the error of a call of which nothing else matters.
func errOf[T any](_ T, err error) error { return err }
