package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// lastCommit is long: in these tests a stream is free because its worker let it go, never because time was
// up.
var lastCommit = stack.Hung

// peer is a worker's part in a fleet, without the work.
type peer struct {
	*Fleet
	t     *testing.T
	name  string
	conn  *nats.Conn
	stop  context.CancelFunc
	ended chan struct{}
}

func newPeer(t *testing.T, server *stack.NATSEmbedded, namespace, id, name string, streams ...string) *peer {
	t.Helper()
	conn := server.Conn()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	f := &peer{t: t, name: name, conn: conn, ended: make(chan struct{})}
	f.Fleet = New(Config{
		JS: js, Namespace: namespace, ID: func() string { return id }, Name: name, Status: "status", Streams: Globs{"HITS*"},
		Replicas: 1, LastCommit: lastCommit, LeaveWithin: time.Second, Log: zerolog.New(zerolog.NewTestWriter(t)),
	})
	f.SetStreams(streams)
	return f
}

func (f *peer) start() *peer {
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() {
		defer close(f.ended)
		f.Run(ctx)
	}()
	f.t.Cleanup(func() {
		stop()
		<-f.ended
	})
	return f
}

// quit leaves the fleet as a worker does.
func (f *peer) quit() {
	f.StartLeaving()
	f.stop()
	<-f.ended
}

func (f *peer) mine() []string { return slices.Sorted(maps.Keys(f.Share().Mine)) }

// shared waits until the peers have all streams between them, each one once and
// no one more than one above another.
func shared(t *testing.T, streams []string, peers ...*peer) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("%d workers to share %d streams", len(peers), len(streams)), func() (bool, string) {
		var all []string
		var state strings.Builder
		fair := true
		for _, f := range peers {
			mine, s := f.mine(), f.Share()
			all = append(all, mine...)
			least := len(streams) / len(peers)
			fair = fair && s.Known && s.Workers == len(peers) && (len(mine) == least || len(mine) == least+1)
			fmt.Fprintf(&state, "%s has %v of %d workers; ", f.name, mine, s.Workers)
		}
		slices.Sort(all)
		return fair && slices.Equal(all, streams), state.String()
	})
}

func TestWorkersShareStreamsAsTheyJoinAndLeave(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(4)
	peers := make(map[string]*peer)
	for _, name := range []string{"a", "b", "c/d é.*>"} { // any name will do
		peers[name] = newPeer(t, server, "test", "id", name, streams...).start()
		shared(t, streams, slices.Collect(maps.Values(peers))...)
	}
	before := peers["b"].mine()
	peers["a"].quit() // it was the first
	delete(peers, "a")
	shared(t, streams, slices.Collect(maps.Values(peers))...)
	for _, stream := range before {
		if !slices.Contains(peers["b"].mine(), stream) {
			t.Errorf("%s moved when another worker left", stream)
		}
	}
	// More workers than streams: the rest stand by.
	for i := range 4 {
		name := fmt.Sprint(i)
		peers[name] = newPeer(t, server, "test", "id", name, streams...).start()
	}
	shared(t, streams, slices.Collect(maps.Values(peers))...)
	// A stream more and one less.
	other := append(streamNames(4)[1:], "HITS_9")
	for _, f := range peers {
		f.SetStreams(other)
	}
	shared(t, other, slices.Collect(maps.Values(peers))...)
}

// A worker may end in the middle of a heartbeat: the key that it writes last is gone all the same.
func TestWorkerThatLeavesDuringAHeartbeatIsGone(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(1)
	noise := server.Conn()
	for i := range 40 {
		f := newPeer(t, server, "test", "id", "a", streams...).start()
		shared(t, streams, f)
		for range 1000 { // another fleet's keys: writes queue, and reads overtake them
			require.NoError(t, noise.Publish("$KV."+bucketName("test")+".other.plan", nil))
		}
		f.Release("HITS_0")
		for len(f.heartbeatDue) > 0 {
			runtime.Gosched()
		}
		time.Sleep(time.Duration(i) * 10 * time.Microsecond) // each round ends at another place in the heartbeat
		f.stop()
		<-f.ended
		if _, err := openBucket(t, server).Get(t.Context(), memberPrefix("id")+f.token); !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Fatalf("the key of a worker that has left: %v", err)
		}
	}
}

func TestStreamsOfADeadWorkerAreTakenOver(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(4)
	a := newPeer(t, server, "test", "id", "a", streams...).start()
	shared(t, streams, a)
	b := newPeer(t, server, "test", "id", "b", streams...).start()
	shared(t, streams, a, b)
	a.conn.Close() // the one that plans
	shared(t, streams, b)
	// Without its connection a worker keeps what it had.
	if got := a.mine(); len(got) != 2 {
		t.Errorf("cut off, it has %v", got)
	}
}

