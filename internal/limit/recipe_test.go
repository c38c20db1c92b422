package limit_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// A further policy needs what doc.go says and no more: with a file of Lua and a row of the table, the file of
// limits, requests, ids, settlements, shares, fail modes, OpenAPI and the page's answers have it.
func TestAFurtherPolicyNeedsLuaAndARow(t *testing.T) {
	limit.AddPolicy(t, limit.Traits{Policy: "aligned", Kept: "in a window of the clock", Max: 500, MaxTake: 50, Settles: true})
	server := stack.Redis(t)
	s := newSite(t, server, `
limits:
- {name: calendar, window: 1h, max: 100, policy: aligned}
- {name: fast, window: 1h, max: 100, policy: aligned, share: {hits: 10, for: 1m}}
- {name: closed, window: 1h, max: 100, policy: aligned, fail: closed}
- {name: login, window: 1h, max: 100, policy: log}
`)
	for _, c := range []struct {
		status     int
		path, body string
		want       string
	}{
		{200, "/v1/take", `{"limit":"calendar","key":"a","n":40}`, `"remaining":60`},
		{200, "/v1/take", `{"key":"a","window":"1h","max":7,"policy":"aligned"}`, `"remaining":6`},
		{200, "/v1/take", `{"take":[{"limit":"calendar","key":"b"},{"limit":"login","key":"b"}]}`, `"remaining":99`},
		{200, "/v1/take", `{"limit":"calendar","key":"a","n":40,"id":"r1","ttl":"1m"}`, `"remaining":20`},
		{200, "/v1/take", `{"limit":"calendar","key":"a","n":40,"id":"r1"}`, `"remaining":20,.*"repeated":true`},
		{429, "/v1/take", `{"limit":"calendar","key":"a","n":21}`, `"remaining":20,"retry_after":`},
		{200, "/v1/settle", `{"limit":"calendar","key":"a","n":10,"id":"r1"}`, `"settled":10,"over":0,"remaining":50`},
		{200, "/v1/return", `{"limit":"calendar","key":"a","n":50}`, `"remaining":100`},
		{400, "/v1/take", `{"limit":"calendar","key":"a","n":51}`, `51 hits of the policy aligned at once: at most 50`},
		{400, "/v1/take", `{"key":"a","window":"1h","max":501,"policy":"aligned"}`, `must be 1 to 500 with the policy aligned`},
		{400, "/v1/take", `{"key":"a","window":"1h","max":7,"policy":"gcra"}`, `must be one of cells, log, stream, fixed, aligned`},
		{400, "/v1/take", `{"limit":"calendar","key":"a","lease":"x"}`, `only under a limit with the policy concurrent`},
	} {
		status, text := s.post(c.path, c.body)
		require.Equal(t, c.status, status, "%s: %s", c.body, text)
		require.Regexp(t, c.want, text, c.body)
	}
	sources := ""
	for range 20 {
		_, text := s.post("/v1/take", `{"limit":"fast","key":"a"}`)
		sources += text
	}
	require.Contains(t, sources, `"source":"share"`)
	status, text := s.ask(http.MethodGet, "/v1/limits?name=calendar", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, `"policy":"aligned","kept":"in a window of the clock"`)
	require.Contains(t, s.openapi, `"enum":["cells","log","stream","fixed","aligned"]`)
	require.Contains(t, s.openapi, `"enum":["cells","log","stream","fixed","concurrent","aligned"]`)

	server.Kill()
	status, text = s.post("/v1/take", `{"limit":"calendar","key":"c","n":30}`)
	require.Equal(t, http.StatusOK, status)
	require.Regexp(t, `"remaining":70,.*"source":"local"`, text)
	status, _ = s.post("/v1/take", `{"limit":"closed","key":"c"}`)
	require.Equal(t, http.StatusServiceUnavailable, status)
}

// The table in docs/limits.md has the numbers of the policies' table.
func TestDocsHaveTheTableOfPolicies(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/limits.md")
	require.NoError(t, err)
	rows := make(map[string][]string)
	_, section, _ := strings.Cut(string(text), "## Which policy")
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows[cells[1]] = cells[2 : len(cells)-1]
		}
	}
	var names, most, takes []string
	for _, policy := range limit.Policies() {
		row, largest := policy.Traits(), "`max`"
		if row.MaxTake > 0 {
			largest = human.Thousands(float64(row.MaxTake)) + ", all takes together"
		}
		names, most, takes = append(names, "`"+string(policy)+"`"), append(most, human.Thousands(float64(row.Max))), append(takes, largest)
	}
	require.Equal(t, names, rows[""])
	require.Equal(t, most, rows["largest `max`"])
	require.Equal(t, takes, rows["largest `n` of a request"])
	require.Contains(t, string(text), strings.Replace(limit.Or(limit.NamedPolicies()), "cells", "cells (default)", 1))
}

type healthy struct{}

func (healthy) Why() string   { return "" }
func (healthy) RequestCheck() {}

type site struct {
	t       *testing.T
	handler http.Handler
	openapi string
}

func newSite(t *testing.T, server *stack.RedisServer, file string) *site {
	t.Helper()
	limiter := limit.New(stack.ProgramClient(t, server.URL()), "recipe", 5*time.Second)
	t.Cleanup(limiter.Wait)
	path := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	metrics := web.NewMetrics("query", 14)
	service, err := limitapi.New(limitapi.Settings{Take: limitapi.TakeAny, File: path, Files: buildinfo.NewFiles(metrics.Registry, zerolog.Nop())}, limiter, nil,
		answer.NewSource(healthy{}, stack.Hung, zerolog.Nop(), metrics.Registry), zerolog.Nop(), metrics)
	require.NoError(t, err)
	mux := http.NewServeMux()
	a := api.New(mux, api.Title{Every: func(*api.API, *huma.Operation) {}})
	service.Register(a, mux)
	openapi, err := json.Marshal(a.OpenAPI())
	require.NoError(t, err)
	return &site{t, apitest.BufferBodies(mux), string(openapi)}
}

func (s *site) ask(method, target, body string) (status int, text string) {
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func (s *site) post(target, body string) (status int, text string) {
	return s.ask(http.MethodPost, target, body)
}
