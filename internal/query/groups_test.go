package query

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tallyroll/internal/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// asked decodes the answer to GET, which must have status 200.
func asked[T any](t testing.TB, h http.Handler, path string, params url.Values) (out T) {
	t.Helper()
	resp := asking.Ask(h, http.MethodGet, path+"?"+params.Encode(), "")
	data := asking.ReadAll(t, resp)
	if err := json.Unmarshal(data, &out); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s?%s: %d %v: %s", path, params.Encode(), resp.StatusCode, err, data)
	}
	return out
}

// topGroups is an answer of /v1/top.
type topGroups struct {
	AsOf     time.Time `json:"as_of"`
	Complete bool
	Floor    *int64
	Top      []struct {
		Key                           string
		Counters, Total, Lower, Upper int64
	}
}

// drawnHits are hits of counters of few and many parts.
func drawnHits(random *rand.Rand, now time.Time) (hits []asking.Sample) {
	for range 300 {
		name := []string{"shop", "blog", "/cart"}[random.IntN(3)]
		for range random.IntN(4) {
			name += []string{".", "/"}[random.IntN(2)] + []string{"eu", "us", "asia", "größe"}[random.IntN(4)]
		}
		hits = append(hits, asking.Hits(name, now.Add(-time.Duration(random.Int64N(int64(23*time.Hour)))), 1+random.Int64N(9)))
	}
	return hits
}

// Whatever the prefix, the parts, the limit, the range and the steps: each line is the sum of the series of its counters,
// all lines and the others together are the sum of the prefix, and no group that is not listed has more hits than one that
// is. The largest groups have the sums of totals, and their floor is that of the groups that are missing.
func TestGroupsEqualSingleCounters(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	hits := drawnHits(rand.New(rand.NewPCG(9, 10)), now)
	asking.Seed(t, redis.Client(), now, hits...)
	h := onRedis(t, redis.URL(), now).handler()
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
		when := url.Values{"from": {fmt.Sprint(now.Add(-time.Duration(rapid.Int64Range(1, 23*60).Draw(rt, "minutes")) * time.Minute).UnixMilli())}}
		if rapid.Bool().Draw(rt, "past") {
			when.Set("to", fmt.Sprint(now.Add(-30*time.Second).UnixMilli()))
		}
		if step := rapid.SampledFrom([]string{"", "7m", "1h", "1d", "1w"}).Draw(rt, "step"); step != "" {
			when.Set("step", step)
			if step[1] != 'h' && step[1] != 'm' {
				when.Set("tz", rapid.SampledFrom([]string{"UTC", "Asia/Kolkata"}).Draw(rt, "tz"))
			}
		}
		var under []string
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				under = append(under, name)
			}
		}
		checkSeries(t, h, prefix, parts, limit, params, when, under)
		length := fmt.Sprintf("%dm", rapid.IntRange(1, 20*60).Draw(rt, "window"))
		checkTop(t, h, prefix, parts, limit, params, length, under)
	})
}

