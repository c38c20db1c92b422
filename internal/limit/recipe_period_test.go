package limit_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Periods and a take's own max over HTTP.
func TestPeriodsOverHTTP(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	s := newSite(t, server, `
limits:
- {name: tokens, window: month, tz: Europe/Berlin, starts: 17, max: 1000, at_most: 1000000, ttl: 1d}
- {name: day, window: today, max: 5, share: {hits: 4, for: 1s}}
- {name: clock, window: 1d, policy: fixed, max: 3}
- {name: plain, window: 1h, max: 3}
- {name: gate, window: week, starts: sunday, max: 2, at_most: 10, share: {hits: 2, for: 1s}}
`)
	for _, c := range []struct {
		status     int
		path, body string
		want       string
	}{
		{200, "/v1/take", `{"limit":"tokens","key":"a","n":400}`, `"remaining":600`},
		{429, "/v1/take", `{"limit":"tokens","key":"a","n":700}`, `"remaining":600`},
		{200, "/v1/take", `{"limit":"tokens","key":"a","n":700,"max":250000,"id":"r"}`, `"remaining":248900`}, // an upgrade, at once
		{429, "/v1/take", `{"limit":"tokens","key":"a","n":1}`, `"remaining":0`},                              // back to the file's
		{200, "/v1/settle", `{"limit":"tokens","key":"a","n":100,"id":"r","max":250000}`, `"over":0,"remaining":249500`},
		{200, "/v1/settle", `{"limit":"tokens","key":"a","n":900,"id":"r"}`, `"over":300,"remaining":0`}, // without max, the file's
		{400, "/v1/take", `{"limit":"tokens","key":"a","max":1000001}`, `max`},
		{429, "/v1/take", `{"limit":"tokens","key":"b","max":0}`, `"remaining":0`},
		// Customers of three plans and three days. A new day changes nothing that is counted.
		{200, "/v1/take", `{"limit":"tokens","key":"x","max":100,"starts":1,"n":60}`, `"remaining":40`},
		{200, "/v1/take", `{"limit":"tokens","key":"y","max":200,"starts":15,"n":60}`, `"remaining":140`},
		{200, "/v1/take", `{"limit":"tokens","key":"z","max":300,"starts":"31","n":60}`, `"remaining":240`},
		{429, "/v1/take", `{"limit":"tokens","key":"x","max":100,"starts":1,"n":41}`, `"remaining":40`},
		{200, "/v1/take", `{"limit":"tokens","key":"x","max":300,"starts":1,"n":41}`, `"remaining":199`},
		{200, "/v1/return", `{"limit":"tokens","key":"y","max":200,"starts":15,"n":10}`, `"remaining":150`},
		{400, "/v1/take", `{"limit":"tokens","key":"x","starts":"monday"}`, `starts`},
		{400, "/v1/take", `{"limit":"plain","key":"a","max":5}`, `at_most`},
		{400, "/v1/take", `{"limit":"tokens","key":"a","window":"1h"}`, `not together with limit`},
		{200, "/v1/take", `{"take":[{"limit":"tokens","key":"c","max":5000},{"limit":"plain","key":"c"}],"n":3}`, `"remaining":0`},
		{200, "/v1/take", `{"limit":"clock","key":"a","n":3}`, `"remaining":0`},
		{429, "/v1/take", `{"limit":"clock","key":"a"}`, `"remaining":0`},
		{200, "/v1/take", `{"limit":"gate","key":"a","max":1}`, `"remaining":0`}, // a max below the share's hits
		{429, "/v1/take", `{"limit":"gate","key":"a","max":1}`, `"remaining":0`},
		{200, "/v1/take", `{"limit":"gate","key":"a","max":9}`, `"remaining":7`},
	} {
		status, text := s.post(c.path, c.body)
		require.Equal(t, c.status, status, "%s: %s", c.body, text)
		require.Regexp(t, c.want, text, c.body)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/take", strings.NewReader(`{"limit":"day","key":"x"}`)))
	require.Regexp(t, `^"day";r=4;t=[0-9]+$`, w.Header().Get("RateLimit"))
	_, text := s.ask(http.MethodGet, "/v1/limits?name=tokens", "")
	require.Contains(t, text, `"window":"month","tz":"Europe/Berlin","starts":"17","at_most":1000000,"max":1000,"policy":"fixed"`)
	_, text = s.ask(http.MethodGet, "/v1/limit?limit=tokens&key=a&max=2000", "")
	require.Regexp(t, `"allowed":true,.*"remaining":700,.*"resets_in":`, text)
	server.Kill()
	_, text = s.post("/v1/take", `{"limit":"tokens","key":"a","max":2000}`)
	require.Regexp(t, `"allowed":true,"certain":false,.*"source":"local"`, text)
}
