package web

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOrigins(t *testing.T) {
	t.Parallel()
	var o Origins
	err := o.UnmarshalText([]byte("https://Shop.Example.com, http://localhost:3000,https://b.example:443,http://c.example:80,https://[::1]:8443,capacitor://localhost"))
	require.NoError(t, err)
	want := []string{"https://shop.example.com", "http://localhost:3000", "https://b.example", "http://c.example", "https://[::1]:8443", "capacitor://localhost"}
	if !slices.Equal(o.exact, want) || o.Any() || o.None() {
		t.Errorf("the origins are %q, want %q", o.exact, want)
	}
	for origin, allowed := range map[string]bool{
		"https://shop.example.com": true, "http://shop.example.com": false, "https://shop.example.com.evil": false, "https://shop.example.com:8443": false,
		"null": false, "": false, "https://b.example": true,
	} {
		if o.Allow(origin) != allowed {
			t.Errorf("%q: allowed is %v", origin, !allowed)
		}
	}
	for bad, why := range map[string]string{
		"": "path", "a.example": "path", "https://a.example/": "path", "https://a.example/p": "path", "https://u@a.example": "path", "https://a.example?x": "path",
		"null": "path", "https://": "path", "https://:443": "path", "https://a.example,": "path",
		"https://*.example.com": "* within", "https://a.example,*": "path", "https://bücher.example": "xn--",
	} {
		err := new(Origins).UnmarshalText([]byte(bad))
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A request for a page of another origin is foreign, whatever its method, unless that origin is named.
func TestForeign(t *testing.T) {
	t.Parallel()
	var named, all Origins
	for o, text := range map[*Origins]string{&named: "https://shop.example.com", &all: "*"} {
		err := o.UnmarshalText([]byte(text))
		require.NoError(t, err)
	}
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
			if got := (Origins{}).Foreign(r); got != c.foreign || all.Foreign(r) != c.foreign || named.Foreign(r) != c.foreignNamed || r.Method != method {
				t.Errorf("%s of %q, %q: %v, of any %v, named %v", method, c.origin, c.site, got, all.Foreign(r), named.Foreign(r))
			}
		}
	}
}

func TestFromBrowser(t *testing.T) {
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
		if got := FromBrowser(r); got != c.browser {
			t.Errorf("%s: %s: %v", c.name, c.value, got)
		}
	}
}

func TestOriginOf(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://shop.example.com/a?b#c": "https://shop.example.com", "https://shop.example.com": "https://shop.example.com", "https://shop.example.com:443/": "https://shop.example.com",
		"http://localhost:3000/x": "http://localhost:3000", "https://user:pw@shop.example.com/": "https://shop.example.com",
		"https://evil.example/https://shop.example.com": "https://evil.example", "https://shop.example.com@evil.example/": "https://evil.example",
		"": "", "about:client": "", "null": "", "/path": "", "//shop.example.com": "", "https://%zz/": "", "https://*/": "",
	} {
		if got := OriginOf(address); got != want {
			t.Errorf("%q is of %q, want %q", address, got, want)
		}
	}
}
