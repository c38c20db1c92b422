package query

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// Days kept for five years answer days, months and years of UTC exactly, leap days included. In other zones, what their
// midnights cut has bounds. A counter of which only the days are left is listed, is in the trends, and is exported.
func TestFiveYears(t *testing.T) {
	t.Parallel()
	tiers, err := window.ParseTiers("1m/1h,1h/32d,1d/5y")
	require.NoError(t, err)
	redis, now := stack.Redis(t), asking.Now()
	store, layout := window.NewStore(redis.Client(), asking.Namespace), window.Layout{Tiers: tiers, Shards: 4}
	require.NoError(t, store.EnsureLayout(t.Context(), layout))
	require.NoError(t, store.AddStream(t.Context(), "HITS"))
	random := rand.New(rand.NewPCG(1, 5))
	old := now.AddDate(-4, 0, 0)
	hits := []asking.Sample{asking.Hits("old", old, 7)}
	first := now.AddDate(-5, 0, 10)
	for year := first.Year(); year <= now.Year(); year++ {
		leap := time.Date(year, time.February, 29, 12, 0, 0, 0, time.UTC) // or the 1st of March
		hits = append(hits, asking.Hits("api", leap, 1), asking.Hits("api", time.Date(year, 12, 31, 23, 59, 59, 0, time.UTC), 3))
	}
	for range 5000 {
		hits = append(hits, asking.Hits("api", first.Add(time.Duration(random.Int64N(int64(now.Sub(first))))), 1+random.Int64N(9)))
	}
	held := hits[:0]
	for _, h := range hits {
		if h.At.After(first) && h.At.Before(now) {
			held = append(held, h)
		}
	}
	asking.Commit(t, store, layout, now, 1, held)
	h := onRedis(t, redis.URL(), now).handler()

	from := now.AddDate(-4, -6, 0)
	for step, layoutOf := range map[string]string{"1d": time.DateOnly, "1mo": "2006-01", "1y": "2006"} {
		for _, name := range []string{"UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata"} {
			zone, err := time.LoadLocation(name)
			require.NoError(t, err)
			want := map[string]int64{}
			for _, hit := range held {
				if hit.Key == "api" {
					want[hit.At.In(zone).Format(layoutOf)] += hit.N
				}
			}
			target := fmt.Sprintf("/v1/series?key=api&step=%s&tz=%s&from=%d", step, url.QueryEscape(name), from.UnixMilli())
			var got answer.Series
			if data := asking.ReadAll(t, asking.Ask(h, http.MethodGet, target, "")); json.Unmarshal(data, &got) != nil || len(got.Points) == 0 {
				t.Fatalf("%s: %s", target, data)
			}
			if exact := got.Bounds == nil; exact != (name == "UTC") {
				t.Errorf("%s: exact %t", target, exact)
			}
			for i, p := range got.Points {
				label := time.UnixMilli(p[0]).In(zone).Format(layoutOf)
				if i == 0 && step == "1y" {
					continue // no tier reaches back to its beginning
				}
				least, most := p[1], p[1]
				if got.Bounds != nil {
					least, most = got.Bounds[i][0], got.Bounds[i][1]
				}
				if truth := want[label]; truth < least || truth > most {
					t.Errorf("%s, %s: %d (%d to %d), want %d", target, label, p[1], least, most, truth)
				}
			}
		}
	}

	year := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=api&window=year&window=1y&window=4y", "")).Totals
	for _, got := range year {
		var truth int64
		for _, hit := range held {
			if hit.Key == "api" && !hit.At.Before(got.From) {
				truth += hit.N
			}
		}
		if truth < got.Lower || truth > int64(got.Upper) || got.Window == "year" && got.Lower != truth {
			t.Errorf("%+v, want %d", got, truth)
		}
	}
	for target, want := range map[string]string{
		"/v1/counters":                `"old"`,
		"/v1/top?window=5y":           `"key":"old","total":7`,
		"/v1/total?key=old&window=6y": "1d cells reach back 1825d",
	} {
		if data := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, target, ""))); !strings.Contains(data, want) {
			t.Errorf("%s: %.300s, want %s", target, data, want)
		}
	}

	target := fmt.Sprintf("/v1/export?step=1d&format=csv&from=%d&to=%d", old.Add(-48*time.Hour).UnixMilli(), now.Truncate(24*time.Hour).UnixMilli())
	rows := csv.NewReader(asking.Ask(h, http.MethodGet, target, "").Body)
	days := 0
	for {
		row, err := rows.Read()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if row[0] == "old" {
			days++
			if row[1] != old.Truncate(24*time.Hour).Format(time.RFC3339) || row[3] != "7" {
				t.Errorf("%s: %v", target, row)
			}
		}
	}
	if days != 1 {
		t.Errorf("%s: %d days of the old counter", target, days)
	}
}
