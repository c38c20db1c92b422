package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/plain"
)

var (
	errNoHost       = errors.New("no host at the start")
	errBadHost      = errors.New("the first field is not the client's address or host name")
	errNoTime       = errors.New("no time such as [17/May/2015:10:05:03 +0000]")
	errNoRequest    = errors.New("no request in quotes")
	errOpenRequest  = errors.New("the request's closing quote is missing")
	errNoPath       = errors.New("the request has no path")
	errNoMethod     = errors.New("the request has no method of token characters")
	errNoStatus     = errors.New("no status of three digits after the request")
	errBadUnique    = errors.New("what --unique names is empty or not valid UTF-8")
	errUnknownField = errors.New("no such field")
	errNotCaddy     = errors.New("not of Caddy's access log in JSON")
	errNoUnixTime   = errors.New("ts is no Unix time in seconds")
)

// field is a part of a log line: the counter's name, or the unique value.
type field string

// combinedParser parses the common and combined log formats:
//
//	host ident user [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 512 "referrer" "agent"
//
// Each field that key or unique needs is checked, because logs also hold what scanners send, and servers add
// fields of their own. What follows the status is ignored: servers cut long agents off, and the request was
// still served. A path is as in the log, escapes included, so that it can be searched for there; hosts and
// methods have one spelling. An empty unique means no unique values.
func combinedParser(key, unique field) func(line []byte) (hit.Hit, error) {
	return func(line []byte) (hit.Hit, error) {
		var l logLine
		var ok bool
		l.host, line, ok = bytes.Cut(line, space)
		if !ok || len(l.host) == 0 {
			return hit.Hit{}, errNoHost
		}
		l.ident, _, _ = bytes.Cut(line, space)
		ts, line, err := cutTime(line)
		if err != nil {
			return hit.Hit{}, err
		}
		if l.request, line, err = cutRequest(line); err != nil {
			return hit.Hit{}, err
		}
		if l.status, err = cutStatus(line); err != nil {
			return hit.Hit{}, err
		}
		return l.hit(ts, key, unique)
	}
}

// caddyParser parses the access log of Caddy, which is JSON by default, as combinedParser does. Its lines of
// errors have a request, too.
func caddyParser(key, unique field) func(line []byte) (hit.Hit, error) {
	return func(line []byte) (hit.Hit, error) {
		var access struct {
			Logger  string
			TS      float64
			Status  int
			Request struct {
				ClientIP string `json:"client_ip"` // since Caddy 2.7
				RemoteIP string `json:"remote_ip"`
				Method   string
				URI      string
				Proto    string
			}
		}
		err := json.Unmarshal(line, &access)
		if err != nil || !strings.HasPrefix(access.Logger, "http.log.access") {
			return hit.Hit{}, errNotCaddy
		}
		if access.TS < 1 || access.TS >= 1e12 { // none, or milliseconds
			return hit.Hit{}, errNoUnixTime
		}
		l := logLine{host: []byte(cmp.Or(access.Request.ClientIP, access.Request.RemoteIP, "-")), status: []byte{'-'}}
		if access.Status > 0 { // else the client went away
			l.status = strconv.AppendInt(nil, int64(access.Status), 10)
		}
		l.request = fmt.Appendf(nil, "%s %s %s", access.Request.Method, access.Request.URI, access.Request.Proto)
		return l.hit(int64(access.TS*1000), key, unique)
	}
}

type logLine struct{ host, ident, request, status []byte }

func (l *logLine) hit(ts int64, key, unique field) (h hit.Hit, err error) {
	h = hit.Hit{N: 1, At: ts}
	if h.Counter, err = l.part(key); err == nil {
		err = hit.CheckTime(ts)
	}
	if err == nil {
		h.Counter = hit.Shorten(h.Counter)
		err = hit.CheckName(h.Counter)
	}
	if err == nil && unique != "" {
		h.Unique, err = l.part(unique)
		h.Unique = hit.Shorten(h.Unique)
		if err == nil && hit.CheckUnique(h.Unique) != nil {
			err = errBadUnique
		}
	}
	return h, err
}

