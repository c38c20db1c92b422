package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

func TestTop(t *testing.T) {
	redis, now := stack.Redis(t), testNow()
	minute := now.Truncate(time.Minute)
	seed(t, redis.Client(), now,
		hit{"api", minute.Add(-5 * time.Minute), 5}, hit{"api", minute.Add(-10*time.Minute + 5*time.Second), 10},
		hit{"other", minute.Add(-2 * time.Minute), 7}, hit{"little", minute.Add(-2 * time.Minute), 1},
		hit{"before", minute.Add(-40 * time.Minute), 90})
	h := onRedis(t, redis.URL(), now).handler()
	for target, want := range map[string]string{
		"/v1/top?window=10m&limit=2": `"window":"10m","floor":1,"top":[{"key":"api","total":10,"lower":5,"upper":15},{"key":"other","total":7,"lower":7,"upper":7}]}`,
		"/v1/top?window=1h&limit=1":  `"window":"1h","floor":15,"top":[{"key":"before","total":90,"lower":90,"upper":90}]}`,
		"/v1/top?window=2m&at=" + fmt.Sprint(minute.Add(-4*time.Minute).UnixMilli()): `"window":"2m","floor":0,"top":[{"key":"api","total":5,"lower":5,"upper":5}]}`,
		"/v1/counters":                 `"counters":["api","before","little","other"]}`,
		"/v1/counters?limit=2":         `"counters":["api","before"],"next":"before"}`,
		"/v1/counters?after=little":    `"counters":["other"]}`,
		"/v1/counters?prefix=l":        `"counters":["little"]}`,
		"/v1/counters?prefix=nothing.": `"counters":[]}`,
	} {
		asOf, err := json.Marshal(timeOf(now.UnixMilli()))
		if err != nil {
			t.Fatal(err)
		}
		resp := ask1(h, http.MethodGet, target, "")
		if got, want := string(readAll(t, resp)), fmt.Sprintf(`{"as_of":%s,%s`+"\n", asOf, want); resp.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s: status %d\n%s want\n%s", target, resp.StatusCode, got, want)
		}
	}
}

func TestListsWithoutRedis(t *testing.T) {
	s, f := onFake(t)
	f.err = errors.New("no Redis")
	for _, target := range []string{"/v1/top?window=1h", "/v1/counters"} {
		resp := ask1(s.handler(), http.MethodGet, target, "")
		if after := resp.Header.Get("Retry-After"); after != "1" {
			t.Errorf("%s: Retry-After %q", target, after)
		}
		refused(t, resp, http.StatusServiceUnavailable)
	}
}
