package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Matchers select what they match, without scanning names that they exclude.
func TestMatchersSelectWithoutReadingExcludedNames(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarterEnd()
	var hits []counted
	for i := range 6 {
		hits = append(hits, counted{fmt.Sprintf("shop.%d", i), at.Add(-time.Minute), 1}, counted{fmt.Sprintf("web.%d", i), at.Add(-time.Minute), 1})
	}
	seed(t, redis.Client(), time.Now(), hits...)
	promql := start(t, redis, "PROMQL_MAX_COUNTERS=6", "PROMQL_MAX_SAMPLES=300")
	for selector, want := range map[string]string{
		`{key=~"shop.*"}`:                           "6",
		`{key=~"shop[.].*", key!~".*[45]"}`:         "4",
		`{key=~"shop[.].*", key!="shop.0"}`:         "5",
		`{key=~"shop.(1|2|x)"}`:                     "2",
		`{key=~"web\\.1|shop\\.1", key!="web.1"}`:   "1",
		`{key="shop.1", key=~"shop.*"}`:             "1",
		`{key=~"nothing.*"}`:                        "",
		`{key=""}`:                                  "",
		`{key!=""}`:                                 "all counters, which are more than the 6 allowed",
		`{key=~".*1"}`:                              "all counters, which are more than the 6 allowed",
		`{key!~"shop.*"}`:                           "PROMQL_MAX_COUNTERS",
		`{key=~"a|b|c|d|e|f|g"}`:                    "reads 7 counters: at most 6",
		`{key=~"SHOP.*"}`:                           "",
		`{key=~"(?i)SHOP.1"}`:                       "PROMQL_MAX_COUNTERS",
		`{__name__=~"tally.*",key="shop.1"}`:        "1",
		`{__name__!="tallyroll_hits",key="shop.1"}`: "",
	} {
		if !strings.Contains(selector, "__name__") {
			selector = metricName + selector
		}
		status, answer := get(t, promql, "query", url.Values{"query": {"count(sum_over_time(" + selector + "[15m]))"}, "time": {at.Format(time.RFC3339)}})
		switch {
		case len(want) > 1:
			if status != http.StatusUnprocessableEntity || answer.ErrorType != "execution" || !strings.Contains(answer.Error, want) {
				t.Errorf("%s: %d %+v, want %q", selector, status, answer, want)
			}
		case status != http.StatusOK || want != "" && !strings.Contains(string(answer.Data), `"`+want+`"`) || want == "" && !strings.Contains(string(answer.Data), `"result":[]`):
			t.Errorf("%s: %d %s %s, want %q", selector, status, answer.Data, answer.Error, want)
		}
	}

	status, answer := get(t, promql, "query", url.Values{"query": {`sum_over_time(tallyroll_hits{key="shop.1"}[20h])+sum_over_time(tallyroll_hits{key=~"web.[0-5]"}[1h])`}})
	if status != http.StatusUnprocessableEntity || !strings.Contains(answer.Error, `begin with "web", which are more than the 6 allowed`) {
		t.Errorf("two selectors: %d %+v", status, answer)
	}
	status, answer = get(t, promql, "query", url.Values{"query": {`sum_over_time(tallyroll_hits{key=~"web.*"}[10s])+sum_over_time(tallyroll_hits{key="shop.1"}[10s])`}})
	if status != http.StatusUnprocessableEntity || !strings.Contains(answer.Error, "reads 7 counters") {
		t.Errorf("two selectors, the other way round: %d %+v", status, answer)
	}
	status, answer = get(t, promql, "query", url.Values{"query": {`max_over_time(tallyroll_hits{key=~"shop.*"}[20h])`}})
	if status != http.StatusUnprocessableEntity || !strings.Contains(answer.Error, "PROMQL_MAX_SAMPLES") {
		t.Errorf("too many samples: %d %+v", status, answer)
	}
	_, answer = get(t, promql, "label/key/values", nil)
	if strings.Count(string(answer.Data), "shop") != 6 || len(answer.Warnings) != 1 || !strings.Contains(answer.Warnings[0], "only the first 6") {
		t.Errorf("too many names: %s %q", answer.Data, answer.Warnings)
	}
}

