package source

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

type feedReader struct {
	t    *testing.T
	js   jetstream.JetStream
	feed *jetStreamFeed
	seqs chan uint64
	lost chan error
}

// startFeed makes the stream and reads it with requests that set changes.
func startFeed(t *testing.T, js jetstream.JetStream, set func(*pullRequest)) *feedReader {
	t.Helper()
	ctx := t.Context()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}}); err != nil {
		t.Fatal(err)
	}
	source := New(js, "tallyroll", "HITS", maxPullOne)
	if _, err := source.Check(ctx); err != nil {
		t.Fatal(err)
	}
	opened, err := source.Open(ctx, 1)
	require.NoError(t, err)
	r := &feedReader{t, js, opened.(*jetStreamFeed), make(chan uint64), make(chan error, 8)}
	set(&r.feed.request)
	require.NoError(t, r.feed.Start(r.take, func(err error) { r.lost <- err }))
	t.Cleanup(r.feed.Stop)
	return r
}

// take holds a delivery until it is expected.
func (r *feedReader) take(d Delivery) {
	select {
	case r.seqs <- d.Seq:
	case <-r.t.Context().Done():
	}
}

func (r *feedReader) publish(n, size int) {
	r.t.Helper()
	for range n {
		if _, err := r.js.Publish(r.t.Context(), "hits.a", make([]byte, size)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// expect waits for so many messages in their order.
func (r *feedReader) expect(from, n uint64) {
	r.t.Helper()
	for want := from; want < from+n; want++ {
		select {
		case seq := <-r.seqs:
			if seq != want {
				r.t.Fatalf("message %d came where %d was expected", seq, want)
			}
		case err := <-r.lost:
			r.t.Fatalf("before message %d: %v", want, err)
		case <-time.After(stack.Hung):
			r.t.Fatalf("message %d does not come", want)
		}
	}
}

func (r *feedReader) expectLost(part string) {
	r.t.Helper()
	select {
	case err := <-r.lost:
		if !strings.Contains(err.Error(), part) {
			r.t.Errorf("it says %q, want %q", err, part)
		}
	case <-time.After(stack.Hung):
		r.t.Fatal("it is not given up")
	}
	select {
	case err := <-r.lost:
		r.t.Errorf("it says twice that it is lost: %v", err)
	default:
	}
}

// However a request ends, the next one goes on.
func TestReadingAsksAgainHoweverARequestEnds(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*pullRequest){
		"by messages": func(r *pullRequest) { r.Batch = 7 },
		"by bytes":    func(r *pullRequest) { r.MaxBytes = 3000 },
		"by one":      func(r *pullRequest) { r.Batch = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			r := startFeed(t, stack.NATS(t).JetStream(), set)
			for round := range uint64(3) {
				r.publish(40, 700)
				r.expect(40*round+1, 40)
			}
		})
	}
	t.Run("by time", func(t *testing.T) {
		n := stack.NATS(t)
		asked, err := n.Conn().SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.HITS.*")
		require.NoError(t, err)
		r := startFeed(t, n.JetStream(), func(r *pullRequest) { r.Expires, r.Heartbeat = 200*time.Millisecond, 50*time.Millisecond })
		for range 6 {
			if _, err := asked.NextMsg(stack.Hung); err != nil {
				t.Fatal(err)
			}
		}
		r.publish(40, 0)
		r.expect(1, 40)
	})
}

func TestReadingIsGivenUpIfNoMessageComes(t *testing.T) {
	t.Parallel()
	t.Run("consumer deleted", func(t *testing.T) {
		r := startFeed(t, stack.NATS(t).JetStream(), func(*pullRequest) {})
		r.publish(1, 0)
		r.expect(1, 1)
		require.NoError(t, r.feed.Release())
		r.expectLost("the server ended the delivery: ") // 409 Consumer Deleted, or 503 for a request that came after that
	})
	t.Run("refused", func(t *testing.T) {
		r := startFeed(t, stack.NATS(t).JetStream(), func(r *pullRequest) { r.Heartbeat = r.Expires })
		r.expectLost("the server ended the delivery: 400")
	})
	t.Run("reconnected", func(t *testing.T) {
		n := stack.NATS(t)
		r := startFeed(t, n.JetStream(), func(*pullRequest) {})
		n.Stop()
		n.Start()
		r.expectLost("") // by whatever is noticed first
	})
	t.Run("silence", func(t *testing.T) {
		n := stack.NATSProcess(t)
		r := startFeed(t, n.JetStream(), func(*pullRequest) {})
		r.publish(1, 0)
		r.expect(1, 1)
		n.Pause()
		defer n.Resume()
		r.expectLost(fmt.Sprintf("the consumer was silent for %s", silentHeartbeats*heartbeat))
	})
}

// While a delivery waits for room, and while nothing is stored, a consumer is not silent.
func TestAConsumerThatWaitsForRoomIsNotSilent(t *testing.T) {
	t.Parallel()
	n := stack.NATS(t)
	asked, err := n.Conn().SubscribeSync("_INBOX.>") // heartbeats, too
	require.NoError(t, err)
	r := startFeed(t, n.JetStream(), func(r *pullRequest) { r.Heartbeat = 500 * time.Millisecond })
	heartbeats := func(n int) {
		t.Helper()
		for n > 0 {
			m, err := asked.NextMsg(stack.Hung)
			require.NoError(t, err)
			if m.Header.Get("Status") == "100" {
				n--
			}
		}
	}
	heartbeats(8) // four seconds
	r.publish(1, 0)
	heartbeats(8)
	r.expect(1, 1)
}

func TestEndOfARequestIsKnownByItsStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status, description, pending string
		unused                       int
		failed                       bool
	}{
		{"100", "Idle Heartbeat", "", 0, false},
		{"408", "Request Timeout", "17", 17, false},
		{"409", "Message Size Exceeds MaxBytes", "3", 3, false},
		{"409", "Batch Completed", "0", 0, false},
		{"408", "Request Timeout", "", 0, true},
		{"408", "Request Timeout", "-1", 0, true},
		{"409", "Consumer Deleted", "3", 0, true},
		{"409", "Leadership Change", "", 0, true},
		{"409", "Server Shutdown", "3", 0, true},
		{"503", "", "", 0, true},
		{"", "", "", 0, true},
	} {
		h := nats.Header{"Status": {c.status}, "Description": {c.description}, "Nats-Pending-Messages": {c.pending}}
		unused, err := unusedOf(h)
		if unused != c.unused || (err != nil) != c.failed {
			t.Errorf("%v: %d, %v", h, unused, err)
		}
	}
}

// A stream's limits on consumers are kept: on how long the server keeps an idle one, and on how many there
// are. A reader that was killed has left its consumer, which the next one replaces at once. Another's stays.
func TestLimitsOfConsumersAreKept(t *testing.T) {
	t.Parallel()
	js := stack.SharedNATS(t).JetStream()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, MaxConsumers: 1,
		ConsumerLimits: jetstream.StreamConsumerLimits{InactiveThreshold: 10 * time.Second}})
	require.NoError(t, err)
	open := func(namespace string) (*jetStreamFeed, error) {
		source := New(js, namespace, "HITS", maxPullOne)
		_, err := source.Check(t.Context())
		require.NoError(t, err)
		feed, err := source.Open(t.Context(), 1)
		if err != nil {
			return nil, err
		}
		return feed.(*jetStreamFeed), nil
	}
	former, err := open("tallyroll") // is never released
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, former.consumer.Config.InactiveThreshold)
	_, err = open("other")
	require.ErrorIs(t, err, jetstream.ErrMaximumConsumersLimit)
	next, err := open("tallyroll")
	require.NoError(t, err)
	_, err = stream.Consumer(t.Context(), former.consumer.Name)
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	require.NoError(t, next.Release())
}
