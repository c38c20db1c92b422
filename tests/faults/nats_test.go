package faults_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// stream is the handle of the stream as it is now.
func (s *system) stream(ctx context.Context) jetstream.Stream {
	s.t.Helper()
	stream, err := s.js.Stream(ctx, "HITS")
	require.NoError(s.t, err)
	return stream
}

// Messages are purged that nobody had read: they are counted as discarded, and
// answers about their time say that they are incomplete.
func TestAPurgedStreamKeepsItsCounts(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	s := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
	defer cancel()
	l := newSpreadLoad(s, "c", true, 5000, 0)
	n := rounds(1, 1, 5)
	for range n {
		s.workers[0].Pause()
		l.burst(60_000, l.random) // more than NATS sends to a worker that does not read: it has asked for 20,000
		require.NoError(t, s.stream(ctx).Purge(ctx))
		s.workers[0].Resume()
		l.burst(100, l.random)
		s.awaitProgress(l)
	}
	counted, discarded := s.sumCounted(l), s.metric(s.workers[0], `tallyroll_ingest_discarded_messages_total{stream="HITS"}`)
	if lost := l.sum() - counted; lost == 0 || lost > discarded { // of a message that is discarded, some shards may have counted
		t.Errorf("published %d, counted %d; want some to be lost, and no more than the %d discarded", l.sum(), counted, discarded)
	}
	params := url.Values{"key": {l.counter(0)}, "from": {s.began.Format(time.RFC3339Nano)}}
	answer, err := stack.FetchTotals(s.query.URL(), params)
	if err != nil || answer.Totals[0].Complete {
		t.Errorf("a window with discarded hits: %+v %v; want it not to be complete", answer, err)
	}
	t.Logf("published %d, counted %d, discarded %d, faults %d, took %v", l.sum(), counted, discarded, n, time.Since(s.began).Round(10*time.Millisecond))

	after := startLoad(s, "after", false, 1000) // and counting is exact again
	s.awaitProgress(after)
	s.requireExactCounts(after, n)
}

// metric is the value of one metric, which must be there.
func (s *system) metric(w *stack.Service, name string) (value int64) {
	s.t.Helper()
	resp, err := http.Get(w.URL() + "/metrics")
	require.NoError(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	for line := range strings.Lines(string(text)) {
		var f float64
		if rest, ok := strings.CutPrefix(line, name); ok {
			if _, err := fmt.Sscan(rest, &f); err != nil {
				s.t.Fatalf("%s: %v", line, err)
			}
			return int64(f)
		}
	}
	s.t.Fatalf("no metric %s", name)
	return 0
}

// A recreated stream is counted from its first message, exactly; what the old one held counts at most once.
func TestARecreatedStreamIsCountedFromItsBeginning(t *testing.T) {
	t.Parallel()
	s := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
	defer cancel()
	n := rounds(1, 3, 20)
	var old []*load
	for i := range n {
		l := startLoad(s, fmt.Sprintf("old%d", i), false, 1000)
		if i%2 == 0 {
			s.awaitProgress(l)
		}
		sleepUpTo(500 * time.Millisecond)
		l.finish()
		old = append(old, l)
		require.NoError(t, s.js.DeleteStream(ctx, "HITS"))
		if i%3 == 2 { // not at once: the worker has time to see it gone
			sleepUpTo(3 * time.Second)
		}
		s.createStream("HITS", "hits.>")
	}
	l := startLoad(s, "new", false, 1000)
	s.awaitProgress(l)
	sleepUpTo(500 * time.Millisecond)
	s.requireExactCounts(l, n)
	for _, l := range old {
		truth := l.published()
		answer := s.mustAsk(l.names())
		for _, got := range answer.Totals {
			if got.Total > truth[got.Key] {
				t.Errorf("%s of a stream that is gone: published %d, counted %d", got.Key, truth[got.Key], got.Total)
			}
		}
		t.Logf("%s: published %d, counted %d", l.prefix, l.sum(), s.sumCounted(l))
	}
}
