package query

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/gate"
	"tallyroll/internal/web"
	"tallyroll/tests/asking"
)

// What browsers send for an image, for a form and for fetch without asking, in 2026 and, the last one, before 2020. Images
// and pages of services that are neither on this machine nor HTTPS tell nothing of where they are.
var (
	mozilla   = []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}
	image     = append([]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, mozilla...)
	form      = append([]string{"Origin", "https://evil.example", "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"}, mozilla...)
	sandbox   = append([]string{"Origin", "null", "Content-Type", "application/x-www-form-urlencoded"}, mozilla...)
	sameSite  = append([]string{"Origin", "http://query.test:3000", "Sec-Fetch-Site", "same-site", "Content-Type", "text/plain"}, mozilla...)
	oldForm   = append([]string{"Referer", "https://evil.example/", "Content-Type", "text/plain"}, mozilla...)
	ownPage   = append([]string{"Origin", "http://query.test", "Sec-Fetch-Site", "same-origin", "Content-Type", "application/json"}, mozilla...)
	namedPage = append([]string{"Origin", "https://shop.example.com", "Sec-Fetch-Site", "cross-site", "Content-Type", "application/vnd.take+json; charset=utf-8"}, mozilla...)
	curlForm  = []string{"User-Agent", "curl/8.14.1", "Content-Type", "application/x-www-form-urlencoded"}
)