// joined is all parameters together.
func joined(all ...url.Values) url.Values {
	out := make(url.Values)
	for _, values := range all {
		for name, given := range values {
			out[name] = append(out[name], given...)
		}
	}
	return out
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
	got := asked[answer.SeriesList](t, h, "/v1/series", joined(params, when))
	want, all, sum := map[string]stepwise{}, stepwise{}, stepwise{}
	if len(under) > 0 {
		single := asked[struct{ Series []answer.Series }](t, h, "/v1/series", joined(when, url.Values{"key": append(slices.Clone(under), "nobody")}))
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
	whole := asked[answer.Series](t, h, "/v1/series", joined(when, url.Values{"prefix": {prefix}}))
	if sum.add(whole.Points, whole.Bounds); whole.Key != prefix || fmt.Sprint(all) != fmt.Sprint(sum) {
		t.Fatalf("%v %v: the lines add up to %v, and the sum is %s: %v", params, when, all, whole.Key, sum)
	}
}

func checkTop(t *testing.T, h http.Handler, prefix string, parts, limit int, params url.Values, length string, under []string) {
	t.Helper()
	got := asked[topGroups](t, h, "/v1/top", joined(params, url.Values{"window": {length}}))
	want := map[string]answer.SumGroup{}
	if len(under) > 0 {
		for _, one := range asked[answer.TotalAnswer](t, h, "/v1/total", url.Values{"key": under, "window": {length}}).Totals {
			if one.Upper == 0 {
				continue
			}
			group := firstParts(one.Key, parts)
			g := want[group]
			g.Add(window.Estimate{Total: one.Total, Lower: one.Lower, Upper: int64(one.Upper)})
			want[group] = g
		}
	}
	for i, one := range got.Top {
		g := want[one.Key]
		if int64(g.Counters) != one.Counters || g.Total != one.Total || g.Lower != one.Lower || int64(g.Upper) != one.Upper ||
			i > 0 && got.Top[i-1].Total < one.Total {
			t.Fatalf("%v: %+v, want %+v", params, one, g)
		}
		delete(want, one.Key)
	}
	floor := int64(0)
	for group, g := range want {
		floor = max(floor, int64(g.Upper))
		if len(got.Top) < limit && g.Total > 0 {
			t.Fatalf("%v: %s with %d hits is missing", params, group, g.Total)
		}
	}
	if got.Floor == nil || *got.Floor != floor {
		t.Fatalf("%v: the floor is %v, want %d", params, got.Floor, floor)
	}
}

// The forms of groups, to the letter where clients read them.
func TestGroups(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	minute := now.Truncate(time.Minute)
	at := minute.Add(-2 * time.Minute)
	asking.Seed(t, redis.Client(), now, asking.Hits("shop.eu.cart", at, 5), asking.Hits("shop.eu", at.Add(time.Minute), 2), asking.Hits("shop.us.cart", at, 4),
		asking.Hits("shop.us.pay", at, 2), asking.Hits("shop.asia.cart", at, 1), asking.Hits("shop.old.cart", now.Add(-5*time.Hour), 9), asking.Hits("blog", at, 50))
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	from := fmt.Sprint(at.UnixMilli())
	get := func(target, accept string) string {
		t.Helper()
		target = strings.NewReplacer("FROM", from, "EARLIER", fmt.Sprint(now.Add(-3*time.Hour).UnixMilli())).Replace(target)
		resp := asking.Ask(h, http.MethodGet, target, "", "Accept", accept)
		data := asking.ReadAll(t, resp)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", target, resp.StatusCode, data)
		}
		return string(data)
	}

	got := asked[answer.SeriesList](t, h, "/v1/series", url.Values{"prefix": {"shop."}, "group": {"2"}, "from": {from}, "limit": {"2"}})
	points := func(n ...int64) (out [][2]int64) {
		for i, n := range n {
			out = append(out, [2]int64{at.Add(time.Duration(i) * time.Minute).UnixMilli(), n})
		}
		return out
	}
	if len(got.Series) != 2 || got.Series[0].Key != "shop.eu" || got.Series[1].Key != "shop.us" || got.Step != "1m" || !got.AsOf.Equal(now) ||
		!slices.Equal(got.Series[0].Points, points(5, 2, 0)) || !slices.Equal(got.Series[1].Points, points(6, 0, 0)) || !got.Series[0].Complete ||
		got.Others == nil || got.Others.Groups != 1 || !slices.Equal(got.Others.Points, points(1, 0, 0)) {
		t.Errorf("%+v, others %+v", got, got.Others)
	}
	for target, want := range map[string]string{
		"/v1/series?prefix=shop.&from=FROM":                 `{"key":"shop.",`,
		"/v1/series?prefix=shop.&group=2&from=FROM":         `"step":"1m"`,
		"/v1/series?prefix=nobody&group=1":                  `"series":[]}`,
		"/v1/series?prefix=&group=1&limit=1&from=FROM":      `"series":[{"key":"blog",`,
		"/v1/series?group=1&limit=1&from=FROM":              `"others":{"groups":1,"points":[[`, // shop
		"/v1/top?window=1h&prefix=shop.&group=2":            `"floor":0,"top":[{"key":"shop.eu","counters":2,"total":7,"lower":7,"upper":7},{"key":"shop.us","counters":2,"total":6,"lower":6,"upper":6},{"key":"shop.asia","counters":1,"total":1,"lower":1,"upper":1}]}`,
		"/v1/top?window=1h&prefix=shop.&group=2&limit=1":    `"complete":true,`,
		"/v1/top?window=1h&prefix=shop.&group=2&limit=2":    `"floor":1,"top":[{"key":"shop.eu",`,
		"/v1/top?window=1h&prefix=&group=1":                 `"top":[{"key":"blog","counters":1,"total":50,"lower":50,"upper":50},{"key":"shop","counters":5,"total":14,`,
		"/v1/top?window=1h&prefix=shop.us":                  `"top":[{"key":"shop.us.cart","total":4,"lower":4,"upper":4},{"key":"shop.us.pay","total":2,`,
		"/v1/top?window=20h&prefix=shop.&group=2":           `"complete":false,`,
		"/v1/top?window=1h&prefix=nobody&group=1":           `"floor":0,"top":[]}`,
		"/v1/top?window=1h&prefix=shop.&group=2&at=EARLIER": `"top":[]}`,
	} {
		if text := get(target, ""); !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %s", target, text, want)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(get("/v1/series?prefix=shop.&group=2&limit=2&from=FROM", "text/csv"))).ReadAll()
	if want := [][]string{{"time", "shop.eu", "shop.us", "others", "complete"}, {at.Format(time.RFC3339), "5", "6", "1", "true"}, {at.Add(time.Minute).Format(time.RFC3339), "2", "0", "0", "true"}}; err != nil || fmt.Sprint(rows) != fmt.Sprint(want) {
		t.Errorf("%v %v, want %v", rows, err, want)
	}
	past := asking.Ask(h, http.MethodGet, "/v1/series?prefix=shop.&group=2&from="+from+"&to="+fmt.Sprint(minute.UnixMilli()), "")
	if past.Header.Get("Cache-Control") != "no-cache" || past.Header.Get("ETag") == "" {
		t.Errorf("a past range: %v", past.Header)
	}
	// Nobody has counted for ten minutes.
	later := onRedis(t, redis.URL(), now.Add(10*time.Minute)).handler()
	data := asking.ReadAll(t, asking.Ask(later, http.MethodGet, "/v1/top?window=1h&prefix=shop.&group=2", ""))
	if !bytes.Contains(data, []byte(`"complete":false,`)) || !bytes.Contains(data, []byte(`"floor":null,"top":[{"key":"shop.eu","counters":2,"total":7,"lower":7,"upper":null}`)) {
		t.Errorf("%s", data)
	}
}

// What questions over names may cost is bounded by the settings that bound sums, and refusals name them.
func TestGroupsAreRefused(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("s.a.x", now, 1), asking.Hits("s.b.x", now, 1), asking.Hits("s.c.x", now, 1), asking.Hits("s.d.x", now, 1))
	s := onRedis(t, redis.URL(), now)
	s.answers.MaxSum = 3
	h := s.handler()
	const many = `prefix: at least 4 counters begin with "s.": at most 3 are added up (QUERY_MAX_SUM): use a longer prefix, or a rule`
	for target, want := range map[string]string{
		"/v1/series?prefix=s.":                  many,
		"/v1/series?prefix=s.&group=2":          many,
		"/v1/top?window=1h&prefix=s.&group=2":   many,
		"/v1/top?window=1h&prefix=s.":           many,
		"/v1/top?window=1h&group=1":             "prefix: at least 4 counters are known: at most 3 are added up (QUERY_MAX_SUM)",
		"/v1/series?prefix=":                    "prefix: it is empty",
		"/v1/top?window=1h&prefix=":             "prefix: it is empty",
		"/v1/series?prefix=s.a&key=a":           "prefix: not together with key",
		"/v1/series?key=a&group=1":              "prefix: not together with key",
		"/v1/series?prefix=s%0A":                `prefix: "s\n" has a control character`,
		"/v1/series?prefix=s.a&limit=2":         "limit: it is only beside group",
		"/v1/series?key=s.a&limit=2":            "limit: it is only beside group",
		"/v1/series?prefix=s.a&group=2&limit=0": "limit: \"0\": allowed is a whole number from 1 to 1000",
		"/v1/series?prefix=s.a&group=17":        "group: \"17\": allowed is a whole number from 1 to 16",
		"/v1/series?prefix=s.a&group=":          "group: it is empty",
		"/v1/series?prefix=s.&group=2&from=0":   "from: the question reaches back",
		"/v1/top?window=9d&prefix=s.&group=2":   "window: 9d: the question reaches back",
		"/v1/top?window=1h&prefix=s.a&group=x":  "group: \"x\"",
		"/v1/counters?match=":                   "match: it is empty",
		"/v1/counters?match=a%0A":               `match: "a\n" has a control character`,
		"/v1/counters?totals=2":                 "totals: \"2\": allowed is 1 or 0",
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusBadRequest); !strings.Contains(p.Detail, want) {
			t.Errorf("%s: %s, want %s", target, p.Detail, want)
		}
	}
	s.answers.MaxSum = 4
	limited(t, s, 4*240, 0)
	for _, target := range []string{"/v1/series?prefix=s.&group=2", "/v1/top?window=1h&prefix=s.&group=2"} {
		if resp := asking.Ask(h, http.MethodGet, target, ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", target, resp.StatusCode, asking.ReadAll(t, resp))
		}
	}
	limited(t, s, 4*120-1, 0)
	for _, target := range []string{"/v1/series?prefix=s.", "/v1/top?window=1h&prefix=s.&group=2"} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusRequestEntityTooLarge); !strings.Contains(p.Detail, "QUERY_MAX_CELLS") {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	limited(t, s, 0, 3*61) // two lines and the others
	if resp := asking.Ask(h, http.MethodGet, "/v1/series?prefix=s.&group=2&limit=2", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("%d %s", resp.StatusCode, asking.ReadAll(t, resp))
	}
	if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/series?prefix=s.&group=2&limit=3", ""), http.StatusRequestEntityTooLarge); !strings.Contains(p.Detail, "QUERY_MAX_POINTS") {
		t.Error(p.Detail)
	}
}

