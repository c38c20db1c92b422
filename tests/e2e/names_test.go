package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// With a bound of names, no hit is lost: those of new names without room are on overflow counters, and each
// name's upper includes them. audit, export and a change of the tiers know them as other counters.
func TestNamesWithoutRoomAreCounted(t *testing.T) {
	t.Parallel()
	const names = 3000
	s := start(t, "INGEST_MAX_NAMES=web.=1000", "TIERS=1s/1m,1m/1h,1h/32d")
	var lines strings.Builder
	at := time.Now().Add(-10 * time.Minute).UnixMilli() // export has finished steps
	for i := range names {
		fmt.Fprintf(&lines, `{"key":"web./%d","ts":%d}`+"\n", i, at)
	}
	s.publish(strings.NewReader(lines.String()), "--format", "ndjson")
	eventuallyAnswers(t, s.query.URL()+"/v1/total?prefix=&window=1h", "all hits", func(a stack.Answer) bool { return len(a.Totals) == 1 && a.Totals[0].Total == names })

	s.requireAudit(0)
	requireNamesWithoutRoom(t, s, names)
	top := ask[struct{ Floor int64 }](s, "/v1/top", url.Values{"window": {"1h"}})
	require.GreaterOrEqual(t, top.Floor, int64(names-1016)/16, "a name that is not listed may have all of an overflow counter")
	require.Contains(t, metrics(t, s.ingest), `tallyroll_ingest_overflowed_names_total{prefix="web.",stream="HITS"} `)
	stack.Eventually(t, "one warning", func() (bool, string) {
		logs := s.ingest.Logs()
		return strings.Count(logs, "new names have no room") == 1, logs
	})

	require.Zero(t, s.ingest.Stop())
	code, out := runToEnd(t, "ingest", []string{"--retier", "1m/1h,1h/32d"}, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL())
	require.Zero(t, code, out)
	requireNamesWithoutRoom(t, s, names)
}

func requireNamesWithoutRoom(t *testing.T, s *system, names int64) {
	t.Helper()
	all := ask[stack.Answer](s, "/v1/total", url.Values{"prefix": {""}, "window": {"1h"}}).Totals[0]
	require.Equal(t, names, all.Total)
	over := ask[stack.Answer](s, "/v1/total", url.Values{"prefix": {"web.~other."}, "window": {"1h"}}).Totals[0]
	own := ask[stack.Answer](s, "/v1/total", url.Values{"prefix": {"web./"}, "window": {"30m"}, "at": {"-2m"}}).Totals[0] // no worker may be there
	require.Equal(t, names, own.Total+over.Total)
	require.GreaterOrEqual(t, over.Total, names-1016, "1000, and the rest of each shard's part")
	require.Equal(t, names, own.Upper, "the overflow may be of any of them")
	status, export, err := stack.Do(http.MethodGet, s.query.URL()+"/v1/export?step=1m&prefix=web.&from="+fmt.Sprint(time.Now().Add(-30*time.Minute).UnixMilli()), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, string(export))
	rows := strings.Split(strings.TrimSpace(string(export)), "\n")[1:]
	var exported int64
	for _, row := range rows {
		hits, err := strconv.ParseInt(strings.TrimSpace(row[strings.LastIndexByte(row, ',')+1:]), 10, 64)
		require.NoError(t, err)
		exported += hits
	}
	require.Equal(t, names, exported)
}
