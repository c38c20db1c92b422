package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/gate"
	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/tests/asking"
)

// limitsOf asks for the limits.
func limitsOf(t *testing.T, h http.Handler, query string) gate.LimitsAnswer {
	t.Helper()
	resp := asking.Ask(h, http.MethodGet, "/v1/limits"+query, "")
	data := asking.ReadAll(t, resp)
	var out gate.LimitsAnswer
	if err := json.Unmarshal(data, &out); err != nil || resp.StatusCode != http.StatusOK || strings.Contains(string(data), "null") {
		t.Fatalf("status %d: %s: %v", resp.StatusCode, data, err)
	}
	return out
}

// /v1/limits has every named limit, and what is decided under it: by takes, and by proxies. Looks and resets are none.
func TestLimitsAnswer(t *testing.T) {
	t.Parallel()
	h, f := onLimiter(t, gate.TakeAny)
	before := limitsOf(t, h, "")
	if !before.Counts || len(before.Process) != 8 || time.Since(before.AsOf) > time.Minute {
		t.Errorf("%+v", before)
	}
	for _, l := range before.Limits {
		if l.Allowed+l.Refused+l.Failed != 0 || len(l.Busiest) != 0 || l.OthersAtMost != 0 {
			t.Errorf("before any take: %+v", l)
		}
	}
	asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"login","key":"alice","n":3}`)
	asking.Ask(h, http.MethodPost, "/v1/take", `{"take":[{"limit":"login","key":"bob"},{"limit":"per-hour","key":"bob"}]}`)
	asking.Ask(h, http.MethodPost, "/v1/take", `{"key":"numbers","window":"1m","max":100}`)
	asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"login","key":""}`)
	asking.Ask(h, http.MethodGet, "/v1/limit?limit=login&key=looked", "")
	asking.Ask(h, http.MethodDelete, "/v1/limit?limit=login&key=reset", "")
	asking.Ask(h, http.MethodGet, "/v1/authz?limit=per-agent", "", "User-Agent", "curl", "X-Forwarded-For", "192.0.2.1")
	f.states = []limit.Decision{{Source: limit.FromMemory, RetryAfter: time.Second}}
	asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"login","key":"alice"}`)
	f.err = web.RetryLater("Redis is away", "1")
	asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"login","key":"alice"}`)

	byName := map[string]gate.LimitState{}
	for _, l := range limitsOf(t, h, "").Limits {
		byName[l.Limit] = l
	}
	login := byName["login"]
	if login.Allowed != 2 || login.Refused != 1 || login.Failed != 1 || login.Window != "1m" || login.Max != 5 || login.Policy != "log" || login.Key != "{key}" {
		t.Errorf("%+v", login)
	}
	if len(login.Busiest) != 2 || login.Busiest[0].Key != "alice" || login.Busiest[0].Decisions != 3 || login.Busiest[0].Refused != 1 || login.Busiest[0].Error != 0 || login.Busiest[1].Key != "bob" {
		t.Errorf("%+v", login.Busiest)
	}
	if agent := byName["per-agent"]; agent.Allowed != 1 || len(agent.Busiest) != 1 || !strings.HasSuffix(agent.Busiest[0].Key, "curl") || len(agent.Variables) != 1 || agent.Variables[0] != "header.User-Agent" {
		t.Errorf("%+v", agent)
	}
	one := limitsOf(t, h, "?name=login&top=1")
	if len(one.Limits) != 1 || len(one.Limits[0].Busiest) != 1 || one.Limits[0].OthersAtMost != 1 || one.Process != before.Process {
		t.Errorf("%+v", one)
	}
	off, _ := onLimiter(t, gate.TakeOff)
	if limitsOf(t, off, "").Counts {
		t.Error("a service that counts no takes says that it does")
	}
}

// name selects limits, as often as it is there, and top so many keys of each.
func TestLimitsByName(t *testing.T) {
	t.Parallel()
	h, f := onLimiter(t, gate.TakeNamed)
	for _, key := range []string{"alice", "bob", "bob"} {
		asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"shared","key":"`+key+`"}`)
		asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"login","key":"`+key+`"}`)
	}
	f.states = []limit.Decision{{Allowed: true, Shadow: true, Source: limit.FromRedis}}
	asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"tried","key":"alice"}`)
	for query, want := range map[string]string{
		"?name=shared":                    "shared: bob 2, alice 1",
		"?name=shared&name=login&top=1":   "login: bob 2; shared: bob 2",
		"?name=login&name=login&top=0":    "login: ",
		"?name=tried&name=closed&top=100": "closed: ; tried: alice 1",
	} {
		var got []string
		for _, l := range limitsOf(t, h, query).Limits {
			var keys []string
			for _, b := range l.Busiest {
				keys = append(keys, fmt.Sprintf("%s %d", b.Key, b.Decisions))
			}
			got = append(got, l.Limit+": "+strings.Join(keys, ", "))
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s: %s, want %s", query, text, want)
		}
	}
	for query, says := range map[string]string{
		"?key=a":                                 "unknown parameter",
		"?name=login&name=logon":                 `name: "logon" is unknown: allowed are closed, exports`,
		"?name=":                                 `name: "" is unknown`,
		"?top=101":                               `top: "101": allowed is a whole number from 0 to 100`,
		"?top=-1":                                "top: ",
		"?top=1&top=2":                           "top: ",
		"?" + strings.Repeat("name=login&", 101): "name: 101 names: at most 100 are allowed",
	} {
		query = strings.TrimSuffix(query, "&")
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/limits"+query, ""), http.StatusBadRequest); !strings.Contains(p.Detail, says) {
			t.Errorf("%.40s: %s; want %s", query, p.Detail, says)
		}
	}
	if l := limitsOf(t, h, "?name=tried").Limits[0]; l.Mode != "shadow" || l.WouldRefuse != 1 || l.Allowed+l.Refused != 0 || l.Busiest[0].Refused != 1 {
		t.Errorf("%+v", l)
	}
	if l := limitsOf(t, h, "?name=shared").Limits[0]; l.Share == nil || l.Share.Hits != 100 || l.Share.For != 2 || l.Share.Unspent != 7 || l.Bound != 100 || l.Mode != "enforce" {
		t.Errorf("%+v", l)
	}
	if l := limitsOf(t, h, "?name=exports").Limits[0]; l.Policy != "concurrent" || l.Share != nil || l.Bound != 0 {
		t.Errorf("%+v", l)
	}
}
