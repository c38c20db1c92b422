package boot

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

// Hosts are the public names under which an HTTP API may be asked. The zero value has none, and knows the names that
// no stranger can own.
//
// A page of the web can give its own name the address of a service inside, once a visitor has loaded it (DNS
// rebinding). The visitor's browser then takes the service for the page's own origin, and lets the page ask it
// anything. But the requests still name the page's host.
type Hosts struct {
	any   bool
	names []string
}

var hostName = regexp.MustCompile(`^[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*$`)

// UnmarshalText reads * or comma-separated names.
func (h *Hosts) UnmarshalText(text []byte) error {
	*h = Hosts{}
	if string(text) == "*" {
		h.any = true
		return nil
	}
	for name := range strings.SplitSeq(string(text), ",") {
		name = plainHost(strings.TrimSpace(name))
		if !hostName.MatchString(name) {
			return errors.New("* or comma-separated names of hosts in ASCII, without a scheme and a port, such as stats.example.com")
		}
		h.names = append(h.names, name)
	}
	return nil
}

func plainHost(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// privateSuffixes are the ends of names that nobody can register: RFC 6761 (localhost, test), RFC 6762 (local), RFC 8375
// (home.arpa), ICANN's resolution of 29 July 2024 (internal), and two that are no top-level domains (lan, svc).
var privateSuffixes = []string{".localhost", ".test", ".local", ".home.arpa", ".internal", ".lan", ".svc"}

// Know reports whether no page of the web can have this host, as a request names it: an address, a name of one part, a
// name that nobody can register, or one of h. Browsers always name a host.
func (h Hosts) Know(host string) bool {
	name := plainHost((&url.URL{Host: host}).Hostname())
	if h.any || name == "" || !strings.Contains(name, ".") || slices.Contains(h.names, name) {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// Refuse returns why a request is refused whose host is not known, or nothing. key is the setting that names hosts.
//
// It need not be asked about a request with a token: no browser sends one by itself, and a page has none that was
// entered at another name. A request over HTTPS is never refused: the browser has found the name of its page in the
// certificate.
func (h Hosts) Refuse(r *http.Request, key string) string {
	if r.TLS != nil || h.Know(r.Host) {
		return ""
	}
	return fmt.Sprintf("%.64q is no name of this service that it knows, so a page of the web may have led a browser here: ask for an address, or name the host in %s", r.Host, key)
}
