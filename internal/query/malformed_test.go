package query

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tallyroll/tests/asking"
)

// Requests that are wrong in every part in turn are refused with a problem
// that the asker can mend: never an answer, never a fault of the service.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	watched(t, s)
	h := s.handler()
	keys := []string{"", "%00", "%0A", "%7F", "%C2%80", "%FF", "%C3", "%ED%A0%80", strings.Repeat("k", 513), strings.Repeat("%E2%98%83", 171)}
	durations := []string{"", "1", "h", "0s", "-1h", "+1h", "1.5h", "1e3s", "1q", "1hh", "1h1m", "%201h", "1h%20", "99999w", "99999999999999999999s", "1H", "%00", "%FF", strings.Repeat("9", 5000) + "s"}
	moments := []string{"", "now", "yesterday", "-1", "1.5", "1e12", "0x10", "253402300800000", "99999999999999999999", "2026-11-21", "2026-11-21T10:00:00", "2026-13-01T00:00:00Z", "1969-12-31T23:59:59Z", "%00", "%FF", strings.Repeat("1", 5000)}
	type request struct{ method, target, body string }
	var all []request
	get := func(format string, values []string) {
		for _, v := range values {
			all = append(all, request{http.MethodGet, fmt.Sprintf(format, v), ""})
		}
	}
	get("/v1/total?window=1h&key=%s", keys)
	get("/v1/total?window=1h&key=good&key=%s", keys)
	get("/v1/series?key=%s", keys)
	get("/v1/live?window=1m&key=%s", keys)
	get("/v1/total?key=a&window=%s", durations)
	get("/v1/series?key=a&step=%s", durations)
	get("/v1/live?key=a&window=%s", durations)
	get("/v1/total?key=a&window=1h&at=%s", moments)
	get("/v1/total?key=a&from=%s", moments)
	get("/v1/total?key=a&from=1795250000000&to=%s", moments)
	get("/v1/series?key=a&from=%s", moments)
	get("/v1/series?key=a&to=%s", moments)
	get("/v1/series?key=a&format=%s", []string{"", "JSON", "svg", "xml", "png,csv", "../etc", "%00"})
	for _, path := range []string{"/v1/total?key=a&window=1h", "/v1/series?key=a", "/v1/live?key=a&window=1m"} {
		get(path+"&%s", []string{"x=1", "Key=b", "%zz", "a;b", "=", "window%00=1m", "limit=1", "at=1&at=2", "format=csv&format=csv", "keys=a"})
	}
	get("%s", []string{"/v1", "/v1/", "/v1/total/", "/v2/total", "/v1/total/a", "/V1/total"})
	for _, method := range []string{"PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "GETX"} {
		for _, path := range []string{"/v1/total", "/v1/series", "/v1/live", "/healthz"} {
			all = append(all, request{method, path, "{}"})
		}
	}
	for _, body := range []string{
		"", " ", "{", "}", "[]", "null", "true", "1", `"a"`, "{}{}", "{} x", "\xff", "\x00", `{"keys"}`, `{"keys":}`, `{"keys":"a","windows":["1h"]}`,
		`{"keys":[],"windows":["1h"]}`, `{"keys":[""],"windows":["1h"]}`, `{"keys":[1],"windows":["1h"]}`, `{"keys":[["a"]],"windows":["1h"]}`, `{"keys":{"a":1},"windows":["1h"]}`,
		`{"keys":["a"]}`, `{"keys":["a"],"windows":[]}`, `{"keys":["a"],"windows":"1h"}`, `{"keys":["a"],"windows":[1]}`, `{"keys":["a"],"windows":[null]}`, `{"keys":["a"],"windows":["1h"],"at":true}`,
		`{"keys":["a"],"windows":["1h"],"at":[]}`, `{"keys":["a"],"windows":["1h"],"from":1}`, `{"keys":["a"],"windows":["1h"],"x":1}`, `{"keys":["a"],"to":1795250000000}`, `{"keys":["a"],"from":1e300}`,
		`{"keys":["a"],"windows":["1h","1h","1h","1h","1h","1h","1h","1h","1h"]}`, strings.Repeat("[", 100_000), `{"keys":["` + strings.Repeat("k", 600) + `"],"windows":["1h"]}`, `{"keys":["\ud800\u0001"],"windows":["1h"]}`,
		`{"keys":["\ud800"],"windows":["1h"]}`, `{"keys":["a\udc00b"],"windows":["1h"]}`, `{"prefix":"\ude00\ud83d","windows":["1h"]}`,
		`{"KEYS":["a"],"windows":["1h"]}`, `{"keys":["a"],"Windows":["1h"]}`, `{"keys":["a"],"keys":["b"],"windows":["1h"]}`, `{"keys":["a"],"windows":["1h"],"at":1795250000000,"at":null}`, `{"\u017feys":["a"],"windows":["1h"]}`,
	} {
		all = append(all, request{http.MethodPost, "/v1/total", body})
	}
	if len(all) < 200 {
		t.Errorf("only %d requests", len(all))
	}
	for _, r := range all {
		resp := asking.Ask(h, r.method, r.target, r.body)
		if resp.StatusCode < 400 || resp.StatusCode > 499 {
			t.Errorf("%s %.100s %.100q: status %d", r.method, r.target, r.body, resp.StatusCode)
			continue
		}
		if p := asking.Refused(t, resp, resp.StatusCode); len(p.Detail) > 1000 {
			t.Errorf("%s %.100s: a detail of %d bytes", r.method, r.target, len(p.Detail))
		}
	}
	t.Logf("%d requests refused", len(all))
}
