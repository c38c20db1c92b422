package query

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/web/api"
	"tallyroll/tests/asking"
)

func TestBadInput(t *testing.T) {
	t.Parallel()
	s, f := onFake(t)
	s.answers.MaxKeys = 3
	s.live.MaxKeys = 3
	watched(t, s)
	h := s.handler()
	const get, post = http.MethodGet, http.MethodPost
	tomorrow := url.QueryEscape(asking.FakeNow.Add(24 * time.Hour).Format(time.RFC3339))
	for _, c := range []struct {
		name, method, target, body string
		status                     int
		detail                     string // part of it
	}{
		{"no counter", get, "/v1/total?window=1h", "", 400, "key: "},
		{"counter without a name", get, "/v1/total?key=&window=1h", "", 400, "key: "},
		{"one of the counters without a name", get, "/v1/total?key=a&key=&window=1h", "", 400, "key: "},
		{"first counter without a name", get, "/v1/total?key=&key=a&window=1h", "", 400, "key: "},
		{"counter without =", get, "/v1/total?key&window=1h", "", 400, "key: "},
		{"long counter", get, "/v1/total?key=" + strings.Repeat("k", 513) + "&window=1h", "", 400, "key: a counter's name of 513 bytes"},
		{"control character", get, "/v1/total?key=a%0Ab&window=1h", "", 400, `key: "a\nb"`},
		{"control character of C1", get, "/v1/total?key=a%C2%85b&window=1h", "", 400, "key: "},
		{"not UTF-8", get, "/v1/total?key=a%ffb&window=1h", "", 400, `key: "a\xffb"`},
		{"broken escape", get, "/v1/total?key=a%zz&window=1h", "", 400, "%zz"},
		{"semicolon", get, "/v1/total?key=a;window=1h", "", 400, "semicolon"},
		{"too many counters", get, "/v1/total?key=a&key=b&key=c&key=d&window=1h", "", 413, "key: 4 counters in one request: at most 3"},
		{"neither window nor range", get, "/v1/total?key=a", "", 400, "window: "},
		{"empty window", get, "/v1/total?key=a&window=", "", 400, "window: "},
		{"first window empty", get, "/v1/total?key=a&window=&window=1h", "", 400, "window: "},
		{"window without unit", get, "/v1/total?key=a&window=24", "", 400, `window: "24"`},
		{"window of nothing", get, "/v1/total?key=a&window=0s", "", 400, "window: "},
		{"negative window", get, "/v1/total?key=a&window=-1h", "", 400, "window: "},
		{"window of centuries", get, "/v1/total?key=a&window=999w", "", 400, "window: "},
		{"long window", get, "/v1/total?key=a&window=" + strings.Repeat("9", 5000) + "s", "", 400, "window: "},
		{"windows in a list", get, "/v1/total?key=a&window=1h,2h", "", 400, "window: "},
		{"too many windows", get, "/v1/total?key=a" + strings.Repeat("&window=1h", 9), "", 400, "window: 9 windows"},
		{"window and from", get, "/v1/total?key=a&window=1h&from=1", "", 400, "from: "},
		{"window and to", get, "/v1/total?key=a&window=1h&to=1", "", 400, "to: "},
		{"to alone", get, "/v1/total?key=a&to=1", "", 400, "from: "},
		{"at and from", get, "/v1/total?key=a&from=1&at=2", "", 400, "at: "},
		{"at in words", get, "/v1/total?key=a&window=1h&at=yesterday", "", 400, `at: "yesterday"`},
		{"empty at", get, "/v1/total?key=a&window=1h&at=", "", 400, "at: "},
		{"empty from, empty to and empty at", get, "/v1/total?key=a&window=1h&to=&from=&at=", "", 400, "at: it is empty"},
		{"two ats", get, "/v1/total?key=a&window=1h&at=1&at=2", "", 400, "at: it is given 2 times"},
		{"at ahead", get, "/v1/total?key=a&window=1h&at=" + tomorrow, "", 400, "at: "},
		{"at before 1970", get, "/v1/total?key=a&window=1h&at=-1", "", 400, "at: "},
		{"at of no int64", get, "/v1/total?key=a&window=1h&at=99999999999999999999", "", 400, "at: "},
		{"at of the least int64", get, "/v1/total?key=a&window=1h&at=-9223372036854775808", "", 400, "at: "},
		{"at with a fraction", get, "/v1/total?key=a&window=1h&at=1795255200000.5", "", 400, "at: "},
		{"at without zone", get, "/v1/total?key=a&window=1h&at=2026-11-21T10:00:00", "", 400, "at: "},
		{"from in words", get, "/v1/total?key=a&from=x", "", 400, `from: "x"`},
		{"to in words", get, "/v1/total?key=a&from=1&to=x", "", 400, `to: "x"`},
		{"empty from", get, "/v1/total?key=a&from=", "", 400, "from: "},
		{"from after to", get, "/v1/total?key=a&from=1000&to=1000", "", 400, "from: "},
		{"to ahead", get, "/v1/total?key=a&from=1000&to=" + tomorrow, "", 400, "to: "},
		{"from after now", get, "/v1/total?key=a&from=" + tomorrow, "", 400, "from: "},
		{"beyond reach", get, "/v1/total?key=a&window=1h&at=1000", "", 400, "window: 1h: the question reaches back"},
		{"mistyped parameter", get, "/v1/total?key=a&windwo=1h", "", 400, `"windwo": allowed are at, from, group, key, prefix, to, tz, window`},
		{"parameter in capitals", get, "/v1/total?key=a&window=1h&At=1", "", 400, `"At"`},
		{"parameter without a name", get, "/v1/total?key=a&window=1h&=1", "", 400, `unknown parameter ""`},
		{"top of no window", get, "/v1/top", "", 400, "window: it is missing"},
		{"top of an empty window", get, "/v1/top?window=", "", 400, "window: it is empty"},
		{"top of a bad window", get, "/v1/top?window=24", "", 400, `window: "24"`},
		{"top of two windows", get, "/v1/top?window=1h&window=2h", "", 400, "window: it is given 2 times"},
		{"top beyond reach", get, "/v1/top?window=2d", "", 400, "window: 2d: the question reaches back"},
		{"top of none", get, "/v1/top?window=1h&limit=0", "", 400, `limit: "0": allowed is a whole number from 1 to 1000`},
		{"top of too many", get, "/v1/top?window=1h&limit=1001", "", 400, "limit: "},
		{"top of words", get, "/v1/top?window=1h&limit=ten", "", 400, `limit: "ten"`},
		{"top ahead", get, "/v1/top?window=1h&at=" + tomorrow, "", 400, "at: "},
		{"top of a counter", get, "/v1/top?window=1h&key=a", "", 400, `"key": allowed are at, group, limit, prefix, window`},
		{"names in words", get, "/v1/counters?limit=x", "", 400, `limit: "x": allowed is a whole number from 1 to 1000`},
		{"names with a control character", get, "/v1/counters?prefix=a%0Ab", "", 400, `prefix: "a\nb"`},
		{"names after no UTF-8", get, "/v1/counters?after=a%ff", "", 400, `after: "a\xff"`},
		{"names after nothing", get, "/v1/counters?after=", "", 400, "after: it is empty"},
		{"names of a window", get, "/v1/counters?window=1h", "", 400, `"window": allowed are after, limit, match, prefix, totals`},

		{"parameters for a body", post, "/v1/total?key=a", `{"keys":["a"],"windows":["1h"]}`, 400, `"key": POST /v1/total takes none`},
		{"no body", post, "/v1/total", "", 400, "body: it is empty"},
		{"no JSON", post, "/v1/total", "key=a&window=1h", 400, "body: it is not JSON at byte 1"},
		{"JSON that ends early", post, "/v1/total", `{"keys":["a"]`, 400, "body: "},
		{"a list", post, "/v1/total", `["a"]`, 400, "body: its JSON is of the type array"},
		{"null", post, "/v1/total", `null`, 400, "keys: "},
		{"two objects", post, "/v1/total", `{"keys":["a"],"windows":["1h"]}{}`, 400, "body: "},
		{"mistyped field", post, "/v1/total", `{"keys":["a"],"window":["1h"]}`, 400, `"window": allowed are keys, windows, at, from, to, prefix, group, tz`},
		{"no counters", post, "/v1/total", `{"windows":["1h"]}`, 400, "keys: "},
		{"empty list of counters", post, "/v1/total", `{"keys":[],"windows":["1h"]}`, 400, "keys: "},
		{"counters as text", post, "/v1/total", `{"keys":"a","windows":["1h"]}`, 400, "keys: it has a value of the type string: allowed is an array"},
		{"a number as a counter", post, "/v1/total", `{"keys":[1],"windows":["1h"]}`, 400, "keys"},
		{"null as a counter", post, "/v1/total", `{"keys":[null],"windows":["1h"]}`, 400, "keys: "},
		{"control character in a body", post, "/v1/total", `{"keys":["a\u0000"],"windows":["1h"]}`, 400, "keys: "},
		{"not UTF-8 in a body", post, "/v1/total", "{\"keys\":[\"a\xff\"],\"windows\":[\"1h\"]}", 400, "body: it is not valid UTF-8"},
		{"too many counters in a body", post, "/v1/total", `{"keys":["a","b","c","d"],"windows":["1h"]}`, 413, "keys: 4 counters"},
		{"no windows", post, "/v1/total", `{"keys":["a"]}`, 400, "windows: "},
		{"empty list of windows", post, "/v1/total", `{"keys":["a"],"windows":[]}`, 400, "windows: "},
		{"bad window in a body", post, "/v1/total", `{"keys":["a"],"windows":["1x"]}`, 400, `windows: "1x"`},
		{"fraction as a time", post, "/v1/total", `{"keys":["a"],"windows":["1h"],"at":1.5}`, 400, `at: "1.5"`},
		{"object as a time", post, "/v1/total", `{"keys":["a"],"windows":["1h"],"at":{}}`, 400, `at: "{}"`},
		{"empty time", post, "/v1/total", `{"keys":["a"],"windows":["1h"],"at":""}`, 400, "at: "},
		{"large body", post, "/v1/total", `{"keys":["` + strings.Repeat("a", api.MaxBody) + `"]}`, 413, "body: it is larger than 1048576 bytes"},

		{"series of nothing", get, "/v1/series", "", 400, "key: "},
		{"series with an empty key", get, "/v1/series?key=", "", 400, "key: "},
		{"series with an unknown parameter", get, "/v1/series?key=a&window=1h", "", 400, "unknown parameter \"window\""},
		{"series with a bad step", get, "/v1/series?key=a&step=1", "", 400, `step: "1" is not a duration`},
		{"series with an empty step", get, "/v1/series?key=a&step=", "", 400, "step: it is empty"},
		{"series with two steps", get, "/v1/series?key=a&step=1m&step=2m", "", 400, "step: it is given 2 times"},
		{"series with a bad from", get, "/v1/series?key=a&from=yesterday", "", 400, "from: "},
		{"series that ends before it begins", get, "/v1/series?key=a&from=1795255200000&to=1795255100000", "", 400, "from: "},
		{"series out of reach", get, "/v1/series?key=a&from=0", "", 400, "from: the question reaches back"},
		{"series in the future", get, "/v1/series?key=a&to=" + tomorrow, "", 400, "to: "},
		{"series as xml", get, "/v1/series?key=a&format=xml", "", 400, `format: "xml" is not a format`},
		{"series of too many counters", get, "/v1/series?key=a&key=b&key=c&key=d", "", 413, "key: 4 counters"},
		{"series by post", post, "/v1/series", "{}", 405, "GET, HEAD"},

		{"live without a counter", get, "/v1/live?window=1m", "", 400, "key: "},
		{"live with an empty counter", get, "/v1/live?key=a&key=&window=1m", "", 400, "key: a counter without a name"},
		{"live with too many counters", get, "/v1/live?key=a&key=b&key=c&key=d&window=1m", "", 413, "key: 4 counters"},
		{"live with too many windows", get, "/v1/live?key=a&window=1m&window=2m&window=3m&window=4m&window=5m&window=6m&window=7m&window=8m&window=9m", "", 400, "window: 9 windows"},
		{"live with one bad window of two", get, "/v1/live?key=a&window=1m&window=2d", "", 400, "window: 2d: the question reaches back"},
		{"live with a bad as_of", get, "/v1/live?key=a&window=1m&as_of=1", "", 400, "as_of: \"1\": allowed is true or false"},
		{"live without a window", get, "/v1/live?key=a", "", 400, "window: it is missing"},
		{"live with an empty window", get, "/v1/live?key=a&window=", "", 400, "window: "},
		{"live with a bad window", get, "/v1/live?key=a&window=1", "", 400, `window: "1" is not a duration`},
		{"live out of reach", get, "/v1/live?key=a&window=2d", "", 400, "window: 2d: the question reaches back"},
		{"live of an earlier moment", get, "/v1/live?key=a&window=1m&at=1795255200000", "", 400, "unknown parameter"},

		{"unknown path", get, "/v1/totals", "", 404, `"/v1/totals"`},
		{"unknown path beside the API", get, "/nothing", "", 404, `"/nothing"`},
		{"path with a slash at the end", get, "/v1/total/", "", 404, `"/v1/total/"`},
		{"unknown method", "DELETE", "/v1/total", "", 405, "GET, HEAD, POST"},
		{"method of another route", post, "/healthz", "", 405, "GET, HEAD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.Forget()
			p := asking.Refused(t, asking.Ask(h, c.method, c.target, c.body, "Content-Type", "application/json"), c.status)
			if !strings.Contains(p.Detail, c.detail) {
				t.Errorf("detail %q, want %q in it", p.Detail, c.detail)
			}
			if len(p.Detail) > 500 {
				t.Errorf("detail of %d bytes", len(p.Detail))
			}
			// What depends on now, only the reader can refuse.
			byReader := strings.Contains(p.Detail, "reaches back") || strings.Contains(p.Detail, "later than now") || strings.Contains(c.name, "after now")
			if asked := f.Questions(); asked != nil && !byReader {
				t.Errorf("it asked %v", asked)
			}
		})
	}
}

// A body of the greatest size is read; one that breaks off is the client's fault.
func TestBodyEdges(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	body := `{"keys":["a"],"windows":["1h"]}`
	body += strings.Repeat(" ", api.MaxBody-len(body))
	answered(t, asking.Ask(s.handler(), http.MethodPost, "/v1/total", body))

	for _, c := range []struct {
		err    error
		status int
	}{{io.ErrUnexpectedEOF, http.StatusBadRequest}, {timeout{}, http.StatusRequestTimeout}} {
		r := httptest.NewRequest(http.MethodPost, "http://query.test/v1/total", io.MultiReader(strings.NewReader("{"), broken{c.err}))
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, r)
		asking.Refused(t, w.Result(), c.status)
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

type timeout struct{}

func (timeout) Error() string { return "timeout" }

func (timeout) Timeout() bool { return true }

func (timeout) Temporary() bool { return true }
