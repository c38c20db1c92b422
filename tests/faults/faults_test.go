// Package faults_test breaks the real parts while hits are published, and then
// compares every counter with what the stream had acknowledged: to the last hit.
//
// `make test` makes each fault once or twice. `make test-all` makes more of them and adds what is slow,
// FAULTS=full many (`make faults`), and SOAK=30m mixes them for that long (`make soak`).
package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// full reports whether the long selection was asked for.
func full() bool { return os.Getenv("FAULTS") == "full" }

// rounds is how many faults a test makes: in make test, in make test-all, and with FAULTS=full.
func rounds(few, some, many int) int {
	if full() {
		return many
	}
	return stack.Rounds(few, some)
}

// onlyInAll skips a test that make test leaves to make test-all and to FAULTS=full.
func onlyInAll(t *testing.T) {
	t.Helper()
	if !full() {
		stack.OnlyInAll(t)
	}
}

// wire is how programs and limiters reach a Redis.
type wire struct {
	options []stack.RedisOption                 // of its servers
	to      func(stack.Endpoint) stack.Endpoint // the Redis over this wire
}

// overEachWire runs a test without TLS, and in make test-all over TLS, too, where connections end otherwise.
func overEachWire(t *testing.T, test func(*testing.T, wire)) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		test(t, wire{to: func(redis stack.Endpoint) stack.Endpoint { return redis }})
	})
	t.Run("TLS", func(t *testing.T) {
		onlyInAll(t)
		t.Parallel()
		c := stack.NewCertificate(t)
		test(t, wire{[]stack.RedisOption{stack.RedisTLS(c)}, func(redis stack.Endpoint) stack.Endpoint { return stack.OverTLS(c, redis) }})
	})
}

// system is the whole of Tallyroll, each part a process of its own.
type system struct {
	t           *testing.T
	began       time.Time
	redis       *stack.RedisServer // nil where Redis is not one server
	network     *proxy             // between the workers and Redis; nil where they reach it directly
	broker      broker             // nats or natsCluster
	nats        *stack.NATSProc
	natsCluster *stack.NATSProcs
	query       *stack.Service
	workers     []*stack.Service
	js          jetstream.JetStream

	replicas int            // of the stream
	counts   stack.Endpoint // Redis, of whatever kind
}

// broker is one NATS server or a cluster.
type broker interface {
	stack.Endpoint
	Conn(...nats.Option) *nats.Conn
	JetStream() jetstream.JetStream
}

// startServers starts all but a worker, with one Redis server and one NATS server, and makes the stream.
func startServers(t *testing.T) *system {
	t.Helper()
	s := startWithoutStream(t)
	s.createStream("HITS", "hits.>")
	return s
}

// startWithoutStream starts one Redis server, one NATS server and query, and makes no stream.
func startWithoutStream(t *testing.T) *system {
	t.Helper()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATSProcess(t)}
	s.broker = s.nats
	s.startQuery(s.redis, 1)
	return s
}

// startServersOn is servers with a Redis of any kind.
func startServersOn(t *testing.T, redis stack.Endpoint) *system {
	t.Helper()
	s := &system{t: t, nats: stack.NATSProcess(t)}
	s.broker = s.nats
	s.startQuery(redis, 1)
	s.createStream("HITS", "hits.>")
	return s
}

// startServersOnNATSCluster is servers with a cluster of NATS.
func startServersOnNATSCluster(t *testing.T) *system {
	t.Helper()
	s := &system{t: t, redis: stack.Redis(t), natsCluster: stack.NATSCluster(t)}
	s.broker = s.natsCluster
	s.startQuery(s.redis, stack.NATSServers)
	s.createStream("HITS", "hits.>")
	return s
}

// startQuery starts what every system has.
func (s *system) startQuery(redis stack.Endpoint, replicas int) {
	s.t.Helper()
	s.replicas, s.counts = replicas, redis
	s.query = stack.Query(s.t, redis, "QUERY_TIMEOUT=2s", stack.NoWait) // not ready before the first worker
	s.js = s.broker.JetStream()
	s.began = time.Now()
}

// start starts everything, with one worker.
func start(t *testing.T, env ...string) *system {
	t.Helper()
	s := startServers(t)
	s.startWorker(s.redis, env...)
	return s
}

// startWorker starts another worker, which reaches Redis at the given address.
func (s *system) startWorker(redis stack.Endpoint, env ...string) *stack.Service {
	s.t.Helper()
	w := stack.Ingest(s.t, s.broker, redis, env...)
	s.workers = append(s.workers, w)
	return w
}

func (s *system) createStream(name, subject string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	for {
		stream, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject}, Replicas: s.replicas, Duplicates: 10 * time.Minute, // longer than any outage of these tests
		})
		require.NoErrorf(s.t, err, "create %s", name)
		info := stream.CachedInfo()
		if info.State.Msgs == 0 || !info.State.FirstTime.Before(info.Created) {
			return
		}
		s.t.Logf("a busy server has given the new stream %s the messages of the one that was deleted: once more", name)
		require.NoErrorf(s.t, s.js.DeleteStream(ctx, name), "delete %s", name)
	}
}