// Bad queries are refused with Prometheus's error types, and each error names what is allowed.
func TestBadQueriesGetPrometheusErrorTypes(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), counted{"a", time.Now().Add(-time.Minute), 1})
	promql := start(t, redis, "PROMQL_TOKENS=secret")
	ask := func(method, path, form string) (int, apiAnswer) {
		body := ""
		if method == http.MethodPost {
			body = form
		} else {
			path += "?" + form
		}
		req, err := http.NewRequestWithContext(t.Context(), method, promql.URL()+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "Bearer secret")
		return send(t, req)
	}
	over := "&start=1795255200&end=1795255260"
	for _, c := range []struct {
		method, path, form string
		status             int
		kind, says         string
	}{
		{"GET", "/api/v1/query", "query=1", 200, "", ""},
		{"POST", "/api/v1/query", "query=1", 200, "", ""},
		{"POST", "/api/v1/query_range", "query=1&step=1m" + over, 200, "", ""},
		{"GET", "/api/v1/query_range", "query=1&step=30" + over, 200, "", ""},
		{"GET", "/api/v1/query", "", 400, "bad_data", `"query"`},
		{"GET", "/api/v1/query", "query=sum(", 400, "bad_data", "parse error"},
		{"GET", "/api/v1/query", "query=1&time=noon", 400, "bad_data", "RFC 3339"},
		{"GET", "/api/v1/query", "query=1&time=2026-11-21T10:00:00-24:00", 400, "bad_data", "RFC 3339"},
		{"GET", "/api/v1/query", "query=1&time=NaN", 400, "bad_data", "RFC 3339"},
		{"GET", "/api/v1/query", "query=1&time=1e300", 400, "bad_data", "RFC 3339"},
		{"GET", "/api/v1/query", "query=1&timeout=-1s", 400, "bad_data", "above 0"},
		{"GET", "/api/v1/query", "query=1&limit=-1", 400, "bad_data", "whole number"},
		{"GET", "/api/v1/query", "query=%zz", 400, "bad_data", "form cannot be read"},
		{"GET", "/api/v1/query_range", "query=1&step=1m", 400, "bad_data", `"start"`},
		{"GET", "/api/v1/query_range", "query=1" + over, 400, "bad_data", `"step"`},
		{"GET", "/api/v1/query_range", "query=1&step=0" + over, 400, "bad_data", "above 0"},
		{"GET", "/api/v1/query_range", "query=1&step=Inf" + over, 400, "bad_data", "above 0"},
		{"GET", "/api/v1/query_range", "query=1&step=1&start=2&end=1", 400, "bad_data", "before start"},
		{"GET", "/api/v1/query_range", "query=1&step=1&start=0&end=100000", 400, "bad_data", "11000"},
		{"GET", "/api/v1/query_range", "query=tallyroll_hits[1h]&step=1m" + over, 400, "bad_data", "range"},
		{"GET", "/api/v1/query", "query=sum_over_time(tallyroll_hits{key=\"a\"}[90d])", 422, "execution", "further than any tier"},
		{"GET", "/api/v1/query", "query=tallyroll_hits{key=\"a\"}+offset+-1d", 200, "", ""},
		{"GET", "/api/v1/series", "", 400, "bad_data", "match[]"},
		{"GET", "/api/v1/series", "match[]={key=~\".*\"}", 400, "bad_data", "does not match everything"},
		{"GET", "/api/v1/series", "match[]={", 400, "bad_data", "match[]"},
		{"GET", "/api/v1/label/other/values", "", 200, "", ""},
		{"GET", "/api/v1/labels", "start=x", 400, "bad_data", `"start"`},
		{"GET", "/api/v1/rules", "", 404, "not_found", "must be query, query_range"},
		{"DELETE", "/api/v1/query", "", 404, "not_found", "DELETE"},
		{"POST", "/api/v1/query", "query=" + strings.Repeat("1", 2<<20), 413, "bad_data", "at most 262144 bytes"},
		{"GET", "/api/v1/query", "query=max_over_time(vector(1)[1h:0.0001])", 422, "execution", "1ms or longer"},
		{"GET", "/api/v1/series", "match[]=x&timeout=x", 400, "bad_data", `"timeout"`},
	} {
		status, answer := ask(c.method, c.path, c.form)
		wantStatus := "error"
		if c.status == 200 {
			wantStatus = "success"
		}
		if status != c.status || answer.Status != wantStatus || answer.ErrorType != c.kind || !strings.Contains(answer.Error, c.says) {
			t.Errorf("%s %s %.80s: %d %+v, want %d %s %q", c.method, c.path, c.form, status, answer, c.status, c.kind, c.says)
		}
	}
	status, answer := get(t, promql, "labels", nil)
	if status != http.StatusUnauthorized || answer.Status != "error" || !strings.Contains(answer.Error, "PROMQL_TOKENS") {
		t.Errorf("without a token: %d %+v", status, answer)
	}
}

