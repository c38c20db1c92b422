package main

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

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

// A sum that ends now reaches as far as as_of, though its first cells are long: its last part is
// in cells of finer tiers. Its beginning has the whole cell that it cuts, like upper of /v1/total.
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
		value, _, _, err := newClient(t, promql).Query(t.Context(), `sum_over_time(tallyroll_hits{key="a"}[`+w+`])`, asOf)
		require.NoError(t, err)
		d, err := model.ParseDuration(w)
		require.NoError(t, err)
		answer, err := stack.FetchTotals(query.URL(), url.Values{"key": {"a"}, "from": {asOf.Add(-time.Duration(d)).UTC().Format(time.RFC3339)}, "to": {asOf.UTC().Format(time.RFC3339)}})
		require.NoError(t, err)
		total, got := answer.Totals[0], int64(value.(model.Vector)[0].Value)
		if got < total.Lower || got > total.Upper {
			t.Errorf("%s: %d, want between lower and upper of %+v", w, got, total)
		}
	}
}
