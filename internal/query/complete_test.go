package query

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// What was stored after as_of is not known. So a window that reaches more than five seconds beyond it has no upper bound
// and is not complete, in whatever way one asks, and not a millisecond earlier.
func TestNothingIsExactWhileNobodyCounts(t *testing.T) {
	t.Parallel()
	for behind, known := range map[time.Duration]bool{5 * time.Second: true, 5*time.Second + time.Millisecond: false} {
		t.Run(behind.String(), func(t *testing.T) {
			t.Parallel()
			redis, now := stack.Redis(t), asking.Now().Truncate(time.Millisecond)
			asOf := now.Add(-behind)
			asking.Seed(t, redis.Client(), asOf, asking.Hits("shop.a", asOf.Add(-5*time.Minute), 3))
			s := onRedis(t, redis.URL(), now)
			watched(t, s)
			broker := stack.NATS(t)
			onNATS(t, s, broker.URL())
			services(t, broker.Conn(), 1)
			h := s.handler()
			upper, probedUpper, probedComplete := `"upper":3`, 3.0, 1.0
			if !known {
				upper, probedUpper, probedComplete = `"upper":null`, math.Inf(1), 0
			}
			complete, certain := fmt.Sprintf(`"complete":%t`, known), fmt.Sprintf(`"certain":%t`, known)
			const span = "window=5h" // it begins hours before every hit, so that it cuts no cell that has some
			for target, want := range map[string][]string{
				"/v1/total?key=shop.a&" + span:                  {upper, complete},
				"/v1/limit?key=shop.a&max=9&" + span:            {`"allowed":true`, certain, complete},
				"/v1/limit?key=shop.a&max=2&" + span:            {`"allowed":false`, certain, complete},
				"/v1/limit?key=shop.a&max=2&fail=local&" + span: {`"allowed":false`, certain, complete},
				"/v1/limit?key=shop.a&max=9&fail=open&" + span:  {`"allowed":true`, `"remaining":6`, certain, complete},
				"/v1/limit?key=shop.a&max=2&fail=open&" + span:  {fmt.Sprintf(`"allowed":%t`, !known), `"remaining":0`, complete},
			} {
				text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, target, "")))
				for _, want := range want {
					require.Contains(t, text, want, target)
				}
			}
			text := string(request(t, broker.Conn(), "total", `{"keys":["shop.a"],"windows":["5h"]}`).Data)
			require.Contains(t, text, upper)
			require.Contains(t, text, complete)
			require.Contains(t, string(request(t, broker.Conn(), "limit", `{"key":"shop.a","window":"5h","max":9}`).Data), certain)
			closed := asking.Ask(h, http.MethodGet, "/v1/limit?key=shop.a&max=9&fail=closed&"+span, "")
			if known {
				decided(t, closed, 200)
			} else {
				require.Contains(t, asking.Refused(t, closed, 503).Detail, "fail is closed")
				require.Equal(t, "1", closed.Header.Get("Retry-After"))
			}
			probed := scraped(t, asking.Ask(h, http.MethodGet, "/probe?key=shop.a&"+span, ""))
			require.Equal(t, probedUpper, probed[`tallyroll_window_hits_upper{key="shop.a",window="5h"}`])
			require.Equal(t, probedComplete, probed[`tallyroll_window_hits_complete{key="shop.a",window="5h"}`])
			event := firstEvent(t, h, "key=shop.a&"+span)
			require.Contains(t, event, upper)
			require.Contains(t, event, complete)
		})
	}
}
