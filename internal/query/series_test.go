package query

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

func TestSeries(t *testing.T) {
	redis, now := stack.Redis(t), testNow()
	minute := now.Truncate(time.Minute)
	seed(t, redis.Client(), now,
		sample{"api", now.Add(-time.Second), 3},
		sample{"api", minute.Add(-time.Minute), 5}, sample{"api", minute.Add(-time.Millisecond), 6},
		sample{"api", minute.Add(-59 * time.Minute), 7},
		sample{"api", minute.Add(-5 * time.Hour), 100},
		sample{"a,b", minute.Add(-2 * time.Minute), 1},
	)
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	get := func(t *testing.T, into any, params url.Values) *http.Response {
		t.Helper()
		resp := ask1(h, http.MethodGet, "/v1/series?"+params.Encode(), "")
		data := readAll(t, resp)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d: %s", resp.StatusCode, data)
		}
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("answer %s: %v", data, err)
		}
		return resp
	}
	// counts are the points that are not 0, by their distance from the running minute.
	counts := func(s series) string {
		var out []string
		for i, p := range s.Points {
			if i > 0 && len(s.Points) > 2 && i < len(s.Points)-1 && p[0]-s.Points[i-1][0] != s.Points[1][0]-s.Points[0][0] {
				t.Errorf("point %d is %d ms after the one before", i, p[0]-s.Points[i-1][0])
			}
			if p[1] != 0 {
				out = append(out, fmt.Sprintf("%v:%d", time.UnixMilli(p[0]).Sub(minute), p[1]))
			}
		}
		return strings.Join(out, " ")
	}

	t.Run("the last hour", func(t *testing.T) {
		var got series
		resp := get(t, &got, url.Values{"key": {"api"}})
		if s := counts(got); s != "-59m0s:7 -1m0s:11 0s:3" || got.Step != "1m" || got.Key != "api" || !got.AsOf.Equal(now.Truncate(time.Millisecond)) {
			t.Errorf("%s: %+v", s, got)
		}
		if got.UnfinishedFrom != minute.UnixMilli() || !got.Complete || !got.CountingSince.Equal(now.Add(-12*time.Hour).Truncate(time.Millisecond)) {
			t.Errorf("%+v; want it unfinished from %d on", got, minute.UnixMilli())
		}
		if n := len(got.Points); n != 61 || got.Points[0][0] != minute.Add(-time.Hour).UnixMilli() {
			t.Errorf("%d points from %d", n, got.Points[0][0])
		}
		if c := resp.Header.Get("Cache-Control"); c != "no-store" {
			t.Errorf("Cache-Control %q", c)
		}
	})
	t.Run("steps are whole cells", func(t *testing.T) {
		var got series
		get(t, &got, url.Values{"key": {"api"}, "step": {"90s"}, "from": {fmt.Sprint(minute.Add(-3 * time.Minute).UnixMilli())}})
		if s := counts(got); s != "-1m0s:14" || got.Step != "2m" || len(got.Points) != 2 {
			t.Errorf("%s: %+v", s, got)
		}
	})
	t.Run("a coarser tier", func(t *testing.T) {
		var got series
		get(t, &got, url.Values{"key": {"api"}, "step": {"1m"}, "from": {fmt.Sprint(now.Add(-6 * time.Hour).UnixMilli())}})
		var sum int64
		for _, p := range got.Points {
			sum += p[1]
		}
		if got.Step != "1h" || sum != 121 {
			t.Errorf("step %s, sum %d", got.Step, sum)
		}
	})
	t.Run("an hour that ended a moment ago", func(t *testing.T) {
		var got series
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(now.Add(-61 * time.Minute).UnixMilli())}, "to": {fmt.Sprint(now.Add(-time.Minute).UnixMilli())}})
		if s := counts(got); s != "-59m0s:7 -1m0s:11" || got.Step != "1m" {
			t.Errorf("%s: step %s", s, got.Step)
		}
	})
	t.Run("from before counting began", func(t *testing.T) {
		var got series
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(now.Add(-20 * time.Hour).UnixMilli())}})
		first := now.Add(-12 * time.Hour).Truncate(time.Hour)
		if got.Points[0][0] != first.UnixMilli() || got.Complete {
			t.Errorf("%+v; want points from %d on", got, first.UnixMilli())
		}
		got = series{}
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(now.Add(-20 * time.Hour).UnixMilli())}, "to": {fmt.Sprint(now.Add(-14 * time.Hour).UnixMilli())}})
		if got.Points == nil || len(got.Points) != 0 || got.UnfinishedFrom != 0 {
			t.Errorf("%+v; want an empty list of points", got)
		}
	})
	t.Run("what is finished", func(t *testing.T) {
		var got series
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(minute.Add(-3 * time.Minute).UnixMilli())}, "to": {fmt.Sprint(minute.UnixMilli())}})
		if got.UnfinishedFrom != 0 || len(got.Points) != 3 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("several counters", func(t *testing.T) {
		var got seriesList
		get(t, &got, url.Values{"key": {"api", "a,b", "never"}})
		want := []string{"-59m0s:7 -1m0s:11 0s:3", "-2m0s:1", ""}
		for i, key := range []string{"api", "a,b", "never"} {
			if got.Series[i].Key != key || counts(got.Series[i]) != want[i] || len(got.Series[i].Points) != 61 {
				t.Errorf("%s: %s", key, counts(got.Series[i]))
			}
		}
	})
	t.Run("a table", func(t *testing.T) {
		for _, accept := range []string{"", "text/csv"} {
			target := "/v1/series?key=api&key=a,b"
			if accept == "" {
				target += "&format=csv"
			}
			resp := ask1(h, http.MethodGet, target, "", "Accept", accept)
			rows, err := csv.NewReader(resp.Body).ReadAll()
			if err != nil || len(rows) != 61 || !slices.Equal(rows[0], []string{"time", "api", "a,b"}) {
				t.Fatalf("%d rows, first %v: %v", len(rows), rows, err)
			}
			// The running minute has no row: as_of has not passed it.
			if want := []string{minute.Add(-time.Minute).Format(time.RFC3339), "11", "0"}; !slices.Equal(rows[60], want) {
				t.Errorf("last row %v, want %v", rows[60], want)
			}
			if got := resp.Header.Get("Content-Type"); got != "text/csv; charset=utf-8" || !slices.Contains(resp.Header.Values("Vary"), "Accept") {
				t.Errorf("content type %s, Vary %s", got, resp.Header.Values("Vary"))
			}
		}
	})
	t.Run("no formulas in a table", func(t *testing.T) {
		keys := []string{"=1+1", "+a", "-a", "@a", "\uff1da", "a=1", "'a", "ä"}
		resp := ask1(h, http.MethodGet, "/v1/series?"+url.Values{"key": keys, "format": {"csv"}}.Encode(), "")
		rows, err := csv.NewReader(resp.Body).ReadAll()
		if want := []string{"time", "'=1+1", "'+a", "'-a", "'@a", "'\uff1da", "a=1", "'a", "ä"}; err != nil || !slices.Equal(rows[0], want) {
			t.Errorf("%v: %q, want %q", err, rows, want)
		}
	})
	t.Run("charts", func(t *testing.T) {
		resp := ask1(h, http.MethodGet, "/v1/series?key=api&width=640&height=200", "", "Accept", "image/svg+xml")
		if data := readAll(t, resp); !bytes.Contains(data, []byte(`width="640" height="200"`)) || resp.Header.Get("Content-Type") != "image/svg+xml" {
			t.Errorf("%v: %.200s", resp.Header, data)
		}
		resp = ask1(h, http.MethodGet, "/v1/series?key=api&key=a,b", "", "Accept", "image/avif,image/svg+xml,image/*,*/*;q=0.8")
		if data := readAll(t, resp); !bytes.Contains(data, []byte("<svg")) || resp.Header.Get("Content-Type") != "image/svg+xml" {
			t.Errorf("%v: %.200s", resp.Header, data)
		}
	})
	t.Run("a past range is validated", func(t *testing.T) {
		target := fmt.Sprintf("?key=api&from=%d&to=%d", minute.Add(-30*time.Minute).UnixMilli(), minute.UnixMilli())
		seen := map[string]string{}
		for _, what := range []string{"/v1/series" + target, "/v1/series" + target + "&format=csv", "/v1/total" + target} {
			resp := ask1(h, http.MethodGet, what, "")
			tag := resp.Header.Get("ETag")
			if tag == "" || resp.Header.Get("Cache-Control") != "no-cache" || seen[tag] != "" {
				t.Errorf("%s: tag %q (also of %s), Cache-Control %q", what, tag, seen[tag], resp.Header.Get("Cache-Control"))
			}
			seen[tag] = what
		}
		for tag, what := range seen {
			resp := ask1(h, http.MethodGet, what, "", "If-None-Match", `"other", `+tag)
			if resp.StatusCode != http.StatusNotModified || len(readAll(t, resp)) > 0 || resp.Header.Get("ETag") != tag {
				t.Errorf("%s: status %d, %v", what, resp.StatusCode, resp.Header)
			}
		}
		// A hit that comes late changes the answer and so the tag.
		late(t, redis.Client(), now, sample{"api", minute.Add(-10 * time.Minute), 1})
		for tag, what := range seen {
			resp := ask1(h, http.MethodGet, what, "", "If-None-Match", tag)
			if resp.StatusCode != http.StatusOK || resp.Header.Get("ETag") == tag {
				t.Errorf("%s after a late hit: status %d, tag %s", what, resp.StatusCode, resp.Header.Get("ETag"))
			}
		}
	})
}

