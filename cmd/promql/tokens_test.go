package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A token with a prefix reads its counters and nothing else. Each query works with a token for all counters.
func TestATokenKeepsToItsOwn(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	now := time.Now()
	at := now.Add(-30 * time.Second)
	// No Unix time has the digits of the counts that the token must not see.
	seed(t, redis.Client(), now, counted{"a.x", at, 3}, counted{"b.OTHER", at, 987654321}, counted{"aOTHER", at, 987654321}, counted{"A.OTHER", at, 987654321})
	file := filepath.Join(t.TempDir(), "tokens.yml")
	text := "tokens:\n"
	for name, fields := range map[string]string{
		"narrow": "may: [read], prefixes: [a.]", "full": "may: [read]", "taker": "may: [take]", "old": "may: [read], until: 2020-01-01",
	} {
		text += fmt.Sprintf("  - {name: %s, sha256: %x, %s}\n", name, sha256.Sum256([]byte(name)), fields)
	}
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	s := newTestService(t, redis, func(s *Settings) { s.TokensFile = file })
	t.Cleanup(func() { _ = s.engine.Close() })
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	ask := func(token, method, path string, params url.Values) (int, apiAnswer) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/api/v1/"+path, strings.NewReader(params.Encode()))
		if method == http.MethodGet {
			req, err = http.NewRequestWithContext(t.Context(), method, server.URL+"/api/v1/"+path+"?"+params.Encode(), nil)
		}
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "Bearer "+token)
		return send(t, req)
	}
	query := func(text string) url.Values { return url.Values{"query": {text}} }
	period := url.Values{"start": {fmt.Sprint(now.Add(-10 * time.Minute).Unix())}, "end": {fmt.Sprint(now.Unix())}, "step": {"60"}}
	rangeQuery := func(text string) url.Values {
		out := query(text)
		for name, values := range period {
			out[name] = values
		}
		return out
	}
	match := func(texts ...string) url.Values { return url.Values{"match[]": texts} }
	for _, c := range []struct {
		name, method, path string
		params             url.Values
		status             int  // with narrow
		own                bool // its own counter is in the answer
	}{
		{"no matcher", "GET", "query", query(`sum by (key) (sum_over_time(tallyroll_hits[5m]))`), 200, true},
		{"a sum of all", "GET", "query", query(`sum(sum_over_time(tallyroll_hits[5m])) > 100`), 200, false},
		{"all hits", "GET", "query", query(`sum_over_time(tallyroll_all_hits[5m])`), 403, false},
		{"all metrics", "GET", "query", query(`sum by (key) (sum_over_time({__name__=~"tallyroll_.*hits"}[5m]))`), 200, true},
		{"a range", "GET", "query_range", rangeQuery(`sum by (key) (sum_over_time(tallyroll_hits[5m]))`), 200, true},
		{"a form", "POST", "query", query(`sum_over_time(tallyroll_hits{key="b.OTHER"}[5m])`), 403, false},
		{"a key", "GET", "query", query(`sum_over_time(tallyroll_hits{key="b.OTHER"}[5m])`), 403, false},
		{"a key by name", "GET", "query", query(`sum_over_time({__name__="tallyroll_hits",key="b.OTHER"}[5m])`), 403, false},
		{"a key in capitals", "GET", "query", query(`sum_over_time(tallyroll_hits{key="A.OTHER"}[5m])`), 403, false},
		{"a key with an escape", "GET", "query", query(`sum_over_time(tallyroll_hits{key="\x62.OTHER"}[5m])`), 403, false},
		{"two keys", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~"a\\.x|b\\.OTHER"}[5m])`), 403, false},
		{"two patterns", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~"a.x|b.OTHER"}[5m])`), 200, true},
		{"beside mine", "GET", "query", query(`sum_over_time(tallyroll_hits{key="a.x"}[5m]) or sum_over_time(tallyroll_hits{key="b.OTHER"}[5m])`), 403, false},
		{"any key", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~".*"}[5m])`), 200, true},
		{"any key with OTHER", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~".*OTHER"}[5m])`), 200, false},
		{"another prefix", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~"b.*"}[5m])`), 403, false},
		{"a wider prefix", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~"a.*"}[5m])`), 403, false},
		{"either prefix", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~"(a|b)[.].+"}[5m])`), 200, true},
		{"upper or lower case", "GET", "query", query(`sum_over_time(tallyroll_hits{key=~"(?i)a[.].*"}[5m])`), 200, true},
		{"not mine", "GET", "query", query(`sum_over_time(tallyroll_hits{key!="a.x"}[5m])`), 200, false},
		{"not like mine", "GET", "query", query(`sum_over_time(tallyroll_hits{key!~"a[.].*"}[5m])`), 200, false},
		{"a subquery", "GET", "query", query(`max_over_time(sum_over_time(tallyroll_hits{key="b.OTHER"}[5m])[5m:1m])`), 403, false},
		{"the largest", "GET", "query", query(`topk(3, sum_over_time(tallyroll_hits[5m]))`), 200, true},
		{"an offset", "GET", "query", query(`sum_over_time(tallyroll_hits{key="b.OTHER"}[5m] offset 1s)`), 403, false},
		{"a moment", "GET", "query", query(fmt.Sprintf(`sum_over_time(tallyroll_hits{key="b.OTHER"}[5m] @ %d)`, now.Unix())), 403, false},
		{"values", "GET", "label/key/values", url.Values{}, 200, true},
		{"values that match", "GET", "label/key/values", match(`{key=~".+OTHER"}`), 200, false},
		{"values of a key", "GET", "label/key/values", match(`{key="b.OTHER"}`), 403, false},
		{"values of a prefix", "GET", "label/key/values", match(`{key=~"b.+"}`), 403, false},
		{"values with a limit", "GET", "label/key/values", url.Values{"limit": {"10"}}, 200, true},
		{"series", "GET", "series", match(`tallyroll_hits`), 200, true},
		{"series of a key", "GET", "series", match(`{key="b.OTHER"}`), 403, false},
		{"series of mine and another", "POST", "series", match(`{key="a.x"}`, `{key=~"b.+"}`), 403, false},
		{"series that match", "POST", "series", match(`{key=~".+OTHER"}`), 200, false},
	} {
		status, out := ask("narrow", c.method, c.path, c.params)
		answer := string(out.Data) + out.Error
		if status != c.status || strings.Contains(string(out.Data), "OTHER") || strings.Contains(answer, "987654321") || strings.Contains(answer, "2962962963") ||
			c.own != strings.Contains(string(out.Data), "a.x") || status == 403 && (out.ErrorType != "forbidden" || !strings.Contains(out.Error, "token narrow")) {
			t.Errorf("%s: %d %s", c.name, status, answer)
		}
		if len(out.Warnings)+len(out.Infos) > 0 && strings.Contains(fmt.Sprint(out.Warnings, out.Infos), "OTHER") {
			t.Errorf("%s: %v %v", c.name, out.Warnings, out.Infos)
		}
		// The answer is the same for counters that do not exist.
		for _, values := range c.params {
			for i, v := range values {
				values[i] = strings.ReplaceAll(v, "OTHER", "NOONE")
			}
		}
		if again, absent := ask("narrow", c.method, c.path, c.params); again != status || status == 403 && absent.Error != strings.ReplaceAll(out.Error, "OTHER", "NOONE") {
			t.Errorf("%s: about nobody: %d %s, want %d %s", c.name, again, absent.Error, status, out.Error)
		}
		for _, values := range c.params {
			for i, v := range values {
				values[i] = strings.ReplaceAll(v, "NOONE", "OTHER")
			}
		}
		status, out = ask("full", c.method, c.path, c.params)
		if answer = string(out.Data); status != 200 || !strings.Contains(answer, "OTHER") && !strings.Contains(answer, "987654321") && !strings.Contains(answer, "2962962966") {
			t.Errorf("%s, with all counters: %d %s %s", c.name, status, answer, out.Error)
		}
	}
	for _, text := range []string{`tallyroll_hits{key=~"a\\..*"}`, `tallyroll_hits{key=~"a[.]x.*"}`, `tallyroll_hits{key="a.x"}`} {
		if status, out := ask("narrow", "GET", "query", query("sum_over_time("+text+"[5m])")); status != 200 || !strings.Contains(string(out.Data), `"3"`) {
			t.Errorf("%s: %d %s %s", text, status, out.Data, out.Error)
		}
	}
	for token, want := range map[string]int{"taker": 403, "old": 401, "nobody": 401, "full": 200} {
		for _, path := range []string{"query?query=1", "label/key/values", "labels", "metadata", "status/buildinfo"} {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/v1/"+path, nil)
			req.Header.Set("Authorization", "Bearer "+token)
			if status, out := send(t, req); status != want || out.Status == "success" != (want == 200) {
				t.Errorf("%s as %s: %d %v", path, token, status, out)
			}
		}
	}
}