// A page of another origin takes nothing and resets nothing, whatever kind of request it makes its visitor's browser
// send. Whoever is no such page does as before.
func TestForeignPagesChangeNothing(t *testing.T) {
	t.Parallel()
	like := map[string][]string{
		"": nil, "curlForm": curlForm, "ownPage": ownPage, "form": form, "sandbox": sandbox, "sameSite": sameSite, "oldForm": oldForm, "mozilla": mozilla,
		"namedPage": namedPage, "image": image,
	}
	s, limiter := onProxy(t, gate.TakeNamed)
	h := s.handler()
	for _, c := range asking.ReadRequests(t, "testdata/browsers.txt") {
		s.origins = web.Origins{}
		if origins := c.Options["origins"]; origins != "" {
			require.NoError(t, s.origins.UnmarshalText([]byte(origins)))
		}
		useTokens(t, s, c.Options["token"])
		limiter.asked, limiter.reset = nil, nil
		headers, known := like[c.Options["like"]]
		require.True(t, known, c.String())
		r := c.HTTP()
		r.Host, r.RemoteAddr = "query.test", "192.0.2.9:999" // no trusted proxy's
		for i := 0; i < len(headers); i += 2 {
			if r.Header.Get(headers[i]) == "" {
				r.Header.Set(headers[i], headers[i+1])
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		resp := w.Result()
		changed := limiter.asked != nil || limiter.reset != nil
		if resp.StatusCode != c.Status || changed != (c.Status < 300) {
			t.Errorf("%s: status %d, want %d; asked %v, reset %v", c, resp.StatusCode, c.Status, limiter.asked, limiter.reset)
		}
		if c.Status == http.StatusForbidden && c.Method != http.MethodHead {
			p := asking.Refused(t, resp, c.Status)
			require.Equal(t, web.ForeignOrigin.Type(), p.Type)
			require.Contains(t, p.Detail, map[bool]string{true: "X-Forwarded-For", false: "QUERY_CORS_ORIGINS"}[gate.IsAuthz(r.URL.Path)])
		}
	}
	// Questions stay open to all: no page can read the answers unless QUERY_CORS_ORIGINS lets it.
	s.origins = web.Origins{}
	useTokens(t, s, "")
	for _, headers := range [][]string{image, form, oldForm, mozilla} {
		answered(t, asking.Ask(h, http.MethodGet, goodTarget, "", headers...))
		for _, path := range []string{totalPath, uniquesPath} {
			answered(t, asking.Ask(h, http.MethodPost, path, `{"keys":["a"],"windows":["1h"]}`, headers...))
		}
	}
}

// hosted is a service on a real connection, which is asked under any name.
type hosted struct {
	t      *testing.T
	server *httptest.Server
	port   string
}

func onPort(t *testing.T, s *service) *hosted {
	t.Helper()
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	return &hosted{t, server, u.Port()}
}

// ask asks with the Host of a page that a browser has loaded from this port, or with another one if host names a port.
func (h *hosted) ask(method, host, target, body string, headers ...string) *http.Response {
	h.t.Helper()
	r, err := http.NewRequest(method, h.server.URL+target, strings.NewReader(body))
	require.NoError(h.t, err)
	r.Host = host
	if !strings.Contains(host, ":") {
		r.Host = net.JoinHostPort(host, h.port)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// A page that has given its own name the address of the service (DNS rebinding) is of the same origin, may send any header
// and reads every answer. It gets none.
func TestReboundPagesGetNothing(t *testing.T) {
	t.Parallel()
	all := [][]string{
		{"GET", goodTarget, ""}, {"POST", totalPath, `{"keys":["a"],"windows":["1h"]}`}, {"GET", "/v1/live?key=a&window=1m", ""}, {"GET", "/v1/counters", ""}, {"GET", "/v1/limit?limit=login&key=a", ""},
		{"POST", "/v1/take", `{"limit":"login","key":"alice"}`}, {"DELETE", "/v1/limit?limit=login&key=alice", ""}, {"GET", "/v1/authz?limit=login&key_header=X-Forwarded-For", ""},
		{"GET", "/v1/authz/per-agent/x", ""}, {"OPTIONS", "/v1/authz/per-agent/x", ""}, {"GET", "/probe?key=a&window=1h", ""}, {"GET", "/", ""}, {"GET", "/page/x/main.js", ""}, {"GET", "/v1/nothing", ""},
	}
	pretends := []string{"Content-Type", "application/json", "X-Forwarded-For", "192.0.2.1", "X-Original-Uri", "/", "User-Agent", "Mozilla/5.0"}
	s, f := onProxy(t, gate.TakeNamed)
	require.NoError(t, s.gate.Proxies.UnmarshalText([]byte("127.0.0.1/32"))) // a browser runs beside the proxy
	watched(t, s)
	h := onPort(t, s)
	for _, request := range all {
		for _, headers := range [][]string{nil, pretends, append([]string{"Origin", "http://evil.example:" + h.port, "Sec-Fetch-Site", "same-origin"}, pretends...)} {
			p := asking.Refused(t, h.ask(request[0], "evil.example", request[1], request[2], headers...), http.StatusForbidden)
			require.Equal(t, web.UnknownHost.Type(), p.Type, request)
			require.Contains(t, p.Detail, "QUERY_HOSTS", request)
			require.Contains(t, p.Detail, `"evil.example:`, request)
		}
	}
	require.Nil(t, f.asked)
	require.Nil(t, f.reset)
	for _, target := range []string{"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"} {
		require.NotEqual(t, http.StatusForbidden, h.ask("GET", "evil.example", target, "").StatusCode, target)
	}
	fine := func(what string, resp *http.Response) {
		t.Helper()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d: %s", what, resp.StatusCode, asking.ReadAll(t, resp))
		}
	}
	for _, host := range []string{"localhost", "127.0.0.1", "query", "query.shop.svc.cluster.local", "query:80", "[::1]:1"} {
		fine(host, h.ask("GET", host, goodTarget, ""))
		fine(host, h.ask("POST", host, "/v1/take", `{"limit":"login","key":"alice"}`))
	}
	// A proxy asks with the Host that its client has sent, which has the proxy's port.
	const authz = "/v1/authz?limit=login&key_header=X-Api-Key"
	for _, host := range []string{"shop.example:443", "shop.example:80", "shop.example:10080"} {
		fine("a trusted proxy of "+host, h.ask("GET", host, authz, "", "X-Api-Key", "k"))
		fine("a trusted proxy of "+host, h.ask("GET", host, authz, "", "X-Api-Key", "k", "Origin", "https://a.example", "Sec-Fetch-Site", "cross-site"))
	}
	// A browser on the proxy's machine is in a trusted network, and asks for itself.
	f.asked = nil
	for _, headers := range [][]string{image, mozilla} {
		asking.Refused(t, h.ask("GET", "localhost", "/v1/authz?limit=login&key_ip=1", "", headers...), http.StatusForbidden)
	}
	require.Nil(t, f.asked)
	s.gate.Proxies = web.Networks{}
	fine("a proxy", h.ask("GET", "shop.example:443", authz, "", "X-Api-Key", "k", "X-Forwarded-For", "192.0.2.1"))
	asking.Refused(t, h.ask("GET", "shop.example:443", authz, "", "X-Api-Key", "k"), http.StatusForbidden)

	named, _ := onFake(t)
	require.NoError(t, named.hosts.UnmarshalText([]byte("stats.example.com")))
	h = onPort(t, named)
	fine("a named host", h.ask("GET", "Stats.example.com", goodTarget, ""))
	fine("the page of a named host", h.ask("GET", "stats.example.com:443", "/", ""))
	asking.Refused(t, h.ask("GET", "evil.example", goodTarget, ""), http.StatusForbidden)

	// A rebound page has no token, and no certificate of its name.
	tokens, _ := onFake(t)
	useTokens(t, tokens, "secret")
	h = onPort(t, tokens)
	fine("a token", h.ask("GET", "stats.example.com", goodTarget, "", "Authorization", "Bearer secret"))
	asking.Refused(t, h.ask("GET", "evil.example", goodTarget, ""), http.StatusUnauthorized)
	open, _ := onFake(t)
	server := httptest.NewTLSServer(open.handler())
	defer server.Close()
	r, err := http.NewRequest(http.MethodGet, server.URL+goodTarget, nil)
	require.NoError(t, err)
	r.Host = "stats.example.com"
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	fine("HTTPS", resp)
}
