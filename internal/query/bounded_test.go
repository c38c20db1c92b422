package query

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/gate"
	"tallyroll/internal/limit"
	"tallyroll/internal/live"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/tests/asking"
)

// maxAnswer bounds an answer that says what is wrong with a request, however much of it is wrong.
const maxAnswer = 4 << 10

// strange are values that no parameter takes, and of which an answer must not repeat much.
func strange(n int) []string {
	return []string{
		strings.Repeat("a", n), strings.Repeat("9", n), strings.Repeat("-", n), strings.Repeat("\u202e", n/3), strings.Repeat("\x00", n), strings.Repeat("\xff", n), strings.Repeat("\"\\", n/2), strings.Repeat("<b>", n/3),
		"1h" + strings.Repeat(" ", n), strings.Repeat("é", 15) + "h", strings.Repeat("a/", n/2), strings.Repeat("%", n), strings.Repeat(",", n), "{" + strings.Repeat("{", n), strings.Repeat("👩", n/4), "",
	}
}

// small checks that an answer is short, and a problem if it is none of the good ones.
func small(t *testing.T, what string, resp *http.Response) {
	t.Helper()
	text := asking.ReadAll(t, resp)
	if resp.StatusCode < 400 {
		return
	}
	var p web.Problem
	if len(text) > maxAnswer || !utf8.Valid(text) || json.Unmarshal(text, &p) != nil || p.Detail == "" || p.Status != resp.StatusCode {
		t.Errorf("%.200q: status %d, %d bytes: %.300q", what, resp.StatusCode, len(text), text)
	}
	for name, values := range resp.Header {
		if header := strings.Join(values, ","); len(header) > 1000 {
			t.Errorf("%.200q: %s has %d bytes", what, name, len(header))
		}
	}
}

