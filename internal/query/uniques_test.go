package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// uniquesOf asks, and demands an answer.
func uniquesOf(t *testing.T, h http.Handler, method, target, body string) (out answer.UniquesAnswer) {
	t.Helper()
	resp := asking.Ask(h, method, target, body)
	data := asking.ReadAll(t, resp)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d: %s", target, resp.StatusCode, data)
	}
	require.NoError(t, json.Unmarshal(data, &out))
	return out
}

// who are so many different ones.
func who(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint("visitor-", i))
	}
	return out
}

func TestUniques(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	client := redis.Client()
	asking.Seed(t, client, now, asking.Hits("shop", now, 1))
	asking.Came(t, client, "shop", now.Add(-5*time.Minute), who(2000)...)
	asking.Came(t, client, "shop", now.Add(-10*time.Minute), who(1000)...) // they had all been there before
	asking.Came(t, client, "blog", now.Add(-10*time.Minute), who(3)...)
	h := onRedis(t, redis.URL(), now).handler()

	got := uniquesOf(t, h, http.MethodGet, "/v1/uniques?key=shop&key=blog&key=nobody&window=1h&window=24h", "")
	if !got.AsOf.Equal(now) || len(got.Uniques) != 6 {
		t.Fatalf("%+v", got)
	}
	shop := got.Uniques[0]
	if shop.Key != "shop" || shop.Window != "1h" || shop.Confidence != 0.95 || !shop.Complete || !shop.To.Equal(now) || !shop.From.Equal(now.Add(-time.Hour)) || shop.CountingSince.IsZero() {
		t.Errorf("%+v", shop)
	}
	// Redis's estimate of 2,000 may be off by a few parts in a hundred; the bounds are two standard errors of 0.8125 % away.
	if shop.Estimate < 1900 || shop.Estimate > 2100 || shop.Lower != roundTo(shop.Estimate, 1/1.01625) || int64(shop.Upper) != roundTo(shop.Estimate, 1/0.98375) {
		t.Errorf("%+v", shop)
	}
	if day := got.Uniques[1]; day.Estimate != shop.Estimate {
		t.Errorf("a day has the same visitors: %+v", day)
	}
	for i, want := range []int64{3, 3, 0, 0} {
		if u := got.Uniques[2+i]; u.Estimate != want || u.Lower != want || int64(u.Upper) != want {
			t.Errorf("%+v, want exactly %d", u, want)
		}
	}
	for name, other := range map[string]answer.UniquesAnswer{
		"a body":   uniquesOf(t, h, http.MethodPost, "/v1/uniques", `{"keys":["shop","blog","nobody"],"windows":["1h","24h"]}`),
		"in parts": {AsOf: got.AsOf, Uniques: append(uniquesOf(t, h, http.MethodGet, "/v1/uniques?key=shop&window=1h&window=24h", "").Uniques, uniquesOf(t, h, http.MethodGet, "/v1/uniques?key=blog&key=nobody&window=1h&window=24h", "").Uniques...)},
	} {
		if !slices.Equal(other.Uniques, got.Uniques) {
			t.Errorf("%s: %+v\nwant %+v", name, other, got)
		}
	}

	// A range that has ended can be kept, and its tag changes with its numbers.
	past := fmt.Sprintf("/v1/uniques?key=blog&from=%d&to=%d", now.Add(-40*time.Minute).UnixMilli(), now.Add(-2*time.Minute).UnixMilli())
	kept := asking.Ask(h, http.MethodGet, past, "")
	tag := kept.Header.Get("ETag")
	if kept.Header.Get("Cache-Control") != "no-cache" || tag == "" {
		t.Errorf("%v", kept.Header)
	}
	if again := asking.Ask(h, http.MethodGet, past, "", "If-None-Match", tag); again.StatusCode != http.StatusNotModified {
		t.Errorf("unchanged: status %d", again.StatusCode)
	}
	asking.Came(t, client, "blog", now.Add(-10*time.Minute), "somebody else")
	if again := asking.Ask(h, http.MethodGet, past, "", "If-None-Match", tag); again.StatusCode != http.StatusOK {
		t.Errorf("changed: status %d", again.StatusCode)
	}
}

func roundTo(n int64, by float64) int64 { return int64(float64(n)*by + 0.5) }

// A window that nobody has counted to its end has no upper bound.
func TestUniquesThatNobodyCounts(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now.Add(-6*time.Second), asking.Hits("a", now.Add(-time.Minute), 1))
	asking.Came(t, redis.Client(), "a", now.Add(-time.Minute), "ann")
	h := onRedis(t, redis.URL(), now).handler()
	text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/v1/uniques?key=a&window=1h", "")))
	if !strings.Contains(text, `"estimate":1,"lower":1,"upper":null,"confidence":0.95,"complete":false`) {
		t.Error(text)
	}
	at := fmt.Sprintf("/v1/uniques?key=a&window=30m&at=%d", now.Add(-6*time.Second).UnixMilli())
	if got := uniquesOf(t, h, http.MethodGet, at, "").Uniques[0]; !got.Complete || got.Upper != 1 {
		t.Errorf("up to as_of: %+v", got)
	}
}

