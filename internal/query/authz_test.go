package query

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/gate"
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

func TestAuthzKeys(t *testing.T) {
	t.Parallel()
	const route = "/v1/authz?limit=per-route&key_header=X-Api-Key"
	for _, c := range []struct {
		name, method, target string
		headers              []string
		want                 string
	}{
		{"a header", "GET", "/v1/authz?limit=login&key_header=x-api-key", []string{"X-Api-Key", "k 1"}, "login/1m0s/5/log k 1>k 1 1"},
		{"numbers", "GET", "/v1/authz?window=1m&max=9&key_header=X-Api-Key", []string{"X-Api-Key", "k"}, "/1m0s/9/cells k>k 1"},
		{"the address", "GET", "/v1/authz?limit=login&key_ip=1", []string{"X-Forwarded-For", "1.2.3.4"}, "login/1m0s/5/log 1.2.3.4>1.2.3.4 1"},
		{"an address of IPv6", "GET", "/v1/authz?limit=login&key_ip=1", []string{"X-Forwarded-For", "2001:db8::5"}, "login/1m0s/5/log 2001:db8::/64>2001:db8::/64 1"},
		{"several limits", "GET", "/v1/authz?limit=per-second&limit=per-address&key_ip=1", []string{"X-Forwarded-For", "1.2.3.4"},
			"per-second/1s/10/cells 1.2.3.4>1.2.3.4 1; per-address/1m0s/3/cells 1.2.3.4>a 1.2.3.4 1"},
		{"the template says it all", "GET", "/v1/authz?limit=per-agent", []string{"User-Agent", "curl"}, "per-agent/1m0s/3/cells curl>curl 1"},
		{"as Traefik and Caddy tell it", "GET", route, []string{"X-Api-Key", "k", "X-Forwarded-Method", "PUT", "X-Forwarded-Host", "A.example:80", "X-Forwarded-Uri", "/a%20b//c/../d?x=1"},
			"per-route/1m0s/3/cells k>PUT a.example /a%20b/d k 1"},
		{"as nginx tells it", "GET", route, []string{"X-Api-Key", "k", "X-Original-Method", "PUT", "X-Original-Host", "a.example", "X-Original-URI", "/a/"},
			"per-route/1m0s/3/cells k>PUT a.example /a k 1"},
		{"nothing is told", "DELETE", route, []string{"X-Api-Key", "k"}, "per-route/1m0s/3/cells k>DELETE shop.example /v1/authz k 1"},
		{"POST, with no body", "POST", "/v1/authz?limit=login&key_header=X-Api-Key", []string{"X-Api-Key", "k"}, "login/1m0s/5/log k>k 1"},
		{"a preflight of the other service", "OPTIONS", "/v1/authz/per-agent/x", []string{"User-Agent", "a", "Origin", "https://a.example", "Access-Control-Request-Method", "PUT"}, "per-agent/1m0s/3/cells a>a 1"},
		{"Envoy", "PATCH", "/v1/authz/per-agent/cart?limit=x&y", []string{"User-Agent", "a"}, "per-agent/1m0s/3/cells a>a 1"},
		{"Envoy, without a path", "GET", "/v1/authz/per-agent", []string{"User-Agent", "a"}, "per-agent/1m0s/3/cells a>a 1"},
		{"Envoy, with a path that a mux would clean", "GET", "/v1/authz/per-agent//a/../b/", []string{"User-Agent", "a"}, "per-agent/1m0s/3/cells a>a 1"},
		{"Envoy, with a limit's name behind", "GET", "/v1/authz/per-address/../login", []string{"X-Forwarded-For", "1.2.3.4"}, "per-address/1m0s/3/cells 1.2.3.4>a 1.2.3.4 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := onProxy(t, gate.TakeAny)
			require.NoError(t, s.origins.UnmarshalText([]byte("*")))
			resp := send(s, proxied(t, c.method, c.target, c.headers...))
			if resp.StatusCode != http.StatusOK || resp.Header.Get("RateLimit") == "" {
				t.Fatalf("status %d: %v %s", resp.StatusCode, resp.Header, asking.ReadAll(t, resp))
			}
			if got := saidOf(f.asked); got != c.want {
				t.Errorf("asked %s, want %s", got, c.want)
			}
		})
	}
}

// With Envoy the request is its own, so no field can tell of another one.
func TestEnvoyTarget(t *testing.T) {
	t.Parallel()
	s, f := onProxy(t, gate.TakeNamed, `  - {name: target, window: 1m, max: 3, key: "{method} {host} {path}"}`)
	resp := send(s, proxied(t, "PATCH", "/v1/authz/target//a/./b%20c?x=1", "X-Forwarded-Uri", "/other", "X-Original-Method", "GET", "X-Forwarded-Host", "b.example"))
	if got := saidOf(f.asked); resp.StatusCode != http.StatusOK || !strings.HasSuffix(got, ">PATCH shop.example /a/b%20c 1") {
		t.Errorf("status %d, asked %s", resp.StatusCode, got)
	}
}

// Hits of one key are in one place, whoever sends them: what they are kept under decides about the hash tag.
func TestTheTagDependsOnTheKeyAlone(t *testing.T) {
	t.Parallel()
	s, f := onProxy(t, gate.TakeNamed, `  - {name: plan, window: 1m, max: 3, key: "{header.X-Plan}"}`)
	var keys []string
	for _, client := range []string{"1.2.3.4", "5.6.7.8"} {
		send(s, proxied(t, "GET", "/v1/authz?limit=plan&limit=login&key_ip=1", "X-Forwarded-For", client, "X-Plan", "free"))
		if len(f.asked) != 2 {
			t.Fatalf("asked %s", saidOf(f.asked))
		}
		keys = append(keys, f.asked[0].Key)
	}
	if keys[0] != keys[1] {
		t.Errorf("the tags depend on %q", keys)
	}
}

