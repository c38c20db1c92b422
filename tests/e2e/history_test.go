package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Access logs of 20 days from two servers are imported into a new namespace. Once an operator has declared it
// complete, totals and rules about these days are known, and audit names the declaration.
func TestImportedHistoryIsCompleteOnceItIsDeclared(t *testing.T) {
	t.Parallel()
	s := start(t)
	servers := []string{"NATS_URL=" + s.nats.URL(), "REDIS_URL=" + s.redis.URL(), "INGEST_ADDR=127.0.0.1:0"}
	ingest := func(code int, args []string, parts ...string) {
		t.Helper()
		got, out := runToEnd(t, "ingest", args, servers...)
		if got != code || !hasAll(out, parts) {
			t.Fatalf("ingest %v: %d %s, want %d and %q", args, got, out, code, parts)
		}
	}
	const days = 20
	now := time.Now().UTC()
	first := now.AddDate(0, 0, -days).Truncate(24 * time.Hour)
	want := int64(0)
	for server := range 2 {
		var log strings.Builder
		for at := first; at.Before(now); at = at.Add(time.Hour) {
			fmt.Fprintf(&log, "10.0.0.%d - - [%s] \"GET /cart HTTP/1.1\" 200 5\n", server+1, at.Format("02/Jan/2006:15:04:05 -0700"))
			if at.After(now.Add(-7 * 24 * time.Hour)) {
				want++
			}
		}
		s.publish(strings.NewReader(log.String()), "--format", "combined")
	}
	s.awaitAllCounted()

	type answer struct {
		Totals []struct {
			Lower, Upper  int64
			Complete      bool
			CountingSince time.Time `json:"counting_since"`
		}
	}
	// week returns whether the total of seven days is complete, and since when hits are counted.
	week := func() (complete bool, since time.Time) {
		t.Helper()
		total := ask[answer](s, "/v1/total", url.Values{"key": {"/cart"}, "window": {"7d"}}).Totals[0]
		if total.Lower > want || total.Upper < want || total.Lower == 0 {
			t.Fatalf("%+v, want bounds around %d", total, want)
		}
		return total.Complete, total.CountingSince
	}
	complete, _ := week()
	require.False(t, complete)
	day := first.Format(time.DateOnly)
	ingest(2, []string{"--complete-from", now.AddDate(0, 0, 1).Format(time.DateOnly)}, "a past date")
	ingest(2, []string{"--complete-from", day + "T00:00:00+24:00"}, "a past date")
	ingest(2, []string{"--complete-from", time.Now().UTC().Format(time.RFC3339)}, "counting in the namespace", "declare an earlier time")
	ingest(0, []string{"--complete-from", day, "--by", "alice"}, "is declared complete from "+day, "by alice", "counting began at")
	complete, since := week()
	require.True(t, complete)
	require.Equal(t, first, since.UTC())
	eventuallySays(t, s.query.URL()+"/v1/about", http.StatusOK, `"by":"alice"`)
	code, out := runToEnd(t, "audit", nil, servers...)
	require.Zero(t, code, out)
	require.Contains(t, out, "declared: complete from "+day)
	require.Contains(t, out, "the streams still hold everything that was counted")

	ingest(0, []string{"--complete-from", "none"}, "has no declaration")
	complete, _ = week()
	require.False(t, complete)
}
