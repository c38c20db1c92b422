package limit

import (
	"testing"
	"time"
)

func TestRateFields(t *testing.T) {
	t.Parallel()
	login := &Limit{Name: "login", Window: time.Minute, Max: 5}
	numbers := &Limit{Window: time.Hour, Max: 1000}
	allowed := func(l *Limit, left int64) Decision {
		return Decision{Take: Take{Limit: l}, Allowed: true, WouldAllow: true, Remaining: left}
	}
	refused := func(l *Limit, wait time.Duration) Decision {
		return Decision{Take: Take{Limit: l}, RetryAfter: wait}
	}
	for _, c := range []struct {
		name         string
		decisions    []Decision
		policy, rate string
	}{
		{"allowed", []Decision{allowed(login, 4)}, `"login";q=5;w=60`, `"login";r=4;t=60`},
		{"refused", []Decision{refused(login, 11417*time.Millisecond)}, `"login";q=5;w=60`, `"login";r=0;t=12`},
		{"refused for an instant", []Decision{refused(login, 0)}, `"login";q=5;w=60`, `"login";r=0;t=1`},
		{"numbers", []Decision{allowed(numbers, 7)}, `"default";q=1000;w=3600`, `"default";r=7;t=3600`},
		{"two limits", []Decision{allowed(numbers, 7), refused(login, time.Second)}, `"default";q=1000;w=3600, "login";q=5;w=60`, `"default";r=7;t=3600, "login";r=0;t=1`},
		{"one name twice", []Decision{allowed(login, 4), allowed(login, 2), allowed(login, 3)}, `"login";q=5;w=60`, `"login";r=2;t=60`},
		{"one name twice, refused", []Decision{allowed(login, 0), refused(login, 3*time.Second)}, `"login";q=5;w=60`, `"login";r=0;t=3`},
	} {
		policy, rate := (&Answer{Decisions: c.decisions}).RateFields()
		if policy != c.policy || rate != c.rate {
			t.Errorf("%s:\n%s\n%s\nwant\n%s\n%s", c.name, policy, rate, c.policy, c.rate)
		}
	}
}