func TestFleetsOfTwoNamespacesShareNothing(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(3)
	peers := []*peer{
		newPeer(t, server, "a.b", "id", "w", streams...).start(),
		newPeer(t, server, "a_b", "id", "w", streams...).start(),
		newPeer(t, server, "a.b", "other", "w", streams...).start(), // of the same name in another Redis
	}
	for _, f := range peers {
		shared(t, streams, f)
	}
}

// A name is a label: two processes of one name share, and one that was killed and started again waits for
// nothing.
func TestTwoWorkersOfOneNameShare(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(2)
	a := newPeer(t, server, "test", "id", "pod-0", streams...).start()
	b := newPeer(t, server, "test", "id", "pod-0", streams...).start()
	shared(t, streams, a, b)
	bucket := openBucket(t, server)
	for _, f := range []*peer{a, b} { // an operator finds the name
		entry, err := bucket.Get(t.Context(), memberPrefix("id")+f.token)
		if err != nil || !strings.Contains(string(entry.Value()), `"name":"pod-0"`) {
			t.Errorf("%v, %v", entry, err)
		}
	}
	a.conn.Close() // killed
	c := newPeer(t, server, "test", "id", "pod-0", streams...).start()
	shared(t, streams, b, c)
}

func openBucket(t *testing.T, server *stack.NATSEmbedded) jetstream.KeyValue {
	t.Helper()
	bucket, err := server.JetStream().KeyValue(t.Context(), bucketName("test"))
	require.NoError(t, err)
	return bucket
}

// A stream changes hands only when its reader says that it has let go.
func TestStreamChangesHandsOnlyOnceItsReaderLetGo(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(2)
	a := newPeer(t, server, "test", "id", "a", streams...).start()
	shared(t, streams, a)
	for _, stream := range streams {
		a.Hold(stream)
	}
	b := newPeer(t, server, "test", "id", "b", streams...).start()
	shared(t, streams, a, b)
	stream := b.mine()[0]
	stack.Eventually(t, "the new one to see who has it", func() (bool, string) { return b.Share().Busy[stream], "" })
	a.Release(stream)
	stack.Eventually(t, "the stream to be free", func() (bool, string) { return !b.Share().Busy[stream], "" })
}

// A server that keeps the bucket in memory forgets it with a restart: nothing moves.
func TestNothingMovesIfTheBucketIsLost(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(6)
	var peers []*peer
	for _, name := range []string{"a", "b", "c"} {
		peers = append(peers, newPeer(t, server, "test", "id", name, streams...).start())
	}
	shared(t, streams, peers...)
	var before [][]string
	for _, f := range peers {
		before = append(before, f.mine())
	}
	server.Stop()
	time.Sleep(deadAfter + heartbeatEvery) // an outage longer than any silence that is allowed
	server.Start()
	joined := time.Now()
	stack.Eventually(t, "all to beat again", func() (bool, string) {
		for _, f := range peers {
			f.mu.Lock()
			back := f.roster.lastEcho.After(joined)
			f.mu.Unlock()
			if !back {
				return false, f.name
			}
		}
		return true, ""
	})
	shared(t, streams, peers...)
	for i, f := range peers {
		if !slices.Equal(f.mine(), before[i]) {
			t.Errorf("%s had %v and has %v", f.name, before[i], f.mine())
		}
	}
}

// Only a right that NATS refused is said to be missing.
func TestMissingRightIsNamedIfItIsMissing(t *testing.T) {
	t.Parallel()
	const right = "give this user the right to create the stream KV_tallyroll_test"
	for name, c := range map[string]struct {
		change func(*server.Options)
		want   bool
	}{
		"no right": {func(o *server.Options) {
			denied := &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.*.KV_tallyroll_test"}}
			o.Users = []*server.User{{Username: "one", Password: "one", Permissions: &server.Permissions{Publish: denied}}}
			o.NoAuthUser = "one"
		}, true},
		"no JetStream": {func(o *server.Options) { o.JetStream = false }, false},
	} {
		var log bytes.Buffer
		p := newPeer(t, stack.NATS(t, c.change), "test", "id", "a", "HITS")
		p.log = zerolog.New(&log)
		p.start()
		stack.Eventually(t, name, func() (bool, string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.alone, "it is not alone"
		})
		p.quit()
		require.Contains(t, log.String(), "no fleet can be joined", name)
		require.Equal(t, c.want, strings.Contains(log.String(), right), log.String())
	}
}

func TestKeysOfAFleetAreReadBack(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, ns := range []string{"a.b", "a_b", "a__b", "a-b", "a_-b", "a._b", "a_.b", "tallyroll"} {
		bucket := bucketName(ns)
		if was, twice := seen[bucket]; twice {
			t.Errorf("%s and %s share the bucket %s", was, ns, bucket)
		}
		seen[bucket] = ns
	}
}
