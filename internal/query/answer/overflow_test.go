package answer_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// Names without room are counted on overflow counters: every answer that may concern them says so by its
// bounds, and sums that include the overflow are exact.
func TestAnswersAboutNamesWithoutRoom(t *testing.T) {
	h := newRig(t, stack.Redis(t).URL())
	h.store.Bounds = window.NameBounds{{Prefix: "web.", Max: 40}}
	var hits []apitest.Sample
	want := make(map[string]int64)
	for i := range 200 {
		for _, part := range []string{"a", "b"} {
			name := fmt.Sprintf("web.%s.%d", part, i)
			want[name] = int64(1 + i%3)
			hits = append(hits, apitest.NewSample(name, today.Add(-2*time.Minute), want[name]))
		}
	}
	hits = append(hits, apitest.NewSample("shop", today.Add(-2*time.Minute), 5))
	h.count(t, "", hits)
	total := func(params url.Values) answer.Total {
		t.Helper()
		params.Set("window", "10m")
		got := mustGet[answer.TotalAnswer](t, h, "/v1/total", params).Totals[0]
		require.True(t, got.Complete)
		return got
	}
	sum := func(prefix string) (n int64) {
		for name, hits := range want {
			if strings.HasPrefix(name, prefix) {
				n += hits
			}
		}
		return n
	}
	refused := 0
	for name, n := range want {
		got := total(url.Values{"key": {name}})
		if got.Total == n {
			continue
		}
		refused++
		require.Zero(t, got.Lower, name)
		require.Contains(t, got.Overflow, "web."+window.OverflowPart)
		require.GreaterOrEqual(t, int64(got.Upper), n)
		require.Equal(t, got.Upper, total(url.Values{"key": {got.Overflow}}).Upper)
	}
	require.Greater(t, refused, 300)
	shop := total(url.Values{"key": {"shop"}})
	require.Equal(t, []any{int64(5), window.Bound(5), ""}, []any{shop.Lower, shop.Upper, shop.Overflow})
	for _, prefix := range []string{"web.", "we"} { // which include the overflow
		got := total(url.Values{"prefix": {prefix}})
		require.Equal(t, []any{sum("web."), window.Bound(sum("web.")), ""}, []any{got.Lower, got.Upper, got.Overflow})
	}
	part := total(url.Values{"prefix": {"web.a."}})
	require.Less(t, part.Lower, sum("web.a."))
	require.GreaterOrEqual(t, int64(part.Upper), sum("web.a."))
	require.NotEmpty(t, part.Overflow)
	for _, g := range total(url.Values{"prefix": {"web."}, "group": {"2"}}).Groups {
		if g.Group == "web.a" || g.Group == "web.b" {
			require.GreaterOrEqual(t, int64(g.Upper), sum(g.Group))
		} else {
			require.Equal(t, window.Bound(g.Lower), g.Upper, g.Group)
		}
	}
	top := mustGet[answer.TopAnswer](t, h, "/v1/top", url.Values{"prefix": {"web.a."}, "window": {"10m"}, "limit": {"5"}})
	listed := make(map[string]bool)
	for _, one := range top.Top {
		listed[one.Key] = true
		require.GreaterOrEqual(t, int64(one.Upper), want[one.Key])
	}
	for name, n := range want {
		if !listed[name] && strings.HasPrefix(name, "web.a.") {
			require.GreaterOrEqual(t, int64(top.Floor), n, name)
		}
	}
}
