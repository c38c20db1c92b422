package main

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"tallyroll/internal/hit"
)

var (
	errNoHost       = errors.New("no host at the start")
	errNoTime       = errors.New("no time such as [17/May/2015:10:05:03 +0000]")
	errNoRequest    = errors.New("no request in quotes")
	errOpenRequest  = errors.New("the request's closing quote is missing")
	errNoPath       = errors.New("the request has no path")
	errNoMethod     = errors.New("the request has no method")
	errNoStatus     = errors.New("no status of three digits after the request")
	errBadUnique    = errors.New("what --unique names is empty or not valid UTF-8")
	errUnknownField = errors.New("no such field")
)

// field is a part of a log line: the counter's name, or the unique value.
type field string

// combinedParser parses the common and combined log formats:
//
//	host ident user [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 512 "referrer" "agent"
//
// What follows the status is ignored: servers cut long agents off, and the request was still served. The
// counter's name is as in the log, escapes included, so that it can be searched for there. An empty unique
// means no unique values.
func combinedParser(key, unique field) func(line []byte) (hit.Hit, error) {
	return func(line []byte) (hit.Hit, error) {
		var l logLine
		var ok bool
		l.host, line, ok = bytes.Cut(line, space)
		if !ok || len(l.host) == 0 {
			return hit.Hit{}, errNoHost
		}
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
		h := hit.Hit{N: 1, At: ts}
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
}

type logLine struct{ host, request, status []byte }

func (l *logLine) part(f field) (part []byte, err error) {
	switch f {
	case "path":
		// A query holds what differs per request: searches, tokens, campaign marks. Names with it would grow
		// without end, and each is a counter.
		part, err = requestTarget(l.request)
		part, _, _ = bytes.Cut(part, query)
		if err == nil && len(part) == 0 {
			err = errNoPath
		}
		return part, err
	case "url":
		return requestTarget(l.request)
	case "method":
		part, _, ok := bytes.Cut(l.request, space)
		if !ok {
			return nil, errNoMethod
		}
		return part, nil
	case "host":
		return l.host, nil
	case "status":
		return l.status, nil
	}
	return nil, errUnknownField
}

var (
	space = []byte{' '}
	query = []byte{'?'}
	proto = []byte("HTTP/")
)

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
		if at, err := time.Parse(timeForm, string(line[:timeLen])); err == nil {
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

func cutStatus(s []byte) ([]byte, error) {
	s = bytes.TrimLeft(s, " ")
	if len(s) < 3 || (len(s) > 3 && s[3] != ' ') {
		return nil, errNoStatus
	}
	if bytes.ContainsFunc(s[:3], func(r rune) bool { return r < '0' || r > '9' }) {
		return nil, errNoStatus
	}
	return s[:3], nil
}

// requestTarget is the target between method and protocol. It may have spaces, and HTTP/0.9 has no protocol.
func requestTarget(request []byte) ([]byte, error) {
	_, target, ok := bytes.Cut(request, space)
	if !ok {
		return nil, errNoPath // "-" if the client sent nothing, or bytes that are not HTTP
	}
	if i := bytes.LastIndexByte(target, ' '); i >= 0 && bytes.HasPrefix(target[i+1:], proto) {
		target = target[:i]
	} else if bytes.HasPrefix(target, proto) {
		return nil, errNoPath
	}
	target = bytes.Trim(target, " ")
	if len(target) == 0 {
		return nil, errNoPath
	}
	return target, nil
}

func parseField(s string) (field, error) {
	if !slices.Contains([]string{"path", "url", "host", "status", "method"}, s) {
		return "", errors.New("allowed is path, url, host, status or method")
	}
	return field(s), nil
}

func parseName(line []byte) (hit.Hit, error) {
	return hit.Hit{Counter: line, N: 1, At: hit.NoTime}, hit.CheckName(line)
}
