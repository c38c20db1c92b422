package limitapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/tests/apitest"
)

// The files in testdata have requests, and below each what comes of it: what the limiter is asked, the
// status, the fields about limits, and the answer or the detail of the problem. UPDATE_ANSWERS=1 writes what
// comes. Lines of a file are
//
//	== named, without Redis       a new service, with this QUERY_TAKE; or without proxies, so none is trusted
//	# text                        a comment
//	POST /v1/take {"limit":…}     a request: method, target and body
//	  X-Api-Key: k                a header of the request
//	METRICS                       the decisions in /metrics
//
// <a*513> stands for 513 times a. The clock stands still.
func TestRequestsAreAnsweredAsRecorded(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			synctest.Test(t, func(t *testing.T) {
				got := answerAll(t, string(want))
				if os.Getenv("UPDATE_ANSWERS") != "" {
					require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				}
				require.Equal(t, string(want), got)
			})
		})
	}
}

var (
	requestLine  = regexp.MustCompile(`^([A-Z]+) (/\S*) ?(.*)$`)
	repeatedText = regexp.MustCompile(`<(.[^*>]*)\*(\d+)>`)
)

// answerAll is the file with what comes of its requests now.
func answerAll(t *testing.T, file string) string {
	var out strings.Builder
	var s *site
	lines := strings.Split(strings.TrimSuffix(file, "\n"), "\n")
	for i, line := range lines {
		setting, begins := strings.CutPrefix(line, "== ")
		request := requestLine.FindStringSubmatch(line)
		switch {
		case begins:
			mode, away := strings.CutSuffix(setting, ", without Redis")
			mode, unproxied := strings.CutSuffix(mode, ", without proxies")
			var take TakeMode
			require.NoError(t, take.UnmarshalText([]byte(mode)))
			if s = newSite(t, take, !away); unproxied {
				s.api.Proxies = web.Networks{}
			}
		case line == "METRICS":
			line += "\n" + strings.Join(s.decisions(), "\n")
		case request != nil:
			var headers []string
			for _, next := range lines[i+1:] {
				header, ok := strings.CutPrefix(next, "  ")
				if !ok {
					break
				}
				headers = append(headers, repeat(header))
				line += "\n" + next
			}
			line += "\n" + s.record(request[1], repeat(request[2]), repeat(request[3]), headers)
		case line != "" && line[0] != '#':
			continue // what came before
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

func repeat(text string) string {
	return repeatedText.ReplaceAllStringFunc(text, func(found string) string {
		m := repeatedText.FindStringSubmatch(found)
		n, _ := strconv.Atoi(m[2])
		return strings.Repeat(m[1], n)
	})
}

// record sends a request and writes what comes of it.
func (s *site) record(method, target, body string, headers []string) string {
	s.limiter.asked = nil
	resp := s.ask(method, target, body, headers...)
	lines := append([]string(nil), s.limiter.asked...)
	status := fmt.Sprint(resp.Code)
	var problem web.Problem
	if resp.Header().Get("Content-Type") == web.ProblemType && json.Unmarshal(resp.Body.Bytes(), &problem) == nil && resp.Code != http.StatusTooManyRequests {
		status += " " + problem.Type + ": " + problem.Detail
		resp.Body.Reset()
	}
	lines = append(lines, status)
	for _, name := range []string{"RateLimit-Policy", "RateLimit", "Retry-After"} {
		if value := resp.Header().Get(name); value != "" {
			lines = append(lines, name+": "+value)
		}
	}
	if answer := strings.TrimSpace(resp.Body.String()); answer != "" {
		lines = append(lines, answer)
	}
	return strings.Join(lines, "\n")
}

// An error of the limiter becomes a problem that says what to do, and nothing about the network or the users
// inside.
func TestErrorsOfTheLimiterBecomeProblems(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err        error
		status     int
		retry      string
		says, hide string
	}{
		{&limit.UnavailableError{Limit: &limit.Limit{Fail: limit.FailLocal}, Err: errors.New("10.1.2.3 refused")}, 503, "1", "Redis cannot decide now, and this needs Redis", "10.1.2.3"},
		{&limit.UnavailableError{Limit: &limit.Limit{Fail: limit.FailClosed}, Err: fmt.Errorf("script 5f: %w", limit.ErrFull)}, 503, "1", "Redis is full (maxmemory), and the limit is closed", "5f"},
		{&limit.ForbiddenError{Err: errors.New("NOPERM User bob has no permissions to run the 'evalsha' command")}, 503, "60", "command evalsha", "bob"},
		{&limit.ForeignError{Err: errors.New("WRONGTYPE")}, 500, "", "was not written by Tallyroll", ""},
	} {
		s := newSite(t, TakeNamed, true)
		s.limiter.err = c.err
		for _, resp := range []*httptest.ResponseRecorder{
			s.ask("POST", "/v1/take", `{"limit":"login","key":"a"}`),
			s.ask("POST", "/v1/return", `{"limit":"login","key":"a"}`),
			s.ask("GET", "/v1/limit?limit=login&key=a", ""),
			s.ask("DELETE", "/v1/limit?limit=login&key=a", ""),
			s.ask("POST", "/v1/renew", `{"limit":"exports","key":"a","lease":"x"}`),
			s.ask("POST", "/v1/release", `{"limit":"exports","key":"a","lease":"x"}`),
			s.ask("POST", "/v1/settle", `{"limit":"login","key":"a","id":"x","n":1}`),
		} {
			var p web.Problem
			require.NoError(t, json.Unmarshal(resp.Body.Bytes(), &p))
			require.Equal(t, c.status, resp.Code)
			require.Equal(t, c.retry, resp.Header().Get("Retry-After"))
			require.Contains(t, p.Detail, c.says)
			if c.hide != "" {
				require.NotContains(t, p.Detail, c.hide)
			}
		}
		require.Equal(t, []string{`tallyroll_limit_decisions_total{limit="login",result="error",source=""} 2`}, s.decisions())
	}
}

// A client that hangs up, before Redis is asked or meanwhile, is neither an allowed or refused take nor one
// that could not be decided. What a request gets wrong is none of these, either.
func TestClientsThatHangUpAreNoFailures(t *testing.T) {
	t.Parallel()
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	const undecided, canceled = `tallyroll_limit_decisions_total{limit="login",result="error",source=""} 3`,
		`tallyroll_limit_decisions_total{limit="login",result="canceled",source=""} 3`
	take := limit.Take{Limit: &limit.Limit{Name: "login"}}
	for _, c := range []struct {
		name   string
		ctx    context.Context
		err    error
		failed uint64
		want   []string
	}{
		{"gone before", gone, nil, 0, []string{canceled}},
		{"gone meanwhile", gone, context.Canceled, 0, []string{canceled}},
		{"gone at a deadline", gone, context.DeadlineExceeded, 0, []string{canceled}},
		{"an id of another take", t.Context(), &limit.IDError{Take: take, Reason: limit.IDReused}, 0, nil},
		{"not decided", t.Context(), &limit.UnavailableError{Limit: take.Limit, Err: limit.ErrFull}, 3, []string{undecided}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, TakeNamed, true)
			s.limiter.err = c.err
			for _, path := range []string{"/v1/take", "/v1/return", "/v1/authz?limit=login&key_header=X-Key", "/v1/settle"} {
				body := `{"limit":"login","key":"a","id":"x","n":1}`
				r := httptest.NewRequestWithContext(c.ctx, http.MethodPost, "http://shop.example"+path, strings.NewReader(body))
				r.Header.Set("X-Key", "a")
				w := httptest.NewRecorder()
				s.handler.ServeHTTP(w, r)
				require.GreaterOrEqual(t, w.Code, http.StatusBadRequest)
			}
			require.Equal(t, c.want, s.decisions())
			answer, err := s.api.findLimits(t.Context(), web.InQuery, &limitsParams{Name: []string{"login"}})
			require.NoError(t, err)
			require.Equal(t, c.failed, answer.Limits[0].Failed)
			result := map[bool]string{true: "canceled", false: "refused"}[c.ctx == gone]
			require.Equal(t, []string{fmt.Sprintf(`tallyroll_limit_settlements_total{limit="login",result=%q} 1`, result)},
				s.metricLines("tallyroll_limit_settlements_total{"))
		})
	}
}

