package gate

import (
	"testing"
	"time"

	"tallyroll/internal/limit"
)

func TestRateFields(t *testing.T) {
	t.Parallel()
	login := &limit.Limit{Name: "login", Window: time.Minute, Max: 5}
	numbers := &limit.Limit{Window: time.Hour, Max: 1000}
	allowed := func(l *limit.Limit, left int64) limit.Decision {
		return limit.Decision{Take: limit.Take{Limit: l}, Allowed: true, WouldAllow: true, Remaining: left}
	}
	refused := func(l *limit.Limit, wait time.Duration) limit.Decision {
		return limit.Decision{Take: limit.Take{Limit: l}, RetryAfter: wait}
	}
	for _, c := range []struct {
		name         string
		decisions    []limit.Decision
		policy, rate string
	}{
		{"allowed", []limit.Decision{allowed(login, 4)}, `"login";q=5;w=60`, `"login";r=4;t=60`},
		{"refused", []limit.Decision{refused(login, 11417*time.Millisecond)}, `"login";q=5;w=60`, `"login";r=0;t=12`},
		{"refused for an instant", []limit.Decision{refused(login, 0)}, `"login";q=5;w=60`, `"login";r=0;t=1`},
		{"numbers", []limit.Decision{allowed(numbers, 7)}, `"default";q=1000;w=3600`, `"default";r=7;t=3600`},
		{"two limits", []limit.Decision{allowed(numbers, 7), refused(login, time.Second)}, `"default";q=1000;w=3600, "login";q=5;w=60`, `"default";r=7;t=3600, "login";r=0;t=1`},
		{"one name twice", []limit.Decision{allowed(login, 4), allowed(login, 2), allowed(login, 3)}, `"login";q=5;w=60`, `"login";r=2;t=60`},
		{"one name twice, refused", []limit.Decision{allowed(login, 0), refused(login, 3*time.Second)}, `"login";q=5;w=60`, `"login";r=0;t=3`},
	} {
		policy, rate := rateFields(&limit.Answer{Decisions: c.decisions})
		if policy != c.policy || rate != c.rate {
			t.Errorf("%s:\n%s\n%s\nwant\n%s\n%s", c.name, policy, rate, c.policy, c.rate)
		}
	}
}

func TestSecondsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]float64{
		0: 0, time.Nanosecond: 0.001, time.Millisecond: 0.001, 1500*time.Millisecond + 1: 1.501, time.Hour: 3600,
	} {
		if got := seconds(d); got != want {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
	}
}
