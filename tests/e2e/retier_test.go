package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// A namespace with data gets a tier of years and loses one of seconds: every figure that both tiers can answer stays the
// same while query runs on, and what cannot be known is called incomplete.
func TestRetier(t *testing.T) {
	t.Parallel()
	const before, after = "1s/1m,1m/1h,1h/32d", "1m/1h,15m/1d,1h/32d,1d/5y"
	s := start(t, "TIERS="+before)
	const hits, counters = 3000, 20
	s.publish(ofTheLast(30*24*time.Hour, hits, counters), "--format", "ndjson")
	s.send("hits.last", "")
	stack.EventuallyTotal(t, s.query.URL(), "last", "1h", 1)
	s.allCounted()

	code, out := s.retier(after)
	if code != 2 || !strings.Contains(out, "has living workers (") || !strings.Contains(out, "stop all of them") {
		t.Fatalf("with a living worker: %d %s", code, out)
	}
	if code := s.ingest.Stop(); code != 0 {
		t.Fatalf("ingest ends with %d", code)
	}
	at := time.Now().UTC().Truncate(time.Hour)
	figures := func() string {
		t.Helper()
		var all strings.Builder
		for _, target := range []string{
			fmt.Sprintf("/v1/total?prefix=c&from=%d&to=%d", at.Add(-30*24*time.Hour).UnixMilli(), at.UnixMilli()),
			fmt.Sprintf("/v1/total?key=c3&from=%d&to=%d", at.Add(-50*time.Hour).UnixMilli(), at.UnixMilli()),
			fmt.Sprintf("/v1/series?key=c1&step=1d&from=%d&to=%d", at.Add(-20*24*time.Hour).UnixMilli(), at.UnixMilli()),
			"/v1/counters",
		} {
			code, body, err := stack.Do(http.MethodGet, s.query.URL()+target, nil)
			if err != nil || code != 200 {
				t.Fatalf("%s: %d %s %v", target, code, body, err)
			}
			var answer map[string]any
			require.NoError(t, json.Unmarshal(body, &answer))
			delete(answer, "as_of")
			text, _ := json.Marshal(answer)
			all.Write(text)
		}
		var top struct{ Top []struct{ Key string } }
		_, body, err := stack.Do(http.MethodGet, s.query.URL()+"/v1/top?window=30d&limit=5", nil)
		if err != nil || json.Unmarshal(body, &top) != nil || len(top.Top) != 5 {
			t.Fatalf("%s %v", body, err)
		}
		return fmt.Sprint(all.String(), top)
	}
	want := figures()

	// While a change is under way, no worker starts, and query answers.
	half, stop := context.WithCancel(t.Context())
	tiers, err := window.ParseTiers(after)
	require.NoError(t, err)
	if _, _, err := window.NewStore(s.redis.Client(), "tallyroll").Retier(half, tiers, func(what string, _ int) {
		if what == "counters" {
			stop()
		}
	}); err == nil {
		t.Fatal("it was not ended")
	}
	if code, out := ends(t, "ingest", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL(), "INGEST_ADDR=127.0.0.1:0"); code != 2 || !strings.Contains(out, "are being changed to") || !strings.Contains(out, "--retier '"+before+"' to keep the old tiers") {
		t.Errorf("a worker beside it ends with %d: %s", code, out)
	}
	if got := figures(); got != want {
		t.Errorf("beside a change that was ended:\n%s, want\n%s", got, want)
	}
	if code, out := s.retier("1h/1d"); code != 2 || !strings.Contains(out, "to go on, or ingest --retier '"+before+"'") {
		t.Errorf("other tiers meanwhile: %d %s", code, out)
	}
	if code, out := s.retier(before); code != 0 || !strings.Contains(out, "keeps the tiers "+before) {
		t.Fatalf("abandoned: %d %s", code, out)
	}
	if got := figures(); got != want {
		t.Errorf("after a change that was abandoned:\n%s, want\n%s", got, want)
	}

	if code, out = s.retier(after); code != 0 || !strings.Contains(out, "1h/32d: as complete as before") || !strings.Contains(out, "1d/1825d: complete from") {
		t.Fatalf("--retier: %d %s", code, out)
	}
	if got := figures(); got != want {
		t.Errorf("after the change:\n%s, want\n%s", got, want)
	}
	if year := stack.TotalOf(t, s.query.URL(), "c1", "365d"); year.Complete || year.Total == 0 {
		t.Errorf("a year: %+v", year)
	}
	if code, out := ends(t, "ingest", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL(), "INGEST_ADDR=127.0.0.1:0", "TIERS="+before); code != 2 || !strings.Contains(out, "unset TIERS") {
		t.Errorf("a worker with the old tiers ends with %d: %s", code, out)
	}
	count := func(worker *stack.Service, name string) {
		t.Helper()
		s.send("hits."+name, "")
		s.send("hits.c1", "")
		stack.EventuallyTotal(t, s.query.URL(), name, "1h", 1)
		if code := worker.Stop(); code != 0 {
			t.Fatalf("ingest ends with %d", code)
		}
	}
	total := func() int64 {
		t.Helper()
		answer, err := stack.FetchTotals(s.query.URL(), url.Values{"prefix": {"c"}, "from": {fmt.Sprint(at.Add(-31 * 24 * time.Hour).UnixMilli())}})
		require.NoErrorf(t, err, "%+v", answer)
		return answer.Totals[0].Total
	}
	sum := total()
	next := stack.Ingest(t, s.nats, s.redis)
	count(next, "meanwhile")
	if got := total(); got != sum+1 {
		t.Errorf("one more counted: %d, want %d", got, sum+1)
	}

	if code, out := s.retier("1h/1d"); code != 2 || !strings.Contains(out, "run ingest --retier confirm before") {
		t.Errorf("changed again before it is confirmed: %d %s", code, out)
	}
	if code, out := s.retier("confirm"); code != 0 {
		t.Fatalf("--retier confirm: %d %s", code, out)
	}
	next.Start()
	count(next, "third")
	if got := total(); got != sum+2 {
		t.Errorf("confirmed: %d, want %d", got, sum+3)
	}
	for _, key := range stack.Scan(t, s.redis.Client(), "tallyroll:{*}:*") {
		if _, rest, _ := strings.Cut(key, "}:"); !strings.HasPrefix(rest, "g1:") && !strings.HasPrefix(rest, "cursor:") && rest != "erased" || rest == "g1:built" {
			t.Errorf("%s is left", key)
		}
	}
	if code, out := s.retier("confirm"); code != 2 || !strings.Contains(out, "no change of tiers") {
		t.Errorf("confirmed twice: %d %s", code, out)
	}
	if code, out := s.retier(after); code != 0 || !strings.Contains(out, "keeps the tiers 1m/1h,15m/1d") {
		t.Errorf("the same tiers: %d %s", code, out)
	}
}

func TestRetierOrders(t *testing.T) {
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	for order, want := range map[string]string{
		"1h":      "--retier: allowed are cell/window pairs",
		"":        "--retier: allowed are tiers such as",
		"1h/32d":  "no worker has counted in the namespace",
		"back":    "--retier: allowed are cell/window pairs",
		"confirm": "no worker has counted in the namespace",
	} {
		if code, out := s.retier(order); code != 2 || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("--retier %q: %d %s, want %s", order, code, out, want)
		}
	}
}

// retier runs ingest --retier.
func (s *system) retier(order string) (code int, output string) {
	s.t.Helper()
	return ends(s.t, "ingest", []string{"--retier", order}, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL())
}

// ofTheLast is so many hits, spread evenly.
func ofTheLast(length time.Duration, hits, counters int) *strings.Reader {
	var b strings.Builder
	first := time.Now().Add(-length)
	for i := range hits {
		fmt.Fprintf(&b, `{"key":"c%d","n":%d,"ts":%d}`+"\n", i%counters, 1+i%counters, first.Add(length*time.Duration(i)/time.Duration(hits)).UnixMilli())
	}
	return strings.NewReader(b.String())
}
