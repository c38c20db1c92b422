package web

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// Networks are networks of addresses; the zero value has none.
type Networks struct{ prefixes []netip.Prefix }

// UnmarshalText reads comma-separated networks and addresses.
func (n *Networks) UnmarshalText(text []byte) error {
	n.prefixes = nil
	for part := range strings.SplitSeq(string(text), ",") {
		part = strings.TrimSpace(part)
		prefix, err := netip.ParsePrefix(part)
		if err != nil {
			address, errAddress := netip.ParseAddr(part)
			if errAddress != nil || address.Zone() != "" {
				return fmt.Errorf("comma-separated networks and addresses, such as 10.0.0.0/8, 192.0.2.7 or fd00::/8")
			}
			address = address.Unmap()
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		n.prefixes = append(n.prefixes, prefix.Masked())
	}
	return nil
}

func (n Networks) Any() bool { return len(n.prefixes) > 0 }

// Client returns the address of a request's client, with these networks being those of trusted proxies. It is
// the peer's. If that is a proxy, it is the rightmost address of X-Forwarded-For that is not one: each
// proxy adds the address that it saw on the right, and what is left of that can be made up by the client.
func (n Networks) Client(r *http.Request) (netip.Addr, error) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the address of the connection, %s, cannot be read", Excerpt(r.RemoteAddr))
	}
	client := PlainAddress(peer.Addr())
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && n.contain(client); i-- {
		hop, ok := parseHop(hops[i])
		if !ok {
			break // the proxy did not know the address either, so its own has to do
		}
		client = hop
	}
	return client, nil
}

// HoldPeer reports whether a request comes from one of the networks.
func (n Networks) HoldPeer(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && n.contain(PlainAddress(peer.Addr()))
}

func (n Networks) contain(address netip.Addr) bool {
	for _, p := range n.prefixes {
		if p.Contains(address) {
			return true
		}
	}
	return false
}

// parseHop reads an entry of X-Forwarded-For. Some proxies add the port.
func parseHop(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return PlainAddress(withPort.Addr()), true
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return PlainAddress(address), err == nil
}

// PlainAddress returns an address in the form that networks are compared with.
func PlainAddress(address netip.Addr) netip.Addr { return address.Unmap().WithZone("") }

// clientPrefix is how much of an IPv6 address names a client: everybody has at least a /64, and could
// have as many keys as addresses otherwise.
const clientPrefix = 64

// AddressKey returns the key of a client's address.
func AddressKey(address netip.Addr) string {
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, clientPrefix).Masked().String()
}
