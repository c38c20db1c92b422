package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Hosts are the public names of an HTTP API. The zero value has none, and accepts only names that no stranger
// can own.
//
// They protect against DNS rebinding: once a visitor has loaded a web page, the page's owner can point its
// name to the address of an internal service. The browser then takes the service for the page's own origin,
// and lets the page send it any request. But the requests still name the page's host.
type Hosts struct {
	any   bool
	names []string
}

var hostName = regexp.MustCompile(`^[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*$`)

func (h *Hosts) UnmarshalText(text []byte) error {
	*h = Hosts{}
	if string(text) == "*" {
		h.any = true
		return nil
	}
	for name := range strings.SplitSeq(string(text), ",") {
		name = plainHost(strings.TrimSpace(name))
		if !hostName.MatchString(name) {
			return errors.New("* or comma-separated names of hosts in ASCII, without a scheme and a port, such as " +
				"stats.example.com")
		}
		h.names = append(h.names, name)
	}
	return nil
}

func plainHost(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// privateSuffixes end names that cannot be registered: RFC 6761 (localhost, test), 6762 (local), 8375
// (home.arpa), ICANN's resolution of 29 July 2024 (internal), and two that are no top-level domains (lan,
// svc).
var privateSuffixes = []string{".localhost", ".test", ".local", ".home.arpa", ".internal", ".lan", ".svc"}

// IsKnown reports whether no web page can have this host: it is an address, a name of one part, a name that
// cannot be registered, or one of h. Browsers always send a Host.
func (h Hosts) IsKnown(host string) bool {
	name := plainHost((&url.URL{Host: host}).Hostname())
	if h.any || name == "" || !strings.Contains(name, ".") || slices.Contains(h.names, name) {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// Refuse returns why a request with an unknown host is refused, or "". key is the setting that names hosts.
//
// A request with a token passes: no browser sends one by itself, and a page has none that was entered at
// another name. A request over HTTPS passes, because the browser has verified the page's name by the
// certificate.
func (h Hosts) Refuse(r *http.Request, key string) string {
	if r.TLS != nil || h.IsKnown(r.Host) {
		return ""
	}
	return fmt.Sprintf("%.64q is not a known name of this service, so a web page may have led a browser here: ask for "+
		"an address, or name the host in %s", r.Host, key)
}
