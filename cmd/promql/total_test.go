package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// sum_over_time over a window that begins and ends with a cell is the integer of /v1/total.
func TestSumsAreTotals(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	promql, query := start(t, redis, stack.NoWait), stack.Query(t, redis, "TALLYROLL_NAMESPACE="+namespace, stack.NoWait)
	asOf := time.Now().Truncate(time.Second)
	random := rand.New(rand.NewPCG(14, 1))
	keys := []string{"a", "/cart", `q"uote\`, "shop.eu"}
	var hits []counted
	for range 20_000 {
		span := []time.Duration{90 * time.Second, time.Hour, 24 * time.Hour, 29 * 24 * time.Hour}[random.IntN(4)]
		hits = append(hits, counted{keys[random.IntN(len(keys))], asOf.Add(-time.Duration(random.Int64N(int64(span)))), 1 + random.Int64N(1000)})
	}
	seedFrom(t, redis.Client(), newCursor(asOf.Add(-720*time.Hour), asOf), hits...)
	promql.WaitReady()
	query.WaitReady()
	client := newClient(t, promql)

	compared, counted := 0, 0
	for _, tier := range []struct {
		cell, reach time.Duration
		windows     int
	}{{time.Second, 30 * time.Second, 200}, {time.Minute, 58 * time.Minute, 300}, {15 * time.Minute, 1400 * time.Minute, 300}, {6 * time.Hour, 29 * 24 * time.Hour, 200}} {
		for range tier.windows {
			key := keys[random.IntN(len(keys))]
			first, last := asOf.Add(-tier.reach).Truncate(tier.cell).Add(tier.cell), asOf.Truncate(tier.cell)
			cells := int64(last.Sub(first) / tier.cell)
			from := first.Add(time.Duration(random.Int64N(cells)) * tier.cell)
			to := from.Add(time.Duration(1+random.Int64N(int64(last.Sub(from)/tier.cell))) * tier.cell)
			expr := fmt.Sprintf("sum_over_time(tallyroll_hits{key=%s}[%dms])", strconv.Quote(key), to.Sub(from).Milliseconds())
			value, _, _, err := client.Query(t.Context(), expr, to)
			require.NoErrorf(t, err, "%s at %s", expr, to)
			got := int64(0)
			if vector := value.(model.Vector); len(vector) > 0 {
				got = int64(vector[0].Value)
			}
			answer, err := stack.FetchTotals(query.URL(), url.Values{"key": {key}, "from": {from.UTC().Format(time.RFC3339)}, "to": {to.UTC().Format(time.RFC3339)}})
			require.NoError(t, err)
			want := answer.Totals[0]
			if want.Lower != want.Upper {
				t.Fatalf("%s to %s: %+v is not a window of whole cells", from, to, want)
			}
			if got != want.Total {
				t.Errorf("%s at %s (cells of %s): %d, want %d", expr, to, tier.cell, got, want.Total)
			}
			compared++
			if got > 0 {
				counted++
			}
		}
	}
	if compared != 1000 || counted < 900 {
		t.Errorf("%d windows compared, %d with hits: too few", compared, counted)
	}
}

// The metric of all hits has no key, and is the sum of the hits of all keys. A selector of tallyroll_hits
// does not have it.
func TestAllHitsAreOneSeries(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	promql := start(t, redis, stack.NoWait)
	asOf := time.Now().Truncate(time.Second)
	var hits []counted
	for i := 1; i < 500; i++ {
		hits = append(hits, counted{fmt.Sprint("c", i%50), asOf.Add(-time.Duration(i) * time.Second), int64(i)})
	}
	seed(t, redis.Client(), asOf, hits...)
	promql.WaitReady()
	for query, want := range map[string]string{
		`sum_over_time(tallyroll_all_hits[1h])`:                         `{} => 124750 `,
		`sum(sum_over_time(tallyroll_hits[1h]))`:                        `{} => 124750 `,
		`sum_over_time(tallyroll_all_hits{key="c1"}[1h])`:               ``,
		`last_over_time(tallyroll_all_hits[1h]) > -1`:                   `tallyroll_all_hits => `,
		`count({__name__=~"tallyroll_.*hits"}) - count(tallyroll_hits)`: `{} => 1 `,
	} {
		value, _, _, err := newClient(t, promql).Query(t.Context(), query, asOf)
		require.NoError(t, err, query)
		if want == "" {
			require.Empty(t, value, query)
			continue
		}
		require.Contains(t, value.String(), want, query)
	}
	_, names := get(t, promql, "label/__name__/values", nil)
	require.JSONEq(t, `["tallyroll_all_hits","tallyroll_hits","tallyroll_uniques"]`, string(names.Data))
	_, series := get(t, promql, "series", url.Values{"match[]": {"tallyroll_all_hits"}})
	require.JSONEq(t, `[{"__name__":"tallyroll_all_hits"}]`, string(series.Data))
}

// The last point of a range query that ends now reaches as far as as_of, though its first cells are long: its
// last part is in cells of finer tiers. Its beginning has the whole cell that it cuts, like upper of
// /v1/total.
func TestSumsReachAsOf(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	promql, query := start(t, redis, stack.NoWait), stack.Query(t, redis, "TALLYROLL_NAMESPACE="+namespace, stack.NoWait)
	asOf := time.Now().Truncate(time.Second)
	random := rand.New(rand.NewPCG(14, 2))
	var hits []counted
	for range 5000 {
		hits = append(hits, counted{"a", asOf.Add(-time.Duration(random.Int64N(int64(8 * 24 * time.Hour)))), 1}, counted{"a", asOf.Add(-time.Duration(random.Int64N(int64(40 * time.Second)))), 1})
	}
	seed(t, redis.Client(), asOf, hits...)
	promql.WaitReady()
	query.WaitReady()
	for _, w := range []string{"30s", "1h", "1d", "7d"} {
		points := v1.Range{Start: asOf.Add(-time.Second), End: asOf, Step: time.Second}
		value, _, _, err := newClient(t, promql).QueryRange(t.Context(), `sum_over_time(tallyroll_hits{key="a"}[`+w+`])`, points)
		require.NoError(t, err)
		d, err := model.ParseDuration(w)
		require.NoError(t, err)
		answer, err := stack.FetchTotals(query.URL(), url.Values{"key": {"a"}, "from": {asOf.Add(-time.Duration(d)).UTC().Format(time.RFC3339)}, "to": {asOf.UTC().Format(time.RFC3339)}})
		require.NoError(t, err)
		total, got := answer.Totals[0], int64(value.(model.Matrix)[0].Values[1].Value)
		if got < total.Lower || got > total.Upper {
			t.Errorf("%s: %d, want between lower and upper of %+v", w, got, total)
		}
	}
}

// At one moment, a sum is the total of /v1/total for the same window, also if the window cuts cells, and the
// answer has its bounds.
func TestSumsAtOneMomentAreTotals(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	promql, query := start(t, redis, stack.NoWait), stack.Query(t, redis, "TALLYROLL_NAMESPACE="+namespace, stack.NoWait)
	asOf := time.Now().Truncate(time.Second)
	random := rand.New(rand.NewPCG(14, 2))
	var hits []counted
	for range 5000 {
		for _, span := range []time.Duration{40 * time.Second, time.Hour, 8 * 24 * time.Hour} {
			hits = append(hits, counted{"a", asOf.Add(-time.Duration(random.Int64N(int64(span)))), 1 + random.Int64N(9)})
		}
	}
	seed(t, redis.Client(), asOf, hits...)
	promql.WaitReady()
	query.WaitReady()
	cut := 0
	for i := range 300 {
		span := []time.Duration{40 * time.Second, 50 * time.Minute, 20 * time.Hour, 7 * 24 * time.Hour}[i%4]
		to := asOf.Add(-time.Duration(random.Int64N(int64(span / 2)))).Truncate(time.Millisecond)
		length := (time.Second + time.Duration(random.Int64N(int64(span/2)))).Truncate(time.Millisecond)
		if i%20 < 4 {
			to = asOf // the usual question
		}
		key, counter := url.Values{"key": {"a"}}, `tallyroll_hits{key="a"}`
		if i%3 == 0 {
			key, counter = url.Values{"prefix": {""}}, `tallyroll_all_hits`
		}
		key.Set("from", to.Add(-length).UTC().Format(time.RFC3339Nano))
		key.Set("to", to.UTC().Format(time.RFC3339Nano))
		ask := func() stack.Total {
			answer, err := stack.FetchTotals(query.URL(), key)
			require.NoError(t, err)
			return answer.Totals[0]
		}
		expr := fmt.Sprintf("sum_over_time(%s[%dms])", counter, length.Milliseconds())
		var want stack.Total
		var status int
		var answer apiAnswer
		stack.Eventually(t, "no tier to pass out of reach meanwhile", func() (bool, string) {
			want = ask()
			status, answer = get(t, promql, "query", url.Values{"query": {expr}, "time": {to.Format(time.RFC3339Nano)}})
			return want == ask(), expr
		})
		require.Equal(t, http.StatusOK, status, answer.Error)
		result, note := `"result":[]`, ""
		if want.Upper > 0 {
			result = fmt.Sprintf(`,"%d"]`, want.Total)
		}
		if want.Lower != want.Upper {
			cut++
			note = fmt.Sprintf("total %d, lower %d, upper %d, as_of %s", want.Total, want.Lower, want.Upper, window.Moment(asOf.UnixMilli()))
		}
		if !strings.Contains(string(answer.Data), result) || len(answer.Warnings) > 0 || len(answer.Infos) > 1 || !strings.Contains(strings.Join(answer.Infos, ""), note) || note == "" && answer.Infos != nil {
			t.Errorf("%s at %s: %s %q %q, want %s %q", expr, to, answer.Data, answer.Warnings, answer.Infos, result, note)
		}
	}
	require.Greater(t, cut, 200)
}

// A sum without a time ends now, however late it is read. Sums of the future have no hits, nor do those that
// end before 1970.
func TestSumsWithoutATimeEndNow(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), time.Now()
	seed(t, redis.Client(), now, counted{"a", now, 3})
	s := newTestService(t, redis, func(*Settings) {})
	t.Cleanup(func() { _ = s.engine.Close() })
	for expr, c := range map[string]struct {
		endsNow bool
		want    string
	}{
		`[1m]`:            {true, `,"3"]`},
		`[1m] offset 0s`:  {false, `"result":[]`}, // which ended before the hit
		`[1m] offset -2m`: {true, `"result":[]`},
		`[1m] @ -5`:       {true, `"result":[]`},
	} {
		r := httptest.NewRequest(http.MethodGet, "/?"+url.Values{"query": {`sum_over_time(tallyroll_hits{key="a"}` + expr + `)`}}.Encode(), nil)
		asked := now.Add(-2 * time.Second)
		out, err := s.evaluate(r, timeRange{start: asked, end: asked, endsNow: c.endsNow})
		require.NoError(t, err, expr)
		require.Contains(t, string(out.data.(json.RawMessage)), c.want, expr)
	}
}

// Totals of several counters have bounds of their own. Further expressions work with the totals.
func TestTotalsOfSeveralCountersHaveBounds(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarterEnd()
	var hits []counted
	for i := range 7 { // the first hits are in a cell that the beginning of the window cuts in half
		hits = append(hits, counted{fmt.Sprint("cut.", i), at.Add(-time.Hour), 2}, counted{fmt.Sprint("cut.", i), at.Add(-time.Minute), 10})
	}
	seed(t, redis.Client(), time.Now(), append(hits, counted{"whole", at.Add(-time.Minute), 4})...)
	promql := start(t, redis)
	for _, c := range []struct {
		expr, result string
		notes        []string
	}{
		{`sum_over_time(tallyroll_hits{key="whole"}[1h]) / 2`, `,"2"]`, nil},
		{`sum_over_time(tallyroll_hits{key=~"whole|cut.1"}[1h])`, `,"11"]`, []string{`{__name__="tallyroll_hits", key="cut.1"}: total 11, lower 10, upper 12, as_of `}},
		{`topk(1, sum_over_time(tallyroll_hits[1h]))`, `,"11"]`, []string{`key="cut.0"}`, `key="cut.4"}`, `2 more totals are not exact`}},
		{`sum(sum_over_time(tallyroll_hits[1h]))`, `,"81"]`, []string{`2 more totals are not exact`}},
	} {
		_, answer := get(t, promql, "query", url.Values{"query": {c.expr}, "time": {at.Add(450 * time.Second).Format(time.RFC3339)}})
		notes := strings.Join(answer.Infos, "\n")
		require.Contains(t, string(answer.Data), c.result, c.expr)
		require.Empty(t, answer.Warnings, c.expr)
		require.Equal(t, len(c.notes) == 0, notes == "", notes)
		require.LessOrEqual(t, len(answer.Infos), maxBounds+1)
		for _, note := range c.notes {
			require.Contains(t, notes, note, c.expr)
		}
	}
}