// Errors about huge and strange values are short.
func TestHugeValuesAreRefusedInFewWords(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), counted{"a", time.Now().Add(-time.Minute), 1})
	promql := start(t, redis)
	ask := func(path string, form url.Values) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, promql.URL()+path, strings.NewReader(form.Encode()))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		status, answer := send(t, req)
		if status >= 400 && (answer.Error == "" || len(answer.Error) > 1100) {
			t.Errorf("%s: status %d, an error of %d bytes: %.300q", path, status, len(answer.Error), answer.Error)
		}
	}
	for _, value := range []string{
		strings.Repeat("a", 200_000), strings.Repeat("9", 200_000), strings.Repeat("\u202e", 50_000), strings.Repeat("\xff", 50_000), strings.Repeat("\x00", 50_000), strings.Repeat(`"`, 100_001), strings.Repeat("(", 100_000),
		"sum(" + strings.Repeat("x", 100_000), "{" + strings.Repeat("y", 100_000), `tallyroll_hits{key=~"` + strings.Repeat("[", 50_000) + `"}`, `tallyroll_hits{key="` + strings.Repeat("k", 50_000), "1 + " + strings.Repeat("é", 50_000), strings.Repeat("tallyroll_hits+", 2000),
	} {
		for _, param := range []string{"query", "time", "timeout", "limit"} {
			form := url.Values{"query": {"1"}}
			form.Set(param, value)
			ask("/api/v1/query", form)
		}
		for _, param := range []string{"query", "start", "end", "step"} {
			form := url.Values{"query": {"1"}, "start": {"1795255200"}, "end": {"1795255260"}, "step": {"60"}}
			form.Set(param, value)
			ask("/api/v1/query_range", form)
		}
		ask("/api/v1/series", url.Values{"match[]": {value}})
		ask("/api/v1/"+url.PathEscape(value[:min(len(value), 1000)]), nil)
	}
}

