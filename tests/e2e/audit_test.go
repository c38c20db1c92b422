package e2e_test

import (
	"encoding/binary"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func (s *system) requireAudit(code int, parts ...string) {
	s.t.Helper()
	got, out := runToEnd(s.t, "audit", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL())
	require.Equal(s.t, code, got, out)
	for _, part := range parts {
		require.Contains(s.t, out, part)
	}
}

// After kills, and while a worker counts, audit finds no difference; then it finds the one that the test
// makes.
func TestAuditProvesTheCounts(t *testing.T) {
	t.Parallel()
	s := start(t, "INGEST_MAX_COMMANDS=200")
	const rounds, hits = 2, 10_000
	for range rounds {
		s.publish(nil, "--count", fmt.Sprint(hits), "--counters", "300", "--batch", "20")
		s.ingest.Kill()
		s.ingest.Start()
		s.requireAudit(0, " counters, 0 differences\n")
	}
	s.send("hits.last", "")
	s.awaitTotal("last", 1)
	s.awaitAllCounted()
	s.requireAudit(0, fmt.Sprintf("audit: %d hits, 301 counters, 0 differences\n", rounds*hits+1))
	all, err := stack.FetchTotals(s.query.URL(), url.Values{"prefix": {""}, "window": {"30d"}})
	require.NoError(t, err)
	require.True(t, all.Totals[0].Is(rounds*hits+1), "all hits: %+v", all.Totals[0])

	client := s.redis.Client()
	key := stack.Scan(t, client, "tallyroll:{*}:s:*:last")[0]
	cell, _ := binary.Uvarint([]byte(client.Get(t.Context(), key).Val()[1:])) // of its one hit
	two := binary.AppendUvarint(binary.AppendUvarint(nil, cell|1), 2)
	require.NoError(t, client.Append(t.Context(), key, string(two)).Err())
	s.requireAudit(1, `difference: counter "last", tier 1h/32d, cell `, ": Redis has 3 hits, the streams 1\n", " 301 counters, ")
	code, out := runToEnd(t, "audit", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL(), "TALLYROLL_NAMESPACE=other")
	if code != 2 || !strings.HasPrefix(out, "audit: no worker has counted in the namespace other") {
		t.Errorf("a namespace that is not there: %d, %q", code, out)
	}
}
