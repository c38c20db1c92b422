package web

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A host that a page of the web can own is known only if a setting names it.
func TestHostThatAPageCanOwnIsKnownOnlyIfNamed(t *testing.T) {
	var none, named, all Hosts
	for h, text := range map[*Hosts]string{&named: "Stats.Example.com., other.example", &all: "*"} {
		require.NoError(t, h.UnmarshalText([]byte(text)))
	}
	for _, c := range []struct {
		without, with bool // known without a name, and with one
		hosts         string
	}{
		{true, true, `localhost LOCALHOST:8080 a.localhost:1 127.0.0.1 127.0.0.1:8080 [::1]:8080 [::1] [fe80::1%25eth0]:80
			10.1.2.3:443 [::ffff:10.1.2.3]:80 query query:8080 Query. host-1:80 query.test printer.local query.shop.svc:8080
			query.shop.svc.cluster.local box.home.arpa box.lan host.docker.internal:8080`},
		{false, true, "stats.example.com STATS.example.com:8080 stats.example.com.:8080 other.example"},
		{false, false, `evil.example evil.example:8080 127.0.0.1.evil.example localhost.evil.example local.evil.example:80
			evil.example. 1.2.3.4.5 a.stats.example.com stats.example.com.evil.example xlocal.example evil.example:
			[evil.example]:80 localhost:80@evil.example query.shop`},
	} {
		for _, host := range strings.Fields(c.hosts) {
			if none.IsKnown(host) != c.without || named.IsKnown(host) != c.with || !all.IsKnown(host) {
				t.Errorf("%q: without a name %v, with it %v", host, none.IsKnown(host), named.IsKnown(host))
			}
		}
	}
	require.True(t, none.IsKnown(""))
	long := strings.Repeat("a", 64) + ".example"
	for _, bad := range []string{
		"", ",", "a.example,", "https://a.example", "a.example:80", "a.example/x", "*.example.com", "a.example,*",
		"bücher.example", "a b", ".example", "a..example", long,
	} {
		require.ErrorContains(t, new(Hosts).UnmarshalText([]byte(bad)), "without a scheme and a port", bad)
	}
}

func TestUnknownHostIsRefusedInAShortLineExceptOverTLS(t *testing.T) {
	r := &http.Request{Host: "evil.example:8080"}
	if why := (Hosts{}).Refuse(r, "QUERY_HOSTS"); !strings.HasPrefix(why, `"evil.example:8080" is not a known name`) || !strings.HasSuffix(why, "QUERY_HOSTS") {
		t.Error(why)
	}
	r.TLS = new(tls.ConnectionState)
	require.Empty(t, (Hosts{}).Refuse(r, "QUERY_HOSTS"))
	r = &http.Request{Host: strings.Repeat("\u202e\xff.", 5000)}
	if why := (Hosts{}).Refuse(r, "QUERY_HOSTS"); why == "" || len(why) > 1000 || !utf8.ValidString(why) || strings.Contains(why, "\u202e") {
		t.Errorf("of a strange host: %q", why)
	}
}
