package bench_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

// chartTiers keep each second for an hour: 3,600 points.
const (
	chartTiers   = "1s/1h"
	seriesPoints = 3600
	seriesAsked  = 200 // times per run
)

// charted is the last hour of a counter in one format, which is its name.
type charted struct {
	sample
	bytes, zipped int
}

func (c *charted) path() string { return "series/" + c.name }
func (c *charted) ask() string  { return "/v1/series?key=" + counterName(0) + "&format=" + c.name }

// measureSeries asks for all points of an hour of seconds, one answer after the other.
func measureSeries(t *testing.T, r *rig, o options) []*charted {
	wanted := chosen(o, (*charted).path, &charted{sample: sample{name: "json"}}, &charted{sample: sample{name: "csv"}})
	if len(wanted) == 0 {
		return nil
	}
	q := r.queryCharts(t)
	client := httpClient(t, 1)
	inTurns(t, o, wanted, (*charted).path, func(t *testing.T, c *charted, run int) {
		c.bytes = len(fetch(t, client, q.URL()+c.ask())) // connects
		c.zipped = zippedBytes(t, client, q.URL()+c.ask())
		r.askOneByOne(t, &c.sample, q, o.size(seriesAsked), func(int) { fetch(t, client, q.URL()+c.ask()) })
		fmt.Printf("%s run %d: p50 %s, %d bytes\n", c.path(), run+1, c.p(50), c.bytes)
	})
	return wanted
}

// askOneByOne asks so many times, and notes what an answer takes: its time, and the microseconds of processor of query
// and of Redis.
func (r *rig) askOneByOne(t *testing.T, s *sample, q *stack.Service, times int, ask func(i int)) {
	t.Helper()
	query, redis := cpuSince(t, q.PID()), cpuSince(t, r.redis.PID())
	for i := range times {
		began := time.Now()
		ask(i)
		s.took = append(s.took, time.Since(began))
	}
	s.add("query", query()*1e6/float64(times))
	s.add("redis", redis()*1e6/float64(times))
}

// queryCharts starts query over a counter that was hit in every second of the last hour.
func (r *rig) queryCharts(t *testing.T) *stack.Service {
	t.Helper()
	r.empty(t)
	r.fillTiers(t, mustTiers(t, chartTiers), 1, 1)
	return stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
}

func fetch(t *testing.T, client *http.Client, url string, header ...string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v %s", url, resp.Status, err, body)
	}
	return body
}

// zippedBytes is what goes over the network to a client that takes gzip.
func zippedBytes(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	body := fetch(t, client, url, "Accept-Encoding", "gzip")
	if _, err := gzip.NewReader(bytes.NewReader(body)); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return len(body)
}

// seriesRows are the rows of the table.
func seriesRows(all []*charted) (rows []string) {
	for _, c := range all {
		rows = append(rows, cellsOf(c.name, c.p(50), c.p(99), short(c.median("query")),
			boot.Thousands(float64(c.bytes)), boot.Thousands(float64(c.zipped))))
	}
	return rows
}

// What is measured has all of its points.
func checkSeries(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 1.0 / seriesAsked, only: everything}
	all := measureSeries(t, r, o)
	require.Contains(t, view{"Series": seriesRows(all)}.tables(t, r, o), "| csv | ")
	for _, c := range all {
		if len(c.took) != 1 || c.bytes < 10_000 || c.zipped >= c.bytes {
			t.Errorf("%+v", c)
		}
	}
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace)
	var series struct{ Points [][2]int64 }
	require.NoError(t, json.Unmarshal(fetch(t, http.DefaultClient, q.URL()+all[0].ask()), &series))
	if n := len(series.Points); n < seriesPoints || n > seriesPoints+1 {
		t.Errorf("%d points", n)
	}
}
