package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/plain"
)

func TestOriginsAreReadAsBrowsersWriteThem(t *testing.T) {
	t.Parallel()
	var o Origins
	require.NoError(t, o.UnmarshalText([]byte("https://Shop.Example.com, http://localhost:3000,https://b.example:443,http://c.example:80,https://[::1]:8443,capacitor://localhost")))
	want := []string{"https://shop.example.com", "http://localhost:3000", "https://b.example", "http://c.example", "https://[::1]:8443", "capacitor://localhost"}
	require.Equal(t, want, o.exact)
	require.False(t, o.Any() || o.IsEmpty())
	for origin, allowed := range map[string]bool{
		"https://shop.example.com": true, "http://shop.example.com": false, "https://shop.example.com.evil": false, "https://shop.example.com:8443": false,
		"null": false, "": false, "https://b.example": true,
	} {
		require.Equal(t, allowed, o.Allow(origin), origin)
	}
	for bad, why := range map[string]string{
		"": "path", "a.example": "path", "https://a.example/": "path", "https://a.example/p": "path", "https://u@a.example": "path", "https://a.example?x": "path",
		"null": "path", "https://": "path", "https://:443": "path", "https://a.example,": "path",
		"https://*.example.com": "* within", "https://a.example,*": "path", "https://bücher.example": "xn--",
	} {
		require.ErrorContains(t, new(Origins).UnmarshalText([]byte(bad)), why, bad)
	}
}

// A request for a page of another origin is foreign, whatever its method, unless that origin is named.
func TestRequestForAPageOfAnotherOriginIsForeign(t *testing.T) {
	t.Parallel()
	var named, all Origins
	require.NoError(t, named.UnmarshalText([]byte("https://shop.example.com")))
	require.NoError(t, all.UnmarshalText([]byte("*")))
	for _, c := range []struct {
		origin, site          string
		foreign, foreignNamed bool
	}{
		{"", "", false, false},
		{"", "none", false, false}, {"", "same-origin", false, false},
		{"http://query.test:8080", "", false, false}, {"http://query.test:8080", "same-origin", false, false},
		{"", "cross-site", true, true}, {"", "same-site", true, true},
		{"http://query.test:9090", "same-site", true, true}, {"http://query.test:9090", "", true, true},
		{"https://evil.example", "cross-site", true, true}, {"https://evil.example", "", true, true}, {"null", "", true, true}, {"null", "cross-site", true, true},
		{"https://shop.example.com", "cross-site", true, false}, {"https://shop.example.com", "", true, false},
	} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "DELETE"} {
			r := httptest.NewRequest(method, "http://query.test:8080/v1/take", nil)
			for name, value := range map[string]string{"Origin": c.origin, "Sec-Fetch-Site": c.site} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			if got := (Origins{}).IsForeign(r); got != c.foreign || all.IsForeign(r) != c.foreign || named.IsForeign(r) != c.foreignNamed || r.Method != method {
				t.Errorf("%s of %q, %q: %v, of any %v, named %v", method, c.origin, c.site, got, all.IsForeign(r), named.IsForeign(r))
			}
		}
	}
}

func TestRequestsOfBrowsersAreKnown(t *testing.T) {
	t.Parallel()
	const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	for _, c := range []struct {
		name, value string
		browser     bool
	}{
		{"User-Agent", firefox, true}, {"Origin", "null", true}, {"Referer", "https://a.example/", true}, {"Sec-Fetch-Site", "none", true},
		{"User-Agent", "curl/8.14.1", false}, {"User-Agent", "python-requests/2.32 (like Mozilla/5.0)", false}, {"Accept", "*/*", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://query.test/v1/take", nil)
		r.Header.Set(c.name, c.value)
		require.Equal(t, c.browser, FromBrowser(r), "%s: %s", c.name, c.value)
	}
}

func TestOriginOfAnAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://shop.example.com/a?b#c": "https://shop.example.com", "https://shop.example.com": "https://shop.example.com", "https://shop.example.com:443/": "https://shop.example.com",
		"http://localhost:3000/x": "http://localhost:3000", "https://user:pw@shop.example.com/": "https://shop.example.com",
		"https://evil.example/https://shop.example.com": "https://evil.example", "https://shop.example.com@evil.example/": "https://evil.example",
		"": "", "about:client": "", "null": "", "/path": "", "//shop.example.com": "", "https://%zz/": "", "https://*/": "",
	} {
		require.Equal(t, want, OriginOf(address), address)
	}
}

