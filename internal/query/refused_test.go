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

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/query/live"
	"tallyroll/internal/web"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// What is wrong with a request is described before anything is asked or taken. The cases of parameters and
// bodies are those of internal/query/answer, limitapi and web/api.
func TestRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := serveFake(t, countNamed)
	s.live.MaxKeys = 3
	runHealth(t, s.service)
	h := s.handler()
	for _, c := range apitest.ReadRequests(t, "testdata/refused.txt") {
		s.reader.Forget()
		p := apitest.RequireProblem(t, c.Send(h), c.Status)
		require.Contains(t, p.Detail, c.Want, c.String())
		require.LessOrEqual(t, len(p.Detail), 500, c.String())
		asked := s.reader.Questions() != nil && c.Options["reader"] == ""
		require.False(t, asked || s.limiter.asked != nil, "%s: it asked %v and %v", c, s.reader.Questions(),
			s.limiter.asked)
	}
}

// Each parameter that the document has is read: an empty one is refused by its name. The hint of its tag is
// that of the check of its value, which is written elsewhere.
func TestEmptyParametersAreRefused(t *testing.T) {
	t.Parallel()
	h := serveFake(t).handler()
	doc, err := openapi3.NewLoader().LoadFromData(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/openapi.json", "")))
	require.NoError(t, err)
	empty, compared := 0, 0
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for _, p := range op.Parameters {
				name := p.Value.Name
				if p.Value.In != openapi3.ParameterInQuery || p.Value.Schema.Value.Type.Is("array") || limitapi.IsAuthz(path) ||
					name == "prefix" && (path == totalPath || path == "/v1/series") { // all hits
					continue
				}
				empty++
				refused := apitest.RequireProblem(t, apitest.Send(h, method, path+"?"+name+"=", ""), http.StatusBadRequest)
				require.Equal(t, "query."+name, refused.Errors[0].Location)
				hint, ok := strings.CutPrefix(refused.Errors[0].Message, "empty: ")
				require.True(t, ok, "%s %s: %s", method, path, refused.Detail)

				var bad web.Problem // of this parameter, of another one, or none
				require.NoError(t, json.Unmarshal(apitest.ReadBody(t, apitest.Send(h, method, path+"?"+name+"=%00", "")), &bad))
				if len(bad.Errors) == 0 {
					continue
				}
				message, ok := strings.CutPrefix(bad.Errors[0].Message, `"\x00": `)
				if ok && bad.Errors[0].Location == "query."+name && name != "before" { // a position, but any number is read
					compared++
					require.Equal(t, strings.Replace(message, "must be one of ", "must be ", 1), hint, "%s %s: %s", method, path, name)
				}
			}
		}
	}
	require.Greater(t, empty, 60)
	require.Greater(t, compared, 10)
}

// Whatever is in a query string, the answer is one or a refusal that names the fault.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		"", "key=a&window=1h", "key=a,b&key=%E2%98%83&window=1m&window=1d", "key=a&window=1h&at=2026-11-21T10:00:00Z",
		"key=a&from=1795250000000&to=1795255200000", "key=%zz&window=1h", "key=a;window=1h", "key&window", "key=&key=a&window=&window=1h",
		"key=a&window=1h&at=-9223372036854775808", "key=a&window=99999999999999999999w", "a&key=1", "=&&=",
		"key=a&window=1h&windwo=2h",
		"key=a", "key=a&key=b&step=5m", "key=a&format=csv", "key=a&format=xml",
		"key=a&from=1795250000000&to=1795255200000&step=1h",
		"key=%00", "key=a&step=99999999999999999999w", "key=a&step=-1m", "key=a&from=&to=",
		"window=1h&limit=5&at=2026-11-21T10:00:00Z",
		"window=9w", "limit=0", "limit=+1", "prefix=a&after=%ff", "after=&prefix=", "prefix=%00",
		"limit=99999999999999999999&window=1m",
	} {
		f.Add(seed)
	}
	h := serveFake(f).handler()
	f.Fuzz(func(t *testing.T, query string) {
		for _, path := range []string{totalPath, "/v1/series", "/v1/top", "/v1/counters"} {
			checkAnswerOrRefusal(t, apitest.Send(h, http.MethodGet, path+"?"+query, ""))
		}
	})
}

