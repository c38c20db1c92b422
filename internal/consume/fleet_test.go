package consume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

// fellow is a worker's part in a fleet, without the work.
type fellow struct {
	*fleet
	t     *testing.T
	conn  *nats.Conn
	stop  context.CancelFunc
	ended chan error
}

func newFellow(t *testing.T, server *stack.NATSEmbedded, namespace, id, name string, streams ...string) *fellow {
	t.Helper()
	conn := server.Conn()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	settings := parse(t, "TALLYROLL_NAMESPACE="+namespace, "INGEST_WORKER="+name)
	f := &fellow{t: t, conn: conn, ended: make(chan error, 1)}
	f.fleet = newFleet(js, func() string { return id }, settings, "status", newMetrics(prometheus.NewRegistry()), zerolog.New(zerolog.NewTestWriter(t)))
	f.exist(streams)
	return f
}

func (f *fellow) start() *fellow {
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() { f.ended <- f.run(ctx) }()
	f.t.Cleanup(stop)
	return f
}

// quit leaves the fleet as a worker does.
func (f *fellow) quit() {
	f.t.Helper()
	f.leaving()
	f.stop()
	if err := <-f.ended; err != nil {
		f.t.Error(err)
	}
	f.leave()
}

func (f *fellow) mine() []string { return slices.Sorted(maps.Keys(f.share().mine)) }

// shared waits until the fellows have all streams between them, each one once and
// no one more than one above another.
func shared(t *testing.T, streams []string, fellows ...*fellow) {
	t.Helper()
	stack.Eventually(t, soon, fmt.Sprintf("%d workers to share %d streams", len(fellows), len(streams)), func() (bool, string) {
		var all []string
		var state strings.Builder
		fair := true
		for _, f := range fellows {
			mine, s := f.mine(), f.share()
			all = append(all, mine...)
			fair = fair && s.known && s.workers == len(fellows) && len(mine) <= (len(streams)+len(fellows)-1)/len(fellows)
			fmt.Fprintf(&state, "%s has %v of %d workers; ", f.name, mine, s.workers)
		}
		slices.Sort(all)
		return fair && slices.Equal(all, streams), state.String()
	})
}

