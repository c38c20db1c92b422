package e2e_test

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// browsed is a request as a browser sends it for a page, to a host that the page names.
type browsed struct {
	method, target, body string
	host                 string // without the port; empty for the address
	headers              []string
}

// send returns the status and the answer.
func (b browsed) send(t *testing.T, to *stack.Service) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), b.method, to.URL()+b.target, strings.NewReader(b.body))
	require.NoError(t, err)
	if b.host != "" {
		u, err := url.Parse(to.URL())
		require.NoError(t, err)
		req.Host = net.JoinHostPort(b.host, u.Port())
	}
	req.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")
	for i := 0; i < len(b.headers); i += 2 {
		req.Header.Set(b.headers[i], b.headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// A page of another origin uses up no limit and resets none through a browser that reaches query, and a page that has
// given its name our address (DNS rebinding) gets nothing from any service. Programs and proxies do as before.
func TestPagesOfTheWebDoNoHarm(t *testing.T) {
	t.Parallel()
	s := start(t)
	_, limits := limitsFile(t, "limits:\n- {name: a, window: 1h, max: 5}\n- {name: agent, window: 1h, max: 5, key: \"{header.User-Agent}\"}\n")
	query := stack.Query(t, s.redis, limits, "QUERY_TRUSTED_PROXIES=127.0.0.1/32")
	collect, promql := stack.Collect(t, s.nats), stack.PromQL(t, s.redis)
	remaining := func() int64 {
		t.Helper()
		_, d := decide(t, http.MethodGet, query.URL()+"/v1/limit?limit=a&key=k", nil)
		return d.Remaining
	}
	const take, authz = `{"limit":"a","key":"k"}`, "/v1/authz?limit=a&key_header=User-Agent"
	foreign := []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"}
	if status, _ := (browsed{"POST", "/v1/take", take, "", []string{"User-Agent", "curl/8.14.1", "Content-Type", "application/x-www-form-urlencoded"}}).send(t, query); status != http.StatusOK || remaining() != 4 {
		t.Errorf("curl -d: status %d, %d remain", status, remaining())
	}
	for _, b := range []browsed{
		{"POST", "/v1/take", take, "", foreign},
		{"POST", "/v1/take", take, "", []string{"Origin", "null"}},
		{"DELETE", "/v1/limit?limit=a&key=k", "", "", foreign},
		{"GET", authz, "", "", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}},
		{"GET", authz, "", "", nil},
		{"GET", "/v1/authz/agent/x", "", "", []string{"Sec-Fetch-Site", "same-site"}},
		{"POST", "/v1/take", take, "evil.example", []string{"Content-Type", "application/json"}},
		{"GET", authz, "", "evil.example", []string{"X-Forwarded-For", "192.0.2.1"}},
		{"GET", "/v1/counters", "", "evil.example", nil},
		{"GET", "/probe?top=5&window=1h", "", "evil.example", nil},
		{"GET", "/", "", "evil.example", nil},
	} {
		if status, text := b.send(t, query); status != http.StatusForbidden || !strings.Contains(text, "QUERY_HOSTS") && !strings.Contains(text, "QUERY_CORS_ORIGINS") && !strings.Contains(text, "X-Forwarded-For") {
			t.Errorf("%+v: status %d: %s", b, status, text)
		}
	}
	if n := remaining(); n != 4 {
		t.Errorf("%d hits remain, want 4", n)
	}
	for _, key := range stack.Scan(t, s.redis.Client(), "*:limit:*") {
		if !strings.HasSuffix(key, ":a:k") {
			t.Errorf("a page has left %s", key)
		}
	}
	// The proxy's own request has the page's headers and the host that its client has asked for.
	if status, text := (browsed{"GET", authz, "", "", append([]string{"X-Forwarded-For", "192.0.2.1"}, foreign...)}).send(t, query); status != http.StatusOK {
		t.Errorf("a proxy: status %d: %s", status, text)
	}
	for _, c := range []struct {
		to    *stack.Service
		b     browsed
		names string
	}{
		{collect, browsed{"POST", "/v1/hits", `{"key":"evil"}`, "evil.example", []string{"Content-Type", "application/json"}}, "COLLECT_HOSTS"},
		{promql, browsed{"GET", "/api/v1/label/key/values", "", "evil.example", nil}, "PROMQL_HOSTS"},
		{promql, browsed{"POST", "/api/v1/query?query=1", "", "evil.example", nil}, "PROMQL_HOSTS"},
	} {
		if status, text := c.b.send(t, c.to); status != http.StatusForbidden || !strings.Contains(text, c.names) {
			t.Errorf("%+v: status %d: %s", c.b, status, text)
		}
		c.b.host = "localhost"
		if status, text := c.b.send(t, c.to); status >= 300 {
			t.Errorf("%+v: status %d: %s", c.b, status, text)
		}
	}
	for _, c := range []*stack.Service{query, collect, promql} {
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if status, text := (browsed{"GET", path, "", "evil.example", nil}).send(t, c); status != http.StatusOK {
				t.Errorf("%s: status %d: %s", path, status, text)
			}
		}
	}
	named := stack.PromQL(t, s.redis, "PROMQL_HOSTS=promql.example.com")
	if status, text := (browsed{"GET", "/api/v1/labels", "", "promql.example.com", nil}).send(t, named); status != http.StatusOK {
		t.Errorf("a named host: status %d: %s", status, text)
	}
	tokens := stack.PromQL(t, s.redis, "PROMQL_TOKENS=secret")
	if status, text := (browsed{"GET", "/api/v1/labels", "", "promql.example.com", []string{"Authorization", "Bearer secret"}}).send(t, tokens); status != http.StatusOK {
		t.Errorf("a token: status %d: %s", status, text)
	}
	for _, program := range []string{"query", "collect", "promql"} {
		key := strings.ToUpper(program) + "_HOSTS"
		code, out := ends(t, program, nil, key+"=https://a.example")
		if code != 2 || !strings.HasPrefix(out, program+": "+key) || !strings.Contains(out, "such as stats.example.com") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: code %d, %s", key, code, out)
		}
	}
}
