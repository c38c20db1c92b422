package query

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

func TestSeries(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	minute := now.Truncate(time.Minute)
	asking.Seed(t, redis.Client(), now,
		asking.Hits("api", now.Add(-time.Second), 3),
		asking.Hits("api", minute.Add(-time.Minute), 5), asking.Hits("api", minute.Add(-time.Millisecond), 6),
		asking.Hits("api", minute.Add(-59*time.Minute), 7),
		asking.Hits("api", minute.Add(-5*time.Hour), 100),
		asking.Hits("a,b", minute.Add(-2*time.Minute), 1),
	)
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	get := func(t *testing.T, into any, params url.Values) *http.Response {
		t.Helper()
		resp := asking.Ask(h, http.MethodGet, "/v1/series?"+params.Encode(), "")
		data := asking.ReadAll(t, resp)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d: %s", resp.StatusCode, data)
		}
		require.NoErrorf(t, json.Unmarshal(data, into), "answer %s", data)
		return resp
	}
	// counts are the points that are not 0, by their distance from the running minute.
	counts := func(s answer.Series) string {
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
		var got answer.Series
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
		var got answer.Series
		get(t, &got, url.Values{"key": {"api"}, "step": {"90s"}, "from": {fmt.Sprint(minute.Add(-3 * time.Minute).UnixMilli())}})
		if s := counts(got); s != "-1m0s:14" || got.Step != "2m" || len(got.Points) != 2 {
			t.Errorf("%s: %+v", s, got)
		}
	})
	t.Run("a coarser tier", func(t *testing.T) {
		var got answer.Series
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
		var got answer.Series
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(now.Add(-61 * time.Minute).UnixMilli())}, "to": {fmt.Sprint(now.Add(-time.Minute).UnixMilli())}})
		if s := counts(got); s != "-59m0s:7 -1m0s:11" || got.Step != "1m" {
			t.Errorf("%s: step %s", s, got.Step)
		}
	})
	t.Run("from before counting began", func(t *testing.T) {
		var got answer.Series
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(now.Add(-20 * time.Hour).UnixMilli())}})
		first := now.Add(-12 * time.Hour).Truncate(time.Hour)
		if got.Points[0][0] != first.UnixMilli() || got.Complete || got.CompleteFrom != first.Add(time.Hour).UnixMilli() {
			t.Errorf("%+v; want points from %d on, and it complete an hour later", got, first.UnixMilli())
		}
		got = answer.Series{}
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(now.Add(-20 * time.Hour).UnixMilli())}, "to": {fmt.Sprint(now.Add(-14 * time.Hour).UnixMilli())}})
		if got.Points == nil || len(got.Points) != 0 || got.UnfinishedFrom != 0 || got.CompleteFrom != now.Add(-13*time.Hour).Truncate(time.Hour).UnixMilli() {
			t.Errorf("%+v; want an empty list of points", got)
		}
	})
	t.Run("what is finished", func(t *testing.T) {
		var got answer.Series
		get(t, &got, url.Values{"key": {"api"}, "from": {fmt.Sprint(minute.Add(-3 * time.Minute).UnixMilli())}, "to": {fmt.Sprint(minute.UnixMilli())}})
		if got.UnfinishedFrom != 0 || len(got.Points) != 3 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("several counters", func(t *testing.T) {
		var got answer.SeriesList
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
			resp := asking.Ask(h, http.MethodGet, target, "", "Accept", accept)
			rows, err := csv.NewReader(resp.Body).ReadAll()
			if err != nil || len(rows) != 61 || !slices.Equal(rows[0], []string{"time", "api", "a,b", "complete"}) {
				t.Fatalf("%d rows, first %v: %v", len(rows), rows, err)
			}
			// The running minute has no row: as_of has not passed it.
			if want := []string{minute.Add(-time.Minute).Format(time.RFC3339), "11", "0", "true"}; !slices.Equal(rows[60], want) {
				t.Errorf("last row %v, want %v", rows[60], want)
			}
			if got := resp.Header.Get("Content-Type"); got != "text/csv; charset=utf-8" || !slices.Contains(resp.Header.Values("Vary"), "Accept") {
				t.Errorf("content type %s, Vary %s", got, resp.Header.Values("Vary"))
			}
		}
	})
	t.Run("no formulas in a table", func(t *testing.T) {
		keys := []string{"=1+1", "+a", "-a", "@a", "\uff1da", "a=1", "'a", "ä"}
		resp := asking.Ask(h, http.MethodGet, "/v1/series?"+url.Values{"key": keys, "format": {"csv"}}.Encode(), "")
		rows, err := csv.NewReader(resp.Body).ReadAll()
		if want := []string{"time", "'=1+1", "'+a", "'-a", "'@a", "'\uff1da", "a=1", "'a", "ä", "complete"}; err != nil || !slices.Equal(rows[0], want) {
			t.Errorf("%v: %q, want %q", err, rows, want)
		}
	})
	t.Run("a past range is validated", func(t *testing.T) {
		target := fmt.Sprintf("?key=api&from=%d&to=%d", minute.Add(-30*time.Minute).UnixMilli(), minute.UnixMilli())
		seen := map[string]string{}
		for _, what := range []string{"/v1/series" + target, "/v1/series" + target + "&format=csv", "/v1/total" + target} {
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
		// A hit that comes late changes the answer and so the tag.
		asking.Late(t, redis.Client(), now, asking.Hits("api", minute.Add(-10*time.Minute), 1))
		for tag, what := range seen {
			resp := asking.Ask(h, http.MethodGet, what, "", "If-None-Match", tag)
			if resp.StatusCode != http.StatusOK || resp.Header.Get("ETag") == tag {
				t.Errorf("%s after a late hit: status %d, tag %s", what, resp.StatusCode, resp.Header.Get("ETag"))
			}
		}
	})
}

// Hits from before counting began are shown where there are some, and marked.
func TestSeriesOfBackfilledHits(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	hour := now.Truncate(time.Hour)
	asking.Seed(t, redis.Client(), now, // counting began 12 hours ago
		asking.Hits("api", hour.Add(-18*time.Hour), 5), asking.Hits("api", hour.Add(-16*time.Hour), 7), asking.Hits("api", hour.Add(-2*time.Hour), 1),
		asking.Hits("other", hour.Add(-17*time.Hour), 2))
	h := onRedis(t, redis.URL(), now).handler()
	from := fmt.Sprint(now.Add(-20 * time.Hour).UnixMilli())
	began := now.Add(-12 * time.Hour)
	whole := began.Truncate(time.Hour).Add(time.Hour) // the first hour of which all is counted

	var got answer.Series
	data := asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/v1/series?key=api&from="+from, ""))
	require.NoErrorf(t, json.Unmarshal(data, &got), "%s", data)
	var sum int64
	for i, p := range got.Points {
		sum += p[1]
		if want := hour.Add(time.Duration(i-18) * time.Hour).UnixMilli(); p[0] != want {
			t.Errorf("point %d is at %d, want %d", i, p[0], want)
		}
	}
	if sum != 13 || len(got.Points) != 19 || got.Complete || got.CompleteFrom != whole.UnixMilli() || !got.CountingSince.Equal(began.Truncate(time.Millisecond)) {
		t.Errorf("%s; want 13 hits in 19 points, complete from %d", data, whole.UnixMilli())
	}
	t.Run("several", func(t *testing.T) {
		var got answer.SeriesList
		require.NoError(t, json.Unmarshal(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/v1/series?key=other&key=api&from="+from, "")), &got))
		for _, s := range got.Series {
			if len(s.Points) != 19 || s.Points[0][0] != hour.Add(-18*time.Hour).UnixMilli() {
				t.Errorf("%s has %d points: all counters have the same moments", s.Key, len(s.Points))
			}
		}
	})
	t.Run("a table", func(t *testing.T) {
		rows, err := csv.NewReader(asking.Ask(h, http.MethodGet, "/v1/series?key=api&format=csv&from="+from, "").Body).ReadAll()
		if err != nil || len(rows) != 19 || rows[1][1] != "5" {
			t.Fatalf("%v: %v", rows, err)
		}
		for _, row := range rows[1:] {
			at, err := time.Parse(time.RFC3339, row[0])
			if err != nil || row[2] != fmt.Sprint(!at.Before(whole)) {
				t.Errorf("%v: %v; complete from %v", row, err, whole)
			}
		}
	})
}

// Days, weeks and months of zones are those of their clocks, with bounds if a midnight lies inside a cell.
func TestCalendarSeries(t *testing.T) {
	t.Parallel()
	tiers, err := window.ParseTiers(window.DefaultTiers)
	require.NoError(t, err)
	redis, layout, random := stack.Redis(t), window.Layout{Tiers: tiers, Shards: 4}, rand.New(rand.NewPCG(7, 8))
	year := time.Now().Year() + 1 // so that Redis, by its own clock, lets nothing expire
	// Three weeks around the changes of Berlin and of Lord Howe.
	for month, zones := range map[time.Month][]string{
		time.April:    {"Europe/Berlin", "Australia/Lord_Howe", "UTC"},
		time.November: {"Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo", "Pacific/Apia"},
	} {
		now := time.Date(year, month, 11, 9, 37, 0, 0, time.UTC)
		client := redis.Client()
		require.NoError(t, client.FlushAll(t.Context()).Err())
		store := window.NewStore(client, asking.Namespace)
		require.NoError(t, store.EnsureLayout(t.Context(), layout))
		require.NoError(t, store.AddStream(t.Context(), "HITS"))
		hits := make([]asking.Sample, 3000)
		for i := range hits {
			hits[i] = asking.Hits("api", now.Add(-time.Duration(1+random.Int64N(int64(31*24*time.Hour)))), 1+random.Int64N(9))
		}
		asking.Commit(t, store, layout, now, 1, hits)
		h := onRedis(t, redis.URL(), now).handler()
		for _, name := range zones {
			zone, err := time.LoadLocation(name)
			require.NoError(t, err)
			for step, label := range map[string]func(time.Time) string{
				"1d":  func(at time.Time) string { return at.Format(time.DateOnly) },
				"1w":  func(at time.Time) string { year, week := at.ISOWeek(); return fmt.Sprintf("%d-W%02d", year, week) },
				"1mo": func(at time.Time) string { return at.Format("2006-01") },
			} {
				back := map[string]time.Duration{"1d": 24 * 24 * time.Hour, "1w": 24 * 24 * time.Hour, "1mo": 10 * 24 * time.Hour}[step]
				target := "/v1/series?key=api&step=" + step + "&tz=" + name + "&from=" + fmt.Sprint(now.Add(-back).UnixMilli())
				data := asking.ReadAll(t, asking.Ask(h, http.MethodGet, target, ""))
				var got answer.Series
				if err := json.Unmarshal(data, &got); err != nil || got.Step != step || got.TZ != name {
					t.Fatalf("%s: %s: %v", target, data, err)
				}
				want := map[string]int64{}
				for _, hit := range hits {
					want[label(hit.At.In(zone))] += hit.N
				}
				for i, p := range got.Points {
					at := time.UnixMilli(p[0]).In(zone)
					truth, of := want[label(at)], label(at)
					if label(at.Add(-time.Millisecond)) == of {
						t.Errorf("%s: the step of %s begins at %v", target, of, at)
					}
					least, most := p[1], p[1]
					if got.Bounds != nil {
						least, most = got.Bounds[i][0], got.Bounds[i][1]
					}
					if truth < least || truth > most || p[1] < least || p[1] > most {
						t.Errorf("%s, %s: %d (%d to %d), want %d", target, of, p[1], least, most, truth)
					}
				}
				// Only zones of half hours have midnights that no hour begins with.
				_, offset := now.In(zone).Zone()
				_, before := now.Add(-back - 24*time.Hour).In(zone).Zone()
				if halves := offset%3600 != 0 || before%3600 != 0; halves != (got.Bounds != nil) && step == "1d" || got.Bounds != nil && !halves {
					t.Errorf("%s: bounds %v", target, got.Bounds)
				}
				if n := len(got.Points); step == "1d" && n != 25 || got.UnfinishedFrom != got.Points[n-1][0] || got.Points[n-1][1] == 0 {
					t.Errorf("%s: %d points: %s", target, n, data)
				}
				checkCalendarTable(t, h, target, zone, got)
			}
		}
	}
}

// checkCalendarTable compares the table of a series with its numbers.
func checkCalendarTable(t *testing.T, h http.Handler, target string, zone *time.Location, want answer.Series) {
	t.Helper()
	rows, err := csv.NewReader(asking.Ask(h, http.MethodGet, target+"&format=csv", "").Body).ReadAll()
	if err != nil || len(rows) != len(want.Points) { // a head, and no row for the last step, which goes on
		t.Fatalf("%s: %v %v", target, rows, err)
	}
	for i, row := range rows[1:] {
		fields := []string{time.UnixMilli(want.Points[i][0]).In(zone).Format(time.RFC3339), fmt.Sprint(want.Points[i][1])}
		if want.Bounds != nil {
			fields = append(fields, fmt.Sprint(want.Bounds[i][0]), fmt.Sprint(want.Bounds[i][1]))
		}
		if fields = append(fields, "false"); !slices.Equal(row, fields) { // counting began 12 hours ago
			t.Errorf("%s: %v, want %v", target, row, fields)
		}
	}
}

// A first step that no tier holds any more begins where the range does.
func TestCalendarSeriesBeyondReach(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("api", now.Add(-time.Minute), 3))
	h := onRedis(t, redis.URL(), now).handler()
	var got answer.Series
	from := now.Add(-23 * time.Hour)
	data := asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/v1/series?key=api&step=1mo&tz=Etc/GMT-14&from="+fmt.Sprint(from.UnixMilli()), ""))
	if err := json.Unmarshal(data, &got); err != nil || got.CompleteFrom == 0 {
		t.Fatalf("%s: %v", data, err)
	}
	if n := len(got.Points); n < 1 || got.Points[n-1][1]+got.Points[0][1] < 3 {
		t.Errorf("%s", data)
	}
}

func TestWantedFormat(t *testing.T) {
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

func TestWorkIsBounded(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
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
		resp := asking.Ask(h, http.MethodGet, target, "")
		if want == "" {
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: status %d: %s", target, resp.StatusCode, asking.ReadAll(t, resp))
			}
			continue
		}
		if p := asking.Refused(t, resp, http.StatusRequestEntityTooLarge); !strings.Contains(p.Detail, want) {
			t.Errorf("%s: detail %q, want %s in it", target, p.Detail, want)
		}
	}
}
