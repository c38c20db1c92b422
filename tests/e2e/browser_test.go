package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	"tallyroll/tests/stack"
)

// A page of another origin, and one that has given its name our address (DNS rebinding), get nothing from any
// service through a browser. Who asks at a named host is answered.
func TestPagesOfTheWebDoNoHarm(t *testing.T) {
	t.Parallel()
	s := start(t)
	query := stack.Query(t, s.redis, "QUERY_TAKE=any", "QUERY_HOSTS=stats.example.com")
	collect := stack.Collect(t, s.nats, "COLLECT_HOSTS=stats.example.com")
	promql := stack.PromQL(t, s.redis, "PROMQL_HOSTS=stats.example.com")
	const take = `{"key":"k","window":"1h","max":5}`
	for _, c := range []struct {
		service            *stack.Service
		method, path, body string
		foreign            string // what a refusal of another origin names; empty if there is none
		hosts              string
	}{
		{query, "POST", "/v1/take", take, "QUERY_CORS_ORIGINS", "QUERY_HOSTS"},
		{collect, "POST", "/v1/hits", `{"key":"k"}`, "they use /v1/beacon", "COLLECT_HOSTS"},
		{promql, "GET", "/api/v1/query?query=1", "", "", "PROMQL_HOSTS"},
	} {
		browser := []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Content-Type", "application/json"}
		ask := func(headers ...string) (int, string) {
			return request(http.DefaultClient, c.method, c.service.URL()+c.path, c.body, append(headers, browser...)...)
		}
		if c.foreign != "" {
			status, text := ask("Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
			if status != http.StatusForbidden || !strings.Contains(text, c.foreign) {
				t.Errorf("%s of another origin: %d %s", c.path, status, text)
			}
		}
		if status, text := ask("Host", "evil.example"); status != http.StatusForbidden || !strings.Contains(text, c.hosts) {
			t.Errorf("%s at another host: %d %s", c.path, status, text)
		}
		if status, text := ask("Host", "stats.example.com"); status >= 300 {
			t.Errorf("%s at a named host: %d %s", c.path, status, text)
		}
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if status, text := request(http.DefaultClient, "GET", c.service.URL()+path, "", "Host", "evil.example"); status != http.StatusOK {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
	}
}
