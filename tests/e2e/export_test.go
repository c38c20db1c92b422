package e2e_test

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// sumRows adds up the hits of each counter of an export, whose names are in the order in which they came.
func sumRows(r io.Reader) (sums map[string]int64, keys []string, err error) {
	sums = make(map[string]int64)
	rows := csv.NewReader(r)
	if _, err := rows.Read(); err != nil {
		return sums, nil, err
	}
	for {
		row, err := rows.Read()
		if err != nil {
			return sums, keys, err
		}
		n, err := strconv.ParseInt(row[3], 10, 64)
		if err != nil {
			return sums, keys, err
		}
		if sums[row[0]] == 0 {
			keys = append(keys, row[0])
		}
		sums[row[0]] += n
	}
}

// An export of what a worker has counted has every hit. If Redis dies on the way, the answer breaks
// off, and what is missing can be asked for.
func TestExportEndsWithoutRedisAndGoesOnLater(t *testing.T) {
	t.Parallel()
	s := start(t)
	to := time.Now().UTC().Truncate(time.Hour)
	from := to.Add(-20 * time.Hour)
	const counters = 300
	long := strings.Repeat("x", 400) // more than the buffers on the way hold
	want := make(map[string]int64)
	var body strings.Builder
	for i := range counters {
		name := fmt.Sprintf("export.%03d.%s", i, long)
		for step := range 80 {
			n := int64(1 + i%5)
			want[name] += n
			fmt.Fprintf(&body, `{"key":%q,"n":%d,"ts":%d}`+"\n", name, n, from.Add(time.Duration(step)*15*time.Minute).UnixMilli())
		}
	}
	s.publish(strings.NewReader(body.String()), "--format", "ndjson")
	s.send("hits.last", "")
	s.awaitTotal("last", 1)
	s.awaitAllCounted()
	export := func(params url.Values) *http.Response {
		t.Helper()
		resp, err := http.Get(s.query.URL() + "/v1/export?" + params.Encode())
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	all := url.Values{"step": {"15m"}, "from": {from.Format(time.RFC3339)}, "to": {to.Format(time.RFC3339)}, "prefix": {"export."}}
	whole := export(all)
	got, _, err := sumRows(whole.Body)
	if err != io.EOF || !maps.Equal(got, want) || whole.Trailer.Get("Tallyroll-Rows") != fmt.Sprint(80*counters) {
		t.Errorf("%v: %d of %d counters, trailers %v", err, len(got), counters, whole.Trailer)
	}

	broken := export(all)
	token := broken.Header.Get("Tallyroll-Resume")
	s.redis.Kill()
	got, keys, err := sumRows(broken.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, csv.ErrFieldCount) && !errors.Is(err, csv.ErrQuote) || len(got) == counters || len(keys) < 2 {
		t.Fatalf("Redis has died: %v, %d counters", err, len(got))
	}
	require.Empty(t, broken.Trailer.Get("Tallyroll-Complete"))
	s.redis.Start()
	s.query.WaitReady()
	after := keys[len(keys)-2]                              // the last one may lack rows
	delete(got, keys[len(keys)-1])                          // and is asked for again
	stack.Eventually(t, "the rest", func() (bool, string) { // the worker may have to count again what Redis has lost
		resp := export(url.Values{"resume": {token}, "after": {after}})
		rest, _, err := sumRows(resp.Body)
		joined := maps.Clone(got)
		for key, n := range rest {
			joined[key] += n
		}
		return err == io.EOF && maps.Equal(joined, want), fmt.Sprintf("%d and %d counters: %v", len(got), len(rest), err)
	})
}
