package query

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// probe returns the samples of an answer, sorted, of one metric if it has a name.
func probe(t *testing.T, h http.Handler, metric, query string) (out []string) {
	t.Helper()
	resp := asking.Ask(h, http.MethodGet, probePath+"?"+query, "")
	text := string(asking.ReadAll(t, resp))
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s", query, text)
	require.True(t, strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4"), query)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && strings.HasPrefix(line, metric) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	slices.Sort(out)
	return out
}

// A probe has the totals that /v1/total has, of the counters that are named, the largest, or all with a prefix. Mistakes
// are in testdata/refused.txt.
func TestProbeHasTheTotals(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	odd := "a \"quoted\\name\",é"
	hits := []asking.Sample{
		asking.Hits("api", now.Add(-time.Minute), 5), asking.Hits("api", now.Add(-20*time.Minute), 7),
		asking.Hits("api", now.Add(-10*time.Minute-10*time.Second), 4), // in the minute that the window cuts
		asking.Hits("shop.a", now.Add(-time.Minute), 3), asking.Hits("shop.b", now.Add(-30*time.Minute), 2), asking.Hits(odd, now.Add(-time.Minute), 2),
	}
	for i := range 11 {
		hits = append(hits, asking.Hits(fmt.Sprintf("many.%02d", i), now.Add(-time.Minute), 1))
	}
	asking.Seed(t, redis.Client(), now.Add(-2*time.Second), hits...)
	s := onRedis(t, redis.URL(), now)
	s.answers.MaxProbe = 10
	h := s.handler()

	want := []string{"tallyroll_probe_as_of_age_seconds 2"}
	for _, key := range []string{"api", "never"} {
		for _, w := range []string{"10m", "1h"} {
			total := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?"+url.Values{"key": {key}, "window": {w}}.Encode(), "")).Totals[0]
			labels := fmt.Sprintf(`{key=%q,window=%q}`, key, w)
			complete := map[bool]int{true: 1}[total.Complete]
			for name, value := range map[string]any{"": total.Total, "_lower": total.Lower, "_upper": total.Upper, "_complete": complete} {
				want = append(want, fmt.Sprintf("tallyroll_window_hits%s%s %v", name, labels, value))
			}
		}
	}
	slices.Sort(want)
	require.Contains(t, want, `tallyroll_window_hits_upper{key="api",window="10m"} 9`)
	require.Contains(t, want, `tallyroll_window_hits_lower{key="api",window="10m"} 5`)
	require.Equal(t, want, probe(t, h, "", "key=api&key=never&key=api&window=10m&window=1h"))

	for query, want := range map[string][]string{
		"top=1&window=1h":                       {`{key="api",window="1h"} 16`},
		"top=3&window=5m":                       {`{key="a \"quoted\\name\",é",window="5m"} 2`, `{key="api",window="5m"} 5`, `{key="shop.a",window="5m"} 3`},
		"prefix=shop.&window=1h":                {`{key="shop.a",window="1h"} 3`, `{key="shop.b",window="1h"} 2`},
		"prefix=nothing&window=1h":              nil,
		"window=1h&key=" + url.QueryEscape(odd): {`{key="a \"quoted\\name\",é",window="1h"} 2`},
	} {
		for i := range want {
			want[i] = "tallyroll_window_hits" + want[i]
		}
		require.Equal(t, want, probe(t, h, "tallyroll_window_hits{", query), query)
	}
	for query, n := range map[string]int{"prefix=many.0&window=1h": 10, "top=10&window=1h": 10, "prefix=many.10&window=1h&window=2h": 2, strings.Repeat("key=api&", 11) + "window=1h": 1} {
		require.Len(t, probe(t, h, "tallyroll_window_hits{", query), n, query)
	}
	for query, detail := range map[string]string{
		"prefix=many.&window=1h":            `more than 10 counters begin with "many.": at most 10 totals are allowed in one answer (QUERY_MAX_PROBE)`,
		"prefix=many.0&window=1h&window=2h": "more than 5 counters",
	} {
		require.Contains(t, asking.Refused(t, asking.Ask(h, http.MethodGet, probePath+"?"+query, ""), http.StatusRequestEntityTooLarge).Detail, detail)
	}
}
