package query

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tallyroll/internal/gate"
	"tallyroll/internal/web"
	"tallyroll/tests/asking"
)

// askOverNATS answers a request as if it had come over NATS.
func askOverNATS(s *service, r asking.Request) *http.Response {
	w := httptest.NewRecorder()
	if _, err := s.endpoints()[r.Target](r.HTTP().Context(), []byte(r.Body)); err != nil {
		web.ProblemOf(err).Write(w)
	}
	return w.Result()
}

// What is wrong with a request is said in a few words, before anything is asked or taken.
func TestRequestsAreRefused(t *testing.T) {
	t.Parallel()
	type refuser struct {
		*service
		reader  *asking.FakeReader
		limiter *fakeLimiter
		http.Handler
	}
	services := make(map[string]refuser)
	for name, mode := range map[string]gate.TakeMode{"": gate.TakeNamed, "any": gate.TakeAny, "off": gate.TakeOff} {
		s, limiter := onProxy(t, mode)
		s.answers.MaxKeys, s.live.MaxKeys, s.answers.MaxProbe = 3, 3, 10
		watched(t, s)
		reader := s.status.Reader.(*asking.FakeReader)
		services[name] = refuser{s, reader, limiter, s.handler()}
	}
	for _, c := range asking.ReadRequests(t, "testdata/refused.txt") {
		s := services[c.Options["take"]]
		s.reader.Forget()
		r := c.HTTP()
		r.RemoteAddr = "10.0.0.1:999"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		resp := w.Result()
		if c.Method == "NATS" {
			resp = askOverNATS(s.service, c)
		}
		if resp.StatusCode != c.Status {
			t.Errorf("%s: status %d, want %d", c, resp.StatusCode, c.Status)
			continue
		}
		p := asking.Refused(t, resp, c.Status)
		if !strings.Contains(p.Detail, c.Want) || len(p.Detail) > 500 {
			t.Errorf("%s: %s", c, p.Detail)
		}
		byReader := c.Options["reader"] != ""
		if asked := s.reader.Questions(); !byReader && asked != nil || s.limiter.asked != nil || s.limiter.reset != nil {
			t.Errorf("%s: it asked %v and %v", c, asked, s.limiter.asked)
		}
	}
}

// Whatever is in a query string, the answer is one or a refusal that names the fault.
func fuzzQueries(f *testing.F, paths []string, seeds ...string) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	s, _ := onFake(f)
	h := s.handler()
	f.Fuzz(func(t *testing.T, query string) {
		for _, path := range paths {
			checkAnswerOrRefusal(t, asking.Ask(h, http.MethodGet, path+"?"+query, ""))
		}
	})
}

func checkAnswerOrRefusal(t *testing.T, resp *http.Response) {
	t.Helper()
	if resp.StatusCode == http.StatusOK {
		if len(asking.ReadAll(t, resp)) == 0 {
			t.Error("an empty answer")
		}
		return
	}
	if p := asking.Refused(t, resp, resp.StatusCode); p.Status != http.StatusBadRequest && p.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d: %s", p.Status, p.Detail)
	}
}

func FuzzTotalQuery(f *testing.F) {
	fuzzQueries(f, []string{totalPath},
		"", "key=a&window=1h", "key=a,b&key=%E2%98%83&window=1m&window=1d", "key=a&window=1h&at=2026-11-21T10:00:00Z",
		"key=a&from=1795250000000&to=1795255200000", "key=%zz&window=1h", "key=a;window=1h", "key&window", "key=&key=a&window=&window=1h",
		"key=a&window=1h&at=-9223372036854775808", "key=a&window=99999999999999999999w", "a&key=1", "=&&=", "key=a&window=1h&windwo=2h")
}

func FuzzSeriesQuery(f *testing.F) {
	fuzzQueries(f, []string{"/v1/series"},
		"", "key=a", "key=a&key=b&step=5m", "key=a&format=csv", "key=a&format=xml", "key=a&from=1795250000000&to=1795255200000&step=1h",
		"key=%00", "key=a&step=99999999999999999999w", "key=a&step=-1m", "key=a&from=&to=")
}

func FuzzListQuery(f *testing.F) {
	fuzzQueries(f, []string{"/v1/top", "/v1/counters"},
		"", "window=1h", "window=1h&limit=5&at=2026-11-21T10:00:00Z", "window=9w", "limit=0", "limit=+1", "prefix=a&after=%ff", "after=&prefix=",
		"prefix=%00", "limit=99999999999999999999&window=1m")
}

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
		checkAnswerOrRefusal(t, asking.Ask(h, http.MethodPost, totalPath, body))
	})
}
