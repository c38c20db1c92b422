package bench_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
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

// drawing is the last hour of a counter in one format.
type drawing struct {
	format        string
	bytes, zipped int
	took          []time.Duration
	queryCPU      []float64 // seconds per answer, by run
}

func (d *drawing) path() string { return "/v1/series?key=" + counterName(0) + "&format=" + d.format }

// measureSeries asks for all points of an hour of seconds, one answer after the other.
func measureSeries(t *testing.T, r *rig, o options) (wanted []*drawing) {
	for _, format := range []string{"json", "csv"} {
		if o.wants("series/" + format) {
			wanted = append(wanted, &drawing{format: format})
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	q := r.queryCharts(t)
	client := httpClient(t, 1)
	for run := range o.runs {
		for i := range wanted {
			d := wanted[(i+run)%len(wanted)]
			t.Run(fmt.Sprintf("series/%s/run=%d", d.format, run), func(t *testing.T) {
				d.bytes = len(fetch(t, client, q.URL()+d.path())) // connects
				d.zipped = zippedBytes(t, client, q.URL()+d.path())
				asked, before := o.size(seriesAsked), cpuSeconds(t, q.PID())
				for range asked {
					began := time.Now()
					fetch(t, client, q.URL()+d.path())
					d.took = append(d.took, time.Since(began))
				}
				d.queryCPU = append(d.queryCPU, (cpuSeconds(t, q.PID())-before)/float64(asked))
				fmt.Printf("series/%s run %d: p50 %v, %d bytes\n", d.format, run+1, percentile(d.took, 50), d.bytes)
			})
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	return wanted
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

// drawingRows are the rows of the table.
func drawingRows(all []*drawing) (rows []string) {
	for _, d := range all {
		rows = append(rows, cellsOf(d.format, percentile(d.took, 50).String(), percentile(d.took, 99).String(),
			short(1e6*median(d.queryCPU)), boot.Thousands(float64(d.bytes)), boot.Thousands(float64(d.zipped))))
	}
	return rows
}

// What is measured has all of its points.
func TestSeriesHaveAllPoints(t *testing.T) {
	r := newRig(t)
	o := options{runs: 1, scale: 1.0 / seriesAsked, only: everything}
	all := measureSeries(t, r, o)
	if len(all) != 2 {
		t.Fatalf("%d formats", len(all))
	}
	if tables := (&report{options: o, rig: r, series: all}).tables(t); !strings.Contains(tables, "| csv | ") {
		t.Errorf("the table is not written: %s", tables)
	}
	for _, d := range all {
		if len(d.took) != 1 || d.bytes < 10_000 || d.zipped >= d.bytes {
			t.Errorf("%+v", d)
		}
	}
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace)
	var series struct{ Points [][2]int64 }
	require.NoError(t, json.Unmarshal(fetch(t, http.DefaultClient, q.URL()+all[0].path()), &series))
	if n := len(series.Points); n < seriesPoints || n > seriesPoints+1 {
		t.Errorf("%d points", n)
	}
}
