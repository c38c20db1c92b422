package query

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/gate"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// A counter of the streams is judged by its rolling total, also if no takes are counted.
func TestLookAtACounterJudgesItsTotal(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	// Half of the cell of a minute, 10 minutes ago, is in the window: 4 of its 8 hits by proportion.
	asking.Seed(t, redis.Client(), now, asking.Hits("api", now.Add(-10*time.Minute-10*time.Second), 8), asking.Hits("api", now.Add(-time.Minute), 5))
	for _, mode := range []gate.TakeMode{gate.TakeAny, gate.TakeOff} {
		settings := testSettings
		settings.Take = mode
		s := onRedisWith(t, redis.URL(), now, settings)
		h := s.handler()
		for _, c := range []struct {
			query              string
			allowed, certain   bool
			remaining          int64
			waits, waitsAtMost float64
		}{
			{"max=20", true, true, 11, 0, 0},
			{"max=14", true, true, 5, 0, 0},
			{"max=13", true, false, 4, 0, 0},
			{"max=10", true, false, 1, 0, 0},
			{"max=9", false, false, 0, 1, 31},
			{"max=5", false, true, 0, 31, 660},
			{"max=20&n=11", true, false, 11, 0, 0},
			{"max=20&n=12", false, false, 11, 1, 31},
			{"max=9&n=0", true, false, 0, 0, 0},
		} {
			resp := asking.Ask(h, http.MethodGet, "/v1/limit?key=api&window=10m&"+c.query, "")
			got := decided(t, resp, 200)
			if got.Allowed != c.allowed || got.Certain != c.certain || got.Remaining != c.remaining || got.RetryAfter < c.waits || got.RetryAfter > c.waitsAtMost {
				t.Errorf("%s: %+v, want %+v", c.query, got, c)
			}
			if got.Source != "redis" || got.Complete == nil || !*got.Complete || !got.AsOf.Equal(now.Truncate(time.Millisecond)) {
				t.Errorf("%s: %+v", c.query, got)
			}
			if !strings.HasPrefix(resp.Header.Get("RateLimit"), fmt.Sprintf(`"default";r=%d;t=`, c.remaining)) {
				t.Errorf("%s: %v", c.query, resp.Header)
			}
		}
		for query, says := range map[string]string{
			"window=10m&max=5": "key: ", "key=a&window=10m": "max: it is missing", "key=a&max=5": "window: it is missing",
			"key=a&window=9w&max=5": "window: 9w: ", "key=a&window=1m&max=5&n=6": "n: ", "key=a&window=1m&max=5&n=-1": "n: ",
			"key=a&window=1m&max=x": "max: ", "key=a&window=&max=5": "window: it is empty", "key=a&window=1m&max=5&limi=x": "unknown parameter",
		} {
			if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/limit?"+query, ""), 400); !strings.Contains(p.Detail, says) {
				t.Errorf("%s: %s", query, p.Detail)
			}
		}
	}
}

// The fail mode of a look at a counter decides while Redis is away, too.
func TestLookAtACounterFailsAsItSaysWithoutRedis(t *testing.T) {
	t.Parallel()
	s, f := onFake(t)
	f.Err = context.DeadlineExceeded
	h := s.handler()
	for fail, status := range map[string]int{"": 503, "&fail=local": 503, "&fail=closed": 503, "&fail=open": 200} {
		resp := asking.Ask(h, http.MethodGet, "/v1/limit?key=a&window=1h&max=5"+fail, "")
		if status != 200 {
			asking.Refused(t, resp, status)
			continue
		}
		if got := decided(t, resp, status); !got.Allowed || got.Certain || got.Source != "local" || got.Remaining != 5 || got.Complete != nil {
			t.Errorf("%+v", got)
		}
	}
	for query, says := range map[string]string{
		"key=a&window=1h&max=5&fail=maybe": "fail: ", "limit=login&key=a&fail=open": "fail: only of a look at a counter", "key=a&window=1h&max=5&policy=log&fail=open": "fail: only",
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/limit?"+query, ""), 400); !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %s", query, p.Detail)
		}
	}
}
