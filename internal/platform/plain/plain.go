// Package plain has one form for all spellings of a host, an address, a path or a method, so that each counts
// under one name: in counters of publish, and in keys of limits in query and rls.
package plain

import (
	"net"
	"net/netip"
	"net/url"
	"path"
	"strings"
)

// Host is a host without its port, its brackets and the dot of the root, in lower case. An address has the
// form of Address.
func Host(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	name = strings.TrimRight(strings.ToLower(name), ".")
	if address, err := netip.ParseAddr(name); err == nil {
		return Address(address).String()
	}
	return name
}

// Address is an address in the form that networks are compared with: IPv4 within IPv6 is IPv4.
func Address(address netip.Addr) netip.Addr { return address.Unmap().WithZone("") }

// clientPrefix is how much of an IPv6 address names a client. Every client has at least a /64, and could
// otherwise have as many keys as addresses.
const clientPrefix = 64

// Client returns the key of a client's address.
func Client(address netip.Addr) string {
	address = Address(address)
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, clientPrefix).Masked().String()
}

// Target is a target's path without escapes, double slashes and dots.
func Target(target string) string {
	escaped, _, _ := strings.Cut(target, "?")
	unescaped, err := url.PathUnescape(escaped)
	if err != nil {
		unescaped = escaped
	}
	return Path(unescaped)
}

// Path is a path without double slashes and dots.
func Path(p string) string { return path.Clean("/" + p) }

// Method is a method in upper case: some servers take get for GET.
func Method(method string) string { return strings.ToUpper(method) }
