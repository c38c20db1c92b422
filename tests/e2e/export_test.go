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

// An export of what a worker has counted has the totals of the same range. If Redis dies on the way, the answer breaks
// off, and what is missing can be asked for.
func TestExport(t *testing.T) {
	t.Parallel()
	s := start(t)
	to := time.Now().UTC().Truncate(time.Hour)
	from := to.Add(-20 * time.Hour)
	const counters = 300
	long := strings.Repeat("x", 400) // more than the buffers on the way hold
	name := func(i int) string { return fmt.Sprintf("export.%03d.%s", i, long) }
	want := make(map[string]int64)
	var body strings.Builder
	for i := range counters {
		for step := range 80 {
			n := int64(1 + i%5)
			want[name(i)] += n
			fmt.Fprintf(&body, `{"key":%q,"n":%d,"ts":%d}`+"\n", name(i), n, from.Add(time.Duration(step)*15*time.Minute).UnixMilli())
		}
	}
	s.publish(strings.NewReader(body.String()), "--format", "ndjson")
	stack.EventuallyTotal(t, s.query.URL(), name(counters-1), "24h", want[name(counters-1)])
	s.allCounted()

	export := func(also string) *http.Response {
		t.Helper()
		resp, err := http.Get(s.query.URL() + "/v1/export?step=15m&from=" + from.Format(time.RFC3339) + "&to=" + to.Format(time.RFC3339) + also)
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(resp.Body)
			t.Fatalf("status %d: %s", resp.StatusCode, text)
		}
		return resp
	}
	sums := func(r io.Reader) (out map[string]int64, keys []string, err error) {
		t.Helper()
		out = make(map[string]int64)
		rows := csv.NewReader(r)
		rows.ReuseRecord = true
		if _, err := rows.Read(); err != nil {
			return out, nil, err
		}
		for {
			row, err := rows.Read()
			if err != nil {
				return out, keys, err
			}
			n, err := strconv.ParseInt(row[3], 10, 64)
			if err != nil {
				return out, keys, err
			}
			key := strings.Clone(row[0])
			if out[key] == 0 {
				keys = append(keys, key)
			}
			out[key] += n
		}
	}
	whole := export("&prefix=export.")
	got, _, err := sums(whole.Body)
	if err != io.EOF || !maps.Equal(got, want) || whole.Trailer.Get("Tallyroll-Rows") != fmt.Sprint(80*counters) {
		t.Errorf("%v: %d of %d counters, trailers %v", err, len(got), counters, whole.Trailer)
	}
	totals, err := stack.FetchTotals(s.query.URL(), url.Values{"key": {name(0), name(counters - 1)}, "from": {from.Format(time.RFC3339)}, "to": {to.Format(time.RFC3339)}})
	require.NoError(t, err)
	for _, c := range totals.Totals {
		if c.Total != got[c.Key] {
			t.Errorf("%.12s: the rows add up to %d, the total is %d", c.Key, got[c.Key], c.Total)
		}
	}

	broken := export("&prefix=export.")
	token := broken.Header.Get("Tallyroll-Resume")
	s.redis.Kill()
	got, keys, err := sums(broken.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, csv.ErrFieldCount) && !errors.Is(err, csv.ErrQuote) || len(got) == counters {
		t.Fatalf("Redis has died: %v, %d counters", err, len(got))
	}
	if broken.Trailer.Get("Tallyroll-Complete") != "" {
		t.Errorf("trailers %v", broken.Trailer)
	}
	if len(keys) < 2 {
		t.Fatalf("only %d counters came before Redis died", len(keys))
	}
	s.redis.Start()
	s.query.WaitReady()
	after := keys[len(keys)-2]                              // the last one may lack rows
	delete(got, keys[len(keys)-1])                          // and is asked for again
	stack.Eventually(t, "the rest", func() (bool, string) { // the worker may have to count again what Redis has lost
		resp, err := http.Get(s.query.URL() + "/v1/export?" + url.Values{"resume": {token}, "after": {after}}.Encode())
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false, resp.Status
		}
		rest, _, err := sums(resp.Body)
		if err != io.EOF {
			return false, err.Error()
		}
		all := maps.Clone(got)
		for key, n := range rest {
			all[key] += n
		}
		return maps.Equal(all, want), fmt.Sprintf("%d and %d counters", len(got), len(rest))
	})
}
