package query

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	odd := "a \"quoted\\name\",é"
	asking.Seed(t, redis.Client(), now.Add(-2*time.Second),
		asking.Hits("api", now.Add(-time.Minute), 5), asking.Hits("api", now.Add(-20*time.Minute), 7),
		asking.Hits("api", now.Add(-10*time.Minute-10*time.Second), 4), // in the minute that the window cuts
		asking.Hits("shop.a", now.Add(-time.Minute), 3), asking.Hits("shop.b", now.Add(-30*time.Minute), 2), asking.Hits(odd, now.Add(-time.Minute), 1))
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	probe := func(target string) map[string]float64 {
		t.Helper()
		return scraped(t, asking.Ask(h, http.MethodGet, target, ""))
	}
	totals := func(target string) map[string]float64 {
		t.Helper()
		got := probe(target)
		maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "tallyroll_window_hits{") })
		return got
	}
	label := func(key, window string) string { return fmt.Sprintf(`{key=%q,window=%q}`, key, window) }

	got := probe("/probe?key=api&key=never&key=api&window=10m&window=1h")
	want := map[string]float64{"tallyroll_probe_as_of_age_seconds": 2}
	for _, key := range []string{"api", "never"} {
		for _, w := range []string{"10m", "1h"} {
			answer := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?"+url.Values{"key": {key}, "window": {w}}.Encode(), "")).Totals[0]
			want["tallyroll_window_hits"+label(key, w)] = float64(answer.Total)
			want["tallyroll_window_hits_lower"+label(key, w)] = float64(answer.Lower)
			want["tallyroll_window_hits_upper"+label(key, w)] = float64(answer.Upper)
			complete := 0.0
			if answer.Complete {
				complete = 1
			}
			want["tallyroll_window_hits_complete"+label(key, w)] = complete
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if lower, upper := want["tallyroll_window_hits_lower"+label("api", "10m")], want["tallyroll_window_hits_upper"+label("api", "10m")]; lower != 5 || upper != 9 {
		t.Errorf("the bounds are %v and %v: the test says little", lower, upper)
	}

	for _, c := range []struct {
		target string
		want   map[string]float64
	}{
		{"/probe?top=1&window=10m&window=1h", map[string]float64{label("api", "10m"): want["tallyroll_window_hits"+label("api", "10m")], label("api", "1h"): 16}},
		{"/probe?top=20&window=10m", map[string]float64{label("api", "10m"): want["tallyroll_window_hits"+label("api", "10m")], label("shop.a", "10m"): 3, label(odd, "10m"): 1, label("shop.b", "10m"): 0}},
		{"/probe?prefix=shop.&window=1h", map[string]float64{label("shop.a", "1h"): 3, label("shop.b", "1h"): 2}},
		{"/probe?prefix=nothing&window=1h", map[string]float64{}},
		{"/probe?window=1h&key=" + url.QueryEscape(odd), map[string]float64{label(odd, "1h"): 1}},
	} {
		got := totals(c.target)
		for name, value := range c.want {
			is, there := got["tallyroll_window_hits"+name]
			if (!there && value != 0) || is != value {
				t.Errorf("%s: %s is %v (%v), want %v", c.target, name, is, there, value)
			}
		}
		if len(got) > len(c.want) {
			t.Errorf("%s: %v, want %v", c.target, slices.Collect(maps.Keys(got)), c.want)
		}
	}
}

func TestProbeRefuses(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	var hits []asking.Sample
	for i := range 11 {
		hits = append(hits, asking.Hits(fmt.Sprintf("shop.%02d", i), now.Add(-time.Minute), 1))
	}
	asking.Seed(t, redis.Client(), now, hits...)
	s := onRedis(t, redis.URL(), now)
	s.answers.MaxProbe = 10
	h := s.handler()
	for _, c := range []struct {
		params string
		status int
		detail string
	}{
		{"window=1h", 400, "key: it is missing: name counters with key, or ask for top=20"},
		{"key=a", 400, "window: it is missing"},
		{"key=a&top=3&window=1h", 400, "only one of key, top and prefix"},
		{"top=3&prefix=a&window=1h", 400, "only one of key, top and prefix"},
		{"key=a&window=1", 400, "window: "},
		{"key=a&window=9w", 400, "reaches back"},
		{"top=5&window=9w", 400, "reaches back"},
		{"key=a%00&window=1h", 400, "control character"},
		{"prefix=a%00&window=1h", 400, "prefix: "},
		{"prefix=&window=1h", 400, "prefix: it is empty"},
		{"top=0&window=1h", 400, "top: "},
		{"top=x&window=1h", 400, "top: "},
		{"top=2000&window=1h", 400, "from 1 to 1000"},
		{"top=3&top=4&window=1h", 400, "2 times"},
		{"key=a&window=1h&at=0", 400, "unknown parameter"},
		{"key=a&window=1h&from=0", 400, "unknown parameter"},
		{"key=a&" + strings.Repeat("window=1m&", 3) + "window=1m&window=2m&window=3m&window=4m&window=5m&window=6m&window=7m&window=8m&window=9m", 400, "at most 8"},
		{"top=11&window=1h", 413, "11 totals in one answer: at most 10 are allowed (QUERY_MAX_PROBE)"},
		{"top=4&window=1h&window=1m&window=2m", 413, "QUERY_MAX_PROBE"},
		{"key=a&key=b&key=c&key=d&key=e&key=f&window=1h&window=2h", 413, "12 totals"},
		{"prefix=shop.&window=1h", 413, `more than 10 counters begin with "shop.": at most 10 totals are allowed in one answer (QUERY_MAX_PROBE)`},
		{"prefix=shop.0&window=1h&window=2h", 413, "more than 5 counters"},
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, probePath+"?"+c.params, ""), c.status); !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s: %s, want %s", c.params, p.Detail, c.detail)
		}
	}
	for _, allowed := range []string{"prefix=shop.0&window=1h", "top=10&window=1h", "prefix=shop.10&window=1h&window=2h", strings.Repeat("key=a&", 11) + "window=1h"} {
		if resp := asking.Ask(h, http.MethodGet, probePath+"?"+allowed, ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", allowed, asking.ReadAll(t, resp))
		}
	}
	asking.Refused(t, asking.Ask(h, http.MethodPost, probePath, "{}"), http.StatusMethodNotAllowed)
	redis.Stop()
	for _, which := range []string{"key=a", "top=3", "prefix=shop."} {
		resp := asking.Ask(h, http.MethodGet, probePath+"?window=1h&"+which, "")
		if asking.Refused(t, resp, http.StatusServiceUnavailable); resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: Retry-After %q", which, resp.Header.Get("Retry-After"))
		}
	}
}

// A probe tells about counters, so it needs a token where they do.
func TestProbeNeedsAToken(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	useTokens(t, s, "secret")
	h := s.handler()
	const target = "/probe?key=a&window=1h"
	asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusUnauthorized)
	resp := asking.Ask(h, http.MethodGet, target, "", "Authorization", "Bearer secret")
	if scraped(t, resp); resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control %q", resp.Header.Get("Cache-Control"))
	}
	if resp := asking.Ask(h, http.MethodGet, "/metrics", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("/metrics: %s", resp.Status)
	}
}
