package query

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// The sum over a prefix, and over each group, is that of the single totals.
func TestSumsEqualSingleTotals(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	random := rand.New(rand.NewPCG(5, 6))
	var hits []asking.Sample
	for range 400 {
		name := "shop"
		for range random.IntN(4) {
			name += []string{".", "/"}[random.IntN(2)] + []string{"eu", "us", "asia"}[random.IntN(3)]
		}
		hits = append(hits, asking.Hits(name, now.Add(-time.Duration(random.Int64N(int64(23*time.Hour)))), 1+random.Int64N(9)))
	}
	hits = append(hits, asking.Hits("sho", now, 1000), asking.Hits("shoq", now, 1000), asking.Hits("shop.old", now.Add(-22*time.Hour), 3))
	asking.Seed(t, redis.Client(), now, hits...)
	h := onRedis(t, redis.URL(), now).handler()
	var names []string
	for _, hit := range hits {
		if strings.HasPrefix(hit.Key, "shop") && !slices.Contains(names, hit.Key) {
			names = append(names, hit.Key)
		}
	}
	windows := []string{"10m", "1h", "5h", "1d"}
	single := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?"+url.Values{"key": names, "window": windows}.Encode(), ""))
	for depth := range 4 {
		params := url.Values{"prefix": {"shop"}, "window": windows}
		body := map[string]any{"prefix": "shop", "windows": windows}
		if depth > 0 {
			params.Set("group", fmt.Sprint(depth))
			body["group"] = depth
		}
		text, err := json.Marshal(body)
		require.NoError(t, err)
		got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?"+params.Encode(), ""))
		posted := answered(t, asking.Ask(h, http.MethodPost, "/v1/total", string(text)))
		if fmt.Sprint(posted.Totals[0].Total, posted.Totals[0].Groups) != fmt.Sprint(got.Totals[0].Total, got.Totals[0].Groups) {
			t.Errorf("POST %+v, GET %+v", posted, got)
		}
		for i, sum := range got.Totals {
			all, groups := answer.SumGroup{}, map[string]answer.SumGroup{}
			for k := range names {
				one := single.Totals[k*len(windows)+i]
				if one.Upper == 0 {
					continue
				}
				estimate := window.Estimate{Total: one.Total, Lower: one.Lower, Upper: int64(one.Upper)}
				all.Add(estimate)
				g := groups[firstParts(one.Key, depth)]
				g.Add(estimate)
				groups[firstParts(one.Key, depth)] = g
			}
			if sum.Key != "shop" || sum.Window != windows[i] || sum.SumOver == nil || sum.Counters != all.Counters ||
				sum.Total != all.Total || sum.Lower != all.Lower || sum.Upper != all.Upper {
				t.Errorf("%s: %+v, want %+v", windows[i], sum, all)
				continue
			}
			if depth > 0 && len(sum.Groups) != len(groups) || depth == 0 && sum.Groups != nil {
				t.Errorf("%s: %d groups, want %d", windows[i], len(sum.Groups), len(groups))
			}
			for k, g := range sum.Groups {
				want := groups[g.Group]
				want.Group = g.Group
				if g != want || k > 0 && sum.Groups[k-1].Total < g.Total {
					t.Errorf("%s: group %d is %+v, want %+v", windows[i], k, g, want)
				}
			}
		}
	}
	if !single.AsOf.Equal(answered(t, asking.Ask(h, http.MethodGet, "/v1/total?prefix=shop&window=1h", "")).AsOf) {
		t.Error("the sum has another as_of")
	}
}

func TestSumOfNobody(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	h := onRedis(t, redis.URL(), now).handler()
	resp := asking.Ask(h, http.MethodGet, "/v1/total?prefix=nobody&window=1h&window=20h&group=1", "")
	text := string(asking.ReadAll(t, resp))
	var got answer.TotalAnswer
	err := json.Unmarshal([]byte(text), &got)
	if err != nil || !strings.Contains(text, `"counters":0`) || got.Totals[0].Total != 0 || !got.Totals[0].Complete || got.Totals[1].Complete {
		t.Errorf("%v: %s", err, text) // counting began twelve hours ago
	}
	if !got.Totals[0].From.Equal(now.Add(-time.Hour)) || !got.AsOf.Equal(now) {
		t.Errorf("%+v", got)
	}
}

func TestSumIsRefused(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("s.a", now, 1), asking.Hits("s.b", now, 1), asking.Hits("s.c", now, 1), asking.Hits("s.d", now, 1))
	s := onRedis(t, redis.URL(), now)
	s.answers.MaxSum = 3
	h := s.handler()
	for target, want := range map[string]string{
		"/v1/total?prefix=s.&window=1h":            `prefix: at least 4 counters begin with "s.": at most 3 are added up (QUERY_MAX_SUM): use a longer prefix, or a rule`,
		"/v1/total?prefix=s.&key=a&window=1h":      "prefix: not together with key",
		"/v1/total?prefix=&window=1h":              "prefix: it is empty",
		"/v1/total?prefix=s%0A&window=1h":          `prefix: "s\n" has a control character`,
		"/v1/total?prefix=s.&window=1h&group=0":    `group: "0": allowed is a whole number from 1 to 16`,
		"/v1/total?prefix=s.&window=1h&group=17":   "group: ",
		"/v1/total?key=s.a&window=1h&group=1":      "group: it is missing a prefix",
		"/v1/total?prefix=s.":                      "window: it is missing",
		"/v1/total?prefix=s.&window=1h&window=99d": "window: 99d: the question reaches back",
		"/v1/total?prefix=s.a&window=2d":           "window: 2d: the question reaches back",
		"/v1/total?prefix=s.a&from=0":              "from: the question reaches back",
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusBadRequest); !strings.Contains(p.Detail, want) {
			t.Errorf("%s: %s, want %s", target, p.Detail, want)
		}
	}
	if got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?prefix=s.a&window=1h", "")); got.Totals[0].Total != 1 {
		t.Errorf("%+v", got)
	}
	s.answers.MaxSum = 4
	if got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?prefix=s.&window=1h", "")); got.Totals[0].Total != 4 || got.Totals[0].Counters != 4 {
		t.Errorf("%+v", got)
	}
}

// firstParts are so many parts of a name, which . and / part; one at the beginning parts nothing.
func firstParts(name string, n int) string {
	return regexp.MustCompile(fmt.Sprintf(`^.?[^./]*([./][^./]*){0,%d}`, n-1)).FindString(name)
}