func TestWantedFormat(t *testing.T) {
	for header, want := range map[string]string{
		"": "json", "*/*": "json", "text/html": "json", "text/csv": "csv", "image/png": "json", "image/*": "svg",
		"text/csv;q=0.5, image/svg+xml": "svg", "image/svg+xml;q=0, text/csv;q=0.1": "csv", "image/png, image/*;q=0.5": "svg", "text/csv;q=x": "json", ";;,": "json",
		"application/json, text/csv": "json", "TEXT/CSV": "csv",
	} {
		if got := wantedFormat(header); got != want {
			t.Errorf("%s: %s, want %s", header, got, want)
		}
	}
}

func TestWorkIsBounded(t *testing.T) {
	redis, now := stack.Redis(t), testNow()
	seed(t, redis.Client(), now, sample{"a", now, 1})
	s := onRedis(t, redis.URL(), now)
	limited(t, s, 480, 61) // of counters with hashes of 120 cells, two each
	h := s.handler()
	for target, want := range map[string]string{
		"/v1/total?key=a&key=b&window=59m":                   "",
		"/v1/total?key=a&key=b&window=59m&window=10m":        "",
		"/v1/total?key=a&key=b&key=c&key=d&key=e&window=59m": "QUERY_MAX_CELLS",
		"/v1/series?key=a":                                   "",
		"/v1/series?key=a&key=b":                             "QUERY_MAX_POINTS",
		"/v1/series?key=a&key=b&step=30m":                    "",
	} {
		resp := ask1(h, http.MethodGet, target, "")
		if want == "" {
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: status %d: %s", target, resp.StatusCode, readAll(t, resp))
			}
			continue
		}
		if p := refused(t, resp, http.StatusRequestEntityTooLarge); !strings.Contains(p.Detail, want) {
			t.Errorf("%s: detail %q, want %s in it", target, p.Detail, want)
		}
	}
}