func FuzzTotalBody(f *testing.F) {
	for _, seed := range []string{
		`{"keys":["a"],"windows":["1h"]}`, `{"keys":["a"],"windows":["1h"],"at":1795255200000}`, `{"keys":["a"],"from":"2026-11-21T09:00:00Z"}`,
		`{"keys":null}`, `{"keys":[{}]}`, `{"keys":["a"],"windows":["1h"],"at":"\ud800"}`, `[]`, `1`, `"`, `{"KEYS":["a"],"Windows":["1h"]}`, "\xff",
	} {
		f.Add(seed)
	}
	h := serveFake(f).handler()
	f.Fuzz(func(t *testing.T, body string) {
		checkAnswerOrRefusal(t, apitest.Send(h, http.MethodPost, totalPath, body))
	})
}

func checkAnswerOrRefusal(t *testing.T, resp *http.Response) {
	t.Helper()
	if resp.StatusCode == http.StatusOK {
		require.NotEmpty(t, apitest.ReadBody(t, resp))
		return
	}
	p := apitest.RequireProblem(t, resp, resp.StatusCode)
	require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, p.Status, p.Detail)
}

// BenchmarkWithoutRedis is what a request costs in addition to its reads.
func BenchmarkWithoutRedis(b *testing.B) {
	h := serveFake(b).handler()
	many := `{"keys":["a"`
	for i := range 99 {
		many += fmt.Sprintf(`,"counter-%d"`, i)
	}
	many += `],"windows":["1m","1h","12h","20h"]}`
	for _, c := range []struct{ name, method, target, body string }{
		{"total", http.MethodGet, "/v1/total?key=api-1&window=20h", ""},
		{"past", http.MethodGet, "/v1/total?key=api-1&window=20h&at=2026-11-21T09:00:00Z", ""},
		{"100x4", http.MethodPost, "/v1/total", many},
		{"series", http.MethodGet, "/v1/series?key=api-1", ""},
		{"top", http.MethodGet, "/v1/top?window=1h", ""},
		{"healthz", http.MethodGet, "/healthz", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.Equal(b, http.StatusOK, apitest.Send(h, c.method, c.target, c.body).StatusCode)
			}
		})
	}
}

// checkShort checks that an answer with an error status is short, and a problem.
func checkShort(t *testing.T, what string, resp *http.Response) {
	t.Helper()
	text := apitest.ReadBody(t, resp)
	if resp.StatusCode < 400 {
		return
	}
	var p web.Problem
	if len(text) > 4<<10 || !utf8.Valid(text) || json.Unmarshal(text, &p) != nil || p.Detail == "" ||
		p.Status != resp.StatusCode {
		t.Errorf("%.200q: status %d, %d bytes: %.300q", what, resp.StatusCode, len(text), text)
	}
	for name, values := range resp.Header {
		if header := strings.Join(values, ","); len(header) > 1000 {
			t.Errorf("%.200q: %s has %d bytes", what, name, len(header))
		}
	}
}

