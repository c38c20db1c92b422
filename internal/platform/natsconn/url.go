package natsconn

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"tallyroll/internal/platform/setting"
)

// Servers are the servers of NATS_URL. They print as hosts; only a connection gets their credentials.
type Servers struct {
	text  *string // comma-separated, as in nats.Connect; a pointer, which %+v of a struct around it does not follow
	hosts string  // host:port,host:port
}

var natsSchemes = []string{"nats", "tls", "ws", "wss"}

// otherSchemes are likely mistakes, which an error may quote.
var otherSchemes = []string{"http", "https", "tcp", "redis", "rediss", "mqtt", "amqp"}

const natsForms = "comma-separated servers, each host:port or nats://[user:password@]host:port; tls:// for TLS, " +
	"ws:// and wss:// for WebSocket"

// UnmarshalText reads a comma-separated list of servers. Errors quote at most a known scheme, because an
// unescaped password can be in any other part.
func (s *Servers) UnmarshalText(text []byte) error {
	var servers, hosts []string
	sockets := 0
	for entry := range strings.SplitSeq(string(text), ",") {
		entry = strings.TrimSpace(entry)
		if !strings.Contains(entry, "://") && !strings.Contains(entry, "@") {
			entry = "nats://" + entry
		}
		u, err := parseNATSServer(entry)
		if err != nil {
			return fmt.Errorf("%s (%w)", natsForms, err)
		}
		if isWebSocket(u) {
			sockets++
		}
		servers, hosts = append(servers, entry), append(hosts, u.Host)
	}
	if sockets > 0 && sockets < len(servers) {
		return fmt.Errorf("%s (some, but not all, are WebSocket)", natsForms)
	}
	all := strings.Join(servers, ",") // unchanged: an escaped comma must stay escaped
	s.text, s.hosts = &all, strings.Join(hosts, ",")
	return nil
}

// parseNATSServer is stricter than the library, which accepts any scheme and ignores what follows the host.
func parseNATSServer(text string) (*url.URL, error) {
	escape := fmt.Errorf("a comma, / ? or # in a password is written %%2C, %%2F, %%3F or %%23")
	scheme, _, found := strings.Cut(text, "://")
	switch {
	case !found:
		return nil, fmt.Errorf("a server with a user begins with nats://; %w", escape)
	case strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz0123456789+-.") != "":
		return nil, fmt.Errorf("one of them is not a URL; %w", escape)
	case slices.Contains(otherSchemes, strings.ToLower(scheme)):
		return nil, fmt.Errorf("not %s://", scheme)
	case !slices.Contains(natsSchemes, strings.ToLower(scheme)): // maybe a part of a password, after a comma
		return nil, fmt.Errorf("one of them has another scheme; %w", escape)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("one of them is not a URL; %w", escape) // err quotes it
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	switch {
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || strings.Contains(u.Path, "@") || u.Path != "" &&
		!isWebSocket(u):
		return nil, fmt.Errorf("nothing follows the port; %w", escape)
	case u.Hostname() == "":
		return nil, fmt.Errorf("one of them has no host")
	}
	if port := u.Port(); port != "" && !setting.IsPort(port) {
		return nil, fmt.Errorf("a port is a number from 1 to 65535")
	}
	return u, nil
}

// isWebSocket reports whether a server uses WebSocket. Only such a server can be behind a proxy and have a
// path.
func isWebSocket(u *url.URL) bool { return u.Scheme == "ws" || u.Scheme == "wss" }

// Set reports whether there is a server, because the setting may have no default.
func (s Servers) Set() bool { return s.text != nil }

// String returns host:port of each server, without credentials.
func (s Servers) String() string { return s.hosts }

// GoString is String, because %#v would print the credentials.
func (s Servers) GoString() string { return s.hosts }

type natsLogin struct{ user, password, token string }

// logins returns the different credentials of the servers.
func (s Servers) logins() (out []natsLogin) {
	for entry := range strings.SplitSeq(*s.text, ",") {
		u, err := url.Parse(entry)
		if err != nil || u.User == nil {
			continue
		}
		login := natsLogin{token: u.User.Username()} // as in the library: without a password, it is a token
		if password, ok := u.User.Password(); ok {
			login = natsLogin{user: u.User.Username(), password: password}
		}
		if !slices.Contains(out, login) {
			out = append(out, login)
		}
	}
	return out
}

func (s Servers) withoutCredentials() Servers {
	var servers []string
	for entry := range strings.SplitSeq(*s.text, ",") {
		scheme, rest, _ := strings.Cut(entry, "://")
		credentials := strings.LastIndexByte(rest, '@') + 1 // none are after the host
		servers = append(servers, scheme+"://"+rest[credentials:])
	}
	all := strings.Join(servers, ",")
	return Servers{text: &all, hosts: s.hosts}
}
