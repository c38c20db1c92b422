package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

var asOf = regexp.MustCompile(`"as_of":"[^"]*"`)

// A namespace with data gets a tier of years and loses one of seconds: every figure that both tiers can
// answer stays the same while query runs on, and what cannot be known is called incomplete.
func TestRetierKeepsEveryFigure(t *testing.T) {
	t.Parallel()
	const before, after, other = "1s/1m,1m/1h,1h/32d", "1m/1h,15m/1d,1h/32d,1d/5y", "1h/1d"
	s := start(t, "TIERS="+before)
	servers := []string{"NATS_URL=" + s.nats.URL(), "REDIS_URL=" + s.redis.URL(), "INGEST_ADDR=127.0.0.1:0"}
	ingest := func(code int, args []string, env string, parts ...string) {
		t.Helper()
		got, out := runToEnd(t, "ingest", args, append(servers, env)...)
		if got != code || !hasAll(out, parts) {
			t.Fatalf("ingest %v %s: %d %s, want %d and %q", args, env, got, out, code, parts)
		}
	}
	ingestRetier := func(order string, code int, parts ...string) {
		t.Helper()
		ingest(code, []string{"--retier", order}, "", parts...)
	}
	const hits, counters, reach = 1500, 20, 30 * 24 * time.Hour
	var body strings.Builder
	first := time.Now().Add(-reach)
	for i := range hits {
		fmt.Fprintf(&body, `{"key":"c%d","n":%d,"ts":%d}`+"\n", i%counters, 1+i%counters, first.Add(reach*time.Duration(i)/hits).UnixMilli())
	}
	s.publish(strings.NewReader(body.String()), "--format", "ndjson")
	s.send("hits.last", "")
	s.awaitTotal("last", 1)
	s.awaitAllCounted()

	ingestRetier(after, 2, "has running workers (", "stop all of them")
	require.Zero(t, s.ingest.Stop())
	at := time.Now().UTC().Truncate(time.Hour)
	ago := func(d time.Duration) int64 { return at.Add(-d).UnixMilli() }
	figures := func() (all string) {
		t.Helper()
		for _, target := range []string{
			fmt.Sprintf("/v1/total?prefix=c&from=%d&to=%d", ago(reach), ago(0)),
			fmt.Sprintf("/v1/total?key=c3&from=%d&to=%d", ago(50*time.Hour), ago(0)),
			fmt.Sprintf("/v1/series?key=c1&step=1d&from=%d&to=%d", ago(20*24*time.Hour), at.Truncate(24*time.Hour).UnixMilli()), // the step of today would end with the current hour
			"/v1/counters",
		} {
			status, text := request(http.DefaultClient, http.MethodGet, s.query.URL()+target, "")
			require.Equal(t, http.StatusOK, status, text)
			all += asOf.ReplaceAllString(text, "")
		}
		top := ask[struct{ Top []struct{ Key string } }](s, "/v1/top", url.Values{"window": {"30d"}, "limit": {"5"}})
		require.Len(t, top.Top, 5)
		return all + fmt.Sprint(top)
	}
	want := figures()

	// While a change is under way, no worker starts, and query answers.
	half, stop := context.WithCancel(t.Context())
	tiers, err := window.ParseTiers(after)
	require.NoError(t, err)
	_, _, err = retier.Run(half, schema.NewStore(s.redis.Client(), "tallyroll"), tiers, func(what string, _ int) {
		if what == "counters" {
			stop()
		}
	})
	require.Error(t, err, "it was ended on the way")
	ingest(2, nil, "", "are being changed to", "--retier '"+before+"' to keep the old tiers")
	require.Equal(t, want, figures(), "beside a change that was ended")
	ingestRetier(other, 2, "to go on, or ingest --retier '"+before+"'")
	ingestRetier(before, 0, "keeps the tiers "+before)
	require.Equal(t, want, figures(), "after a change that was abandoned")

	ingestRetier(after, 0, "1h/32d: as complete as before", "1d/1825d: complete from")
	require.Equal(t, want, figures(), "after the change")
	if year := stack.TotalOf(t, s.query.URL(), "c1", "365d"); year.Complete || year.Total == 0 {
		t.Errorf("a year: %+v", year)
	}
	ingest(2, nil, "TIERS="+before, "unset TIERS")
	total := func() int64 {
		t.Helper()
		answer, err := stack.FetchTotals(s.query.URL(), url.Values{"prefix": {"c"}, "from": {fmt.Sprint(ago(31 * 24 * time.Hour))}})
		require.NoErrorf(t, err, "%+v", answer)
		return answer.Totals[0].Total
	}
	sum := total()
	worker := stack.Ingest(t, s.nats, s.redis)
	count := func(name string, want int64) {
		t.Helper()
		s.send("hits."+name, "")
		s.send("hits.c1", "")
		s.awaitTotal(name, 1)
		require.Zero(t, worker.Stop())
		require.Equal(t, want, total(), name)
	}
	count("unconfirmed", sum+1)
	ingestRetier(other, 2, "run ingest --retier confirm before")
	ingestRetier("confirm", 0)
	worker.Start()
	count("the-third", sum+2)
	for _, key := range stack.Scan(t, s.redis.Client(), "tallyroll:{*}:*") {
		if _, rest, _ := strings.Cut(key, "}:"); !strings.HasPrefix(rest, "g1:") && !strings.HasPrefix(rest, "cursor:") && rest != "erased" || rest == "g1:built" {
			t.Errorf("%s is left", key)
		}
	}
	// A declaration does not bring back what the old tiers no longer held, and its error names it.
	date := func(days int) string { return at.AddDate(0, 0, -days).Format(time.DateOnly) }
	ingest(0, []string{"--complete-from", date(20)}, "", "is declared complete from "+date(20))
	ingest(1, []string{"--complete-from", date(400)}, "", "is declared complete from "+date(400), "does not cover the tier 1d/1825d", "stay incomplete")
	if year := stack.TotalOf(t, s.query.URL(), "c1", "365d"); year.Complete || year.Total == 0 {
		t.Errorf("a year that is declared: %+v", year)
	}
	ingestRetier("confirm", 2, "no change of tiers")
	ingestRetier(after, 0, "keeps the tiers 1m/1h,15m/1d")
}
