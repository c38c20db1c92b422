package query

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
)

// What is wrong with a request is described before anything is asked or taken. The cases of parameters and bodies are those of
// internal/answer, gate and web/api.
func TestRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := serveFake(t, countNamed)
	s.live.MaxKeys = 3
	runHealth(t, s.service)
	h := s.handler()
	for _, c := range asking.ReadRequests(t, "testdata/refused.txt") {
		s.reader.Forget()
		p := asking.Refused(t, c.Send(h), c.Status)
		require.Contains(t, p.Detail, c.Want, c.String())
		require.LessOrEqual(t, len(p.Detail), 500, c.String())
		asked := s.reader.Questions() != nil && c.Options["reader"] == ""
		require.False(t, asked || s.limiter.asked != nil, "%s: it asked %v and %v", c, s.reader.Questions(), s.limiter.asked)
	}
}

// Whatever is in a query string, the answer is one or a refusal that names the fault.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		"", "key=a&window=1h", "key=a,b&key=%E2%98%83&window=1m&window=1d", "key=a&window=1h&at=2026-11-21T10:00:00Z",
		"key=a&from=1795250000000&to=1795255200000", "key=%zz&window=1h", "key=a;window=1h", "key&window", "key=&key=a&window=&window=1h",
		"key=a&window=1h&at=-9223372036854775808", "key=a&window=99999999999999999999w", "a&key=1", "=&&=", "key=a&window=1h&windwo=2h",
		"key=a", "key=a&key=b&step=5m", "key=a&format=csv", "key=a&format=xml", "key=a&from=1795250000000&to=1795255200000&step=1h",
		"key=%00", "key=a&step=99999999999999999999w", "key=a&step=-1m", "key=a&from=&to=", "window=1h&limit=5&at=2026-11-21T10:00:00Z",
		"window=9w", "limit=0", "limit=+1", "prefix=a&after=%ff", "after=&prefix=", "prefix=%00", "limit=99999999999999999999&window=1m",
	} {
		f.Add(seed)
	}
	h := serveFake(f).handler()
	f.Fuzz(func(t *testing.T, query string) {
		for _, path := range []string{totalPath, "/v1/series", "/v1/top", "/v1/counters"} {
			checkAnswerOrRefusal(t, asking.Ask(h, http.MethodGet, path+"?"+query, ""))
		}
	})
}

func FuzzTotalBody(f *testing.F) {
	for _, seed := range []string{
		`{"keys":["a"],"windows":["1h"]}`, `{"keys":["a"],"windows":["1h"],"at":1795255200000}`, `{"keys":["a"],"from":"2026-11-21T09:00:00Z"}`,
		`{"keys":null}`, `{"keys":[{}]}`, `{"keys":["a"],"windows":["1h"],"at":"\ud800"}`, `[]`, `1`, `"`, `{"KEYS":["a"],"Windows":["1h"]}`, "\xff",
	} {
		f.Add(seed)
	}
	h := serveFake(f).handler()
	f.Fuzz(func(t *testing.T, body string) {
		checkAnswerOrRefusal(t, asking.Ask(h, http.MethodPost, totalPath, body))
	})
}

func checkAnswerOrRefusal(t *testing.T, resp *http.Response) {
	t.Helper()
	if resp.StatusCode == http.StatusOK {
		require.NotEmpty(t, asking.ReadAll(t, resp))
		return
	}
	p := asking.Refused(t, resp, resp.StatusCode)
	require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, p.Status, p.Detail)
}

// BenchmarkWithoutRedis is what a request costs in addition to its reads.
func BenchmarkWithoutRedis(b *testing.B) {
	h := serveFake(b).handler()
	many := `{"keys":["a"`
	for i := range 99 {
		many += fmt.Sprintf(`,"counter-%d"`, i)
	}
	many += `],"windows":["1m","1h","12h","20h"]}`
	for _, c := range []struct{ name, method, target, body string }{
		{"total", http.MethodGet, "/v1/total?key=api-1&window=20h", ""},
		{"past", http.MethodGet, "/v1/total?key=api-1&window=20h&at=2026-11-21T09:00:00Z", ""},
		{"100x4", http.MethodPost, "/v1/total", many},
		{"series", http.MethodGet, "/v1/series?key=api-1", ""},
		{"top", http.MethodGet, "/v1/top?window=1h", ""},
		{"healthz", http.MethodGet, "/healthz", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.Equal(b, http.StatusOK, asking.Ask(h, c.method, c.target, c.body).StatusCode)
			}
		})
	}
}
