package query

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tallyroll/internal/limit"
)

// testLimits are what tests, and the documentation, find in QUERY_LIMITS_FILE.
const testLimits = `limits:
  - {name: login, window: 1m, max: 5, policy: log}
  - {name: per-second, window: 1s, max: 10}
  - {name: per-hour, window: 1h, max: 1000, fail: open}
  - {name: closed, window: 1h, max: 2, fail: closed}
  - {name: per-route, window: 1m, max: 3, key: "{method} {host} {path} {key}"}
  - {name: per-address, window: 1m, max: 3, key: "a {ip}"}
  - {name: per-agent, window: 1m, max: 3, key: "{header.User-Agent}"}
`

// limitsFor are testLimits, decided by a limiter, with the settings of a test.
func limitsFor(t testing.TB, l limiter, settings Settings) *limits {
	t.Helper()
	settings.LimitsFile = filepath.Join(t.TempDir(), "limits.yml")
	if err := os.WriteFile(settings.LimitsFile, []byte(testLimits), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := newLimits(l, settings)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// fakeLimiter remembers what it is asked, and answers that.
type fakeLimiter struct {
	asked  []limit.Take
	reset  []limit.Take
	looked bool
	err    error
	states []limit.Decision // of the takes; allowed if there are none
}

func (f *fakeLimiter) Take(_ context.Context, takes []limit.Take) (limit.Answer, error) {
	f.asked, f.looked = takes, false
	return f.answer(takes)
}

func (f *fakeLimiter) Look(_ context.Context, takes []limit.Take) (limit.Answer, error) {
	f.asked, f.looked = takes, true
	return f.answer(takes)
}

func (f *fakeLimiter) Reset(_ context.Context, take limit.Take) error {
	f.reset = append(f.reset, take)
	return f.err
}

func (f *fakeLimiter) answer(takes []limit.Take) (limit.Answer, error) {
	out := limit.Answer{Allowed: true}
	for i, take := range takes {
		d := limit.Decision{Allowed: true, Certain: true, Remaining: take.Limit.Max - take.N, Source: limit.FromRedis}
		if i < len(f.states) {
			d = f.states[i]
		}
		d.Take = take
		out.Decisions = append(out.Decisions, d)
		out.Allowed = out.Allowed && d.Allowed
	}
	return out, f.err
}

// limitWith is a limit with a key template.
func limitWith(t *testing.T, template string) *limit.Limit {
	t.Helper()
	l, err := limit.Adhoc(time.Minute, 3, limit.Cells)
	if err != nil {
		t.Fatal(err)
	}
	l.Key, err = limit.ParseTemplate(template)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
