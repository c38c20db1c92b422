package query

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"tallyroll/internal/gate"
	"tallyroll/tests/asking"
)

func TestLooksAndResets(t *testing.T) {
	t.Parallel()
	h, f := onLimiter(t, gate.TakeOff)
	decided(t, asking.Ask(h, http.MethodGet, "/v1/limit?limit=login&key=a&n=2", ""), 200) // counts nothing
	if got := saidOf(f.asked); got != "login/1m0s/5/log a>a 2" || !f.looked {
		t.Errorf("asked %s", got)
	}
	asking.Refused(t, asking.Ask(h, http.MethodDelete, "/v1/limit?limit=login&key=a", ""), http.StatusForbidden)

	h, f = onLimiter(t, gate.TakeNamed)
	for target, says := range map[string]string{
		"GET /v1/limit?key=a&window=1m&max=5&policy=log":                           "QUERY_TAKE=any",
		"GET /v1/limit?key=a":                                                      "limit: it is missing",
		"GET /v1/limit?limit=per-address":                                          "ip: it is missing: the key template of \"per-address\" is a {ip}",
		"GET /v1/limit?limit=per-address&ip=x":                                     "ip: \"x\": allowed is an address",
		"GET /v1/limit?limit=per-address&ip=":                                      "ip: it is empty",
		"DELETE /v1/limit?limit=per-address&key=a&ip=::":                           "key: the key template",
		"GET /v1/limit?limit=login&key=a&path=/":                                   "path: the key template",
		"GET /v1/limit?limit=per-agent&header.=a":                                  "unknown parameter \"header.\": allowed are",
		"GET /v1/limit?limit=per-agent&header.User-Agent=a&header.User-Agent=b":    "header.User-Agent: it is given 2 times",
		"DELETE /v1/limit?limit=per-agent&header.User-Agent=a&header.USER-AGENT=b": "it is there twice",
		"GET /v1/limit?key=a&window=1m&max=5&ip=192.0.2.1":                         "ip: only with limit",
		"GET /v1/total?key=a&window=1m&header.a=b":                                 "unknown parameter",
		"DELETE /v1/limit?key=a&window=1m&policy=log":                              "QUERY_TAKE=any",
		"DELETE /v1/limit?key=a&window=1m":                                         "policy: it is missing",
		"DELETE /v1/limit?limit=login":                                             "key: ",
		"DELETE /v1/limit?limit=login&key=a&n=1":                                   "unknown parameter",
	} {
		method, path, _ := strings.Cut(target, " ")
		if p := asking.Refused(t, asking.Ask(h, method, path, ""), 400); !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	if len(f.reset) > 0 || f.asked != nil {
		t.Errorf("asked %v, reset %v", f.asked, f.reset)
	}
}

// A look and a reset can name what a proxy's request had: they are about the same key then.
func TestLooksAndResetsOfWhatProxiesAsk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, authz string
		headers     []string
		params      string
	}{
		{"the address", "/v1/authz?limit=per-address", []string{"X-Forwarded-For", "1.2.3.4"}, "limit=per-address&ip=1.2.3.4"},
		{"an address of IPv6", "/v1/authz?limit=per-address", []string{"X-Forwarded-For", "2001:db8::5"}, "limit=per-address&ip=2001:DB8:0::99"},
		{"an address of IPv4 as one of IPv6", "/v1/authz?limit=per-address", []string{"X-Forwarded-For", "::ffff:1.2.3.4"}, "limit=per-address&ip=::ffff:1.2.3.4"},
		{"a header", "/v1/authz?limit=per-agent", []string{"User-Agent", "curl/8"}, "limit=per-agent&header.user-agent=%20curl/8"},
		{"a route", "/v1/authz?limit=per-route&key_header=X-Api-Key", []string{"X-Api-Key", "k", "X-Forwarded-Method", "PUT", "X-Forwarded-Host", "A.example:80", "X-Forwarded-Uri", "/a%20b//c/../d?x=1"},
			"limit=per-route&key=k&method=PUT&host=A.EXAMPLE:80&path=" + url.QueryEscape("/a%20b//c/../d?x=1")},
		{"a route as an operator writes it", "/v1/authz?limit=per-route&key_header=X-Api-Key", []string{"X-Api-Key", "k e y", "X-Forwarded-Method", "PUT", "X-Forwarded-Host", "a.example", "X-Forwarded-Uri", "/a%20b/d"},
			"limit=per-route&key=k%20e%20y&method=PUT&host=a.example&path=/a%20b/d"},
		{"as Envoy asks", "/v1/authz/per-address/cart", []string{"X-Forwarded-For", "1.2.3.4"}, "limit=per-address&ip=1.2.3.4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := onProxy(t, gate.TakeNamed)
			decided(t, send(s, proxied(t, http.MethodGet, c.authz, c.headers...)), 200)
			asked := f.asked
			operator := func(method string) *http.Response {
				r := proxied(t, method, "/v1/limit?"+c.params)
				r.Host = "localhost" // the proxy's request has the host of the other one
				return send(s, r)
			}
			decided(t, operator(http.MethodGet), 200)
			if !slices.Equal(f.asked, asked) || !f.looked {
				t.Errorf("the look is at %s, and the proxy asked about %s", saidOf(f.asked), saidOf(asked))
			}
			resp := operator(http.MethodDelete)
			if resp.StatusCode != http.StatusNoContent || !slices.Equal(f.reset, asked) {
				t.Errorf("status %d: the reset is of %s, and the proxy asked about %s", resp.StatusCode, saidOf(f.reset), saidOf(asked))
			}
		})
	}
}
