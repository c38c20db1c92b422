package faults_test

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// witness keeps answers that were given while something was broken, or while
// streams came and went, and compares them with what was stored.
type witness struct {
	*system
	stop    func()
	answers []stack.Answer
	hits    []storedHit
}

// storedHit is a hit as its stream tells of it.
type storedHit struct {
	counter string
	at      int64 // Unix milliseconds
}

// watch asks for the totals of counters until the witness is stopped.
func (s *system) watch(counters func() []string) *witness {
	return s.watchBy(func() (stack.Answer, error) { return s.ask(counters()) })
}

// watchBy asks in any way.
func (s *system) watchBy(ask func() (stack.Answer, error)) *witness {
	w := &witness{system: s}
	ctx, cancel := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	w.stop = func() { cancel(); running.Wait() }
	s.t.Cleanup(w.stop)
	running.Go(func() {
		for ctx.Err() == nil {
			if answer, err := ask(); err == nil {
				w.answers = append(w.answers, answer)
			}
			select {
			case <-ctx.Done():
			case <-time.After(w.pause()):
			}
		}
	})
	return w
}

// pause is shorter where a claim may hold for an instant only.
func (w *witness) pause() time.Duration {
	if w.natsCluster == nil {
		return 5 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// collect notes the hits that a stream holds, all of one hit a message. It is for
// a stream that will be gone when the answers are judged.
func (w *witness) collect(stream string) {
	w.t.Helper()
	w.collectOf(w.js, stream)
}

// collectOf collects from a stream of another server.
func (w *witness) collectOf(js jetstream.JetStream, stream string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), stack.Hung)
	defer cancel()
	handle, err := js.Stream(ctx, stream)
	require.NoError(w.t, err)
	consumer, err := handle.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	require.NoError(w.t, err)
	messages, err := consumer.Messages()
	require.NoError(w.t, err)
	defer messages.Stop()
	prefix := "" // a copy has no subjects of its own
	if subjects := handle.CachedInfo().Config.Subjects; len(subjects) > 0 {
		prefix = strings.TrimSuffix(subjects[0], ">")
	}
	for left := uint64(1); left > 0; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		require.NoError(w.t, err)
		meta, err := m.Metadata()
		require.NoError(w.t, err)
		left = meta.NumPending
		w.hits = append(w.hits, storedHit{strings.TrimPrefix(m.Subject(), prefix), meta.Timestamp.UnixMilli()})
	}
}

// requireHonest fails the test if an answer was wrong. Of the hits with a time in the window,
// all that were stored before as_of are within upper, and lower has no more than there
// are. It collects the streams first.
func (w *witness) requireHonest(streams ...string) {
	w.t.Helper()
	w.stop()
	for _, stream := range streams {
		w.collect(stream)
	}
	times := make(map[string][]int64) // of the hits of a counter
	for _, h := range w.hits {
		times[h.counter] = append(times[h.counter], h.at)
	}
	wrong, longest, furthest := 0, time.Duration(0), time.Duration(0)
	for i, answer := range w.answers {
		for _, total := range answer.Totals {
			due, all, last, asOf := int64(0), int64(0), int64(0), answer.AsOf.UnixMilli()
			for _, at := range times[total.Key] {
				if at < total.From.UnixMilli() || at > total.To.UnixMilli() {
					continue
				}
				all++ // also what the very millisecond of to has
				if at < asOf && at < total.To.UnixMilli() {
					due++
					last = max(last, at)
				}
			}
			if total.Upper >= due && total.Lower <= all {
				continue
			}
			claimed := time.Duration(asOf-last) * time.Millisecond
			furthest = max(furthest, claimed)
			if wrong++; wrong <= 10 {
				w.t.Errorf("answer %d has %d to %d hits of %s in %s; of %d, as_of %s claims %d, the last of them stored %s earlier (complete: %t)",
					i, total.Lower, total.Upper, total.Key, total.Window, all, answer.AsOf, due, claimed, total.Complete)
			}
		}
		if i > 0 {
			longest = max(longest, answer.AsOf.Sub(w.answers[i-1].AsOf))
		}
	}
	w.t.Logf("%d answers, %d of their totals are wrong, by %s at most; as_of moved by %s at once at most",
		len(w.answers), wrong, furthest, longest.Round(time.Millisecond))
}
