package query

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// A range that has ended has a tag, each resource and format another one, which holds until a hit comes late.
func TestPastRangeHasATagUntilAHitComesLate(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	minute := now.Truncate(time.Minute)
	asking.Seed(t, redis.Client(), now, asking.Hits("api", minute.Add(-time.Minute), 5))
	asking.Came(t, redis.Client(), "api", minute.Add(-10*time.Minute), "ann")
	h := onRedis(t, redis.URL(), now).handler()
	target := fmt.Sprintf("?key=api&from=%d&to=%d", minute.Add(-30*time.Minute).UnixMilli(), minute.UnixMilli())
	seen := map[string]string{}
	for _, what := range []string{"/v1/series" + target, "/v1/series" + target + "&format=csv", "/v1/total" + target, "/v1/uniques" + target} {
		resp := asking.Ask(h, http.MethodGet, what, "")
		tag := resp.Header.Get("ETag")
		if tag == "" || resp.Header.Get("Cache-Control") != "no-cache" || seen[tag] != "" {
			t.Errorf("%s: tag %q (also of %s), Cache-Control %q", what, tag, seen[tag], resp.Header.Get("Cache-Control"))
		}
		seen[tag] = what
	}
	for tag, what := range seen {
		resp := asking.Ask(h, http.MethodGet, what, "", "If-None-Match", `"other", `+tag)
		if resp.StatusCode != http.StatusNotModified || len(asking.ReadAll(t, resp)) > 0 || resp.Header.Get("ETag") != tag {
			t.Errorf("%s: status %d, %v", what, resp.StatusCode, resp.Header)
		}
	}
	asking.Late(t, redis.Client(), now, asking.Hits("api", minute.Add(-10*time.Minute), 1))
	asking.Came(t, redis.Client(), "api", minute.Add(-10*time.Minute), "bob")
	for tag, what := range seen {
		resp := asking.Ask(h, http.MethodGet, what, "", "If-None-Match", tag)
		require.Equal(t, http.StatusOK, resp.StatusCode, what)
		require.NotEqual(t, tag, resp.Header.Get("ETag"), what)
	}
}

func TestWantedFormatIsThatOfAccept(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"": "json", "*/*": "json", "text/html": "json", "text/csv": "csv", "image/*": "json",
		"text/csv;q=0.5, application/json": "json", "application/json;q=0, text/csv;q=0.1": "csv", "text/csv;q=x": "json", ";;,": "json",
		"application/json, text/csv": "json", "TEXT/CSV": "csv",
	} {
		if got := wantedFormat(header); got != want {
			t.Errorf("%s: %s, want %s", header, got, want)
		}
	}
}
