package query

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/limit"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// What is offered is what the tiers answer well, and each length stands once.
func TestOffered(t *testing.T) {
	for _, c := range []struct{ tiers, windows, steps string }{
		{window.DefaultTiers, "1m 5m 15m 1h 6h 24h 7d 30d 32d", "1s 5s 10s 30s 1m 5m 15m 30m 1h 3h 6h 12h 1d 1w"},
		{"1s/1h,1m/1d,1h/92d", "1m 5m 15m 1h 6h 24h 7d 30d 90d 92d", "1s 5s 10s 30s 1m 5m 15m 30m 1h 3h 6h 12h 1d 1w"},
		{"1s/1m,1m/1d", "1m 5m 15m 1h 6h 24h", "1s 5s 10s 30s 1m 5m 15m 30m 1h 3h 6h 12h 1d"},
		{"1s/30s", "30s", "1s 5s 10s 30s"},
		// A cell of six hours is no answer to five minutes.
		{"1s/1m,6h/32d", "1m 6h 24h 7d 30d 32d", "1s 5s 10s 30s 1m 6h 12h 1d 1w"},
		{"7s/49s,7m/210m", "49s 15m 1h 210m", "7s 7m"},
		{"1d/520w", "24h 7d 30d 90d 365d 3640d", "1d 1w"},
	} {
		tiers, err := window.ParseTiers(c.tiers)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(windowsOf(tiers), " "); got != c.windows {
			t.Errorf("%s: windows %s, want %s", c.tiers, got, c.windows)
		}
		if got := strings.Join(stepsOf(tiers), " "); got != c.steps {
			t.Errorf("%s: steps %s, want %s", c.tiers, got, c.steps)
		}
	}
}

func aboutOf(t *testing.T, s *service) aboutAnswer {
	t.Helper()
	resp := ask1(s.handler(), http.MethodGet, "/v1/about", "")
	data := readAll(t, resp)
	var out aboutAnswer
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, data)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Every window and step that is offered is answered, with the layout that Redis has, and the steps as they are.
func TestAbout(t *testing.T) {
	redis, now := stack.Redis(t), testNow()
	s := onRedis(t, redis.URL(), now)
	s.answers.namespace = namespace
	// Before the first worker the problem is that of every question.
	before := refused(t, ask1(s.handler(), http.MethodGet, "/v1/about", ""), http.StatusServiceUnavailable)
	if total := refused(t, ask1(s.handler(), http.MethodGet, "/v1/total?key=a&window=1h", ""), http.StatusServiceUnavailable); before.Detail != total.Detail {
		t.Errorf("without a layout: %q, and a total says %q", before.Detail, total.Detail)
	}
	seed(t, redis.Client(), now, sample{"a", now.Add(-time.Minute), 5})
	got := aboutOf(t, s)
	want := []aboutTier{{"1m", "1h"}, {"1h", "1d"}}
	if !slices.Equal(got.Tiers, want) || got.Namespace != namespace || got.Version == "" || !got.CountingSince.Equal(now.Add(-12*time.Hour)) {
		t.Errorf("%+v", got)
	}
	for _, length := range got.Windows {
		answered(t, ask1(s.handler(), http.MethodGet, "/v1/total?key=a&window="+length, ""))
	}
	for _, step := range got.Steps {
		resp := ask1(s.handler(), http.MethodGet, "/v1/series?key=a&step="+step, "") // the last hour: cells of a minute
		if text := string(readAll(t, resp)); resp.StatusCode != http.StatusOK || !strings.Contains(text, `"step":"`+step+`"`) {
			t.Errorf("step %s: status %d: %s", step, resp.StatusCode, text)
		}
	}
	if len(got.Windows) < 4 || len(got.Steps) < 4 {
		t.Errorf("windows %v, steps %v", got.Windows, got.Steps)
	}
}

// Features are on if a client can use them.
func TestAboutFeatures(t *testing.T) {
	for _, c := range []struct {
		mode         TakeMode
		named        bool // there are named limits
		nats, limits bool
	}{
		{TakeNamed, false, false, false},
		{TakeNamed, true, true, true},
		{TakeAny, false, false, true},
		{TakeOff, true, false, false},
	} {
		s, _ := onFake(t)
		s.status.asksNATS, s.gate.limits.mode = c.nats, c.mode
		if !c.named {
			s.gate.limits.named.Store(new(limit.Set))
		}
		if got := aboutOf(t, s).Features; got != (features{NATS: c.nats, Limits: c.limits}) {
			t.Errorf("take mode %v, named limits %v: %+v", c.mode, c.named, got)
		}
	}
}
