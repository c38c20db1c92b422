package gate

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"tallyroll/internal/web"

	"tallyroll/internal/limit"
)

// forwarded is a request that a proxy asks about. It gives the variables of key templates their values.
type forwarded struct {
	request *http.Request // the proxy's
	proxies web.Networks
	// ownTarget is true if the proxy's request has the method, host and path of the other one as its own. If not, fields
	// tell them.
	ownTarget bool

	keyParam, key string // the parameter that chose {key}, and its value; empty if none did
}

// chooseKey gives {key} the value that the parameters key_header or key_ip choose.
func (f *forwarded) chooseKey(params url.Values) (err error) {
	switch header, byIP := params["key_header"], params["key_ip"]; {
	case header != nil && byIP != nil:
		return web.BadInput("key_ip", "not together with key_header: the key is one of them")
	case header != nil:
		f.keyParam = "key_header"
		f.key, err = f.header(header[0])
	case byIP != nil && byIP[0] != "1":
		return web.BadInput("key_ip", "%s: allowed is 1", web.Excerpt(byIP[0]))
	case byIP != nil:
		f.keyParam = "key_ip"
		f.key, err = f.address()
	}
	if err != nil {
		return web.BadInput(f.keyParam, "%v", err)
	}
	if f.keyParam != "" {
		return checkTakeKey(f.keyParam, f.key)
	}
	return nil
}

// value is what a variable of a key template stands for.
func (f *forwarded) value(variable string) (string, error) {
	switch variable {
	case limit.VarKey:
		if f.keyParam == "" && f.ownTarget {
			return "", errors.New("a request of this form has no key: use {ip} or {header.NAME}")
		}
		if f.keyParam == "" {
			return "", web.BadInput("key_header", "it is missing: name the header that has the key, or give key_ip=1")
		}
		return f.key, nil
	case limit.VarIP:
		return f.address()
	case limit.VarMethod:
		return f.target("Method", f.request.Method), nil
	case limit.VarHost:
		return plainHostOf(f.target("Host", f.request.Host)), nil
	case limit.VarPath:
		return f.path(), nil
	}
	name, _ := limit.HeaderOf(variable)
	return f.header(name)
}

// callerOf returns the key that decides about the hash tag; value gives the variables of the limit's template their
// values. It depends on nothing but what hits are kept under: hits of one key would be in several places otherwise.
// Limits of one caller get the same tag where possible.
func callerOf(lim *limit.Limit, under string, value func(variable string) (string, error)) (string, error) {
	for _, variable := range []string{limit.VarKey, limit.VarIP} {
		if lim.Key.Uses(variable) {
			return value(variable)
		}
	}
	return under, nil
}

// header returns a field of the request. If there were two, the service behind the proxy might read the
// other one.
func (f *forwarded) header(name string) (string, error) {
	values := f.request.Header.Values(name)
	switch {
	case len(values) == 0 || values[0] == "":
		return "", fmt.Errorf("the request has no header %s", web.Excerpt(name))
	case len(values) > 1:
		return "", fmt.Errorf("the request has the header %s %d times: once is allowed", web.Excerpt(name), len(values))
	}
	return values[0], nil
}

func (f *forwarded) address() (string, error) {
	if !f.proxies.Any() {
		return "", errors.New("the client's address is not known: set QUERY_TRUSTED_PROXIES to the networks of the proxies")
	}
	address, err := f.proxies.Client(f.request)
	if err != nil {
		return "", err
	}
	return web.AddressKey(address), nil
}

// target is a part of the other request's target, as the proxy tells it.
func (f *forwarded) target(name, own string) string {
	if f.ownTarget {
		return own
	}
	for _, field := range []string{"X-Forwarded-" + name, "X-Original-" + name} {
		if told := f.request.Header.Get(field); told != "" {
			return told
		}
	}
	return own
}

// path is that of the other request, without escapes, double slashes and dots, so that another spelling of a
// path has no count of its own.
func (f *forwarded) path() string {
	if f.ownTarget {
		return cleanPath(f.request.PathValue(originalPath))
	}
	return plainPathOf(f.target("Uri", f.request.URL.EscapedPath()))
}

// plainPathOf is the path of a request's target.
func plainPathOf(target string) string {
	told, _, _ := strings.Cut(target, "?")
	plain, err := url.PathUnescape(told)
	if err != nil {
		plain = told
	}
	return cleanPath(plain)
}

func cleanPath(p string) string { return path.Clean("/" + p) }

// plainHostOf is a host without its port, in small letters.
func plainHostOf(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return strings.ToLower(name)
}