// Names that contain a text in upper or lower case are found, page by page, together with a prefix, and with the totals of
// /v1/total.
func TestMatchingCounters(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	var hits []asking.Sample
	for i := range 60 {
		hits = append(hits, asking.Hits(fmt.Sprintf("shop.%s.%02d", []string{"Cart", "pay", "CART", "größe"}[i%4], i), now.Add(-time.Minute), int64(1+i)))
	}
	hits = append(hits, asking.Hits("blog.cart", now, 1), asking.Hits("300\u212a", now, 1), asking.Hits("shop.old.cart", now.Add(-30*time.Hour), 1))
	asking.Seed(t, redis.Client(), now, hits...)
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	read := func(params url.Values) (names []string, pages int) {
		t.Helper()
		for {
			page := asked[answer.CountersAnswer](t, h, "/v1/counters", params)
			if len(page.Totals) > 0 {
				want := asked[answer.TotalAnswer](t, h, "/v1/total", url.Values{"key": page.Counters, "window": {"24h"}})
				if fmt.Sprint(page.Totals) != fmt.Sprint(want.Totals) {
					t.Fatalf("%+v, want %+v", page.Totals, want.Totals)
				}
			}
			if (len(page.Totals) > 0) != (params.Has("totals") && len(page.Counters) > 0) {
				t.Fatalf("%v: %d totals of %d counters", params, len(page.Totals), len(page.Counters))
			}
			names, pages = append(names, page.Counters...), pages+1
			if page.Next == "" {
				return names, pages
			}
			if pages > 200 {
				t.Fatalf("%v: the pages have no end", params)
			}
			params.Set("after", page.Next)
		}
	}
	for _, c := range []struct {
		prefix, match string
		want          int
	}{
		{"", "cart", 31}, {"", "CaRt", 31}, {"shop.", "cart", 30}, {"", "GRÖSSE", 0}, {"", "GRÖ\u1e9eE", 15}, {"", "k", 1}, {"shop.", "k", 0}, {"", ".p", 15}, {"shop.pay.0", "0", 3}, {"", "nothing", 0}, {"shop.", "", 60},
	} {
		for _, cells := range []int64{0, 300} { // a counter or two at a time
			for _, limit := range []string{"1", "7", "1000"} {
				limited(t, s, cells, 0)
				params := url.Values{"limit": {limit}}
				if c.prefix != "" {
					params.Set("prefix", c.prefix)
				}
				if c.match != "" {
					params.Set("match", c.match)
				}
				if limit == "7" {
					params.Set("totals", "1")
				}
				names, _ := read(params)
				ok := len(names) == c.want && slices.IsSorted(names) && !slices.ContainsFunc(names, func(name string) bool {
					return !strings.HasPrefix(name, c.prefix) || c.match != "" && !strings.Contains(strings.ToLower(name), strings.ToLower(c.match))
				})
				if !ok {
					t.Errorf("%+v, %v: %d names: %q", c, params, len(names), names)
				}
			}
		}
	}
}
