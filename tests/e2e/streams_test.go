package e2e_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func (s *system) createStream(name, subject string) {
	s.t.Helper()
	if _, err := s.js.CreateStream(s.t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
		s.t.Fatal(err)
	}
}

func TestNewStreamIsCounted(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.createStream("HITS_NEW", "new.>")
	created := time.Now()
	s.send("new.c", "")
	stack.EventuallyTotal(t, s.query.URL(), "c", "1h", 1)
	t.Logf("counted %v after the stream was created", time.Since(created).Round(time.Millisecond))
}

// asOfPasses waits until as_of is later than now.
func (s *system) asOfPasses(what string) time.Duration {
	s.t.Helper()
	began := time.Now()
	stack.Eventually(s.t, "as_of to go on "+what, func() (bool, string) {
		answer, err := stack.FetchTotals(s.query.URL(), url.Values{"key": {"c"}, "window": {"1m"}})
		return err == nil && answer.AsOf.After(began), fmt.Sprint(answer.AsOf, err)
	})
	return time.Since(began)
}

func TestDeletedStreamHoldsAsOfBackNoMore(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.createStream("HITS_OLD", "old.>")
	s.send("hits.c", "")
	s.send("old.c", "")
	stack.EventuallyTotal(t, s.query.URL(), "c", "1h", 2)
	s.asOfPasses("with two streams")
	require.NoError(t, s.js.DeleteStream(t.Context(), "HITS_OLD"))
	t.Logf("as_of went on %v after the stream was deleted", s.asOfPasses("after a stream was deleted").Round(time.Millisecond))
	if got := stack.TotalOf(t, s.query.URL(), "c", "1m"); got.Total != 2 {
		t.Errorf("after the deletion: %+v", got)
	}
	// Everything of it had been counted, and it was watched to its end: nothing is missing.
	client := s.redis.Client()
	for _, key := range stack.Scan(t, client, "tallyroll:*cursor:HITS_OLD") {
		if before := client.HGet(t.Context(), key, "incomplete_before").Val(); before != "0" {
			t.Errorf("%s says that hits before %s are missing", key, before)
		}
	}

	// The same while no worker runs: nobody can say what it had stored at the end.
	s.createStream("HITS_OLD", "old.>")
	s.send("old.c", "")
	stack.EventuallyTotal(t, s.query.URL(), "c", "1h", 3)
	s.ingest.Stop()
	s.send("old.c", "")
	s.send("old.c", "")
	require.NoError(t, s.js.DeleteStream(t.Context(), "HITS_OLD"))
	stopped := time.Now()
	stack.Eventually(t, "the stop to be long ago", func() (bool, string) { return time.Since(stopped) > 11*time.Second, "" })
	s.ingest.Start()
	s.asOfPasses("after a stream was deleted unwatched")
	deleted := 0
	for _, key := range stack.Scan(t, client, "tallyroll:*cursor:HITS_OLD") {
		if client.HGet(t.Context(), key, "incomplete_before").Val() > "0" {
			deleted++
		}
	}
	if deleted != 16 {
		t.Errorf("%d of 16 shards admit that hits may be missing", deleted)
	}
}

// While a fleet is stable, exactly one worker reads a stream: nobody is fenced.
func TestFleetReadsEachStreamOnce(t *testing.T) {
	t.Parallel()
	s := start(t, "INGEST_PARTITIONS=2", "INGEST_WORKER=a")
	others := []*stack.Service{
		stack.Ingest(t, s.nats, s.redis, "INGEST_WORKER=b"),
		stack.Ingest(t, s.nats, s.redis, "INGEST_WORKER=c"), // stands by
	}
	const hits = 2000
	for i := range hits {
		s.send(fmt.Sprintf("hitp.%d.c", i%2), "")
	}
	stack.EventuallyTotal(t, s.query.URL(), "c", "1h", hits)
	held := 0
	for i, w := range append(others, s.ingest) {
		_, body, err := stack.Do("GET", w.URL()+"/metrics", nil)
		require.NoError(t, err)
		for line := range strings.Lines(string(body)) {
			if strings.HasPrefix(line, "tallyroll_ingest_cursor_conflicts_total") && !strings.HasSuffix(line, " 0\n") {
				t.Errorf("worker %d: %s", i, line)
			}
			if line == "tallyroll_ingest_streams_held 1\n" {
				held++
			}
		}
	}
	if held != 2 {
		t.Errorf("%d workers hold a stream, want 2", held)
	}
}

// Several workers that start at once on an empty server make the streams once, and share them.
func TestWorkersStartTogetherOnAnEmptyServer(t *testing.T) {
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.js = s.nats.JetStream()
	var workers []*stack.Service
	for range 4 {
		workers = append(workers, stack.Ingest(t, s.nats, s.redis, "INGEST_PARTITIONS=4", stack.NoWait))
	}
	for _, w := range workers {
		w.WaitReady()
	}
	s.query = stack.Query(t, s.redis)
	for i := range 4 {
		s.send(fmt.Sprintf("hitp.%d.c", i), "")
	}
	stack.EventuallyTotal(t, s.query.URL(), "c", "1h", 4)
}

// What a deleted stream leaves behind is gone when no window reaches back to it.
func TestDeletedStreamIsForgotten(t *testing.T) {
	t.Parallel()
	s := start(t, "TIERS=1s/4s", "SHARDS=4")
	s.createStream("HITS_OLD", "old.>")
	s.send("old.c", "")
	stack.EventuallyTotal(t, s.query.URL(), "c", "4s", 1)
	client := s.redis.Client()
	cursors := func() int { return len(stack.Scan(t, client, "tallyroll:*cursor:HITS_OLD")) }
	metrics := func() int {
		_, body, err := stack.Do("GET", s.ingest.URL()+"/metrics", nil)
		require.NoError(t, err)
		return strings.Count(string(body), `stream="HITS_OLD"`)
	}
	claimed := func() bool { return client.HExists(t.Context(), "tallyroll:idle", "HITS_OLD").Val() }
	stack.Eventually(t, "the idle stream to be claimed", func() (bool, string) { return claimed(), "no claim" })
	if cursors() != 4 || metrics() == 0 {
		t.Fatalf("%d cursors, %d metrics before", cursors(), metrics())
	}
	require.NoError(t, s.js.DeleteStream(t.Context(), "HITS_OLD"))
	gone := func() (bool, string) {
		listed := client.HExists(t.Context(), "tallyroll:streams", "HITS_OLD").Val()
		return !listed && cursors() == 0 && !claimed() && metrics() == 0, fmt.Sprintf("listed %v, %d cursors, claimed %v, %d series", listed, cursors(), claimed(), metrics())
	}
	stack.Eventually(t, "everything of the stream to be gone", gone)
	if got := stack.TotalOf(t, s.query.URL(), "c", "4s"); !got.Complete {
		t.Errorf("afterwards: %+v", got)
	}

	// A stream of its name begins anew, and its cursors last.
	s.createStream("HITS_OLD", "old.>")
	s.send("old.c", "")
	stack.EventuallyTotal(t, s.query.URL(), "c", "4s", 1)
	for _, key := range stack.Scan(t, client, "tallyroll:*cursor:HITS_OLD") {
		if ttl := client.TTL(t.Context(), key).Val(); ttl != -1 {
			t.Errorf("%s expires in %v", key, ttl)
		}
	}
}
