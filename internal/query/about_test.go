package query

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/gate"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

func aboutOf(t *testing.T, s *service) answer.AboutAnswer {
	t.Helper()
	resp := asking.Ask(s.handler(), http.MethodGet, "/v1/about", "")
	data := asking.ReadAll(t, resp)
	var out answer.AboutAnswer
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, data)
	}
	require.NoError(t, json.Unmarshal(data, &out))
	return out
}

// Every window and step that is offered is answered, with the layout that Redis has, and the steps as they are.
func TestAbout(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	s := onRedis(t, redis.URL(), now)
	s.answers.Namespace = asking.Namespace
	// Before the first worker the problem is that of every question.
	before := asking.Refused(t, asking.Ask(s.handler(), http.MethodGet, "/v1/about", ""), http.StatusServiceUnavailable)
	if total := asking.Refused(t, asking.Ask(s.handler(), http.MethodGet, "/v1/total?key=a&window=1h", ""), http.StatusServiceUnavailable); before.Detail != total.Detail {
		t.Errorf("without a layout: %q, and a total says %q", before.Detail, total.Detail)
	}
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now.Add(-time.Minute), 5))
	got := aboutOf(t, s)
	want := []answer.AboutTier{{Cell: "1m", Window: "1h"}, {Cell: "1h", Window: "1d"}}
	if !slices.Equal(got.Tiers, want) || got.Namespace != asking.Namespace || got.Version == "" || !got.CountingSince.Equal(now.Add(-12*time.Hour)) {
		t.Errorf("%+v", got)
	}
	for _, length := range got.Windows {
		answered(t, asking.Ask(s.handler(), http.MethodGet, "/v1/total?key=a&window="+length, ""))
	}
	for _, step := range got.Steps {
		resp := asking.Ask(s.handler(), http.MethodGet, "/v1/series?key=a&step="+step, "") // the last hour: cells of a minute
		if text := string(asking.ReadAll(t, resp)); resp.StatusCode != http.StatusOK || !strings.Contains(text, `"step":"`+step+`"`) {
			t.Errorf("step %s: status %d: %s", step, resp.StatusCode, text)
		}
	}
	if len(got.Windows) < 4 || len(got.Steps) < 4 {
		t.Errorf("windows %v, steps %v", got.Windows, got.Steps)
	}
}

// Features are on if a client can use them.
func TestAboutFeatures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode         gate.TakeMode
		named        bool // there are named limits
		nats, limits bool
	}{
		{gate.TakeNamed, false, false, false},
		{gate.TakeNamed, true, true, true},
		{gate.TakeAny, false, false, true},
		{gate.TakeOff, true, false, false},
	} {
		settings := testSettings
		settings.Take = c.mode
		s, f := onFakeWith(t, &fakeLimiter{}, settings)
		if !c.named {
			s = newServiceFor(t, f, &fakeLimiter{}, settings)
		}
		s.status.AsksNATS = c.nats
		if got := aboutOf(t, s).Features; got != (answer.Features{NATS: c.nats, Limits: c.limits, Watch: c.nats, Uniques: true}) {
			t.Errorf("take mode %v, named limits %v: %+v", c.mode, c.named, got)
		}
	}
}
