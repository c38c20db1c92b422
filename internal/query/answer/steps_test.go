package answer_test

import (
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// Days, weeks, months and years of a zone hold the hits that came while its clocks showed them: exactly if
// every midnight begins a cell, and within bounds otherwise. The first range of each tiers has changes of the
// clocks in it, or leap days.
func TestCalendarStepsHoldTheirHits(t *testing.T) {
	t.Parallel()
	const month, years = 31 * 24 * time.Hour, 1820 * 24 * time.Hour
	server := stack.Redis(t)
	for _, c := range []struct {
		tiers, now string
		held       time.Duration // how far back there are hits
		steps      map[string]time.Duration
		exact      []string // zones whose midnights all begin a cell
		bounded    []string
	}{
		{window.DefaultTiers, "2040-04-11T09:37:00Z", month, map[string]time.Duration{"1d": 24, "1w": 24, "1mo": 10},
			[]string{"Europe/Berlin", "UTC"}, []string{"Australia/Lord_Howe"}},
		{window.DefaultTiers, "2040-11-11T09:37:00Z", month, map[string]time.Duration{"1d": 24, "1w": 24, "1mo": 10},
			[]string{"Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"}, []string{"Asia/Kolkata"}},
		{"1m/1h,1h/32d,1d/5y", "2040-11-21T10:00:30Z", years, map[string]time.Duration{"1d": 1650, "1mo": 1650, "1y": 1650},
			[]string{"UTC"}, []string{"Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata"}},
	} {
		h := newRig(t, server.URL())
		require.NoError(t, h.client.FlushAll(t.Context()).Err())
		var err error
		h.now, err = time.Parse(time.RFC3339, c.now)
		require.NoError(t, err)
		random := rand.New(rand.NewPCG(7, 8))
		hits := []apitest.Sample{apitest.NewSample("api", h.now.Add(-time.Second), 1)}
		for range 3000 {
			hits = append(hits, apitest.NewSample("api", h.now.Add(-time.Duration(1+random.Int64N(int64(c.held)))), 1+random.Int64N(9)))
		}
		h.count(t, c.tiers, hits)
		for step, days := range c.steps {
			from := h.now.Add(-days * 24 * time.Hour)
			for _, name := range append(slices.Clone(c.exact), c.bounded...) {
				s := calendarSteps{step: step, from: from, exact: slices.Contains(c.exact, name)}
				s.zone, err = time.LoadLocation(name)
				require.NoError(t, err)
				s.check(t, h, hits)
			}
		}
	}
}

type calendarSteps struct {
	step  string
	zone  *time.Location
	from  time.Time
	exact bool
}

// labelOf names the step of a moment.
func (s calendarSteps) labelOf(at time.Time) string {
	at = at.In(s.zone)
	if year, week := at.ISOWeek(); s.step == "1w" {
		return fmt.Sprintf("%d-W%02d", year, week)
	}
	return at.Format(map[string]string{"1d": time.DateOnly, "1mo": "2006-01", "1y": "2006"}[s.step])
}

func (s calendarSteps) check(t *testing.T, h http.Handler, hits []apitest.Sample) {
	t.Helper()
	params := url.Values{"key": {"api"}, "step": {s.step}, "tz": {s.zone.String()}, "from": {fmt.Sprint(s.from.UnixMilli())}}
	got := mustGet[answer.Series](t, h, "/v1/series", params)
	if got.Step != s.step || got.TZ != s.zone.String() || (got.Bounds == nil) != s.exact && s.step == "1d" || got.Bounds != nil && s.exact {
		t.Errorf("%v: step %s of %s, bounds %v", params, got.Step, got.TZ, got.Bounds)
	}
	want := map[string]int64{}
	for _, hit := range hits {
		want[s.labelOf(hit.At)] += hit.N
	}
	for i, p := range got.Points {
		at := time.UnixMilli(p[0])
		label, least, most := s.labelOf(at), p[1], p[1]
		if got.Bounds != nil {
			least, most = got.Bounds[i][0], got.Bounds[i][1]
		}
		if i == 0 && s.step == "1y" {
			continue // no tier reaches back to its beginning
		}
		if s.labelOf(at.Add(-time.Millisecond)) == label {
			t.Errorf("%v: the step of %s begins at %v", params, label, at.In(s.zone))
		}
		if truth := want[label]; truth < least || truth > most || p[1] < least || p[1] > most {
			t.Errorf("%v, %s: %d (%d to %d), want %d", params, label, p[1], least, most, truth)
		}
	}
	if n := len(got.Points); n < 1 || s.step == "1d" && n < 25 || got.UnfinishedFrom != got.Points[n-1][0] || got.Points[n-1][1] == 0 {
		t.Fatalf("%v: %d points, unfinished from %d", params, n, got.UnfinishedFrom)
	}
	s.checkTable(t, h, params, got)
}

// checkTable compares the table of a series with its numbers. Empty rows are left out, and so is the last,
// which goes on.
func (s calendarSteps) checkTable(t *testing.T, h http.Handler, params url.Values, want answer.Series) {
	t.Helper()
	rows, err := csv.NewReader(apitest.Send(h, http.MethodGet, "/v1/series?"+params.Encode()+"&format=csv", "").Body).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, len(want.Points))
	for i, row := range rows[1:] {
		fields := []string{time.UnixMilli(want.Points[i][0]).In(s.zone).Format(time.RFC3339), fmt.Sprint(want.Points[i][1])}
		if want.Bounds != nil {
			fields = append(fields, fmt.Sprint(want.Bounds[i][0]), fmt.Sprint(want.Bounds[i][1]))
		}
		if fields = append(fields, "false"); !slices.Equal(row, fields) { // counting began 12 hours ago
			t.Errorf("%v: %v, want %v", params, row, fields)
		}
	}
}

// Every window and step that is offered is answered, the steps as they are.
func TestEverythingOfferedIsAnswered(t *testing.T) {
	t.Parallel()
	h := newRig(t, stack.Redis(t).URL())
	h.count(t, "", []apitest.Sample{apitest.NewSample("a", today.Add(-time.Minute), 5)})
	about := mustGet[answer.AboutAnswer](t, h, "/v1/about")
	require.Greater(t, min(len(about.Windows), len(about.Steps)), 3)
	mustGet[answer.TotalAnswer](t, h, "/v1/total", url.Values{"key": {"a"}, "window": about.Windows})
	for _, step := range about.Steps {
		require.Equal(t, step, mustGet[answer.Series](t, h, "/v1/series", url.Values{"key": {"a"}, "step": {step}}).Step)
	}
}