// Huge and strange values in every parameter, header, field and path are refused, if they are, in a few
// words.
func TestRefusalsAreShortHoweverMuchIsWrong(t *testing.T) {
	t.Parallel()
	s := serveFake(t)
	runHealth(t, s.service)
	require.NoError(t, s.limits.Proxies.UnmarshalText([]byte("10.0.0.0/8"))) // where none of these requests comes from
	s.limiter.err = &limit.TakeError{Field: "key", Message: "twice"}
	h := s.handler()
	send := func(r *http.Request, body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		checkShort(t, fmt.Sprintf("%s %s of %s %s %v", r.Method, r.URL, r.Host, body, r.Header), w.Result())
	}
	ask := func(method, path, query, body string, header http.Header) {
		r := httptest.NewRequest(method, "http://query.test/", strings.NewReader(body))
		r.URL.Path, r.URL.RawQuery, r.RequestURI = path, query, path
		maps.Copy(r.Header, header)
		send(r, body)
	}
	// Values that no parameter takes, and of which an answer must not repeat much.
	texts, turn := []string{"1h" + strings.Repeat(" ", 5_000), strings.Repeat("é", 15) + "h", ""}, 0
	for _, part := range []string{"a", "9", "-", "\u202e", "\x00", "\xff", "\"\\", "<b>", "a/", "%", ",", "{", "👩"} {
		texts = append(texts, strings.Repeat(part, 5_000/len(part)))
	}
	each := func(ask func(text string)) { // of make test, one place in four has each text
		for i, text := range texts {
			if stack.All() || i%4 == turn%4 {
				ask(text)
			}
		}
		turn++
	}
	// What operations need, so that the checks go on to what is strange.
	needed := map[string]url.Values{
		totalPath: {"key": {"a"}, "window": {"1h"}}, live.Path: {"key": {"a"}, "window": {"1m"}}, probePath: {"key": {"a"}, "window": {"1h"}}, "/v1/series": {"key": {"a"}}, "/v1/top": {"window": {"1h"}},
		limitapi.LimitPath: {"key": {"a"}, "window": {"1m"}, "max": {"1"}, "policy": {"log"}}, limitapi.AuthzPath: {"limit": {"login"}, "key_ip": {"1"}},
	}
	doc, err := openapi3.NewLoader().LoadFromData(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/openapi.json", "")))
	require.NoError(t, err)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if !answersFromRedis(path) {
				continue // plain text about the process
			}
			if path == live.Path {
				method = http.MethodHead // GET would go on for ever if it is answered
			}
			at := strings.ReplaceAll(path, "{limit}", "login")
			with := func(name string, values ...string) string {
				query := url.Values{name: values}
				for known, values := range needed[path] {
					if known != name {
						query[known] = values
					}
				}
				return query.Encode()
			}
			for _, p := range op.Parameters {
				each(func(text string) {
					if p.Value.In == "header" {
						ask(method, at, needed[path].Encode(), "", http.Header{p.Value.Name: {text}})
						return
					}
					ask(method, at, with(p.Value.Name, text), "", nil)
					ask(method, at, with(p.Value.Name, "a", text, text), "", nil)
				})
			}
			each(func(text string) { ask(method, at, with(text, "1"), "", nil) })
			each(func(text string) { ask(method, at, text, "", nil) })
		}
	}
	quoted := func(text string) string { // JSON, with its bytes as they are
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `\u0000`).Replace(text) + `"`
	}
	for path, good := range map[string]map[string]string{
		totalPath:  {"keys": `["a"]`, "windows": `["1h"]`, "at": "", "from": "", "to": "", "prefix": "", "group": "", "tz": ""},
		"/v1/take": {"key": `"a"`, "window": `"1m"`, "max": "1", "limit": "", "n": "", "policy": "", "take": ""},
	} {
		for field := range good {
			for _, form := range []string{"%s", "[%s]", "{%s:1}", `{"limit":%s}`, `[{"policy":%s}]`, `"a",%s:1`, "%.0s" + strings.Repeat("1", 5_000), "[%.0s" + strings.Repeat("1", 5_000) + "]"} {
				each(func(text string) {
					body := fmt.Sprintf(`{%q:`+form, field, quoted(text))
					for name, value := range good {
						if name != field && value != "" {
							body += fmt.Sprintf(",%q:%s", name, value)
						}
					}
					ask(http.MethodPost, path, "", body+"}", nil)
				})
			}
		}
		each(func(text string) { ask(http.MethodPost, path, "", text, nil) })
	}
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Host", "X-Forwarded-Method", "X-Original-Uri", "X-Strange", "Content-Type", "Origin", "Accept", "If-None-Match", "Authorization", "User-Agent"} {
		each(func(text string) {
			header := http.Header{name: {text}}
			ask(http.MethodGet, "/v1/authz/target/"+text, "", "", header)
			ask(http.MethodGet, limitapi.AuthzPath, "limit=login&key_header="+name, "", header)
			ask(http.MethodPost, "/v1/take", "", `{"limit":"login","key":"a"}`, header)
		})
	}
	for _, path := range []string{"/", "/v1/", "/v1/authz/", "/v1/authz/x/", "/page/", "/page/x/", "/docs/"} {
		each(func(text string) { ask(http.MethodGet, path+text, "", "", nil) })
	}
	for _, text := range texts {
		for _, change := range []func(*http.Request){func(r *http.Request) { r.Method = "M" + text },
			func(r *http.Request) { r.Host = "a." + text }} {
			r := httptest.NewRequest(http.MethodGet, "http://query.test"+totalPath, nil)
			change(r)
			send(r, "")
		}
	}
}
