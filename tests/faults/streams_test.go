package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Streams come, are hit at once, and go, while others are counted. No answer may
// claim, by as_of, a hit of a stream that nobody reads yet.
func TestCountsAreExactWhileStreamsComeAndGo(t *testing.T) {
	t.Parallel()
	s := start(t)
	other := newSpreadLoad(s, "o", true, 20, 0).start(200)
	s.awaitProgress(other)
	n := rounds(8, 24, 96)
	counter := func(i int) string { return fmt.Sprintf("new-%d", i) }
	names := other.names()
	for i := range n {
		names = append(names, counter(i))
	}
	w := s.watch(func() []string { return names })

	const kept = 4 // at a time
	stream := func(i int) string { return fmt.Sprintf("HITS_NEW_%d", i%kept) }
	hit := func(i int) {
		t.Helper()
		if _, err := s.js.Publish(t.Context(), fmt.Sprintf("new.%d.%s", i, counter(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	var there []string
	for i := range n {
		if i >= kept { // the one whose name is used again, once all of it is counted
			stack.Eventually(t, "the hits of "+counter(i-kept), func() (bool, string) {
				answer, err := s.ask([]string{counter(i - kept)})
				return err == nil && answer.Totals[0].Total == 2, fmt.Sprintf("%+v %v", answer, err)
			})
			w.collect(stream(i))
			require.NoError(t, s.js.DeleteStream(t.Context(), stream(i)))
			there = there[1:]
		}
		s.createStream(stream(i), fmt.Sprintf("new.%d.>", i))
		there = append(there, stream(i))
		hit(i)
		sleepUpTo(300 * time.Millisecond)
		hit(i)
	}
	s.awaitProgress(other)
	other.finish()
	s.countedUpTo(other, time.Now())
	w.requireHonest(append(slices.Clone(there), "HITS")...)
	answer := s.mustAsk(names)
	for _, total := range answer.Totals[len(names)-n:] {
		if total.Total != 2 {
			t.Errorf("%s: %+v, want 2 hits", total.Key, total)
		}
	}
}
