package answer_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tallyroll/internal/query/answer"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// countKeys counts hits of n keys of a limit, a few of which have most, in whole cells, and returns how many
// hits each counter has.
func countKeys(t *testing.T, h *rig, n int) map[string]int64 {
	t.Helper()
	random, want := rand.New(rand.NewPCG(5, 6)), make(map[string]int64)
	layout := layoutOf(t, "")
	for at := 0; at < n; at += 5000 {
		var hits []apitest.Sample
		for i := at; i < min(n, at+5000); i++ {
			for _, field := range []string{"usage", "refused"} {
				name, hit := fmt.Sprintf("%s.plan.%d", field, i), 1+random.Int64N(3)+int64(5000/(i+1))
				hits = append(hits, apitest.NewSample(name, today.Add(-time.Duration(1+random.IntN(4))*time.Minute), hit))
				want[name] += hit
			}
		}
		if at == 0 {
			h.count(t, "", hits)
		} else {
			apitest.Commit(t, h.store, layout, h.now, uint64(1+at), hits)
		}
	}
	return want
}

// checkLargest compares a list with the hits of all counters: each figure is right, and no other counter with
// the prefix has more than the floor.
func checkLargest(t *testing.T, h *rig, prefix string, limit int, want map[string]int64) answer.TopAnswer {
	t.Helper()
	got := mustGet[answer.TopAnswer](t, h, "/v1/top", url.Values{"prefix": {prefix}, "window": {"10m"}, "limit": {fmt.Sprint(limit)}})
	listed := make(map[string]bool)
	for i, one := range got.Top {
		listed[one.Key] = true
		if n := want[one.Key]; one.Total != n || one.Lower != n || int64(one.Upper) != n || !strings.HasPrefix(one.Key, prefix) ||
			i > 0 && one.Total > got.Top[i-1].Total {
			t.Fatalf("%s: number %d is %+v, want %d hits", prefix, i, one, n)
		}
	}
	for name, n := range want {
		if strings.HasPrefix(name, prefix) && !listed[name] && n > int64(got.Floor) {
			t.Fatalf("%s: %s with %d hits is missing; the floor is %v", prefix, name, n, got.Floor)
		}
	}
	if len(got.Top) > limit || !got.Complete {
		t.Fatalf("%s: %d counters, complete %v", prefix, len(got.Top), got.Complete)
	}
	return got
}

// Sums over 1,100 keys are right, and so are their largest. With a smaller bound, and with 100,000 keys, they
// are those of the summaries: nothing is refused for the number of names.
func TestManyKeysOfALimit(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1100, 100_000} {
		h := newRig(t, stack.Redis(t).URL())
		want := countKeys(t, h, n)
		var sum int64
		for i := range n {
			sum += want[fmt.Sprintf("usage.plan.%d", i)]
		}
		rapid.Check(t, func(rt *rapid.T) {
			h.MaxSum = rapid.SampledFrom([]int{1, 100, 1000, 2000}).Draw(rt, "bound")
			prefix := rapid.SampledFrom([]string{"refused.", "usage.plan.1", "usage.plan.77", "usage.", "u", "nobody."}).Draw(rt, "prefix")
			checkLargest(t, h, prefix, rapid.SampledFrom([]int{1, 10, 300, 1000}).Draw(rt, "limit"), want)
		})
		for _, bound := range []int{1000, 10_000} {
			h.MaxSum = bound
			got := checkLargest(t, h, "refused.plan.", 10, want)
			if len(got.Top) < 10 || int64(got.Floor) > got.Top[9].Total {
				t.Errorf("%d keys, bound %d: the floor of %d counters is %v", n, bound, len(got.Top), got.Floor)
			}
			// Of groups, other counters are unknown then.
			groups := mustGet[answer.TopAnswer](t, h, "/v1/top", url.Values{"group": {"2"}, "window": {"10m"}})
			known := 2*n <= bound
			if groups.Complete != known || len(groups.Top) != 2 {
				t.Errorf("%d keys, bound %d: groups %+v", n, bound, groups)
			}
			for _, g := range groups.Top {
				if g.Key == "usage.plan" && (g.Lower > sum || int64(g.Upper) < sum || known != (g.Lower == sum)) {
					t.Errorf("%d keys, bound %d: %+v, want %d", n, bound, g, sum)
				}
			}
		}
		if n > h.MaxSum {
			continue
		}
		total := mustGet[answer.TotalAnswer](t, h, "/v1/total", url.Values{"prefix": {"usage."}, "window": {"10m"}}).Totals[0]
		series := mustGet[answer.Series](t, h, "/v1/series", url.Values{"prefix": {"usage."}, "window": {"10m"}})
		for _, p := range series.Points {
			sum -= p[1]
		}
		if total.Counters != n || total.Lower != int64(total.Upper) || sum != 0 {
			t.Errorf("%d keys: the total is %+v, and the series differs by %d", n, total, sum)
		}
	}
}
