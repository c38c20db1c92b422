package faults_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A stream that sources two others, one of them over a leaf node's link, which breaks. What the near
// one stores counts all the same; but no answer looks fresher than the far one was last heard, and
// what the far one stored meanwhile counts when it arrives.
func TestCountsAreExactIfASourceIsCutOff(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	hub, edge, link := startLeaf(t)
	s := &system{t: t, redis: stack.Redis(t), broker: edge}
	s.startQuery(s.redis, 1)
	far := hub.JetStream()
	const farCounter, nearCounter = "far.c", "near.c" // such a stream has no subjects of its own: the whole subject is the counter
	for _, c := range []struct {
		js            jetstream.JetStream
		name, subject string
	}{{far, "FAR", "far.>"}, {s.js, "NEAR", "near.>"}} {
		if _, err := c.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: c.name, Subjects: []string{c.subject}}); err != nil {
			t.Fatal(err)
		}
	}
	totals := map[string]int64{}
	publish := func(js jetstream.JetStream, counter string, n int) {
		t.Helper()
		for range n {
			if _, err := js.Publish(t.Context(), counter, nil); err != nil {
				t.Fatal(err)
			}
		}
		totals[counter] += int64(n)
	}
	publish(far, farCounter, 5) // stored before the stream is made
	copied, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Sources: []*jetstream.StreamSource{
		{Name: "FAR", External: &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"}}, {Name: "NEAR"},
	}})
	require.NoError(t, err)
	worker := s.startWorker(s.redis)
	both := func() []string { return []string{farCounter, nearCounter} }
	// waits fails the test if as_of passes both what has arrived and the moment at which the far source was last
	// heard.
	waits := func(asOf, heard time.Time) {
		t.Helper()
		info, err := copied.Info(t.Context())
		require.NoError(t, err)
		if asOf.After(heard) && asOf.After(info.State.LastTime) {
			t.Errorf("as_of is %v; the far source was last heard at %v, and the last hit arrived at %v", asOf, heard, info.State.LastTime)
		}
	}
	counted := func(farWant int64, fresh bool) (asOf time.Time) {
		t.Helper()
		began := time.Now()
		stack.Eventually(t, fmt.Sprintf("%d and %d hits, and as_of to pass them: %v", farWant, totals[nearCounter], fresh), func() (bool, string) {
			answer, err := s.ask(both())
			if err != nil {
				return false, err.Error()
			}
			asOf = answer.AsOf
			return answer.Totals[0].Total == farWant && answer.Totals[1].Total == totals[nearCounter] && (!fresh || asOf.After(began)), fmt.Sprintf("%+v", answer)
		})
		return asOf
	}
	w := s.watch(both)
	publish(s.js, nearCounter, 3)
	counted(totals[farCounter], true)
	for i := range rounds(1, 2, 6) {
		link.cut()
		arrived := totals[farCounter]
		publish(far, farCounter, 45)
		var heard time.Time // when the far source was last heard
		stack.Eventually(t, "silence of the far source", func() (bool, string) {
			info, err := copied.Info(t.Context())
			if err != nil {
				return false, err.Error()
			}
			silence := info.Sources[0].Active
			heard = info.TimeStamp.Add(-silence)
			return silence > 6*time.Second, fmt.Sprintf("%+v", info.Sources[0])
		})
		waits(counted(arrived, false), heard)
		publish(s.js, nearCounter, 7)
		waits(counted(arrived, false), heard)
		const unsure = "cannot tell how far this copy has got"
		stack.Eventually(t, "the worker to miss the source", func() (bool, string) {
			n := strings.Count(worker.Logs(), unsure)
			return n > i, fmt.Sprint(n)
		})
		if i == 0 { // another worker finds the source as silent
			worker.Kill()
			worker.Start()
			publish(s.js, nearCounter, 1)
			waits(counted(arrived, false), heard)
		}
		link.join()
		counted(totals[farCounter], true)
	}
	w.stop()
	w.collectOf(s.js, "HITS")
	w.requireHonest()
}
