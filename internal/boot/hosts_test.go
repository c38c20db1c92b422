package boot

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// What a page of the web can own is not known, unless it is named.
func TestHosts(t *testing.T) {
	var none, named, all Hosts
	for h, text := range map[*Hosts]string{&named: "Stats.Example.com., other.example", &all: "*"} {
		err := h.UnmarshalText([]byte(text))
		require.NoError(t, err)
	}
	for _, host := range []string{
		"", "localhost", "LOCALHOST:8080", "a.localhost:1", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "[::1]", "[fe80::1%25eth0]:80", "10.1.2.3:443", "[::ffff:10.1.2.3]:80",
		"query", "query:8080", "Query.", "host-1:80", "query.test", "printer.local", "query.shop.svc:8080", "query.shop.svc.cluster.local", "box.home.arpa", "box.lan", "host.docker.internal:8080",
	} {
		if !none.Know(host) || !named.Know(host) {
			t.Errorf("%q is not known", host)
		}
	}
	for _, host := range []string{
		"stats.example.com", "STATS.example.com:8080", "stats.example.com.:8080", "other.example",
	} {
		if none.Know(host) || !named.Know(host) || !all.Know(host) {
			t.Errorf("%q: without a name %v, with it %v", host, none.Know(host), named.Know(host))
		}
	}
	for _, host := range []string{
		"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "local.evil.example:80", "evil.example.", "1.2.3.4.5", "a.stats.example.com", "stats.example.com.evil.example", "xlocal.example",
		"evil.example:", "[evil.example]:80", "localhost:80@evil.example", "query.shop",
	} {
		if none.Know(host) || named.Know(host) || !all.Know(host) {
			t.Errorf("%q is known", host)
		}
	}
	for _, bad := range []string{"", ",", "a.example,", "https://a.example", "a.example:80", "a.example/x", "*.example.com", "a.example,*", "bücher.example", "a b", ".example", "a..example", strings.Repeat("a", 64) + ".example"} {
		err := new(Hosts).UnmarshalText([]byte(bad))
		if err == nil || !strings.Contains(err.Error(), "without a scheme and a port") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestHostsRefuse(t *testing.T) {
	r := &http.Request{Host: "evil.example:8080"}
	if why := (Hosts{}).Refuse(r, "QUERY_HOSTS"); !strings.HasPrefix(why, `"evil.example:8080" is no name`) || !strings.HasSuffix(why, "QUERY_HOSTS") {
		t.Error(why)
	}
	r.TLS = new(tls.ConnectionState)
	require.Empty(t, (Hosts{}).Refuse(r, "QUERY_HOSTS"))
	r = &http.Request{Host: strings.Repeat("\u202e\xff.", 5000)}
	if why := (Hosts{}).Refuse(r, "QUERY_HOSTS"); why == "" || len(why) > 1000 || !utf8.ValidString(why) || strings.Contains(why, "\u202e") {
		t.Errorf("of a strange host: %q", why)
	}
}