// Whatever number a request has, its path alone decides whether hits are taken or given back.
func TestNoSignDecidesBetweenTakingAndGiving(t *testing.T) {
	t.Parallel()
	s := newSite(t, TakeAny, true)
	bodies := []string{
		`{"limit":"login","key":"a","n":%d}`, `{"key":"a","window":"1m","max":9,"n":%d}`, `{%q:[{"limit":"login","key":"a"}],"n":%d}`,
		`{%q:[{"limit":"login","key":"a","n":%d}],"n":3}`, `{"limit":"login","key":"a","id":"i","n":%d}`, `{%q:[{"limit":"login","key":"a"}],"id":"i","n":%d}`,
	}
	asked := 0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.Int64Range(-9, 9), rapid.Int64()).Draw(t, "n")
		verb := rapid.SampledFrom([]string{"take", "return", "settle", "limit"}).Draw(t, "verb")
		body := rapid.SampledFrom(bodies).Draw(t, "body")
		args := []any{n}
		if strings.Contains(body, "%q") {
			args = []any{verb, n}
		}
		s.limiter.asked = nil
		var status int
		if verb == "limit" {
			status = s.ask(http.MethodGet, fmt.Sprintf("/v1/limit?limit=login&key=a&n=%d", n), "").Code
		} else {
			status = s.ask(http.MethodPost, "/v1/"+verb, fmt.Sprintf(body, args...)).Code
		}
		if n < 0 && (status != http.StatusBadRequest || s.limiter.asked != nil) {
			t.Fatalf("%s %s: %d, %s", verb, fmt.Sprintf(body, args...), status, s.limiter.asked)
		}
		for _, line := range s.limiter.asked {
			asked++
			gives := strings.Contains(line, " -")
			if gives && verb != "return" || !gives && verb == "return" && n != 0 {
				t.Fatalf("%s of %d asks for: %s", verb, n, line)
			}
		}
	})
	require.Positive(t, asked)
}

// A problem about a field of a body says so, whatever the operation.
func TestProblemsOfBodiesNameTheBody(t *testing.T) {
	t.Parallel()
	s := newSite(t, TakeNamed, true)
	for _, path := range []string{"/v1/take", "/v1/return", "/v1/settle", "/v1/renew", "/v1/release"} {
		p := apitest.RequireProblem(t, s.ask(http.MethodPost, path, `{"limit":"nowhere","key":"a"}`).Result(), http.StatusBadRequest)
		require.NotEmpty(t, p.Errors, path)
		require.True(t, strings.HasPrefix(p.Errors[0].Location, web.InBody), "%s: %+v", path, p.Errors)
	}
}
