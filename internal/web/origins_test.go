package web

import (
	"slices"
	"strings"
	"testing"
)

func TestOrigins(t *testing.T) {
	var o Origins
	err := o.UnmarshalText([]byte("https://Shop.Example.com, http://localhost:3000,https://b.example:443,http://c.example:80,https://[::1]:8443,capacitor://localhost"))
	if err != nil {
		t.Fatal(err)
	}
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

func TestOriginOf(t *testing.T) {
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
