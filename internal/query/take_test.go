package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tallyroll/internal/gate"
	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// onLimiter is a service whose limiter is a fake, with a mode.
func onLimiter(t *testing.T, mode gate.TakeMode) (http.Handler, *fakeLimiter) {
	t.Helper()
	f := new(fakeLimiter)
	settings := testSettings
	settings.Take = mode
	s, _ := onFakeWith(t, f, settings)
	return s.handler(), f
}

// decided decodes an answer that must have the given status.
func decided(t *testing.T, resp *http.Response, status int) gate.TakeAnswer {
	t.Helper()
	data := asking.ReadAll(t, resp)
	var out gate.TakeAnswer
	if err := json.Unmarshal(data, &out); err != nil || resp.StatusCode != status {
		t.Fatalf("status %d, want %d: %s: %v", resp.StatusCode, status, data, err)
	}
	return out
}

// saidOf is what the limiter was asked, in a line.
func saidOf(takes []limit.Take) string {
	var out []string
	for _, k := range takes {
		l := k.Limit
		out = append(out, fmt.Sprintf("%s/%v/%d/%s %s>%s %d", l.Name, l.Window, l.Max, l.Policy, k.Key, k.Under, k.N))
	}
	return strings.Join(out, "; ")
}

func TestTakeRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, body, want string }{
		{"a name", `{"limit":"login","key":"alice"}`, "login/1m0s/5/log alice>alice 1"},
		{"several hits", `{"limit":"login","key":"a b/{c}","n":3}`, "login/1m0s/5/log a b/{c}>a b/{c} 3"},
		{"give back", `{"limit":"login","key":"a","n":-2}`, "login/1m0s/5/log a>a -2"},
		{"nothing", `{"limit":"login","key":"a","n":0}`, "login/1m0s/5/log a>a 0"},
		{"null is not given", `{"limit":"login","key":"a","n":null,"max":null,"take":null}`, "login/1m0s/5/log a>a 1"},
		{"numbers", `{"key":"K","window":"1m","max":100}`, "/1m0s/100/cells K>K 1"},
		{"numbers and a policy", `{"key":"K","window":"2h","max":100,"policy":"stream","n":7}`, "/2h0m0s/100/stream K>K 7"},
		{"several limits", `{"take":[{"limit":"per-second","key":"a"},{"limit":"per-hour","key":"a"}],"n":2}`, "per-second/1s/10/cells a>a 2; per-hour/1h0m0s/1000/cells a>a 2"},
		{"an address", `{"limit":"per-address","ip":"::ffff:192.0.2.1"}`, "per-address/1m0s/3/cells 192.0.2.1>a 192.0.2.1 1"},
		{"a header", `{"limit":"per-agent","header":{"user-agent":" curl "}}`, "per-agent/1m0s/3/cells curl>curl 1"},
		{"a whole surrogate pair", `{"limit":"login","key":"\ud83d\ude00"}`, "login/1m0s/5/log 😀>😀 1"},
		{"backslashes before what looks like an escape", `{"limit":"login","key":"\\ud800"}`, `login/1m0s/5/log \ud800>\ud800 1`},
		{"an n of its own", `{"take":[{"limit":"per-second","key":"a"},{"window":"1d","max":50,"key":"b","n":30}]}`, "per-second/1s/10/cells a>a 1; /24h0m0s/50/cells b>b 30"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, f := onLimiter(t, gate.TakeAny)
			decided(t, asking.Ask(h, http.MethodPost, "/v1/take", c.body), http.StatusOK)
			if got := saidOf(f.asked); got != c.want || f.looked {
				t.Errorf("asked %s, want %s", got, c.want)
			}
		})
	}
}