// Browsers learn which pages may call, and what these may send and read. Nothing is allowed to other origins.
func TestCORSAllowsTheOriginsOfTheSetting(t *testing.T) {
	t.Parallel()
	const two = "https://a.example, http://localhost:3000"
	for _, c := range []struct{ setting, origin, allowed, vary string }{
		{"", "https://a.example", "", ""},
		{two, "http://localhost:3000", "http://localhost:3000", "Origin"},
		{two, "https://b.example", "", "Origin"}, {two, "http://a.example", "", "Origin"}, {two, "https://a.example.evil", "", "Origin"}, {two, "", "", "Origin"},
		{"*", "https://b.example", "*", ""}, {"*", "", "*", ""},
	} {
		cors := CORS{Methods: "GET, POST", Headers: "Authorization", Expose: "ETag", Credentials: true}
		if c.setting != "" {
			require.NoError(t, cors.Origins.UnmarshalText([]byte(c.setting)))
		}
		for _, preflight := range []bool{false, true} {
			r, w, want := httptest.NewRequest(http.MethodOptions, "/", nil), httptest.NewRecorder(), make(http.Header)
			r.Header.Set("Origin", c.origin)
			set := func(name, value string) {
				if value != "" {
					want.Set(name, value)
				}
			}
			set("Vary", c.vary)
			if c.allowed != "" {
				set("Access-Control-Allow-Origin", c.allowed)
				set("Access-Control-Expose-Headers", "ETag")
				set("Access-Control-Allow-Credentials", map[bool]string{true: "true"}[c.allowed != "*"])
			}
			if preflight {
				r.Header.Set("Access-Control-Request-Method", "POST")
			}
			if preflight && c.allowed != "" {
				set("Access-Control-Allow-Methods", "GET, POST")
				set("Access-Control-Allow-Headers", "Authorization")
				set("Access-Control-Max-Age", "600")
			}
			require.Equal(t, preflight && c.allowed != "", cors.Apply(w, r), "%+v, preflight %v", c, preflight)
			require.Equal(t, want, w.Header(), "%+v, preflight %v", c, preflight)
		}
	}
}

// The client is the rightmost address of X-Forwarded-For that no trusted proxy has.
func TestAddressOfAClientBehindProxies(t *testing.T) {
	t.Parallel()
	var trusted Networks
	for _, bad := range []string{"", "10.0.0.0/33", "10.0.0.0/8,", "localhost", "10.0.0.1:80", "fe80::1%eth0"} {
		require.Error(t, trusted.UnmarshalText([]byte(bad)), bad)
	}
	require.NoError(t, trusted.UnmarshalText([]byte("10.0.0.0/8, 192.0.2.7,fd00::/8")))
	for _, c := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"no proxy", "203.0.113.5:1000", nil, "203.0.113.5"},
		{"a client that pretends to be a proxy", "203.0.113.5:1000", []string{"198.51.100.1"}, "203.0.113.5"},
		{"a neighbour of a trusted address", "192.0.2.8:1", []string{"198.51.100.1"}, "192.0.2.8"},
		{"one proxy", "192.0.2.7:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"what the client wrote is on the left", "10.1.1.1:1", []string{"9.9.9.9, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.1.1.1:1", []string{"9.9.9.9, 198.51.100.1,10.2.2.2"}, "198.51.100.1"},
		{"two fields", "10.1.1.1:1", []string{"9.9.9.9, 198.51.100.1", "10.2.2.2"}, "198.51.100.1"},
		{"a port", "10.1.1.1:1", []string{"198.51.100.1:5555"}, "198.51.100.1"},
		{"brackets and a port", "10.1.1.1:1", []string{"[2001:db8:1:2:3::4]:5555"}, "2001:db8:1:2::/64"},
		{"brackets", "10.1.1.1:1", []string{"[2001:db8:1:2:3::4]"}, "2001:db8:1:2::/64"},
		{"the client is a trusted machine", "10.1.1.1:1", []string{"10.3.3.3"}, "10.3.3.3"},
		{"no field", "10.1.1.1:1", nil, "10.1.1.1"},
		{"a proxy that does not know", "10.1.1.1:1", []string{"198.51.100.1, unknown"}, "10.1.1.1"},
		{"IPv6 is a /64", "[2001:db8:1:2:3::4]:80", nil, "2001:db8:1:2::/64"},
		{"IPv4 within IPv6", "[::ffff:10.1.1.1]:80", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"a zone", "[fd00::1%eth0]:80", []string{"198.51.100.1"}, "198.51.100.1"},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.forwarded}}
		address, err := trusted.Client(r)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, plain.Client(address), c.name)
		require.Equal(t, strings.HasPrefix(c.peer, "203.") || c.peer == "192.0.2.8:1" || strings.HasPrefix(c.peer, "[2001:"), !trusted.ContainPeer(r), c.name)
	}
	_, err := trusted.Client(&http.Request{RemoteAddr: "@"})
	require.Error(t, err, "a connection without an address")
}
