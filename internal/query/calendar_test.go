package query

import (
	"fmt"
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

// A day begins at the zone's midnight, which here is the hour that runs, and ends now by Redis's clock.
func TestCalendarWindows(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	midnight := now.Truncate(time.Hour)
	zone := fmt.Sprintf("Etc/GMT+%d", now.Hour())
	if now.Hour() > 12 {
		zone = fmt.Sprintf("Etc/GMT-%d", 24-now.Hour())
	}
	asking.Seed(t, redis.Client(), now, asking.Hits("api", midnight, 5), asking.Hits("api", midnight.Add(-time.Millisecond), 7))
	h := onRedis(t, redis.URL(), now).handler()
	for how, got := range map[string]answer.TotalAnswer{
		"GET":  answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=api&window=today&window=1d&tz="+url.QueryEscape(zone), "")),
		"POST": answered(t, asking.Ask(h, http.MethodPost, "/v1/total", `{"keys":["api"],"windows":["today","1d"],"tz":"`+zone+`"}`)),
	} {
		today, day := got.Totals[0], got.Totals[1]
		if today.Window != "today" || !today.From.Equal(midnight) || !today.To.Equal(now) || today.Total != 5 || today.Lower != 5 || today.Upper != 5 {
			t.Errorf("%s: today is %+v, want it from %v to %v", how, today, midnight, now)
		}
		if day.Window != "1d" || day.Total != 12 {
			t.Errorf("%s: the day is %+v", how, day)
		}
	}
	target := "/v1/total?key=api&window=today&tz=" + url.QueryEscape(zone) + "&at=" + fmt.Sprint(midnight.Add(10*time.Second).UnixMilli())
	resp := asking.Ask(h, http.MethodGet, target, "")
	if got := answered(t, resp).Totals[0]; !got.To.Equal(midnight.Add(10*time.Second)) || resp.Header.Get("Cache-Control") != "no-cache" {
		t.Errorf("ten seconds into the day: %+v, %v", got, resp.Header)
	}
}

// The default tiers reach back to the first of the longest month, in a zone whose clocks were set back in it.
func TestTheLongestMonthHasAnAnswer(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	next := time.Now().Year() + 1 // so that Redis, by its own clock, has let nothing expire
	first, now := time.Date(next, time.October, 1, 0, 0, 0, 0, berlin), time.Date(next, time.October, 31, 23, 59, 0, 0, berlin)
	tiers, err := window.ParseTiers(window.DefaultTiers)
	require.NoError(t, err)
	redis := stack.Redis(t)
	store, layout := window.NewStore(redis.Client(), asking.Namespace), window.Layout{Tiers: tiers, Shards: 4}
	require.NoError(t, store.EnsureLayout(t.Context(), layout))
	require.NoError(t, store.AddStream(t.Context(), "HITS"))
	// Midnight in Berlin is 22:00 UTC, where an hour begins.
	asking.Commit(t, store, layout, now, 1, []asking.Sample{
		asking.Hits("api", first.Add(-time.Second), 1), asking.Hits("api", first, 60), asking.Hits("api", now.Add(-time.Second), 500),
	})
	h := onRedis(t, redis.URL(), now).handler()
	got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=api&window=month&tz=Europe/Berlin", "")).Totals[0]
	if !got.From.Equal(first) || !got.To.Equal(now) || got.Total != 560 || got.Lower != 560 || got.Upper != 560 {
		t.Errorf("%+v; want exactly 560 from %v to %v", got, first, now)
	}
}

// A tier of 400 days reaches back to the beginning of the year until its end.
func TestTheYearHasAnAnswer(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	year := time.Now().Year() + 1 // so that Redis, by its own clock, has let nothing expire
	first, now := time.Date(year, time.January, 1, 0, 0, 0, 0, berlin), time.Date(year, time.December, 31, 23, 59, 0, 0, berlin)
	tiers, err := window.ParseTiers("1m/1h,1h/400d")
	require.NoError(t, err)
	redis := stack.Redis(t)
	store, layout := window.NewStore(redis.Client(), asking.Namespace), window.Layout{Tiers: tiers, Shards: 4}
	require.NoError(t, store.EnsureLayout(t.Context(), layout))
	require.NoError(t, store.AddStream(t.Context(), "HITS"))
	asking.Commit(t, store, layout, now, 1, []asking.Sample{
		asking.Hits("shop.eu", first.Add(-time.Second), 1), asking.Hits("shop.eu", first, 60), asking.Hits("shop.us", now.Add(-time.Second), 500),
	})
	h := onRedis(t, redis.URL(), now).handler()
	got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?prefix=shop.&window=year&tz=Europe/Berlin", "")).Totals[0]
	if got.Window != "year" || !got.From.Equal(first) || !got.To.Equal(now) || got.Total != 560 || got.Lower != 560 || got.Upper != 560 {
		t.Errorf("%+v; want exactly 560 from %v to %v", got, first, now)
	}
}

func TestCalendarInput(t *testing.T) {
	t.Parallel()
	s, f := onFake(t)
	h := s.handler()
	get, post := http.MethodGet, http.MethodPost
	for _, c := range []struct {
		method, target, body string
		detail               string
	}{
		{get, "/v1/total?key=a&window=today&tz=Mars/Olympus", "", `tz: no time zone is named "Mars/Olympus": allowed is a name of the IANA time zones`},
		{get, "/v1/total?key=a&window=today&tz=Local", "", `tz: "Local" is not a time zone`},
		{get, "/v1/total?key=a&window=today&tz=../../etc/passwd", "", `tz: "../../etc/passwd" is not a time zone`},
		{get, "/v1/total?key=a&window=today&tz=right/Europe/Berlin", "", `tz: "right/Europe/Berlin" is not`},
		{get, "/v1/total?key=a&window=today&tz=", "", "tz: it is empty: allowed is a name"},
		{get, "/v1/total?key=a&window=today&tz=UTC&tz=UTC", "", "tz: it is given 2 times"},
		{get, "/v1/total?key=a&window=1h&tz=UTC", "", "tz: it is only for the windows today, yesterday, week, month or year"},
		{get, "/v1/total?key=a&from=1&tz=UTC", "", "tz: it is only for the windows"},
		{get, "/v1/total?key=a&window=Today", "", `window: "Today" is not a duration`},
		{get, "/v1/total?key=a&window=tomorrow", "", "such as 90s, 15m or 7d; or today, yesterday, week, month or year"},
		{get, "/v1/total?key=a&window=month", "", "window: month: the question reaches back"},
		{get, "/v1/total?key=a&window=year", "", "window: year: the question reaches back"},
		{post, "/v1/total", `{"keys":["a"],"windows":["year"],"tz":"Asia/Kolkata"}`, "windows: year: the question reaches back"},
		{get, "/v1/top?window=today", "", `window: "today" is not a duration`},
		{get, "/v1/live?key=a&window=today", "", `window: "today" is not a duration`},
		{get, "/v1/series?key=a&tz=UTC", "", "tz: it is only for the steps 1d, 1w, 1mo or 1y"},
		{get, "/v1/series?key=a&step=24h&tz=UTC", "", "tz: it is only for the steps"},
		{get, "/v1/series?key=a&step=1d&tz=Berlin", "", `tz: no time zone is named "Berlin"`},
		{get, "/v1/series?key=a&step=1d&tz=", "", "tz: it is empty: allowed is a name"},
		{get, "/v1/series?key=a&step=1month", "", "such as 90s, 15m or 7d; or 1d, 1w, 1mo or 1y, the days, weeks, months or years of tz"},
		{post, "/v1/total", `{"keys":["a"],"windows":["today"],"tz":"x"}`, `tz: "x" is not a time zone`},
		{post, "/v1/total", `{"keys":["a"],"windows":["1h"],"tz":"UTC"}`, "tz: it is only for the windows"},
	} {
		p := asking.Refused(t, asking.Ask(h, c.method, c.target, c.body), http.StatusBadRequest)
		if !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s %s: %s, want %s", c.target, c.body, p.Detail, c.detail)
		}
	}
	f.Forget()
	got := answered(t, asking.Ask(h, get, "/v1/total?key=a&window=today&tz=Etc/GMT+5", "")) // + as a space
	want := asking.FakeNow.Truncate(24 * time.Hour).Add(5 * time.Hour)
	if !got.Totals[0].From.Equal(want) || !slices.ContainsFunc(f.Questions(), func(q window.Question) bool { return q.Span.To == window.Now }) {
		t.Errorf("%+v, asked %+v; want it from %v", got.Totals[0], f.Questions(), want)
	}
}