// sleepUpTo lets a random time pass, up to most: the fault comes when it comes.
func sleepUpTo(most time.Duration) { time.Sleep(rand.N(most)) }

// awaitProgress waits until hits stored after now are counted on every shard, and says how long that took.
func (s *system) awaitProgress(l *load) time.Duration {
	s.t.Helper()
	return s.countedUpTo(l, time.Now())
}

// countedUpTo waits until every hit stored before a moment is counted.
func (s *system) countedUpTo(l *load, at time.Time) time.Duration {
	s.t.Helper()
	began := time.Now()
	all := l.names()
	stack.Eventually(s.t, "as_of to pass "+at.Format(time.StampMilli), func() (bool, string) {
		// Most looks come too early, and a few counters tell that for less: more of them can only have an older
		// as_of.
		for _, asked := range [][]string{all[:min(few, len(all))], all} {
			answer, err := s.ask(asked)
			if err != nil {
				return false, err.Error()
			}
			if !answer.AsOf.After(at) {
				return false, "as_of " + answer.AsOf.Format(time.StampMilli)
			}
		}
		return true, ""
	})
	return time.Since(began)
}

// requireExactCounts waits until everything stored is counted, by as_of alone, and then
// demands the exact totals. A marker hit later they must still be the same.
func (s *system) requireExactCounts(l *load, faults int) {
	s.t.Helper()
	l.finish()
	marker := "marker-" + l.prefix
	for _, when := range []string{"when as_of had passed the last hit", "after the marker"} {
		s.countedUpTo(l, time.Now())
		s.compare(l, when)
		if s.t.Failed() {
			break
		}
		if when != "after the marker" {
			l.publish(s.t.Context(), message{subject: l.subject(marker), id: marker, hits: map[string]int64{marker: 1}})
		}
	}
	s.compareUniques(l)
	s.audit()
	published, counted := l.sum(), s.sumCounted(l)
	s.t.Logf("published %d, counted %d, faults %d, took %v (%d messages, %d published again)",
		published, counted, faults, time.Since(s.began).Round(10*time.Millisecond), l.messages.Load(), l.repeats.Load())
}

// audit has the program audit compare every cell with the streams.
func (s *system) audit() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), stack.Hung)
	defer cancel()
	cmd := stack.Command(ctx, s.t, "audit", []string{"--rate=0"}, append(stack.RedisEnv(s.counts), "NATS_URL="+s.broker.URL()))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Errorf("audit: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		s.t.Log(strings.TrimSpace(line))
	}
}

// compare fails the test where a counter is not exactly what was published.
func (s *system) compare(l *load, when string) {
	s.t.Helper()
	truth := l.published()
	answer := s.mustAsk(l.names())
	var wrong []string
	for _, got := range answer.Totals {
		if want := truth[got.Key]; !got.Is(want) {
			wrong = append(wrong, fmt.Sprintf("%s: published %d, counted %d (%d to %d)", got.Key, want, got.Total, got.Lower, got.Upper))
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		s.t.Errorf("%s %d of %d counters are wrong; published %d, counted %d:\n%s", when, len(wrong), len(truth), l.sum(), s.sumCounted(l),
			strings.Join(wrong[:min(len(wrong), 10)], "\n"))
	}
}

// compareUniques fails the test if Redis holds other registers than the unique values that were published
// make.
func (s *system) compareUniques(l *load) {
	s.t.Helper()
	client := stack.ProgramClientOf(s.t, s.counts)
	stored := map[string]*unique.Sketch{}
	for _, key := range stack.Scan(s.t, client, "tallyroll:{*}:u:1d:*:"+l.prefix+"-*") {
		_, rest, _ := strings.Cut(key, ":u:1d:")
		_, counter, _ := strings.Cut(rest, ":")
		sketch, err := unique.Decode(client.Get(s.t.Context(), key).Val())
		require.NoErrorf(s.t, err, "%s", key)
		if stored[counter] == nil {
			stored[counter] = new(unique.Sketch)
		}
		stored[counter].Merge(sketch)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for counter, want := range l.uniques {
		have := stored[counter]
		if have == nil {
			have = new(unique.Sketch)
		}
		if missing, extra := len(want.AppendAbove(nil, have)), len(have.AppendAbove(nil, want)); missing+extra > 0 {
			s.t.Errorf("%s has %d registers, and %d were published: %d are missing or lower, %d are higher", counter, have.Len(), want.Len(), missing, extra)
		}
	}
	for counter := range stored {
		if l.uniques[counter] == nil {
			s.t.Errorf("%s has registers, and no unique value was published", counter)
		}
	}
	s.t.Logf("compared the registers of %d counters", len(l.uniques))
}

func (s *system) sumCounted(l *load) (sum int64) {
	s.t.Helper()
	answer := s.mustAsk(l.names())
	for _, total := range answer.Totals {
		sum += total.Total
	}
	return sum
}
