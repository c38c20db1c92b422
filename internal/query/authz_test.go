package query

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/gate"
	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// proxied is a request of a proxy at 10.0.0.1.
func proxied(t *testing.T, method, target string, headers ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequest(method, "http://shop.example:8443"+target, nil)
	r.RemoteAddr = "10.0.0.1:999"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// onProxy is a service with a fake limiter that trusts proxies in 10.0.0.0/8.
func onProxy(t *testing.T, mode gate.TakeMode, further ...string) (*service, *fakeLimiter) {
	t.Helper()
	f := new(fakeLimiter)
	settings := testSettings
	settings.Take = mode
	require.NoError(t, settings.TrustedProxies.UnmarshalText([]byte("10.0.0.0/8")))
	s, _ := onFakeWith(t, f, settings, further...)
	return s, f
}

func send(s *service, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, r)
	return w.Result()
}

// describeTakes has the limit, the key, what it is kept under, and the number of hits of each take.
func describeTakes(takes []limit.Take) string {
	var out []string
	for _, k := range takes {
		out = append(out, fmt.Sprintf("%s/%v/%d/%s %s>%s %d", k.Limit.Name, k.Limit.Window, k.Limit.Max, k.Limit.Policy, k.Key, k.Under, k.N))
	}
	return strings.Join(out, "; ")
}

// Proxies tell of a request in their own fields, and the limits of the route or the path are asked about it.
func TestProxiesAskAboutTheirClients(t *testing.T) {
	t.Parallel()
	s, f := onProxy(t, gate.TakeAny)
	require.NoError(t, s.origins.UnmarshalText([]byte("*")))
	h := s.handler()
	for _, c := range asking.ReadRequests(t, "testdata/proxies.txt") {
		r := c.HTTP()
		r.Host, r.RemoteAddr = "shop.example:8443", "10.0.0.1:999"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, c.Status, w.Code, c.String())
		require.NotEmpty(t, w.Header().Get("RateLimit"), c.String())
		require.Equal(t, c.Want, describeTakes(f.asked), c.String())
	}
}

// With Envoy the request is its own, so no field can tell of another one. And hits of one key are in one place, whoever
// sends them: what they are kept under decides about the hash tag.
func TestTemplatesOfKeys(t *testing.T) {
	t.Parallel()
	s, f := onProxy(t, gate.TakeNamed, `  - {name: target, window: 1m, max: 3, key: "{method} {host} {path}"}`+"\n", `  - {name: plan, window: 1m, max: 3, key: "{header.X-Plan}"}`)
	resp := send(s, proxied(t, "PATCH", "/v1/authz/target//a/./b%20c?x=1", "X-Forwarded-Uri", "/other", "X-Original-Method", "GET", "X-Forwarded-Host", "b.example"))
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "PATCH shop.example /a/b%20c", f.asked[0].Under)
	var keys []string
	for _, client := range []string{"1.2.3.4", "5.6.7.8"} {
		send(s, proxied(t, "GET", "/v1/authz?limit=plan&limit=login&key_ip=1", "X-Forwarded-For", client, "X-Plan", "free"))
		require.Len(t, f.asked, 2)
		keys = append(keys, f.asked[0].Key)
	}
	require.Equal(t, keys[0], keys[1], "the tags")
}

// Without trusted proxies nobody can say which client asks.
func TestAddressOfAClientNeedsTrustedProxies(t *testing.T) {
	t.Parallel()
	s, _ := onProxy(t, gate.TakeNamed)
	s.gate.Proxies = web.Networks{}
	for _, target := range []string{"/v1/authz?limit=login&key_ip=1", "/v1/authz/per-address/x"} {
		p := asking.Refused(t, send(s, proxied(t, "GET", target, "X-Forwarded-For", "1.2.3.4")), 400)
		require.Contains(t, p.Detail, "QUERY_TRUSTED_PROXIES", target)
	}
}

// unreadable is a body that must not be read.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) { u.t.Error("the body is read"); return 0, io.EOF }

func TestProxiesAreAnsweredWithoutTheirBodies(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	s := onRedis(t, redis.URL(), asking.Now())
	useTokens(t, s, "secret")
	ask := func(method string) *http.Response {
		r := proxied(t, method, "/v1/authz/per-agent/x", "User-Agent", "a", "Authorization", "Bearer secret")
		r.Body, r.ContentLength = io.NopCloser(unreadable{t}), 7
		return send(s, r)
	}
	for _, method := range []string{"GET", "HEAD", "POST"} {
		require.Equal(t, http.StatusOK, ask(method).StatusCode, method)
	}
	resp := ask("POST")
	require.Equal(t, 429, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Equal(t, `"per-agent";q=3;w=60`, resp.Header.Get("RateLimit-Policy"))
	require.Contains(t, string(asking.ReadAll(t, resp)), `"allowed":false`)
	asking.Refused(t, send(s, proxied(t, "GET", "/v1/authz/per-agent/x", "User-Agent", "b")), http.StatusUnauthorized)
	metrics := string(asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, "/metrics", "")))
	require.Contains(t, metrics, `tallyroll_query_request_seconds_count{code="429",route="/v1/authz/{limit}"} 1`)
	redis.Stop()
	resp = send(s, proxied(t, "GET", "/v1/authz?limit=closed&key_header=User-Agent", "User-Agent", "c", "Authorization", "Bearer secret"))
	asking.Refused(t, resp, 503)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
}
