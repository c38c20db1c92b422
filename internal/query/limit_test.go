package query

import (
	"net/http"
	"strings"
	"testing"
)

func TestLooksAndResets(t *testing.T) {
	h, f := onLimiter(t, TakeOff)
	decided(t, ask1(h, http.MethodGet, "/v1/limit?limit=login&key=a&n=2", ""), 200) // counts nothing
	if got := saidOf(f.asked); got != "login/1m0s/5/log a>a 2" || !f.looked {
		t.Errorf("asked %s", got)
	}
	refused(t, ask1(h, http.MethodDelete, "/v1/limit?limit=login&key=a", ""), http.StatusForbidden)

	h, f = onLimiter(t, TakeNamed)
	for target, says := range map[string]string{
		"GET /v1/limit?key=a&window=1m&max=5&policy=log": "QUERY_TAKE=any",
		"GET /v1/limit?key=a":                            "limit: it is missing",
		"GET /v1/limit?limit=per-address&key=a":          "{ip}",
		"DELETE /v1/limit?key=a&window=1m&policy=log":    "QUERY_TAKE=any",
		"DELETE /v1/limit?key=a&window=1m":               "policy: it is missing",
		"DELETE /v1/limit?limit=login":                   "key: ",
		"DELETE /v1/limit?limit=login&key=a&n=1":         "unknown parameter",
	} {
		method, path, _ := strings.Cut(target, " ")
		if p := refused(t, ask1(h, method, path, ""), 400); !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	if len(f.reset) > 0 || f.asked != nil {
		t.Errorf("asked %v, reset %v", f.asked, f.reset)
	}
}
