package web

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNetworks(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "10.0.0.0/33", "10.0.0.0/8,", "localhost", "10.0.0.1:80", "fe80::1%eth0"} {
		if err := new(Networks).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestClientAddress(t *testing.T) {
	t.Parallel()
	var trusted Networks
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
		t.Run(c.name, func(t *testing.T) {
			address, err := trusted.Client(&http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.forwarded}})
			if err != nil || AddressKey(address) != c.want {
				t.Errorf("%v, %v; want %s", address, err, c.want)
			}
		})
	}
	if _, err := trusted.Client(&http.Request{RemoteAddr: "@"}); err == nil {
		t.Error("a connection without an address has one")
	}
}
