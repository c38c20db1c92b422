package answer_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// drawHits returns hits of counters of few and many parts, of the last 23 hours.
func drawHits(random *rand.Rand) (hits []apitest.Sample) {
	for range 300 {
		name := []string{"shop", "blog", "/cart"}[random.IntN(3)]
		for range random.IntN(4) {
			name += []string{".", "/"}[random.IntN(2)] + []string{"eu", "us", "asia", "größe"}[random.IntN(4)]
		}
		hits = append(hits, apitest.NewSample(name, today.Add(-time.Duration(random.Int64N(int64(23*time.Hour)))), 1+random.Int64N(9)))
	}
	return hits
}

// Whatever the prefix, the parts, the limit, the range and the steps: each line is the sum of the series of
// its counters, all lines and the others together are the sum of the prefix, and no group that is not listed
// has more hits than one that is. Totals of a prefix and of its groups are the sums of totals, and so are
// those of the largest groups, whose floor is that of the groups that are missing.
func TestGroupsEqualSingleCounters(t *testing.T) {
	t.Parallel()
	h := newRig(t, stack.Redis(t).URL())
	hits := drawHits(rand.New(rand.NewPCG(9, 10)))
	h.count(t, "", hits)
	var names []string
	for _, hit := range hits {
		names = append(names, hit.Key)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	rapid.Check(t, func(rt *rapid.T) {
		prefix := rapid.SampledFrom([]string{"", "s", "shop", "shop.", "shop/eu", "/", "/cart/", "blog.us.", "nobody"}).Draw(rt, "prefix")
		parts := rapid.IntRange(1, 4).Draw(rt, "parts")
		limit := rapid.IntRange(1, 12).Draw(rt, "limit")
		params := url.Values{"prefix": {prefix}, "group": {fmt.Sprint(parts)}, "limit": {fmt.Sprint(limit)}}
		when := url.Values{"from": {fmt.Sprint(today.Add(-time.Duration(rapid.Int64Range(1, 23*60).Draw(rt, "minutes")) * time.Minute).UnixMilli())}}
		if rapid.Bool().Draw(rt, "past") {
			when.Set("to", fmt.Sprint(today.Add(-30*time.Second).UnixMilli()))
		}
		if step := rapid.SampledFrom([]string{"", "7m", "1h", "1d", "1w"}).Draw(rt, "step"); step != "" {
			when.Set("step", step)
			if step == "1d" || step == "1w" {
				when.Set("tz", rapid.SampledFrom([]string{"UTC", "Asia/Kolkata"}).Draw(rt, "tz"))
			}
		}
		under := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		checkSeries(t, h, prefix, parts, limit, params, when, under)
		span := url.Values{"window": {fmt.Sprintf("%dm", rapid.IntRange(1, 20*60).Draw(rt, "window"))}}
		groups, all := groupTotals(t, h, parts, span, under)
		checkTop(t, h, params, limit, span, groups)
		checkSum(t, h, url.Values{"prefix": {prefix}, "group": {fmt.Sprint(parts)}}, span, groups, all)
	})
}

// stepwise adds up the points of series by moment: hits, and their bounds.
type stepwise map[int64][3]int64

func (s stepwise) add(points, bounds [][2]int64) {
	for i, p := range points {
		least, most := p[1], p[1]
		if bounds != nil {
			least, most = bounds[i][0], bounds[i][1]
		}
		if p[1] != 0 || most != 0 { // lists may begin earlier or later
			was := s[p[0]]
			s[p[0]] = [3]int64{was[0] + p[1], was[1] + least, was[2] + most}
		}
	}
}

func (s stepwise) hits() (n int64) {
	for _, at := range s {
		n += at[0]
	}
	return n
}

func checkSeries(t *testing.T, h http.Handler, prefix string, parts, limit int, params, when url.Values, under []string) {
	t.Helper()
	got := mustGet[answer.SeriesList](t, h, "/v1/series", params, when)
	want, all, sum := map[string]stepwise{}, stepwise{}, stepwise{}
	if len(under) > 0 {
		single := mustGet[struct{ Series []answer.Series }](t, h, "/v1/series", when, url.Values{"key": append(slices.Clone(under), "nobody")})
		for i, name := range under {
			group := firstParts(name, parts)
			if want[group] == nil {
				want[group] = stepwise{}
			}
			want[group].add(single.Series[i].Points, single.Series[i].Bounds)
			if got.Step != single.Series[i].Step || !got.AsOf.Equal(single.Series[i].AsOf) {
				t.Fatalf("steps of %s as of %v, want %s as of %v", got.Step, got.AsOf, single.Series[i].Step, single.Series[i].AsOf)
			}
		}
	}
	least := int64(-1)
	for i, line := range got.Series {
		one := stepwise{}
		one.add(line.Points, line.Bounds)
		all.add(line.Points, line.Bounds)
		if fmt.Sprint(one) != fmt.Sprint(want[line.Key]) {
			t.Fatalf("%v %v: %s is %v, want %v", params, when, line.Key, one, want[line.Key])
		}
		if i > 0 && one.hits() > least {
			t.Fatalf("%s has %d hits, and the line before has %d", line.Key, one.hits(), least)
		}
		least = one.hits()
		delete(want, line.Key)
	}
	missing := 0
	for group, points := range want {
		if len(points) == 0 {
			continue
		}
		if missing++; points.hits() > least {
			t.Fatalf("%v %v: %s with %d hits is no line; the last has %d", params, when, group, points.hits(), least)
		}
	}
	switch {
	case len(got.Series) > limit:
		t.Fatalf("%d lines, want at most %d", len(got.Series), limit)
	case (got.Others == nil) != (missing == 0) || got.Others != nil && (got.Others.Groups != missing || len(got.Series) != limit):
		t.Fatalf("%v %v: others %+v, want %d", params, when, got.Others, missing)
	case got.Others != nil:
		all.add(got.Others.Points, got.Others.Bounds)
	}
	if prefix == "" {
		return // it needs a group
	}
	whole := mustGet[answer.Series](t, h, "/v1/series", when, url.Values{"prefix": {prefix}})
	if sum.add(whole.Points, whole.Bounds); whole.Key != prefix || fmt.Sprint(all) != fmt.Sprint(sum) {
		t.Fatalf("%v %v: the lines add up to %v, and the sum is %s: %v", params, when, all, whole.Key, sum)
	}
}

// groupTotals adds up the totals of counters.
func groupTotals(t *testing.T, h http.Handler, parts int, span url.Values, under []string) (groups map[string]answer.SumGroup, all answer.SumGroup) {
	t.Helper()
	groups = map[string]answer.SumGroup{}
	if len(under) == 0 {
		return groups, all
	}
	for _, one := range mustGet[answer.TotalAnswer](t, h, "/v1/total", url.Values{"key": under}, span).Totals {
		if one.Upper == 0 {
			continue
		}
		estimate := window.Estimate{Total: one.Total, Lower: one.Lower, Upper: int64(one.Upper)}
		g := groups[firstParts(one.Key, parts)]
		g.Group = firstParts(one.Key, parts)
		g.Add(estimate)
		groups[g.Group] = g
		all.Add(estimate)
	}
	return groups, all
}

func checkSum(t *testing.T, h http.Handler, params, span url.Values, groups map[string]answer.SumGroup, all answer.SumGroup) {
	t.Helper()
	got := mustGet[answer.TotalAnswer](t, h, "/v1/total", params, span).Totals[0]
	if got.SumOver == nil || got.Counters != all.Counters || got.Total != all.Total || got.Lower != all.Lower ||
		got.Upper != all.Upper || len(got.Groups) != len(groups) {
		t.Fatalf("%v: %+v, want %+v in %d groups", params, got, all, len(groups))
	}
	for i, g := range got.Groups {
		if g != groups[g.Group] || i > 0 && got.Groups[i-1].Total < g.Total {
			t.Fatalf("%v: group %d is %+v, want %+v", params, i, g, groups[g.Group])
		}
	}
}

func checkTop(t *testing.T, h http.Handler, params url.Values, limit int, span url.Values, groups map[string]answer.SumGroup) {
	t.Helper()
	got := mustGet[struct {
		Floor *int64
		Top   []struct {
			Key                           string
			Counters, Total, Lower, Upper int64
		}
	}](t, h, "/v1/top", params, span)
	listed := map[string]bool{}
	for i, one := range got.Top {
		g := groups[one.Key]
		if int64(g.Counters) != one.Counters || g.Total != one.Total || g.Lower != one.Lower || int64(g.Upper) != one.Upper ||
			i > 0 && got.Top[i-1].Total < one.Total {
			t.Fatalf("%v: %+v, want %+v", params, one, g)
		}
		listed[one.Key] = true
	}
	floor := int64(0)
	for name, g := range groups {
		if listed[name] {
			continue
		}
		floor = max(floor, int64(g.Upper))
		if len(got.Top) < limit && g.Total > 0 {
			t.Fatalf("%v: %s with %d hits is missing", params, name, g.Total)
		}
	}
	if got.Floor == nil || *got.Floor != floor {
		t.Fatalf("%v: the floor is %v, want %d", params, got.Floor, floor)
	}
}

// firstParts are so many parts of a name, which . and / part; one at the beginning parts nothing.
func firstParts(name string, n int) string {
	return regexp.MustCompile(fmt.Sprintf(`^.?[^./]*([./][^./]*){0,%d}`, n-1)).FindString(name)
}

// Names that contain a text in upper or lower case are found, page by page, together with a prefix, and with
// the totals of /v1/total. If a bound lets no more than one or two counters be read at once, pages are
// shorter, and nothing is missing.
func TestPagesListEachMatchingCounterOnce(t *testing.T) {
	t.Parallel()
	h := newRig(t, stack.Redis(t).URL())
	var hits []apitest.Sample
	for i := range 20 {
		name := fmt.Sprintf("shop.%s.%02d", []string{"Cart", "pay", "CART", "größe"}[i%4], i)
		hits = append(hits, apitest.NewSample(name, today.Add(-time.Minute), int64(1+i)))
	}
	h.count(t, "", append(hits, apitest.NewSample("blog.cart", today, 1), apitest.NewSample("300\u212a", today, 1),
		apitest.NewSample("shop.old.cart", today.Add(-30*time.Hour), 1))) // beyond every tier
	for _, c := range []struct {
		prefix, match string
		want          int
	}{
		{"", "cart", 11}, {"", "CaRt", 11}, {"shop.", "cart", 10}, {"", "GRÖSSE", 0}, {"", "GRÖ\u1e9eE", 5}, {"", "k", 1},
		{"shop.", "k", 0}, {"", ".p", 5}, {"shop.pay.0", "0", 3}, {"", "nothing", 0}, {"shop.", "", 20},
	} {
		for limit, cells := range map[string]int64{"1": 0, "7": 700, "1000": 224} {
			h.reader.MaxCells = cells
			params := url.Values{"limit": {limit}}
			for name, value := range map[string]string{"prefix": c.prefix, "match": c.match} {
				if value != "" {
					params.Set(name, value)
				}
			}
			if limit == "7" {
				params.Set("totals", "1")
			}
			names := readPages(t, h, params)
			if len(names) != c.want || !slices.IsSorted(names) || slices.ContainsFunc(names, func(name string) bool {
				return !strings.HasPrefix(name, c.prefix) || !strings.Contains(strings.ToLower(name), strings.ToLower(c.match))
			}) {
				t.Errorf("%+v, %v: %d names: %q", c, params, len(names), names)
			}
		}
	}
}

func readPages(t *testing.T, h *rig, params url.Values) (names []string) {
	t.Helper()
	for range 100 {
		page := mustGet[answer.CountersAnswer](t, h, "/v1/counters", params)
		if len(page.Totals) > 0 {
			want := mustGet[answer.TotalAnswer](t, h, "/v1/total", url.Values{"key": page.Counters, "window": {"24h"}})
			if fmt.Sprint(page.Totals) != fmt.Sprint(want.Totals) {
				t.Fatalf("%+v, want %+v", page.Totals, want.Totals)
			}
		}
		if params.Has("totals") && len(page.Totals) != len(page.Counters) || h.reader.MaxCells == 96 && len(page.Counters) > 2 {
			t.Fatalf("%v: %d totals of %d counters", params, len(page.Totals), len(page.Counters))
		}
		names = append(names, page.Counters...)
		if page.Next == "" {
			return names
		}
		params.Set("after", page.Next)
	}
	t.Fatalf("%v: the pages have no end", params)
	return nil
}
