package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// accessLog makes a log in the combined format: hits over four days, with the
// disorder of real logs, and returns it with each path's times.
func accessLog(lines int) (log string, end time.Time, hits map[string][]time.Time) {
	rng := rand.New(rand.NewPCG(1, 2))
	end = time.Date(2015, time.May, 20, 21, 5, 59, 0, time.UTC)
	hits = make(map[string][]time.Time)
	var b strings.Builder
	for i := range lines {
		at := end.Add(-time.Duration((lines-1-i)*4*24*3600/lines) * time.Second)
		if i < lines-1 { // the last one stays the last
			at = at.Add(-time.Duration(rng.IntN(60)) * time.Second)
		}
		path := fmt.Sprintf("/page/%d?q=a,b", int(rng.ExpFloat64()*40))
		hits[path] = append(hits[path], at)
		fmt.Fprintf(&b, "10.0.0.%d - - [%s] \"GET %s HTTP/1.1\" 200 512 \"-\" \"Mozilla/5.0 (X11; \\\"quoted\\\")\"\n",
			rng.IntN(255), at.Format("02/Jan/2006:15:04:05 -0700"), path)
	}
	return b.String(), end, hits
}

func TestAnAccessLogIsCountedExactly(t *testing.T) {
	t.Parallel()
	s := start(t)
	const lines = 10_000
	log, end, hits := accessLog(lines)
	now := time.Now().Truncate(time.Second)
	shift := now.Sub(end)

	got := s.publish(strings.NewReader(log), "--format", "combined", "--key", "url", "--rebase", now.Format(time.RFC3339))
	if want := fmt.Sprintf("published %d hits", lines); !strings.HasPrefix(got, want) || !strings.Contains(got, "skipped 0 bad lines") {
		t.Fatalf("publish ends with %q; want %q", got, want)
	}
	paths := make([]string, 0, len(hits))
	for path := range hits {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	published := time.Now()
	var answer stack.Answer
	stack.Eventually(t, "all shards to have counted the log", func() (bool, string) {
		answer = stack.PostTotal(t, s.query.URL(), paths, []string{"30d", "7d", "24h", "1h"})
		return answer.AsOf.After(published), fmt.Sprint("as_of ", answer.AsOf)
	})
	for _, total := range answer.Totals {
		var truth int64
		for _, at := range hits[total.Key] {
			if at = at.Add(shift); !at.Before(total.From) && at.Before(total.To) {
				truth++
			}
		}
		if truth < total.Lower || truth > total.Upper || total.Total < total.Lower || total.Total > total.Upper {
			t.Errorf("%s over %s: %d..%d..%d does not hold %d", total.Key, total.Window, total.Lower, total.Total, total.Upper, truth)
		}
		if all := int64(len(hits[total.Key])); (total.Window == "30d" || total.Window == "7d") && !total.Is(all) {
			t.Errorf("%s over %s: %d..%d..%d; want exactly %d, all hits of the log", total.Key, total.Window, total.Lower, total.Total, total.Upper, all)
		}
	}
}

func TestEveryWayToPublishCounts(t *testing.T) {
	t.Parallel()
	s := start(t)
	conn := s.nats.Conn()
	ndjson := strings.Repeat(`{"key":"lines"}`+"\n", 1000)
	array := "[" + strings.TrimSuffix(strings.Repeat(`{"key":"array","n":2},`, 1000), ",") + "]"
	for subject, body := range map[string]string{"hits.core.empty": "", "hits.core.object": `{"n":3}`, "hits.x": ndjson, "hits.y": array} {
		require.NoError(t, conn.Publish(subject, []byte(body)))
	}
	require.NoError(t, conn.Flush())
	s.send("hits.js.empty", "")
	s.send("hits.js.object", fmt.Sprintf(`{"key":"/cart","n":5,"ts":%q}`, time.Now().UTC().Format(time.RFC3339Nano)))
	s.send("hits.z", ndjson)
	s.send("hits.z", array)
	collect := stack.Collect(t, s.nats)
	for _, body := range []string{`{"key":"web","n":2}`, `[{"key":"web"},{"key":"other"}]`, "{\"key\":\"web\"}\n{\"key\":\"web\"}\n"} {
		status, text := post(collect, body)
		require.Equal(t, http.StatusAccepted, status, text)
	}
	s.awaitTotals(map[string]int64{"core.empty": 1, "core.object": 3, "js.empty": 1, "/cart": 5, "lines": 2000, "array": 4000, "web": 5})
}