func TestUniquesThatAreRefused(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	for target, want := range map[string]string{
		"/v1/uniques?window=1h":                                 "key: it is missing",
		"/v1/uniques?key=a":                                     "window: it is missing",
		"/v1/uniques?key=a&window=1":                            "is not a duration",
		"/v1/uniques?key=a&window=33d":                          "UNIQUE_TIERS",
		"/v1/uniques?key=a&window=1h&prefix=a":                  "unknown parameter",
		"/v1/uniques?key=a&window=1h&explain=1":                 "unknown parameter",
		"/v1/uniques?key=a&window=1h&tz=Europe/Berlin":          "tz: ",
		"/v1/uniques?key=a&window=1h&at=2999-01-01T00:00:00Z":   "at: ",
		"/v1/series?key=a&of=visitors":                          `of: "visitors": allowed is hits or uniques`,
		"/v1/series?prefix=a&of=uniques":                        "cannot be added up",
		"/v1/series?group=1&of=uniques":                         "cannot be added up",
		"/v1/series?key=a&of=":                                  "of",
		"/v1/series?key=a&of=uniques&from=2020-01-01T00:00:00Z": "UNIQUE_TIERS",
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusBadRequest); !strings.Contains(p.Detail, want) {
			t.Errorf("%s: %s; want %s", target, p.Detail, want)
		}
	}
	reader := window.NewReader(window.NewStore(stack.ProgramClient(t, redis.URL()), asking.Namespace))
	reader.MaxUniqueCells = 1 // how many cells a window takes depends on the time of day
	readFrom(s, reader)
	for _, target := range []string{"/v1/uniques?key=a&key=b&window=24h", "/v1/series?key=a&key=b&of=uniques"} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusRequestEntityTooLarge); !strings.Contains(p.Detail, "at most 1 are allowed (QUERY_MAX_UNIQUE_CELLS)") {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}

	// A key of something else is named, whatever else the answer would need.
	key := fmt.Sprintf("test:{%d}:u:5m:%d:a", asking.Layout(t).ShardOf(window.HashCounter([]byte("a"))), now.Add(-time.Hour).UnixMilli()/300_000)
	require.NoError(t, redis.Client().Set(t.Context(), key, "something", 0).Err())
	h = onRedis(t, redis.URL(), now).handler()
	if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/uniques?key=b&key=a&window=1h", ""), http.StatusInternalServerError); !strings.Contains(p.Detail, key) || strings.Contains(p.Detail, "\n") {
		t.Error(p.Detail)
	}
}

// A namespace without tiers of uniques says so.
func TestNoUniques(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	asking.Seed(t, server.Client(), now, asking.Hits("a", now, 1))
	require.NoError(t, editLayout(t, server.Client(), `"shards"`, `"unique_tiers":"off","shards"`))
	s := onRedis(t, server.URL(), now)
	for _, target := range []string{"/v1/uniques?key=a&window=1h", "/v1/series?key=a&of=uniques"} {
		if p := asking.Refused(t, asking.Ask(s.handler(), http.MethodGet, target, ""), http.StatusBadRequest); !strings.Contains(p.Detail, "UNIQUE_TIERS=off") {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	if about := aboutOf(t, s); about.Features.Uniques || about.UniqueTiers != nil {
		t.Errorf("%+v", about)
	}
}

func editLayout(t *testing.T, client redis.UniversalClient, from, to string) error {
	t.Helper()
	text, err := client.Get(t.Context(), "test:layout").Result()
	if err != nil {
		return err
	}
	return client.Set(t.Context(), "test:layout", strings.Replace(text, from, to, 1), 0).Err()
}

func TestSeriesOfUniques(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("shop", now, 1))
	asking.Came(t, redis.Client(), "shop", now.Add(-11*time.Minute), who(500)...)
	asking.Came(t, redis.Client(), "shop", now.Add(-21*time.Minute), who(500)...)
	asking.Came(t, redis.Client(), "blog", now.Add(-11*time.Minute), who(2)...)
	h := onRedis(t, redis.URL(), now).handler()
	read := func(target string) string {
		t.Helper()
		resp := asking.Ask(h, http.MethodGet, target, "")
		text := string(asking.ReadAll(t, resp))
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d: %s", target, resp.StatusCode, text)
		}
		return text
	}
	var one answer.Series
	require.NoError(t, json.Unmarshal([]byte(read("/v1/series?key=shop&of=uniques&step=5m")), &one))
	if one.Of != "uniques" || one.Confidence != 0.95 || one.Step != "5m" || len(one.Bounds) != len(one.Points) || len(one.Points) < 12 || one.UnfinishedFrom == 0 {
		t.Fatalf("%+v", one)
	}
	came := 0
	for i, p := range one.Points {
		if p[1] > 0 {
			came++
			if p[1] < 480 || p[1] > 520 || one.Bounds[i][0] >= p[1] || one.Bounds[i][1] <= p[1] {
				t.Errorf("point %v within %v", p, one.Bounds[i])
			}
		}
	}
	if came != 2 {
		t.Errorf("%d points have visitors", came)
	}
	// The union of all steps is that of one long one.
	var whole answer.Series
	require.NoError(t, json.Unmarshal([]byte(read("/v1/series?key=shop&of=uniques&step=2h")), &whole))
	if len(whole.Points) != 1 || whole.Points[0][1] > 520 {
		t.Errorf("%+v", whole)
	}
	if text := read("/v1/series?key=shop&key=blog&of=uniques"); !strings.Contains(text, `"series":[{"key":"shop","of":"uniques"`) || !strings.Contains(text, `{"key":"blog","of":"uniques"`) {
		t.Error(text)
	}
	if text := read("/v1/series?key=shop&key=blog&of=uniques&format=csv"); !strings.HasPrefix(text, "time,shop,blog,shop lower,shop upper,blog lower,blog upper,complete\n") || !strings.Contains(text, ",2,") {
		t.Error(text)
	}
	if text := read("/v1/series?key=shop&of=hits"); strings.Contains(text, `"of"`) || strings.Contains(text, "confidence") {
		t.Error(text)
	}
	if text := read("/v1/series?key=shop&of=uniques&step=1d&tz=Europe/Berlin"); !strings.Contains(text, `"step":"1d","tz":"Europe/Berlin"`) || !strings.Contains(text, `"bounds"`) {
		t.Error(text)
	}
}
