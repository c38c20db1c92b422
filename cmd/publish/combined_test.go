package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
)

const goodLine = `83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /images/a.png?x=1&y=2 HTTP/1.1" 200 203023 "http://example.com/" "Mozilla/5.0 (X11)"`

func TestCombinedParser(t *testing.T) {
	t.Parallel()
	at := time.Date(2015, time.May, 17, 10, 5, 3, 0, time.UTC).UnixMilli()
	head := `h - - [17/May/2015:10:05:03 +0000] `
	cases := []struct {
		name string
		line string
		key  field
		want string
		ts   int64
		err  error
	}{
		{name: "combined", line: goodLine, want: "/images/a.png", ts: at},
		{name: "query", line: goodLine, key: "url", want: "/images/a.png?x=1&y=2", ts: at},
		{name: "url without a query", line: head + `"GET / HTTP/1.0" 304 -`, key: "url", want: "/", ts: at},
		{name: "two question marks", line: head + `"GET /a?b?c HTTP/1.0" 304 -`, want: "/a", ts: at},
		{name: "empty query", line: head + `"GET /a? HTTP/1.0" 304 -`, want: "/a", ts: at},
		{name: "whole address", line: head + `"GET http://example.com/a?b HTTP/1.0" 304 -`, want: "http://example.com/a", ts: at},
		{name: "common", line: head + `"GET / HTTP/1.0" 304 -`, want: "/", ts: at},
		{name: "nothing after the status", line: head + `"GET / HTTP/1.0" 304`, want: "/", ts: at},
		{name: "agent cut off", line: head + `"GET /a HTTP/1.1" 200 235 "-" "Mozilla/5.0 (compatible; Goo`, want: "/a", ts: at},
		{name: "escaped quote", line: head + `"GET /a\"b\\ HTTP/1.1" 200 1`, want: `/a\"b\\`, ts: at},
		{name: "spaces in the target", line: head + `"GET /a b c HTTP/1.1" 200 1`, want: "/a b c", ts: at},
		{name: "no protocol", line: head + `"GET /old" 200 1`, want: "/old", ts: at},
		{name: "user with brackets", line: `h - a [b] [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, want: "/", ts: at},
		{name: "zone east", line: `h - - [17/May/2015:12:35:03 +0230] "GET / HTTP/1.1" 200 1`, want: "/", ts: at},
		{name: "zone west", line: `h - - [17/May/2015:02:05:03 -0800] "GET / HTTP/1.1" 200 1`, want: "/", ts: at},
		{name: "host", line: goodLine, key: "host", want: "83.149.9.216", ts: at},
		{name: "status", line: goodLine, key: "status", want: "200", ts: at},
		{name: "method", line: goodLine, key: "method", want: "GET", ts: at},
		{name: "status of an empty request", line: head + `"-" 408 -`, key: "status", want: "408", ts: at},
		{name: "UTF-8", line: head + `"GET /né HTTP/1.1" 200 1`, want: "/né", ts: at},

		{name: "path of an empty request", line: head + `"-" 408 -`, err: errNoPath},
		{name: "method of an empty request", line: head + `"-" 408 -`, key: "method", err: errNoMethod},
		{name: "a query alone", line: head + `"GET ?a=1 HTTP/1.1" 400 -`, err: errNoPath},
		{name: "no path", line: head + `"GET HTTP/1.1" 400 -`, err: errNoPath},
		{name: "one word", line: "word", err: errNoHost},
		{name: "leading space", line: " " + goodLine, err: errNoHost},
		{name: "no time", line: `h - - "GET / HTTP/1.1" 200 1`, err: errNoTime},
		{name: "31 April", line: `h - - [31/Apr/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, err: errNoTime},
		{name: "month in words unknown", line: `h - - [17/Mai/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, err: errNoTime},
		{name: "year 0", line: `h - - [31/Dec/0000:23:59:59 +0000] "GET / HTTP/1.1" 200 1`, err: hit.ErrTimeRange},
		{name: "hour 24", line: `h - - [17/May/2015:24:05:03 +0000] "GET / HTTP/1.1" 200 1`, err: errNoTime},
		{name: "time cut off", line: `h - - [17/May/2015:10:05`, err: errNoTime},
		{name: "no request", line: head + `GET / HTTP/1.1 200 1`, err: errNoRequest},
		{name: "ends at the time", line: head, err: errNoRequest},
		{name: "request not closed", line: head + `"GET / HTTP/1.1`, err: errOpenRequest},
		{name: "request ends in a backslash", line: head + `"GET / HTTP/1.1\`, err: errOpenRequest},
		{name: "no status", line: head + `"GET / HTTP/1.1"`, err: errNoStatus},
		{name: "status of letters", line: head + `"GET / HTTP/1.1" abc 1`, err: errNoStatus},
		{name: "status of four digits", line: head + `"GET / HTTP/1.1" 2000 1`, err: errNoStatus},
		{name: "not UTF-8", line: head + "\"GET /\xff HTTP/1.1\" 200 1", err: hit.ErrNameUTF8},
		{name: "control character", line: head + "\"GET /\x07 HTTP/1.1\" 200 1", err: hit.ErrNameControl},
		{name: "C1 control character", line: head + "\"GET /\u0085 HTTP/1.1\" 200 1", err: hit.ErrNameControl},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.key == "" {
				c.key = "path"
			}
			h, err := combinedParser(c.key, "")([]byte(c.line))
			if c.err != nil {
				if !errors.Is(err, c.err) {
					t.Fatalf("error %v, want %v", err, c.err)
				}
				return
			}
			require.NoError(t, err)
			if string(h.Counter) != c.want || h.At != c.ts || h.N != 1 {
				t.Fatalf("%q at %d, n %d; want %q at %d", h.Counter, h.At, h.N, c.want, c.ts)
			}
		})
	}
}

func TestCombinedUnique(t *testing.T) {
	t.Parallel()
	long := "/" + strings.Repeat("a", hit.MaxUnique)
	for _, c := range []struct {
		unique     field
		line, want string
		err        error
	}{
		{unique: "host", line: goodLine, want: "83.149.9.216"},
		{unique: "url", line: goodLine, want: "/images/a.png?x=1&y=2"},
		{unique: "status", line: goodLine, want: "200"},
		{unique: "path", line: strings.Replace(goodLine, "/images/a.png", long, 1), want: string(hit.Shorten([]byte(long)))},
		{unique: "host", line: "\xff" + goodLine, err: errBadUnique},
		{unique: "method", line: strings.Replace(goodLine, "GET ", " ", 1), err: errBadUnique},
	} {
		key := field("status")
		h, err := combinedParser(key, c.unique)([]byte(c.line))
		if !errors.Is(err, c.err) || err == nil && (string(h.Unique) != c.want || string(h.Counter) != "200") {
			t.Errorf("%s of %q: %q on %q (%v), want %q (%v)", c.unique, c.line, h.Unique, h.Counter, err, c.want, c.err)
		}
	}
}

func TestCombinedLongPath(t *testing.T) {
	t.Parallel()
	parse := combinedParser("path", "")
	seen := map[string]bool{}
	for _, path := range []string{
		"/" + strings.Repeat("a", hit.MaxName-1), "/" + strings.Repeat("a", hit.MaxName), "/" + strings.Repeat("a", hit.MaxName+1),
		"/" + strings.Repeat("ä", hit.MaxName), "/x" + strings.Repeat("ä", hit.MaxName),
	} {
		h, err := parse([]byte(`h - - [17/May/2015:10:05:03 +0000] "GET ` + path + ` HTTP/1.1" 200 1`))
		if err != nil {
			t.Errorf("path of %d bytes: %v", len(path), err)
		}
		if whole := string(h.Counter) == path; whole != (len(path) <= hit.MaxName) {
			t.Errorf("path of %d bytes is counted as %q", len(path), h.Counter)
		}
		if !strings.HasPrefix(string(h.Counter), path[:hit.MaxName-32]) {
			t.Errorf("path of %d bytes is counted as %q, which does not begin like it", len(path), h.Counter)
		}
		seen[string(h.Counter)] = true
	}
	if len(seen) != 5 {
		t.Errorf("5 paths are %d counters", len(seen))
	}
}

func FuzzCombinedParser(f *testing.F) {
	f.Add(goodLine)
	f.Add(`h - - [17/May/2015:10:05:03 +0000] "GET /a\"b HTTP/1.1" 200`)
	f.Add(`h - - [[17/May/2015:10:05:03 +0000] "-" 408`)
	f.Add(`h [`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, key := range []field{"path", "host", "status", "method"} {
			h, err := combinedParser(key, "")([]byte(line))
			if err != nil {
				continue
			}
			if err := hit.CheckName(h.Counter); err != nil {
				t.Errorf("%s %q: %v", key, h.Counter, err)
			}
			if len(h.Counter) < hit.MaxName-32 && !strings.Contains(line, string(h.Counter)) {
				t.Errorf("%s %q does not stand in the line", key, h.Counter)
			}
			if h.N != 1 || h.At == hit.NoTime {
				t.Errorf("n %d, ts %d", h.N, h.At)
			}
		}
	})
}