// Huge and strange values in every parameter, header, field and path are refused, if they are, in a few words.
func TestRefusalsAreShort(t *testing.T) {
	t.Parallel()
	s, limiter := onProxy(t, gate.TakeAny, `  - {name: target, window: 1m, max: 3, key: "{method} {host} {path} {header.X-Strange}"}`)
	watched(t, s)
	limiter.err = &limit.TwiceError{}
	h := s.handler()
	ask := func(what string, r *http.Request) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		small(t, what, w.Result())
	}
	request := func(method, path string, query url.Values, body string, header http.Header) *http.Request {
		r := httptest.NewRequest(method, "http://query.test/", strings.NewReader(body))
		r.URL.Path, r.URL.RawQuery, r.RequestURI = path, query.Encode(), path
		r.RemoteAddr = "192.0.2.1:1"
		maps.Copy(r.Header, header)
		return r
	}
	// What operations need, so that the checks go on to what is strange.
	needed := map[string]url.Values{
		totalPath: {"key": {"a"}, "window": {"1h"}}, live.Path: {"key": {"a"}, "window": {"1m"}}, probePath: {"key": {"a"}, "window": {"1h"}}, "/v1/series": {"key": {"a"}}, "/v1/top": {"window": {"1h"}},
		gate.LimitPath: {"key": {"a"}, "window": {"1m"}, "max": {"1"}, "policy": {"log"}}, gate.AuthzPath: {"limit": {"login"}, "key_ip": {"1"}},
	}
	asked := 0
	for _, op := range describedOperations(t, h) {
		known := needed[op.path]
		for _, value := range strange(5_000) {
			for _, p := range op.Parameters {
				query, header := clone(known), make(http.Header)
				if p.In == "header" {
					header[p.Name] = []string{value}
				} else {
					query[p.Name] = []string{value}
				}
				asked++
				ask(op.at+" "+p.Name+" "+value, request(op.method, op.path, query, "", header))
				if p.Schema.Type == huma.TypeArray {
					query[p.Name] = append(p.example(), value, value)
					ask(op.at+" "+p.Name+" "+value, request(op.method, op.path, query, "", header))
				}
			}
			query := clone(known)
			query[value] = []string{"1"}
			asked += 2
			ask(op.at+"?"+value, request(op.method, op.path, query, "", nil))
			raw := request(op.method, op.path, nil, "", nil)
			raw.URL.RawQuery = value
			ask(op.at+"?"+value, raw)
		}
	}
	for path, fields := range map[string][]string{
		totalPath:  {"keys", "windows", "at", "from", "to", "prefix", "group", "tz"},
		"/v1/take": {"limit", "key", "window", "max", "n", "policy", "take"},
	} {
		good := map[string]any{"keys": []string{"a"}, "windows": []string{"1h"}}
		if path == "/v1/take" {
			good = map[string]any{"key": "a", "window": "1m", "max": 1}
		}
		for _, value := range strange(10_000) {
			for _, field := range append(fields, value) {
				for _, text := range []string{quoted(value), "[" + quoted(value) + "]", "{" + quoted(value) + ":1}", strings.Repeat("1", len(value)+1), "[" + strings.Repeat("1", len(value)+1) + "]", "{\"limit\":" + quoted(value) + "}", "[{\"policy\":" + quoted(value) + "}]", value} {
					body := maps.Clone(good)
					delete(body, field)
					rest := strings.TrimPrefix(string(api.Encode(&body)), "{")
					asked++
					ask(path+" "+field+" "+text, request(http.MethodPost, path, nil, fmt.Sprintf("{%s:%s,%s", quoted(field), text, rest), nil))
				}
			}
			ask(path+" "+value, request(http.MethodPost, path, nil, value, nil))
		}
	}
	for _, value := range strange(5_000) {
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Host", "X-Forwarded-Method", "X-Original-Uri", "X-Strange", "Content-Type", "Origin", "Accept", "If-None-Match", "Authorization", "User-Agent"} {
			asked += 3
			header := http.Header{name: {value}}
			ask(name, request(http.MethodGet, "/v1/authz/target/"+value, nil, "", header))
			ask(name, request(http.MethodGet, gate.AuthzPath, url.Values{"limit": {"login"}, "key_header": {name}}, "", header))
			ask(name, request(http.MethodPost, "/v1/take", nil, `{"limit":"login","key":"a"}`, header))
		}
		for _, path := range []string{"/", "/v1/", "/v1/authz/", "/v1/authz/x/", "/page/", "/page/x/", "/docs/"} {
			asked++
			r := request(http.MethodGet, path+value, nil, "", nil)
			ask(path+value, r)
			r = request(http.MethodGet, "/v1/total", nil, "", nil)
			r.Method = "M" + value
			ask(r.Method, r)
			r = request(http.MethodGet, "/v1/total", nil, "", nil)
			r.Host = "a." + value
			ask(r.Host, r)
		}
	}
	t.Logf("%d requests", asked)
	if asked < 2000 {
		t.Errorf("only %d requests", asked)
	}
}

func clone(values url.Values) url.Values {
	out := make(url.Values)
	maps.Copy(out, values)
	return out
}

// quoted is JSON for a text, with its bytes as they are.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `\u0000`).Replace(text) + `"`
}

// described is an operation of the OpenAPI document.
type described struct {
	at, method, path string
	Parameters       []describedParam
}

type describedParam struct {
	Name, In string
	Schema   struct {
		Type     any
		Examples []any
	}
}

// example are values that a parameter takes.
func (p describedParam) example() (out []string) {
	list, ok := p.Schema.Examples[0].([]any)
	if !ok {
		list = p.Schema.Examples[:1]
	}
	for _, one := range list {
		out = append(out, fmt.Sprint(one))
	}
	return out
}

func describedOperations(t *testing.T, h http.Handler) (out []described) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]described
	}
	err := json.Unmarshal(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/openapi.json", "")), &doc)
	require.NoError(t, err)
	for path, item := range doc.Paths {
		for method, op := range item {
			if !answersFromRedis(path) {
				continue // plain text about the process
			}
			op.method, op.path = strings.ToUpper(method), strings.ReplaceAll(path, "{limit}", "login")
			if path == live.Path {
				op.method = http.MethodHead // GET would go on for ever if it is answered
			}
			op.at = op.method + " " + op.path
			out = append(out, op)
		}
	}
	if len(out) < 15 {
		t.Fatalf("only %d operations", len(out))
	}
	return out
}
