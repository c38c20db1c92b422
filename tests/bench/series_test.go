package bench_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const (
	chartTiers   = "1s/1h" // each second for an hour: 3,600 points
	seriesPoints = 3600
	seriesAsked  = 200 // times per run
)

// seriesPath asks for the last hour of a counter in a format.
func seriesPath(format string) string {
	return "/v1/series?key=" + counterName(0) + "&format=" + format
}

// measureSeries asks for all points of an hour of seconds, one answer after the other.
func measureSeries(t *testing.T, r *rig, o options) []*sample {
	wanted := chosen(o, &sample{part: "series", name: "json"}, &sample{part: "series", name: "csv"})
	if len(wanted) == 0 {
		return nil
	}
	r.fillTiers(t, chartTiers, 1, 1)
	q := r.startQuery(t)
	client := httpClient(t, 1)
	inTurns(t, o, wanted, func(t *testing.T, s *sample, _ int) {
		url := q.URL() + seriesPath(s.name)
		s.add("bytes", float64(len(mustFetch(t, client, url)))) // connects
		r.askOneByOne(t, s, q, o.size(seriesAsked), func(int) { mustFetch(t, client, url) })
	})
	return wanted
}

// askOneByOne asks n times, and records what an answer takes: its time, and the microseconds of processor of
// query and of Redis.
func (r *rig) askOneByOne(t *testing.T, s *sample, q *stack.Service, times int, ask func(i int)) {
	t.Helper()
	query, redis := cpuSince(t, q.PID()), r.redisCPU(t).start()
	for i := range times {
		began := time.Now()
		ask(i)
		s.took = append(s.took, time.Since(began))
	}
	s.add("query", query()*1e6/float64(times))
	s.add("redis", redis()*1e6/float64(times))
}

// What is measured has all of its points.
func checkSeries(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 1.0 / seriesAsked, only: everything}
	all := measureSeries(t, r, o)
	require.Contains(t, view{"Series": all}.tables(t, o), "| csv | ")
	for _, c := range all {
		if len(c.took) != 1 || c.last("bytes") < 10_000 {
			t.Errorf("%+v", c)
		}
	}
	q := r.startQuery(t)
	var series struct{ Points [][2]int64 }
	require.NoError(t, json.Unmarshal(mustFetch(t, http.DefaultClient, q.URL()+seriesPath("json")), &series))
	if n := len(series.Points); n < seriesPoints || n > seriesPoints+1 {
		t.Errorf("%d points", n)
	}
}