func TestBadAuthz(t *testing.T) {
	t.Parallel()
	many := "/v1/authz?key_ip=1" + strings.Repeat("&limit=login", gate.MaxTakes+1)
	for _, c := range []struct {
		name, target string
		headers      []string
		mode         gate.TakeMode
		status       int
		says         string
	}{
		{"nothing", "/v1/authz", nil, gate.TakeNamed, 400, "limit: it is missing"},
		{"no header", "/v1/authz?limit=login&key_header=X-Api-Key", nil, gate.TakeNamed, 400, `key_header: the request has no header "X-Api-Key"`},
		{"a header twice", "/v1/authz?limit=login&key_header=X-Api-Key", []string{"X-Api-Key", "a", "X-Api-Key", "b"}, gate.TakeNamed, 400, "2 times"},
		{"a long header", "/v1/authz?limit=login&key_header=X-Api-Key", []string{"X-Api-Key", strings.Repeat("a", 513)}, gate.TakeNamed, 400, "513 bytes"},
		{"no key", "/v1/authz?limit=login", nil, gate.TakeNamed, 400, "key_header: it is missing"},
		{"two keys", "/v1/authz?limit=login&key_ip=1&key_header=X", nil, gate.TakeNamed, 400, "key_ip: not together with key_header"},
		{"a key that nobody uses", "/v1/authz?limit=per-agent&key_ip=1", []string{"User-Agent", "a"}, gate.TakeNamed, 400, "key_ip: no limit of this request"},
		{"key_ip", "/v1/authz?limit=login&key_ip=yes", nil, gate.TakeNamed, 400, "key_ip: "},
		{"a header of the template", "/v1/authz?limit=per-agent", nil, gate.TakeNamed, 400, `no header "User-Agent"`},
		{"an unknown limit", "/v1/authz?limit=logon&key_ip=1", nil, gate.TakeNamed, 400, "limit: "},
		{"an unknown limit of Envoy's", "/v1/authz/logon/a", nil, gate.TakeNamed, 400, "limit: "},
		{"a key of Envoy's", "/v1/authz/login/a?key_ip=1", nil, gate.TakeNamed, 400, "{key}"},
		{"an unknown parameter", "/v1/authz?limit=login&key_ip=1&n=2", nil, gate.TakeNamed, 400, "unknown parameter"},
		{"a limit twice", "/v1/authz?limit=login&limit=login&key_ip=1", nil, gate.TakeNamed, 400, "twice"},
		{"too many limits", many, nil, gate.TakeNamed, 400, "at most 16"},
		{"numbers", "/v1/authz?window=1m&max=5&key_ip=1", nil, gate.TakeNamed, 400, "QUERY_TAKE=any"},
		{"name and numbers", "/v1/authz?limit=login&max=5&key_ip=1", nil, gate.TakeAny, 400, "max: not together"},
		{"places", "/v1/authz?limit=exports&key_ip=1", nil, gate.TakeNamed, 400, `limit: "exports" has the policy concurrent: a proxy would acquire a place with each request and never free it`},
		{"places beside hits", "/v1/authz?limit=login&limit=exports&key_ip=1", nil, gate.TakeNamed, 400, "POST /v1/release"},
		{"places of Envoy's", "/v1/authz/exports/a", nil, gate.TakeNamed, 400, "concurrent"},
		{"off", "/v1/authz?limit=login&key_ip=1", nil, gate.TakeOff, 403, "QUERY_TAKE=off"},
		{"no name", "/v1/authz/", nil, gate.TakeNamed, 404, "there is nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := onProxy(t, c.mode)
			if p := asking.Refused(t, send(s, proxied(t, "GET", c.target, c.headers...)), c.status); !strings.Contains(p.Detail, c.says) {
				t.Errorf("the problem says %q, want %q", p.Detail, c.says)
			}
			if f.asked != nil {
				t.Errorf("the limiter was asked %s", saidOf(f.asked))
			}
		})
	}
	for _, target := range []string{"/v1/authz?limit=login&key_ip=1", "/v1/authz/per-address/x"} {
		s, _ := onProxy(t, gate.TakeNamed)
		s.gate.Proxies = web.Networks{}
		if p := asking.Refused(t, send(s, proxied(t, "GET", target, "X-Forwarded-For", "1.2.3.4")), 400); !strings.Contains(p.Detail, "QUERY_TRUSTED_PROXIES") {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
}

// unreadable is a body that must not be read.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) { u.t.Error("the body is read"); return 0, io.EOF }

func TestAuthzAnswers(t *testing.T) {
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
		if resp := ask(method); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d: %s", method, resp.StatusCode, asking.ReadAll(t, resp))
		}
	}
	resp := ask("POST")
	if got := decided(t, resp, 429); got.Allowed || got.Limit != "per-agent" || resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit-Policy") != `"per-agent";q=3;w=60` {
		t.Errorf("%+v, %v", got, resp.Header)
	}
	asking.Refused(t, send(s, proxied(t, "GET", "/v1/authz/per-agent/x", "User-Agent", "b")), http.StatusUnauthorized)
	page := string(asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, "/metrics", "")))
	if !strings.Contains(page, `tallyroll_query_request_seconds_count{code="429",route="/v1/authz/{limit}"} 1`) {
		t.Error("the metrics lack the route")
	}
	redis.Stop()
	resp = send(s, proxied(t, "GET", "/v1/authz?limit=closed&key_header=User-Agent", "User-Agent", "c", "Authorization", "Bearer secret"))
	if asking.Refused(t, resp, 503); resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%v", resp.Header)
	}
}
