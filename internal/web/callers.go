package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"tallyroll/internal/platform/plain"
)

// Origins are the origins whose pages may call from a browser; the zero value allows none.
type Origins struct {
	any   bool
	exact []string
}

func (o *Origins) UnmarshalText(text []byte) error {
	if string(text) == "*" {
		*o = Origins{any: true}
		return nil
	}
	err := o.Name(string(text))
	if err != nil {
		return fmt.Errorf("* or %w", err)
	}
	return nil
}

// Name reads comma-separated origins; * is not allowed.
func (o *Origins) Name(text string) error {
	*o = Origins{}
	for text := range strings.SplitSeq(text, ",") {
		origin, err := parseOrigin(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("comma-separated origins such as https://shop.example.com, %w", err)
		}
		o.exact = append(o.exact, origin)
	}
	return nil
}

// CORS is what browsers learn about calls from other origins' pages.
type CORS struct {
	Origins Origins
	Methods string // that pages may use, comma-separated
	Headers string // that pages may send
	Expose  string // headers of answers that pages may read
	// Credentials lets browsers send requests that may carry cookies, as sendBeacon's. It needs named
	// origins.
	Credentials bool
}

// Apply adds the CORS headers if the request comes from an allowed origin, and answers a preflight, which
// carries no token. It reports whether it has answered the request.
func (c CORS) Apply(w http.ResponseWriter, r *http.Request) (answered bool) {
	if c.Origins.IsEmpty() {
		return false
	}
	h, origin := w.Header(), r.Header.Get("Origin")
	if c.Origins.Any() {
		origin = "*"
	} else {
		h.Add("Vary", "Origin")
		if !c.Origins.Allow(origin) {
			return false
		}
		if c.Credentials {
			h.Set("Access-Control-Allow-Credentials", "true")
		}
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", c.Expose)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", c.Methods)
	h.Set("Access-Control-Allow-Headers", c.Headers)
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

func (o Origins) IsEmpty() bool { return !o.any && len(o.exact) == 0 }

func (o Origins) Any() bool { return o.any }

// Allow reports whether an origin, as browsers write it, is allowed.
func (o Origins) Allow(origin string) bool { return o.any || slices.Contains(o.exact, origin) }

// otherSites recognises what a browser sends for a page of another origin: by Sec-Fetch-Site or, from older
// browsers, by an Origin that is not the Host.
var otherSites = http.NewCrossOriginProtection()

// IsForeign reports whether a browser sends a request for a page of another origin that is not named here. If
// any origin is allowed, none is named.
func (o Origins) IsForeign(r *http.Request) bool {
	if slices.Contains(o.exact, r.Header.Get("Origin")) {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions: // which the library takes for harmless
		r = r.WithContext(r.Context())
		r.Method = http.MethodPost
	}
	return otherSites.Check(r) != nil
}

// FromBrowser reports whether a request has what browsers send and other programs rarely do. The User-Agent
// of every browser begins with Mozilla.
func FromBrowser(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Referer") != "" ||
		strings.HasPrefix(r.UserAgent(), "Mozilla/")
}

// OriginOf returns the origin of a page's address, such as a Referer, or "".
func OriginOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" || u.Hostname() == "" {
		return ""
	}
	origin, err := parseOrigin(u.Scheme + "://" + u.Host)
	if err != nil {
		return ""
	}
	return origin
}

// usualPorts are those that browsers leave out.
var usualPorts = map[string]string{"http": ":80", "https": ":443"}

func parseOrigin(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Hostname() == "" || text != u.Scheme+"://"+u.Host {
		return "", errors.New("without a path")
	}
	if strings.Contains(u.Host, "*") {
		return "", errors.New("each named: * within an origin is not supported")
	}
	if strings.IndexFunc(u.Host, func(r rune) bool { return r > '~' }) >= 0 {
		return "", errors.New("in ASCII, as browsers write them: xn--…")
	}
	return strings.TrimSuffix(strings.ToLower(text), usualPorts[u.Scheme]), nil
}

// Networks are networks of addresses; the zero value has none.
type Networks struct{ prefixes []netip.Prefix }

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

// Client returns the address of a request's client; n are the networks of trusted proxies. It is the peer's
// or, if that is a proxy, the rightmost address of X-Forwarded-For that is no proxy's: each proxy
// appends the address that it saw, and the client can forge what is left of that.
func (n Networks) Client(r *http.Request) (netip.Addr, error) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the address of the connection, %s, cannot be read", Excerpt(r.RemoteAddr))
	}
	client := plain.Address(peer.Addr())
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

// ContainPeer reports whether a request comes from one of the networks.
func (n Networks) ContainPeer(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && n.contain(plain.Address(peer.Addr()))
}

func (n Networks) contain(address netip.Addr) bool {
	return slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}

// parseHop reads an entry of X-Forwarded-For. Some proxies add the port.
func parseHop(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return plain.Address(withPort.Addr()), true
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return plain.Address(address), err == nil
}