// Special numbers are strings, as Prometheus writes them.
func TestSpecialNumbersAreStrings(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now())
	promql := start(t, redis)
	for expr, want := range map[string]string{
		"NaN": `{"resultType":"scalar","result":[1795255200,"NaN"]}`, "-1/0": `{"resultType":"scalar","result":[1795255200,"-Inf"]}`,
		"vector(1/0)": `{"resultType":"vector","result":[{"metric":{},"value":[1795255200,"+Inf"]}]}`,
		`"text"`:      `{"resultType":"string","result":[1795255200,"text"]}`,
		"1e21":        `{"resultType":"scalar","result":[1795255200,"1000000000000000000000"]}`,
		"vector(1)<0": `{"resultType":"vector","result":[]}`,
	} {
		if _, answer := get(t, promql, "query", url.Values{"query": {expr}, "time": {"1795255200"}}); string(answer.Data) != want {
			t.Errorf("%s: %s, want %s", expr, answer.Data, want)
		}
	}
	for _, expr := range []string{"vector(1)<0", "tallyroll_hits"} {
		_, answer := get(t, promql, "query_range", url.Values{"query": {expr}, "start": {strconv.FormatInt(time.Now().Unix()-60, 10)}, "end": {strconv.FormatInt(time.Now().Unix(), 10)}, "step": {"15"}})
		if want := `{"resultType":"matrix","result":[]}`; string(answer.Data) != want {
			t.Errorf("range of %s: %s, want %s", expr, answer.Data, want)
		}
	}
}

// While Redis is away the errors are Prometheus's, and the program recovers with Redis.
func TestErrorsArePrometheusOnesWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	promql := start(t, redis, stack.NoWait)
	question := url.Values{"query": {"tallyroll_hits"}}
	stack.Eventually(t, "the namespace to lack a layout", func() (bool, string) {
		resp, err := http.Get(promql.URL() + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		return resp.StatusCode == http.StatusServiceUnavailable, resp.Status
	})
	status, answer := get(t, promql, "query", question)
	if status != http.StatusServiceUnavailable || answer.ErrorType != "unavailable" || !strings.Contains(answer.Error, "no worker has counted in the namespace "+namespace+" yet: start ingest") {
		t.Errorf("without a layout: %d %+v", status, answer)
	}
	seed(t, redis.Client(), time.Now(), counted{"a", time.Now().Add(-time.Minute), 1})
	promql.WaitReady()
	redis.Kill()
	for _, path := range []string{"query", "label/key/values", "labels"} {
		status, answer := get(t, promql, path, question)
		if status != http.StatusServiceUnavailable || answer.Status != "error" || answer.ErrorType != "unavailable" || !strings.Contains(answer.Error, "Redis cannot answer now") {
			t.Errorf("%s without Redis: %d %+v", path, status, answer)
		}
	}
	redis.Start()
	promql.WaitReady()
	status, answer = get(t, promql, "query", question)
	if status != http.StatusOK {
		t.Errorf("with Redis again: %d %+v", status, answer)
	}
	if code := promql.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A query that takes too long ends at its timeout, whether it runs or waits for others.
func TestQueryEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), counted{"a", time.Now().Add(-time.Minute), 1})
	promql := start(t, redis, append(slowSettings, "PROMQL_TIMEOUT=400ms")...)
	redis.Pause()
	status, answer := get(t, promql, "query", slowQuery())
	redis.Resume()
	if status != http.StatusServiceUnavailable || answer.ErrorType != "timeout" || !strings.Contains(answer.Error, "PROMQL_TIMEOUT=400ms") {
		t.Errorf("while Redis hangs: %d %+v", status, answer)
	}
	status, answer = get(t, promql, "query", url.Values{"query": {"tallyroll_hits"}, "timeout": {"1ms"}})
	if status != http.StatusOK && (status != http.StatusServiceUnavailable || answer.ErrorType != "timeout") {
		t.Errorf("with a timeout of its own: %d %+v", status, answer)
	}
}

// Forms that do not end take no more memory than the budget has, and no slot of the limiter.
func TestUnfinishedFormsStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), counted{"a", time.Now().Add(-time.Minute), 1})
	s := newTestService(t, redis, func(settings *Settings) { settings.MaxRequests = 1 })
	defer s.engine.Close()
	server := httptest.NewServer(s.handler())
	defer server.Close()
	stack.HoldUnfinishedBodies(t, server, s.bodies, 64<<20, "/api/v1/query", 350, 200<<10, func() {
		resp, err := http.PostForm(server.URL+"/api/v1/query", url.Values{"query": {"1"}})
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
	})
}
