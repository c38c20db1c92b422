package query

import (
	"net/http"
	"testing"

	"tallyroll/tests/asking"
)

// Whatever the query string, the answer is one or a refusal that names the fault.
func FuzzTotalQuery(f *testing.F) {
	for _, seed := range []string{
		"", "key=a&window=1h", "key=a,b&key=%E2%98%83&window=1m&window=1d", "key=a&window=1h&at=2026-11-21T10:00:00Z",
		"key=a&from=1795250000000&to=1795255200000", "key=%zz&window=1h", "key=a;window=1h", "key&window", "key=&key=a&window=&window=1h",
		"key=a&window=1h&at=-9223372036854775808", "key=a&window=99999999999999999999w", "a&key=1", "=&&=", "key=a&window=1h&windwo=2h",
	} {
		f.Add(seed)
	}
	s, _ := onFake(f)
	h := s.handler()
	f.Fuzz(func(t *testing.T, query string) {
		resp := asking.Ask(h, http.MethodGet, "/v1/total?"+query, "")
		if resp.StatusCode == http.StatusOK {
			answered(t, resp)
			return
		}
		if p := asking.Refused(t, resp, resp.StatusCode); p.Status != http.StatusBadRequest && p.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d: %s", p.Status, p.Detail)
		}
	})
}

// The same for bodies.
func FuzzTotalBody(f *testing.F) {
	for _, seed := range []string{
		`{"keys":["a"],"windows":["1h"]}`, `{"keys":["a"],"windows":["1h"],"at":1795255200000}`, `{"keys":["a"],"from":"2026-11-21T09:00:00Z"}`,
		`{"keys":null}`, `{"keys":[{}]}`, `{"keys":["a"],"windows":["1h"],"at":"\ud800"}`, `[]`, `1`, `"`, `{"KEYS":["a"],"Windows":["1h"]}`, "\xff",
	} {
		f.Add(seed)
	}
	s, _ := onFake(f)
	h := s.handler()
	f.Fuzz(func(t *testing.T, body string) {
		resp := asking.Ask(h, http.MethodPost, "/v1/total", body)
		if resp.StatusCode == http.StatusOK {
			answered(t, resp)
			return
		}
		if p := asking.Refused(t, resp, resp.StatusCode); p.Status != http.StatusBadRequest && p.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d: %s", p.Status, p.Detail)
		}
	})
}

// The same for series, in all their formats.
func FuzzSeriesQuery(f *testing.F) {
	for _, seed := range []string{
		"", "key=a", "key=a&key=b&step=5m", "key=a&format=csv", "key=a&format=xml",
		"key=a&from=1795250000000&to=1795255200000&step=1h", "key=%00", "key=a&step=99999999999999999999w", "key=a&step=-1m", "key=a&from=&to=",
	} {
		f.Add(seed)
	}
	s, _ := onFake(f)
	h := s.handler()
	f.Fuzz(func(t *testing.T, query string) {
		resp := asking.Ask(h, http.MethodGet, "/v1/series?"+query, "")
		if resp.StatusCode == http.StatusOK {
			if len(asking.ReadAll(t, resp)) == 0 {
				t.Error("an empty answer")
			}
			return
		}
		if p := asking.Refused(t, resp, resp.StatusCode); p.Status != http.StatusBadRequest && p.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d: %s", p.Status, p.Detail)
		}
	})
}

// The same for the list of counters with most hits and for names.
func FuzzListQuery(f *testing.F) {
	for _, seed := range []string{
		"", "window=1h", "window=1h&limit=5&at=2026-11-21T10:00:00Z", "window=9w", "limit=0", "limit=+1", "prefix=a&after=%ff", "after=&prefix=", "prefix=%00", "limit=99999999999999999999&window=1m",
	} {
		f.Add(seed)
	}
	s, _ := onFake(f)
	h := s.handler()
	f.Fuzz(func(t *testing.T, query string) {
		for _, path := range []string{"/v1/top?", "/v1/counters?"} {
			resp := asking.Ask(h, http.MethodGet, path+query, "")
			if resp.StatusCode != http.StatusOK {
				if p := asking.Refused(t, resp, resp.StatusCode); p.Status != http.StatusBadRequest {
					t.Errorf("status %d: %s", p.Status, p.Detail)
				}
			}
		}
	})
}
