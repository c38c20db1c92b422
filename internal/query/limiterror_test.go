package query

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tallyroll/internal/gate"
	"tallyroll/internal/limit"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

func TestTakeErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		err        func(takes []limit.Take) error
		status     int
		retry      string
		says, hide string
	}{
		{"unavailable", func([]limit.Take) error { return &limit.UnavailableError{Err: errors.New("10.1.2.3 refused")} }, 503, "1", "Redis cannot decide now", "10.1.2.3"},
		{"full", func([]limit.Take) error {
			return &limit.UnavailableError{Err: fmt.Errorf("script 5f: %w", limit.ErrFull)}
		}, 503, "1", "no memory left for hits, and the limit is closed", "5f"},
		{"forbidden", func([]limit.Take) error {
			return &limit.ForbiddenError{Err: errors.New("NOPERM User bob has no permissions to run the 'evalsha' command")}
		}, 503, "60", "command evalsha", "bob"},
		{"foreign", func([]limit.Take) error { return &limit.ForeignError{Err: errors.New("WRONGTYPE")} }, 500, "", "was not written by Tallyroll", ""},
	} {
		h, f := onLimiter(t, gate.TakeNamed)
		f.err = c.err(nil)
		for method, target := range map[string]string{http.MethodPost: "/v1/take", http.MethodGet: "/v1/limit?limit=login&key=a", http.MethodDelete: "/v1/limit?limit=login&key=a"} {
			body := ""
			if method == http.MethodPost {
				body = `{"limit":"login","key":"a"}`
			}
			resp := asking.Ask(h, method, target, body)
			p := asking.Refused(t, resp, c.status)
			if resp.Header.Get("Retry-After") != c.retry || !strings.Contains(p.Detail, c.says) || c.hide != "" && strings.Contains(p.Detail, c.hide) {
				t.Errorf("%s, %s: %v %+v", c.name, method, resp.Header, p)
			}
		}
	}
}

// Every fail mode says what it does while Redis is away, and stops doing it by itself.
func TestTakesWithoutRedis(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	h := onRedis(t, redis.URL(), asking.Now()).handler()
	take := func(name string) *http.Response {
		return asking.Ask(h, http.MethodPost, "/v1/take", `{"limit":"`+name+`","key":"a"}`)
	}
	redis.Stop()
	for range 3 {
		if got := decided(t, take("per-hour"), 200); !got.Allowed || got.Certain || got.Source != "local" {
			t.Errorf("open: %+v", got)
		}
	}
	for i := range 6 {
		status := 200
		if i == 5 {
			status = 429
		}
		if got := decided(t, take("login"), status); got.Certain || got.Source != "local" {
			t.Errorf("local: %+v", got)
		}
	}
	resp := take("closed")
	if p := asking.Refused(t, resp, 503); resp.Header.Get("Retry-After") != "1" || !strings.Contains(p.Detail, "closed") {
		t.Errorf("closed: %v %+v", resp.Header, p)
	}
	if resp := asking.Ask(h, http.MethodDelete, "/v1/limit?limit=login&key=a", ""); resp.StatusCode != 503 {
		t.Errorf("reset: %d", resp.StatusCode)
	}
	if page := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/metrics", ""))); !strings.Contains(page, `tallyroll_limit_decisions_total{limit="closed",result="error",source=""} 1`+"\n") {
		t.Error("the error is not counted")
	}
	redis.Start()
	stack.Eventually(t, "Redis to decide", func() (bool, string) {
		resp := take("closed")
		return resp.StatusCode == 200, resp.Status
	})
	if got := decided(t, take("login"), 200); got.Source != "redis" || got.Remaining != 4 {
		t.Errorf("when Redis is back: %+v", got)
	}
}
