package plain

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEverySpellingIsOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		of        func(string) string
		want      string
		spellings []string
	}{
		{"host", Host, "shop.example", []string{"shop.example", "shop.example.", "Shop.EXAMPLE", "shop.example:443", "shop.example.:80", "SHOP.example.."}},
		{"host", Host, "2001:db8::1", []string{
			"2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:443", "2001:DB8:0:0:0:0:0:1", "[2001:0db8:0000::0001]:80", "2001:db8::0.0.0.1", "2001:db8::1%eth0",
		}},
		{"host", Host, "192.0.2.7", []string{"192.0.2.7", "192.0.2.7:80", "192.0.2.7.", "::ffff:192.0.2.7", "[::FFFF:c000:207]:80", "[0:0:0:0:0:ffff:192.0.2.7]"}},
		{"no host", Host, "", []string{"", ".", "[]", ":80"}},
		{"client", client, "2001:db8:1:2::/64", []string{"2001:db8:1:2:3::4", "2001:DB8:1:2:0:0:0:0", "2001:db8:1:2::192.0.2.7", "2001:db8:1:2::1%eth0"}},
		{"client", client, "192.0.2.7", []string{"192.0.2.7", "::ffff:192.0.2.7", "::FFFF:c000:0207"}},
		{"path", Target, "/a b/d", []string{"/a b/d", "/a%20b/d", "/a%20b//c/../d?x=/y", "a%20b/./d/"}},
		{"path", Target, "/", []string{"", "/", "/../..", "//", "?a"}},
		{"path", Target, "/%zz", []string{"/%zz", "//%zz?"}},
		{"method", Method, "GET", []string{"GET", "get", "Get"}},
	} {
		for _, spelling := range c.spellings {
			got := c.of(spelling)
			require.Equal(t, c.want, got, "%s %q", c.name, spelling)
			require.Equal(t, c.want, c.of(got), "%s %q once more", c.name, spelling)
		}
	}
}

func client(text string) string {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.String()
	}
	return Client(netip.MustParseAddr(text))
}