func TestFleetJoinsAndLeaves(t *testing.T) {
	server, streams := stack.NATS(t), streamNames(4)
	fellows := make(map[string]*fellow)
	for _, name := range []string{"a", "b", "c/d é.*>"} { // any name makes a key
		fellows[name] = newFellow(t, server, "test", "id", name, streams...).start()
		shared(t, streams, slices.Collect(maps.Values(fellows))...)
	}
	before := fellows["b"].mine()
	for range 20 { // the end may come in the middle of a beat
		signal(fellows["a"].kick)
	}
	fellows["a"].quit() // it was the first
	bucket, err := server.JetStream().KeyValue(t.Context(), bucketName("test"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Get(t.Context(), "id.worker.a"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the key of a worker that has left: %v", err)
	}
	delete(fellows, "a")
	shared(t, streams, slices.Collect(maps.Values(fellows))...)
	for _, stream := range before {
		if !slices.Contains(fellows["b"].mine(), stream) {
			t.Errorf("%s moved when another worker left", stream)
		}
	}
	// More workers than streams: the rest stand by.
	for i := range 4 {
		name := fmt.Sprint(i)
		fellows[name] = newFellow(t, server, "test", "id", name, streams...).start()
	}
	shared(t, streams, slices.Collect(maps.Values(fellows))...)
	// A stream more and one less.
	other := append(streamNames(4)[1:], "HITS_9")
	for _, f := range fellows {
		f.exist(other)
	}
	shared(t, other, slices.Collect(maps.Values(fellows))...)
}

func TestFleetMissesTheDead(t *testing.T) {
	server, streams := stack.NATS(t), streamNames(4)
	a := newFellow(t, server, "test", "id", "a", streams...).start()
	shared(t, streams, a)
	b := newFellow(t, server, "test", "id", "b", streams...).start()
	shared(t, streams, a, b)
	a.conn.Close() // the one that plans
	began := time.Now()
	shared(t, streams, b)
	took := time.Since(began)
	t.Logf("a dead worker's streams have another after %v", took)
	if took > 5*time.Second {
		t.Errorf("they were taken after %v, want 5s", took)
	}
	// Without its connection a worker keeps what it had.
	if got := a.mine(); len(got) != 2 {
		t.Errorf("cut off, it has %v", got)
	}
}

func TestFleetsApart(t *testing.T) {
	server, streams := stack.NATS(t), streamNames(3)
	fellows := []*fellow{
		newFellow(t, server, "a.b", "id", "w", streams...).start(),
		newFellow(t, server, "a_b", "id", "w", streams...).start(),
		newFellow(t, server, "a.b", "other", "w", streams...).start(), // of the same name in another Redis
	}
	for _, f := range fellows {
		shared(t, streams, f)
	}
}

func TestFleetNameTaken(t *testing.T) {
	server, streams := stack.NATS(t), streamNames(2)
	a := newFellow(t, server, "test", "id", "pod-0", streams...).start()
	shared(t, streams, a)

	b := newFellow(t, server, "test", "id", "pod-0", streams...)
	b.begun = time.Now().Add(-2 * nameWithin) // it has waited for long
	var wrong *boot.SettingError
	if err := b.run(t.Context()); !errors.As(err, &wrong) || wrong.Key != "INGEST_WORKER" || wrong.Value != "pod-0" {
		t.Errorf("a second worker of the name ends with %v", err)
	}

	c := newFellow(t, server, "test", "id", "pod-0", streams...).start()
	stack.Eventually(t, soon, "the second to wait", func() (bool, string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting, ""
	})
	if got := c.mine(); len(got) > 0 {
		t.Errorf("while it waits for its name it has %v", got)
	}
	a.conn.Close() // killed
	shared(t, streams, c)
}

// A stream changes hands only when its reader says that it has let go.
func TestFleetHandsOver(t *testing.T) {
	server, streams := stack.NATS(t), streamNames(2)
	a := newFellow(t, server, "test", "id", "a", streams...).start()
	shared(t, streams, a)
	for _, stream := range streams {
		a.hold(stream)
	}
	b := newFellow(t, server, "test", "id", "b", streams...).start()
	shared(t, streams, a, b)
	stream := b.mine()[0]
	stack.Eventually(t, soon, "the new one to see who has it", func() (bool, string) { return b.share().busy[stream], "" })
	a.release(stream)
	stack.Eventually(t, handOverWithin/2, "the stream to be free", func() (bool, string) { return !b.share().busy[stream], "" })
}

// A server that keeps the bucket in memory forgets it with a restart: nothing moves.
func TestFleetOutlivesItsBucket(t *testing.T) {
	server, streams := stack.NATS(t), streamNames(6)
	var fellows []*fellow
	for _, name := range []string{"a", "b", "c"} {
		fellows = append(fellows, newFellow(t, server, "test", "id", name, streams...).start())
	}
	shared(t, streams, fellows...)
	var before [][]string
	for _, f := range fellows {
		before = append(before, f.mine())
	}
	server.Stop()
	time.Sleep(deadAfter + beatEvery) // an outage longer than any silence that is allowed
	server.Start()
	joined := time.Now()
	stack.Eventually(t, soon, "all to beat again", func() (bool, string) {
		for _, f := range fellows {
			f.mu.Lock()
			back := f.roster.own.After(joined)
			f.mu.Unlock()
			if !back {
				return false, f.name
			}
		}
		return true, ""
	})
	shared(t, streams, fellows...)
	for i, f := range fellows {
		if !slices.Equal(f.mine(), before[i]) {
			t.Errorf("%s had %v and has %v", f.name, before[i], f.mine())
		}
	}
}

func TestKeysOfAFleet(t *testing.T) {
	seen := map[string]string{}
	for _, ns := range []string{"a.b", "a_b", "a__b", "a-b", "a_-b", "a._b", "a_.b", "tallyroll"} {
		bucket := bucketName(ns)
		if was, twice := seen[bucket]; twice {
			t.Errorf("%s and %s share the bucket %s", was, ns, bucket)
		}
		seen[bucket] = ns
	}
	if got := keyName("web-1.eu é"); got != "web-1=2Eeu=20=C3=A9" {
		t.Error(got)
	}
}