func (l *logLine) part(f field) ([]byte, error) {
	switch f {
	case "path":
		// A query holds what differs per request: searches, tokens, campaign marks. Names with it would grow
		// without end, and each is a counter.
		target, err := requestTarget(l.request)
		path, _, _ := bytes.Cut(target, query)
		return path, err
	case "url":
		return requestTarget(l.request)
	case "method":
		method, _, ok := bytes.Cut(l.request, space)
		if !ok || !isToken(method) {
			return nil, errNoMethod
		}
		return bytes.ToUpper(method), nil
	case "host":
		// A name before an address is a virtual host's.
		if host := string(l.host); !isAddress(host) && (!isHostName(host) || isAddress(string(l.ident))) {
			return nil, errBadHost
		}
		return []byte(plain.Host(string(l.host))), nil
	case "status":
		if l.status[0] == '-' {
			return nil, errNoStatus
		}
		return l.status, nil
	}
	return nil, errUnknownField
}

var (
	space = []byte{' '}
	query = []byte{'?'}
	proto = []byte("HTTP/")
)

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// isHostName reports whether s has letters, digits, hyphens, underscores and dots only. A name whose last
// label is a number would be an address (WHATWG URL, "ends in a number").
func isHostName(s string) bool {
	last := strings.TrimSuffix(s, ".")
	last = last[strings.LastIndexByte(last, '.')+1:]
	return isAlphanumeric(s[0]) && strings.Trim(last, "0123456789") != "" &&
		!strings.ContainsFunc(s, func(r rune) bool {
			return r > '~' || !isAlphanumeric(byte(r)) && !strings.ContainsRune("-_.", r)
		})
}

// isToken reports whether b is a token of HTTP (RFC 9110, section 5.6.2), as every method is.
func isToken(b []byte) bool {
	for _, c := range b {
		if !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return len(b) > 0
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// cutTime finds the first bracketed time, because a user's name may have brackets. It returns the rest, too.
func cutTime(line []byte) (ts int64, rest []byte, err error) {
	for {
		i := bytes.IndexByte(line, '[')
		if i < 0 {
			return 0, nil, errNoTime
		}
		line = line[i+1:]
		if len(line) <= timeLen || line[timeLen] != ']' {
			continue
		}
		at, err := time.Parse(timeForm, string(line[:timeLen]))
		zone := line[timeLen-len("0000") : timeLen] // of which time.Parse takes +2400 and +0160
		if err == nil && string(zone[:2]) < "24" && string(zone[2:]) < "60" {
			return at.UnixMilli(), line[timeLen+1:], nil
		}
	}
}

const (
	timeForm = "02/Jan/2006:15:04:05 -0700"
	timeLen  = len(timeForm)
)

// cutRequest returns the text between the quotes, in which \" and \\ are part of the request.
func cutRequest(s []byte) (request, rest []byte, err error) {
	s = bytes.TrimLeft(s, " ")
	if len(s) == 0 || s[0] != '"' {
		return nil, nil, errNoRequest
	}
	s = s[1:]
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i], s[i+1:], nil
		}
	}
	return nil, nil, errOpenRequest
}

// cutStatus returns a status of three digits, or the hyphen of a request that got no answer.
func cutStatus(s []byte) ([]byte, error) {
	s, _, _ = bytes.Cut(bytes.TrimLeft(s, " "), space)
	if string(s) != "-" && (len(s) != 3 || len(bytes.Trim(s, "0123456789")) > 0) {
		return nil, errNoStatus
	}
	return s, nil
}

// requestTarget is the target between method and protocol: a path with its query, or *. An absolute target is
// reduced to these, because the same page has one counter. It may have spaces, and HTTP/0.9 has no protocol.
func requestTarget(request []byte) ([]byte, error) {
	method, target, _ := bytes.Cut(request, space) // "-" if the client sent nothing
	if i := bytes.LastIndexByte(target, ' '); i >= 0 && bytes.HasPrefix(target[i+1:], proto) {
		target = target[:i]
	}
	target = bytes.Trim(target, " ")
	if scheme, rest, ok := bytes.Cut(target, []byte("://")); ok && isToken(scheme) && len(rest) > 0 {
		i := bytes.IndexAny(rest, "/?")
		switch {
		case i < 0:
			target = []byte("/")
		case i > 0 && rest[i] == '/':
			target = rest[i:]
		case i > 0:
			target = append([]byte("/"), rest[i:]...)
		}
	}
	if !isToken(method) || string(target) != "*" && !bytes.HasPrefix(target, []byte("/")) {
		return nil, errNoPath
	}
	return target, nil
}

func parseField(s string) (field, error) {
	if !slices.Contains([]string{"path", "url", "host", "status", "method"}, s) {
		return "", errors.New("must be path, url, host, status or method")
	}
	return field(s), nil
}

func parseName(line []byte) (hit.Hit, error) {
	return hit.Hit{Counter: line, N: 1, At: hit.NoTime}, hit.CheckName(line)
}
