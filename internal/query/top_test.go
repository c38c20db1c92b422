package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/web/api"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

func TestTop(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	minute := now.Truncate(time.Minute)
	asking.Seed(t, redis.Client(), now,
		asking.Hits("api", minute.Add(-5*time.Minute), 5), asking.Hits("api", minute.Add(-10*time.Minute+5*time.Second), 10),
		asking.Hits("other", minute.Add(-2*time.Minute), 7), asking.Hits("little", minute.Add(-2*time.Minute), 1),
		asking.Hits("before", minute.Add(-40*time.Minute), 90))
	h := onRedis(t, redis.URL(), now).handler()
	for target, want := range map[string]string{
		"/v1/top?window=10m&limit=2": `"window":"10m","complete":true,SINCE,"floor":1,"top":[{"key":"api","total":10,"lower":5,"upper":15},{"key":"other","total":7,"lower":7,"upper":7}]}`,
		"/v1/top?window=1h&limit=1":  `"window":"1h","complete":true,SINCE,"floor":15,"top":[{"key":"before","total":90,"lower":90,"upper":90}]}`,
		"/v1/top?window=2m&at=" + fmt.Sprint(minute.Add(-4*time.Minute).UnixMilli()): `"window":"2m","complete":true,SINCE,"floor":0,"top":[{"key":"api","total":5,"lower":5,"upper":5}]}`,
		"/v1/counters":                 `"complete":false,SINCE,"counters":["api","before","little","other"]}`,
		"/v1/counters?limit=2":         `"complete":false,SINCE,"counters":["api","before"],"next":"before"}`,
		"/v1/counters?after=little":    `"complete":false,SINCE,"counters":["other"]}`,
		"/v1/counters?prefix=l":        `"complete":false,SINCE,"counters":["little"]}`,
		"/v1/counters?prefix=nothing.": `"complete":false,SINCE,"counters":[]}`,
	} {
		asOf, since := string(api.Encode(answer.Time(now.UnixMilli()))), string(api.Encode(answer.Time(now.Add(-12*time.Hour).UnixMilli())))
		want = strings.Replace(want, "SINCE", `"counting_since":`+since, 1)
		resp := asking.Ask(h, http.MethodGet, target, "")
		if got, want := string(asking.ReadAll(t, resp)), fmt.Sprintf(`{"as_of":%s,%s`+"\n", asOf, want); resp.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s: status %d\n%s want\n%s", target, resp.StatusCode, got, want)
		}
	}
}

func TestListsWithoutRedis(t *testing.T) {
	t.Parallel()
	s, f := onFake(t)
	f.Err = errors.New("no Redis")
	for _, target := range []string{"/v1/top?window=1h", "/v1/counters"} {
		resp := asking.Ask(s.handler(), http.MethodGet, target, "")
		if after := resp.Header.Get("Retry-After"); after != "1" {
			t.Errorf("%s: Retry-After %q", target, after)
		}
		asking.Refused(t, resp, http.StatusServiceUnavailable)
	}
}

// QUERY_MAX_CELLS bounds the cells that a list reads in all: of counters of two
// hashes of 120 cells, or of two of 48 for names. Less than that shortens a list
// honestly, and it is refused where not even what was asked for can be read.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	var hits []asking.Sample
	for i := range 10 {
		hits = append(hits, asking.Hits(fmt.Sprintf("c%d", i), now.Add(-time.Minute), int64(100-i)))
	}
	asking.Seed(t, redis.Client(), now, hits...)
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	for _, c := range []struct {
		cells  int64
		target string
		status int
	}{
		{10 * 240, "/v1/top?window=1h&limit=10", http.StatusOK},
		{10*120 - 1, "/v1/top?window=1h&limit=10", http.StatusRequestEntityTooLarge},
		{240, "/v1/top?window=1h&limit=1", http.StatusOK},
		{10 * 240, "/v1/top?window=1h&limit=1000", http.StatusOK}, // there are no more
		{119, "/v1/top?window=1h&limit=1", http.StatusRequestEntityTooLarge},
		{47, "/v1/counters", http.StatusRequestEntityTooLarge},
	} {
		limited(t, s, c.cells, 0)
		resp := asking.Ask(h, http.MethodGet, c.target, "")
		if c.status == http.StatusOK {
			if data := asking.ReadAll(t, resp); resp.StatusCode != http.StatusOK {
				t.Errorf("%s with %d cells: %d %s", c.target, c.cells, resp.StatusCode, data)
			}
			continue
		}
		if p := asking.Refused(t, resp, c.status); !strings.Contains(p.Detail, "QUERY_MAX_CELLS") {
			t.Errorf("%s with %d cells: %s", c.target, c.cells, p.Detail)
		}
	}

	limited(t, s, 96, 0) // one name or two at a time
	var names []string
	for after, pages := "", 0; ; pages++ {
		if pages > 10 {
			t.Fatalf("the pages have no end: %v", names)
		}
		target := "/v1/counters"
		if after != "" {
			target += "?after=" + after
		}
		var page answer.CountersAnswer
		require.NoError(t, json.Unmarshal(asking.ReadAll(t, asking.Ask(h, http.MethodGet, target, "")), &page))
		if len(page.Counters) > 2 {
			t.Errorf("a page of %d", len(page.Counters))
		}
		names = append(names, page.Counters...)
		if after = page.Next; after == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "c0 c1 c2 c3 c4 c5 c6 c7 c8 c9" {
		t.Error(got)
	}
}
