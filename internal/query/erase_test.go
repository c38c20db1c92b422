package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/web"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// erased returns how many counters a call has erased.
func erased(t *testing.T, h http.Handler, query string) int {
	t.Helper()
	resp := asking.Ask(h, http.MethodDelete, "/v1/counters?"+query, "")
	var out struct{ Erased *int }
	if text := asking.ReadAll(t, resp); resp.StatusCode != http.StatusOK || json.Unmarshal(text, &out) != nil || out.Erased == nil {
		t.Fatalf("%s: status %d: %s", query, resp.StatusCode, text)
	}
	return *out.Erased
}

func TestErase(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	hits := []asking.Sample{asking.Hits("other", now.Add(-time.Minute), 2)}
	for i := range 30 {
		hits = append(hits, asking.Hits(fmt.Sprintf("shop.%02d", i), now.Add(-time.Minute), 3))
	}
	asking.Seed(t, server.Client(), now, hits...)
	s := onRedis(t, server.URL(), now)
	log := new(asking.Log)
	s.log = zerolog.New(log)
	h := s.handler()
	if n := erased(t, h, "key=shop.07"); n != 1 {
		t.Errorf("%d are erased", n)
	}
	for _, query := range []string{"key=shop.07", "key=nobody", "prefix=nobody&confirm=0"} {
		if n := erased(t, h, query); n != 0 {
			t.Errorf("%s: %d are erased", query, n)
		}
	}
	p := asking.Refused(t, asking.Ask(h, http.MethodDelete, "/v1/counters?prefix=shop.&confirm=30", ""), http.StatusConflict)
	if p.Type != web.NotConfirmed.Type() || !strings.HasPrefix(p.Detail, "29 counters begin with") {
		t.Errorf("%+v", p)
	}
	if n := erased(t, h, "prefix=shop.&confirm=29"); n != 29 {
		t.Errorf("%d are erased", n)
	}
	p = asking.Refused(t, asking.Ask(h, http.MethodDelete, "/v1/counters?prefix=shop.&confirm=29", ""), http.StatusConflict)
	if !strings.HasPrefix(p.Detail, "0 counters begin with") {
		t.Errorf("%+v", p)
	}
	if n := erased(t, h, "prefix=shop.&confirm=0"); n != 0 {
		t.Errorf("%d are erased", n)
	}
	if keys := stack.Scan(t, server.Client(), "*shop*"); len(keys) > 0 {
		t.Errorf("there are %q", keys)
	}
	text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/v1/counters", "")))
	if !strings.Contains(text, `"counters":["other"]`) {
		t.Errorf("the names are %s", text)
	}
	if got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=other&key=shop.08&window=10m", "")).Totals; got[0].Total != 2 || got[1].Total != 0 {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{`"from":"192.0.2.1","key":"shop.07","erased":1,"message":"counters erased"`, `"prefix":"shop.","erased":29,"message":"counters erased"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s: %s", want, log)
		}
	}
}

func TestEraseIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	for query, says := range map[string]string{
		"":                         "key: it is missing",
		"prefix=shop.":             "confirm: it is missing",
		"confirm=3":                "key: it is missing",
		"key=a&prefix=b&confirm=1": "one of the two",
		"key=a&confirm=1":          "only beside prefix",
		"prefix=a&confirm=-1":      "confirm: ",
		"prefix=a&confirm=many":    "confirm: ",
		"key=a&key=b":              "key: ",
		"key=a%00":                 "key: ",
		"prefix=a%00&confirm=1":    "prefix: ",
		"key=a&dry=1":              "unknown parameter",
	} {
		p := asking.Refused(t, asking.Ask(s.handler(), http.MethodDelete, "/v1/counters?"+query, ""), http.StatusBadRequest)
		if !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %s", query, p.Detail)
		}
	}
	s.erases = false
	p := asking.Refused(t, asking.Ask(s.handler(), http.MethodDelete, "/v1/counters?key=a", ""), http.StatusForbidden)
	if p.Type != web.EraseOff.Type() || !strings.Contains(p.Detail, "QUERY_ERASE") {
		t.Errorf("%+v", p)
	}
	s.erases = true
	for _, headers := range [][]string{form, sameSite} { // pages of other origins
		p := asking.Refused(t, asking.Ask(s.handler(), http.MethodDelete, "/v1/counters?key=a", "", headers...), http.StatusForbidden)
		if p.Type != web.ForeignOrigin.Type() {
			t.Errorf("%+v", p)
		}
	}
	useTokens(t, s, "secret")
	log := new(asking.Log)
	s.log = zerolog.New(log)
	asking.Refused(t, asking.Ask(s.handler(), http.MethodDelete, "/v1/counters?key=a", ""), http.StatusUnauthorized)
	r := httptest.NewRequest(http.MethodDelete, "http://query.test/v1/counters?key=a", nil)
	r.Header.Set("Authorization", "Bearer secret")
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, r)
	// printf secret | sha256sum
	if text := log.String(); w.Code != http.StatusOK || strings.Count(text, "erased\":1") != 1 || !strings.Contains(text, `"token":"2bb80d53"`) || strings.Contains(text, "secret") {
		t.Errorf("status %d, the log is %s", w.Code, text)
	}
}

// A Redis user who may only read is told what it lacks. Those of query-erase are enough.
func TestRightsToErase(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	asking.Seed(t, server.Client(), now, asking.Hits("a", now.Add(-time.Minute), 3))
	as := func(user string) http.Handler {
		rights := stack.RightsOf(t, user)
		for i, word := range rights {
			rights[i] = strings.Replace(word, "~tallyroll:", "~"+asking.Namespace+":", 1)
		}
		stack.NewUser(t, server, user, "s3cret", rights...)
		return onRedis(t, strings.Replace(server.URL(), "redis://", "redis://"+user+":s3cret@", 1), now).handler()
	}
	reader := as("query")
	p := asking.Refused(t, asking.Ask(reader, http.MethodDelete, "/v1/counters?key=a", ""), http.StatusServiceUnavailable)
	if p.Type != web.RightsMissing.Type() || !strings.Contains(p.Detail, "rights of query-erase") {
		t.Errorf("%+v", p)
	}
	if n := len(stack.Scan(t, server.Client(), asking.Namespace+":*:h:*:a")); n == 0 {
		t.Error("it is erased")
	}
	if n := erased(t, as("query-erase"), "key=a"); n != 1 {
		t.Errorf("%d are erased", n)
	}
}