func TestBadTakes(t *testing.T) {
	t.Parallel()
	many := strings.Repeat(`{"limit":"login","key":"a"},`, gate.MaxTakes) + `{"limit":"login","key":"a"}`
	for _, c := range []struct {
		name, body string
		mode       gate.TakeMode
		status     int
		says       []string
	}{
		{"nothing", `{}`, gate.TakeAny, 400, []string{"limit: ", "window"}},
		{"no key", `{"limit":"login"}`, gate.TakeNamed, 400, []string{"key: ", "1 to 512"}},
		{"an empty key", `{"limit":"login","key":""}`, gate.TakeNamed, 400, []string{"key: "}},
		{"a long key", `{"limit":"login","key":"` + strings.Repeat("k", 513) + `"}`, gate.TakeNamed, 400, []string{"key: ", "513 bytes"}},
		{"a control character", `{"limit":"login","key":"a\u0007"}`, gate.TakeNamed, 400, []string{"key: ", "control"}},
		{"an unknown limit", `{"limit":"logon","key":"a"}`, gate.TakeNamed, 400, []string{`limit: "logon" is unknown`, "login", "per-hour"}},
		{"another template", `{"limit":"per-route","key":"a"}`, gate.TakeNamed, 400, []string{`method: it is missing: the key template of "per-route" is {method} {host} {path} {key}`}},
		{"a value that the template lacks", `{"limit":"login","key":"a","ip":"192.0.2.1"}`, gate.TakeNamed, 400, []string{`ip: the key template of "login" is {key}: leave it out`}},
		{"a value beside numbers", `{"key":"a","window":"1m","max":5,"host":"h"}`, gate.TakeAny, 400, []string{"host: the key template of numbers in the request is {key}"}},
		{"a value beside take", `{"path":"/","take":[{"limit":"login","key":"a"}]}`, gate.TakeNamed, 400, []string{"path: not together with take"}},
		{"a key that the template lacks", `{"limit":"per-address","key":"a","ip":"192.0.2.1"}`, gate.TakeNamed, 400, []string{"key: the key template"}},
		{"no address", `{"limit":"per-address","ip":"192.0.2.256"}`, gate.TakeNamed, 400, []string{`ip: "192.0.2.256": allowed is an address`}},
		{"another header", `{"limit":"per-agent","header":{"Agent":"curl"}}`, gate.TakeNamed, 400, []string{"header.Agent: the key template", "{header.User-Agent}"}},
		{"an empty header", `{"limit":"per-agent","header":{"User-Agent":" "}}`, gate.TakeNamed, 400, []string{"header.User-Agent: it is empty"}},
		{"a header twice", `{"limit":"per-agent","header":{"User-Agent":"a","user-agent":"b"}}`, gate.TakeNamed, 400, []string{"header.user-agent: it is there twice"}},
		{"a header as text", `{"limit":"per-agent","header":"curl"}`, gate.TakeNamed, 400, []string{"header: it has a value of the type string: allowed is an object"}},
		{"a control character in a header", `{"limit":"per-agent","header":{"User-Agent":"a\u0007"}}`, gate.TakeNamed, 400, []string{"limit: ", "control"}},
		{"a value that is too long", `{"limit":"per-agent","header":{"User-Agent":"` + strings.Repeat("k", 513) + `"}}`, gate.TakeNamed, 400, []string{"limit: ", "513 bytes"}},
		{"half of a surrogate pair", `{"limit":"login","key":"\ud800"}`, gate.TakeNamed, 400, []string{"body: it has half of a surrogate pair"}},
		{"the other half, in a header", `{"limit":"per-agent","header":{"User-Agent":"\udc00\ud800"}}`, gate.TakeNamed, 400, []string{"body: it has half of a surrogate pair"}},
		{"capitals", `{"LIMIT":"login","key":"a"}`, gate.TakeNamed, 400, []string{`unknown field "LIMIT": allowed are limit, key`}},
		{"a capital in an item", `{"take":[{"limit":"login","Key":"a"}]}`, gate.TakeNamed, 400, []string{`unknown field "Key"`}},
		{"the same field twice", `{"limit":"login","key":"a","key":"b"}`, gate.TakeNamed, 400, []string{`"key": it is given twice`}},
		{"twice in another spelling", `{"limit":"login","key":"a","\u006bey":"b"}`, gate.TakeNamed, 400, []string{`"key": it is given twice`}},
		{"the same header twice", `{"limit":"per-agent","header":{"User-Agent":"a","User-Agent":"b"}}`, gate.TakeNamed, 400, []string{`"User-Agent": it is given twice`}},
		{"no whole number", `{"limit":"login","key":"a","n":1.5}`, gate.TakeNamed, 400, []string{"n: ", "whole number"}},
		{"a number as text", `{"limit":"login","key":"a","n":"1"}`, gate.TakeNamed, 400, []string{"n: "}},
		{"a huge number", `{"limit":"login","key":"a","n":-9223372036854775808}`, gate.TakeNamed, 400, []string{"n: "}},
		{"name and numbers", `{"limit":"login","key":"a","max":7}`, gate.TakeAny, 400, []string{"max: not together with limit"}},
		{"name and policy", `{"limit":"login","key":"a","policy":"log"}`, gate.TakeAny, 400, []string{"policy: not together"}},
		{"numbers that are not allowed", `{"key":"a","window":"1m","max":7}`, gate.TakeNamed, 400, []string{"window: ", "QUERY_TAKE=any"}},
		{"no max", `{"key":"a","window":"1m"}`, gate.TakeAny, 400, []string{"max: it is missing"}},
		{"no window", `{"key":"a","max":5}`, gate.TakeAny, 400, []string{"window: it is missing"}},
		{"a window without a unit", `{"key":"a","window":"60","max":5}`, gate.TakeAny, 400, []string{"window: ", "60"}},
		{"a long window", `{"key":"a","window":"500d","max":5}`, gate.TakeAny, 400, []string{"window: ", "366d"}},
		{"a max of 0", `{"key":"a","window":"1m","max":0}`, gate.TakeAny, 400, []string{"max: "}},
		{"a max too large to keep", `{"key":"a","window":"1m","max":100001,"policy":"log"}`, gate.TakeAny, 400, []string{"max: ", "100000"}},
		{"another policy", `{"key":"a","window":"1m","max":5,"policy":"gcra"}`, gate.TakeAny, 400, []string{"policy: ", "cells, log, stream"}},
		{"an unknown field", `{"limit":"login","key":"a","cost":1}`, gate.TakeNamed, 400, []string{"cost", "limit, key, window"}},
		{"take beside limit", `{"limit":"login","take":[{"limit":"login","key":"a"}]}`, gate.TakeNamed, 400, []string{"limit: not together with take"}},
		{"too many takes", `{"take":[` + many + `]}`, gate.TakeNamed, 400, []string{"take: 17", "at most 16"}},
		{"a bad take of several", `{"take":[{"limit":"login","key":"a"},{"limit":"login","key":""}]}`, gate.TakeNamed, 400, []string{"take[1].key: "}},
		{"off", `{"limit":"login","key":"a"}`, gate.TakeOff, 403, []string{"QUERY_TAKE=off"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, f := onLimiter(t, c.mode)
			p := asking.Refused(t, asking.Ask(h, http.MethodPost, "/v1/take", c.body), c.status)
			for _, says := range c.says {
				if !strings.Contains(p.Detail, says) {
					t.Errorf("the problem says %q, want %q", p.Detail, says)
				}
			}
			if f.asked != nil {
				t.Errorf("the limiter was asked %s", saidOf(f.asked))
			}
		})
	}
}

