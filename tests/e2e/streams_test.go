package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Workers that start at once on an empty server make the streams once, and share them. While the fleet is
// stable, exactly one worker reads a stream: no commit finds the cursor moved.
func TestWorkersThatStartTogetherReadEachStreamOnce(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	var workers []*stack.Service
	for range 3 { // one of them stands by
		workers = append(workers, stack.Ingest(t, s.nats, s.redis, "INGEST_PARTITIONS=2", stack.NoWait))
	}
	for _, w := range workers {
		w.WaitReady()
	}
	s.query = stack.Query(t, s.redis)
	const hits = 500
	for i := range hits {
		s.send(fmt.Sprintf("hitp.%d.c", i%2), "")
	}
	s.awaitTotal("c", hits)
	held := 0
	for i, w := range workers {
		for line := range strings.Lines(metrics(t, w)) {
			if strings.HasPrefix(line, "tallyroll_ingest_cursor_conflicts_total") && !strings.HasSuffix(line, " 0\n") {
				t.Errorf("worker %d: %s", i, line)
			}
			if line == "tallyroll_ingest_streams_held 1\n" {
				held++
			}
		}
	}
	require.Equal(t, 2, held, "workers that hold a stream")
}

// A stream that is created counts. After it was deleted, as_of goes on and nothing is missing, and what it
// leaves behind is gone when no window reaches back to it.
func TestAStreamComesAndGoesAndIsForgotten(t *testing.T) {
	t.Parallel()
	s := start(t, "TIERS=1s/4s", "SHARDS=4")
	s.createStream("HITS_OLD", "old.>")
	s.send("old.c", "")
	stack.EventuallyTotal(t, s.query.URL(), "c", "4s", 1)
	client := s.redis.Client()
	cursors := func() []string { return stack.Scan(t, client, "tallyroll:*cursor:HITS_OLD") }
	series := func() int { return strings.Count(metrics(t, s.ingest), `stream="HITS_OLD"`) }
	claimed := func() bool { return client.HExists(t.Context(), "tallyroll:idle", "HITS_OLD").Val() }
	stack.Eventually(t, "the idle stream to be claimed", func() (bool, string) { return claimed(), "no claim" })
	require.Len(t, cursors(), 4)
	require.NotZero(t, series())
	require.NoError(t, s.js.DeleteStream(t.Context(), "HITS_OLD"))
	deleted := time.Now()
	stack.Eventually(t, "as_of to go on", func() (bool, string) {
		_, asOf, err := stack.FetchTotal(s.query.URL(), "c", "4s")
		return err == nil && asOf.After(deleted), fmt.Sprint(asOf, err)
	})
	for _, key := range cursors() { // everything of it had been counted, and it was watched to its end
		if before := client.HGet(t.Context(), key, "incomplete_before").Val(); before != "0" && before != "" {
			t.Errorf("%s reports that hits before %s are missing", key, before)
		}
	}
	stack.Eventually(t, "everything of the stream to be gone", func() (bool, string) {
		listed := client.HExists(t.Context(), "tallyroll:streams", "HITS_OLD").Val()
		return !listed && len(cursors()) == 0 && !claimed() && series() == 0, fmt.Sprintf("listed %v, %d cursors, claimed %v, %d series", listed, len(cursors()), claimed(), series())
	})
	require.True(t, stack.TotalOf(t, s.query.URL(), "c", "4s").Complete)

	// A new stream of its name is counted from its beginning, and its cursors last.
	s.createStream("HITS_OLD", "old.>")
	s.send("old.c", "")
	stack.EventuallyTotal(t, s.query.URL(), "c", "4s", 1)
	for _, key := range cursors() {
		require.EqualValues(t, -1, client.TTL(t.Context(), key).Val(), "%s expires", key)
	}
}
