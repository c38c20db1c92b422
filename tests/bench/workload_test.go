package bench_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// workload is how hits fall on counters.
type workload struct {
	name     string // part of the path that ONLY selects
	title    string
	counters int
	zipf     float64 // the exponent; 0 is a uniform distribution
	// Hits of a run, one and 100 to a message: it is long compared with the wait for the last flush, and short
	// compared with the life of the finest cells.
	single, batched int
}

var workloads = []workload{
	{"one", "1 counter", 1, 0, 3_000_000, 12_000_000},
	{"thousand", "1,000 counters, Zipf 1.1", 1_000, 1.1, 3_000_000, 12_000_000},
	{"zipf", "100,000 counters, Zipf 1.1", 100_000, 1.1, 6_000_000, 18_000_000},
	{"million", "1,000,000 counters, uniform", 1_000_000, 0, 1_000_000, 1_000_000},
}

// draw gives the numbers of counters, the same ones each time.
func (w workload) draw() func() int {
	random := rand.New(rand.NewPCG(1, 2))
	if w.zipf == 0 || w.counters == 1 {
		return func() int { return random.IntN(w.counters) }
	}
	z := rand.NewZipf(random, w.zipf, 1, uint64(w.counters-1))
	return func() int { return int(z.Uint64()) }
}

func counterName(i int) string { return fmt.Sprintf("api-%d", i) }

// stored is a stream that has been filled.
type stored struct {
	stream string
	hits   int
	last   uint64 // sequence
	// lastCounter is one that the last message hits: when its shard's cursor is
	// at the last sequence, all is committed or being committed.
	lastCounter string
	began       time.Time // of filling
	truth       map[int]int64
}

// A default finest tier (1s/1m) holds a hit for 75 seconds at least. What has
// expired since it was stored is not written, and a run would cost less: so a
// stream is recreated for runs that need it fresh, and runs that took too long are marked.
const (
	freshFor = 20 * time.Second
	heldFor  = 75 * time.Second
)

func (s *stored) fresh() bool { return s != nil && time.Since(s.began) < freshFor }

// fill recreates a stream and stores the workload's hits in it, size to a message.
func (r *rig) fill(t testing.TB, stream string, w workload, hits, size int) *stored {
	t.Helper()
	subject := strings.ToLower(stream)
	return r.store(t, stream, w, hits, size, func(body []byte, counter int) (string, []byte) {
		if size == 1 {
			return subject + "." + counterName(counter), nil
		}
		return subject + ".batch", append(append(append(body, `{"key":"`...), counterName(counter)...), "\"}\n"...)
	})
}

// addHit adds a hit of a counter to a message's body, and returns its subject.
type addHit func(body []byte, counter int) (subject string, to []byte)

// store recreates a stream and stores hits in it, size to a message. Its subjects begin with its name in
// small letters.
func (r *rig) store(t testing.TB, stream string, w workload, hits, size int, add addHit) *stored {
	t.Helper()
	ctx := t.Context()
	if err := r.js.DeleteStream(ctx, stream); !errors.Is(err, jetstream.ErrStreamNotFound) {
		require.NoError(t, err)
	}
	config := jetstream.StreamConfig{Name: stream, Subjects: []string{strings.ToLower(stream) + ".>"}}
	handle, err := r.js.CreateStream(ctx, config)
	require.NoError(t, err)
	s := &stored{stream: stream, hits: hits, began: time.Now(), truth: map[int]int64{}}
	draw := w.draw()
	for left := hits; left > 0; s.last++ {
		var name string
		var body []byte
		for range min(size, left) {
			i := draw()
			s.truth[i]++
			s.lastCounter = counterName(i)
			name, body = add(body, i)
			left--
		}
		r.publish(t, name, body)
	}
	select {
	case <-r.js.PublishAsyncComplete():
	case <-time.After(stack.Hung):
		t.Fatal("published messages are not acknowledged")
	}
	info, err := handle.Info(ctx)
	require.NoError(t, err)
	require.Equal(t, s.last, info.State.LastSeq, "the end of %s", stream)
	return s
}

// publish publishes a message without waiting for its acknowledgement, unless too many are missing.
func (r *rig) publish(t testing.TB, subject string, body []byte) {
	t.Helper()
	_, err := r.js.PublishAsync(subject, body, jetstream.WithStallWait(time.Minute))
	require.NoError(t, err)
}

// readAll reads a stream with the consumer of the ceiling, until each reports that
// it has enough or the stream ends, and returns how many messages that were.
func (r *rig) readAll(
	ctx context.Context, s *stored, each func(jetstream.Msg) (more bool, err error),
) (messages int, err error) {
	config := jetstream.OrderedConsumerConfig{InactiveThreshold: 30 * time.Second}
	consumer, err := r.js.OrderedConsumer(ctx, s.stream, config)
	if err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	over := false
	reading, err := consumer.Consume(func(m jetstream.Msg) {
		if over {
			return
		}
		messages++
		more, err := each(m)
		if !more || err != nil || messages == int(s.last) {
			over = true
			done <- err
		}
	}, jetstream.PullMaxMessages(10_000))
	if err != nil {
		return 0, err
	}
	defer reading.Stop()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return messages, err
}