// A decision and all of its forms, from a real Redis.
func TestTakes(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	s := onRedis(t, redis.URL(), asking.Now())
	h := s.handler()
	take := func(body string) *http.Response { return asking.Ask(h, http.MethodPost, "/v1/take", body) }
	same := func(got gate.TakeAnswer, want string) {
		t.Helper()
		if got.RetryAfter > 0 {
			got.RetryAfter = -1
		}
		if text := string(api.Encode(got)); text != want {
			t.Errorf("got\n%s\nwant\n%s", text, want)
		}
	}
	const login = `{"limit":"login","key":"alice"}`
	resp := take(login)
	same(decided(t, resp, 200), `{"allowed":true,"certain":true,"remaining":4,"retry_after":0,"limit":"login","source":"redis"}`)
	if got := []string{resp.Header.Get("RateLimit-Policy"), resp.Header.Get("RateLimit"), resp.Header.Get("Retry-After"), resp.Header.Get("Cache-Control")}; strings.Join(got, "|") != `"login";q=5;w=60|"login";r=4;t=60||no-store` {
		t.Errorf("fields %q", got)
	}
	same(decided(t, take(`{"limit":"login","key":"alice","n":4}`), 200), `{"allowed":true,"certain":true,"remaining":0,"retry_after":0,"limit":"login","source":"redis"}`)
	resp = take(login)
	got := decided(t, resp, 429)
	if got.RetryAfter < 50 || got.RetryAfter > 60 {
		t.Errorf("retry after %v s", got.RetryAfter)
	}
	same(got, `{"allowed":false,"certain":true,"remaining":0,"retry_after":-1,"limit":"login","source":"redis"}`)
	if seconds := resp.Header.Get("Retry-After"); resp.Header.Get("RateLimit") != `"login";r=0;t=`+seconds || len(seconds) != 2 {
		t.Errorf("fields %v", resp.Header)
	}
	same(decided(t, take(login), 429), `{"allowed":false,"certain":true,"remaining":0,"retry_after":-1,"limit":"login","source":"memory"}`)

	t.Run("a refusal is a problem, too", func(t *testing.T) {
		resp := take(`{"take":[{"limit":"per-hour","key":"alice"},{"limit":"login","key":"alice"}]}`)
		data := asking.ReadAll(t, resp)
		var got gate.Refusal
		if err := json.Unmarshal(data, &got); err != nil || resp.StatusCode != 429 || resp.Header.Get("Content-Type") != web.ProblemType {
			t.Fatalf("%d %v %s: %v", resp.StatusCode, resp.Header, data, err)
		}
		if got.Type != web.QuotaExceeded || got.Status != 429 || got.Title == "" || !strings.HasPrefix(got.Detail, "over the limit login: ask again in ") ||
			!slices.Equal(got.Policies, []string{"login"}) || got.Allowed || got.Limit != "login" || !strings.Contains(string(data), `"violated-policies":["login"]`) {
			t.Errorf("%s", data)
		}
	})
	t.Run("look", func(t *testing.T) {
		resp := asking.Ask(h, http.MethodGet, "/v1/limit?limit=login&key=alice", "")
		same(decided(t, resp, 200), `{"allowed":false,"certain":true,"remaining":0,"retry_after":-1,"limit":"login","source":"redis"}`)
		if resp.Header.Get("RateLimit") == "" || resp.Header.Get("Retry-After") != "" {
			t.Errorf("fields %v", resp.Header)
		}
	})
	t.Run("give back", func(t *testing.T) {
		same(decided(t, take(`{"limit":"login","key":"alice","n":-1}`), 200), `{"allowed":true,"certain":true,"remaining":1,"retry_after":0,"limit":"login","source":"redis"}`)
		decided(t, take(login), 200)
		decided(t, take(login), 429)
	})
	t.Run("reset", func(t *testing.T) {
		resp := asking.Ask(h, http.MethodDelete, "/v1/limit?limit=login&key=alice", "")
		if resp.StatusCode != http.StatusNoContent || len(asking.ReadAll(t, resp)) > 0 {
			t.Errorf("status %d", resp.StatusCode)
		}
		if got := decided(t, asking.Ask(h, http.MethodGet, "/v1/limit?limit=login&key=alice", ""), 200); got.Remaining != 5 {
			t.Errorf("after a reset: %+v", got)
		}
	})
	t.Run("all or none", func(t *testing.T) {
		decided(t, take(`{"limit":"per-second","key":"b","n":1}`), 200)
		resp := take(`{"take":[{"limit":"per-hour","key":"b"},{"limit":"login","key":"b"}],"n":5}`)
		same(decided(t, resp, 200), `{"allowed":true,"certain":true,"remaining":0,"retry_after":0,"limit":"login","source":"redis","takes":[`+
			`{"limit":"per-hour","key":"b","allowed":true,"certain":true,"remaining":995,"retry_after":0,"source":"redis"},`+
			`{"limit":"login","key":"b","allowed":true,"certain":true,"remaining":0,"retry_after":0,"source":"redis"}]}`)
		if got := resp.Header.Get("RateLimit-Policy"); got != `"per-hour";q=1000;w=3600, "login";q=5;w=60` {
			t.Errorf("RateLimit-Policy %s", got)
		}
		got := decided(t, take(`{"take":[{"limit":"per-hour","key":"b"},{"limit":"login","key":"b"}]}`), 429)
		if got.Limit != "login" || len(got.Takes) != 2 || !got.Takes[0].Allowed || got.Takes[1].Allowed {
			t.Errorf("got %+v", got)
		}
		if got := decided(t, asking.Ask(h, http.MethodGet, "/v1/limit?limit=per-hour&key=b", ""), 200); got.Remaining != 995 {
			t.Errorf("a refused take was counted: %+v", got)
		}
	})
	t.Run("numbers", func(t *testing.T) {
		same(decided(t, take(`{"key":"c","window":"1h","max":2,"policy":"stream","n":2}`), 200), `{"allowed":true,"certain":true,"remaining":0,"retry_after":0,"source":"redis"}`)
		if got := decided(t, asking.Ask(h, http.MethodGet, "/v1/limit?key=c&window=1h&max=2&policy=stream&n=1", ""), 200); got.Allowed {
			t.Errorf("a look says %+v", got)
		}
		// Another policy, and another window, keep hits of their own.
		if got := decided(t, asking.Ask(h, http.MethodGet, "/v1/limit?key=c&window=1h&max=2&policy=log", ""), 200); !got.Allowed {
			t.Errorf("a look at another policy says %+v", got)
		}
		if resp := asking.Ask(h, http.MethodDelete, "/v1/limit?key=c&window=1h&policy=stream", ""); resp.StatusCode != http.StatusNoContent {
			t.Errorf("status %d", resp.StatusCode)
		}
		decided(t, take(`{"key":"c","window":"1h","max":2,"policy":"stream","n":2}`), 200)
	})
	t.Run("never allowed", func(t *testing.T) {
		for body, says := range map[string]string{
			`{"key":"a","window":"1h","max":5000,"policy":"log","n":1001}`:                                                                       "n: 1001 hits of the policy log at once: at most 1000 are allowed in one request",
			`{"take":[{"key":"a","window":"1h","max":5000,"policy":"log","n":600},{"key":"b","window":"1h","max":5000,"policy":"log","n":401}]}`: "take[1].n: 1001 hits of the policy log",
			`{"limit":"login","key":"a","n":6}`:                                                                 "n: 6 hits at once",
			`{"take":[{"limit":"per-hour","key":"a"},{"limit":"login","key":"a","n":6}]}`:                       "take[1].n: 6 hits at once",
			`{"take":[{"limit":"login","key":"a"},{"limit":"per-hour","key":"a"},{"limit":"login","key":"a"}]}`: "take[2].key: the same limit and key twice",
		} {
			if p := asking.Refused(t, take(body), 400); !strings.Contains(p.Detail, says) {
				t.Errorf("%s: %s", body, p.Detail)
			}
		}
	})
	t.Run("metrics", func(t *testing.T) {
		page := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/metrics", "")))
		for _, line := range []string{
			`tallyroll_limit_decisions_total{limit="login",result="refused",source="memory"} 2`,
			`tallyroll_limit_decisions_total{limit="",result="allowed",source="redis"} 2`,
		} {
			if !strings.Contains(page, line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
		if strings.Contains(page, `result="error"`) {
			t.Error("a bad request is counted as an error of a decision")
		}
	})
}

// A limit in shadow mode refuses nothing, tells no client, and says to the service and the metrics what it would refuse.
func TestShadowTakes(t *testing.T) {
	t.Parallel()
	s := onRedis(t, stack.Redis(t).URL(), asking.Now())
	h := s.handler()
	want := func(resp *http.Response, status int, fields, body string) {
		t.Helper()
		text := string(api.Encode(decided(t, resp, status)))
		if got := resp.Header.Get("RateLimit-Policy") + "|" + resp.Header.Get("RateLimit") + "|" + resp.Header.Get("Retry-After"); got != fields {
			t.Errorf("fields %s, want %s", got, fields)
		}
		if !strings.HasPrefix(text, body) {
			t.Errorf("got\n%s\nwant\n%s…", text, body)
		}
	}
	take := func(body string) *http.Response { return asking.Ask(h, http.MethodPost, "/v1/take", body) }
	const tried = `{"limit":"tried","key":"alice","n":3}`
	want(take(tried), 200, "||", `{"allowed":true,"certain":true,"remaining":0,"retry_after":0,"limit":"tried","source":"redis","shadow":true,"would_allow":true}`)
	for _, source := range []string{"redis", "memory"} {
		resp := take(tried)
		got := decided(t, resp, 200)
		if !got.Allowed || !got.Shadow || got.WouldAllow == nil || *got.WouldAllow || got.RetryAfter < 50 || got.Source != source || resp.Header.Get("RateLimit")+resp.Header.Get("Retry-After") != "" {
			t.Errorf("%+v %v", got, resp.Header)
		}
	}
	// Beside a limit that enforces, only that one is told of, and decides.
	both := `{"take":[{"limit":"tried","key":"alice"},{"limit":"login","key":"alice"}],"n":3}`
	want(take(both), 200, `"login";q=5;w=60|"login";r=2;t=60|`, `{"allowed":true,"certain":true,"remaining":2,"retry_after":0,"limit":"login","source":"redis","shadow":true,"would_allow":false,"takes":[`+
		`{"limit":"tried","key":"alice","allowed":true,"certain":true,"remaining":0,`)
	refused := decided(t, take(both), 429)
	if refused.Limit != "login" || len(refused.Takes) != 2 || !refused.Takes[0].Allowed || !refused.Takes[0].Shadow || refused.Takes[1].Allowed || refused.Takes[1].Shadow {
		t.Errorf("%+v", refused)
	}
	// A look says the same, and a proxy lets the request through.
	if got := decided(t, asking.Ask(h, http.MethodGet, "/v1/limit?limit=tried&key=alice", ""), 200); !got.Allowed || !got.Shadow || *got.WouldAllow {
		t.Errorf("a look: %+v", got)
	}
	resp := send(s, proxied(t, "GET", "/v1/authz?limit=tried&key_header=X-Key", "X-Key", "alice", "X-Forwarded-For", "192.0.2.1"))
	if resp.StatusCode != http.StatusOK || resp.Header.Get("RateLimit")+resp.Header.Get("Retry-After") != "" {
		t.Errorf("a proxy gets %d %v", resp.StatusCode, resp.Header)
	}
	page := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/metrics", "")))
	counted := 0
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, `tallyroll_limit_decisions_total{limit="tried",`) {
			counted++
			if strings.Contains(line, `"refused"`) {
				t.Errorf("a limit in shadow mode refused: %s", line)
			}
		}
	}
	if !strings.Contains(page, `tallyroll_limit_decisions_total{limit="tried",result="would_refuse",source="redis"} `) || counted < 3 {
		t.Errorf("the metrics lack what would have been refused")
	}
	if l := limitsOf(t, h, "?name=tried").Limits[0]; l.Allowed != 1 || l.Refused != 0 || l.WouldRefuse != 5 {
		t.Errorf("%+v", l)
	}
}
