package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// quarterEnd is a moment at the end of a cell of 15 minutes. It is so long ago that no finer cells are held:
// those of a minute live for three hours and a few minutes at most.
func quarterEnd() time.Time { return time.Now().Add(-5 * time.Hour).Truncate(15 * time.Minute) }

// Prometheus's own client reads what was counted.
func TestPrometheusClientGetsWhatWasCounted(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarterEnd()
	seed(t, redis.Client(), time.Now(),
		counted{"a", at.Add(-time.Minute), 5}, counted{"a", at.Add(-14 * time.Minute), 2}, counted{"a", at.Add(-50 * time.Minute), 1},
		counted{"b", at.Add(-20 * time.Minute), 40}, counted{"b", at, 1000}) // at is in the next cell
	client := newClient(t, start(t, redis))

	t.Run("instant", func(t *testing.T) {
		for expr, want := range map[string]string{
			`sum_over_time(tallyroll_hits{key="a"}[1h])`:         `{key="a"} => 8 @[T]`,
			`sum_over_time(tallyroll_hits{key="a"}[30m])`:        `{key="a"} => 7 @[T]`,
			`sum(sum_over_time(tallyroll_hits[1h]))`:             `{} => 48 @[T]`,
			`topk(1, sum_over_time(tallyroll_hits[1h]))`:         `{key="b"} => 40 @[T]`,
			`tallyroll_hits{key="a"}`:                            `tallyroll_hits{key="a"} => 7 @[T]`,
			`tallyroll_hits{key="a"} offset 15m`:                 ``, // no hits near that time
			`max_over_time(tallyroll_hits{key="a"}[1h])`:         `{key="a"} => 7 @[T]`,
			`count_over_time(tallyroll_hits{key="a"}[1h])`:       `{key="a"} => 4 @[T]`, // cells without hits count
			`sum_over_time(tallyroll_hits{key="nobody"}[1h])`:    ``,
			`absent_over_time(tallyroll_hits{key="nobody"}[1h])`: `{key="nobody"} => 1 @[T]`,
			`sum_over_time(other_metric[1h])`:                    ``,
			`sum_over_time(tallyroll_hits{job="x"}[1h])`:         ``,
			`sum_over_time(tallyroll_hits{key="a"}[1h]) / 0`:     `{key="a"} => +Inf @[T]`,
		} {
			value, _, _, err := client.Query(t.Context(), expr, at)
			if err != nil {
				t.Errorf("%s: %v", expr, err)
				continue
			}
			if got := value.String(); got != strings.ReplaceAll(want, "T]", model.TimeFromUnix(at.Unix()).String()+"]") {
				t.Errorf("%s is %q, want %q", expr, got, want)
			}
		}
	})
	t.Run("range", func(t *testing.T) {
		over := v1.Range{Start: at.Add(-time.Hour), End: at.Add(15 * time.Minute), Step: 15 * time.Minute}
		for expr, want := range map[string][]int{
			`tallyroll_hits{key="b"}`:                             {0, 0, 0, 40, 0, 1000},
			`sum_over_time(tallyroll_hits{key="b"}[15m])`:         {0, 0, 0, 40, 0, 1000},
			`sum_over_time(tallyroll_hits{key="b"}[30m])`:         {0, 0, 0, 40, 40, 1000},
			`sum(sum_over_time(tallyroll_hits{key=~"a|b"}[15m]))`: {0, 1, 0, 40, 7, 1000},
			`max_over_time(tallyroll_hits{key="b"}[30m:15m])`:     {0, 0, 0, 40, 40, 1000},
		} {
			value, _, _, err := client.QueryRange(t.Context(), expr, over)
			if err != nil {
				t.Errorf("%s: %v", expr, err)
				continue
			}
			matrix := value.(model.Matrix)
			if len(matrix) != 1 || len(matrix[0].Values) != 6 {
				t.Errorf("%s is %v, want one series of 6 points", expr, matrix)
				continue
			}
			for i, n := range want {
				if got := matrix[0].Values[i]; int(got.Value) != n || !got.Timestamp.Time().Equal(over.Start.Add(time.Duration(i)*over.Step)) {
					t.Errorf("%s: point %d is %v, want %d", expr, i, got, n)
				}
			}
		}
	})
	t.Run("lists", func(t *testing.T) {
		names, _, _, err := client.LabelNames(t.Context(), nil, time.Time{}, time.Time{})
		if err != nil || !slices.Equal(names, model.LabelNames{"__name__", "key"}) {
			t.Errorf("names of labels: %q %v", names, err)
		}
		values, _, _, err := client.LabelValues(t.Context(), "key", nil, at, at)
		if err != nil || len(values) != 2 || values[0] != "a" || values[1] != "b" {
			t.Errorf("keys: %q %v", values, err)
		}
		values, _, _, err = client.LabelValues(t.Context(), "__name__", nil, at, at)
		if err != nil || len(values) != 3 || values[0] != "tallyroll_all_hits" || values[1] != "tallyroll_hits" || values[2] != "tallyroll_uniques" {
			t.Errorf("metrics: %q %v", values, err)
		}
		values, warnings, _, err := client.LabelValues(t.Context(), "key", []string{`tallyroll_hits{key!="a"}`}, at, at, v1.WithLimit(1))
		if err != nil || len(values) != 1 || values[0] != "b" || len(warnings) > 0 {
			t.Errorf("keys but a: %q %q %v", values, warnings, err)
		}
		series, _, _, err := client.Series(t.Context(), []string{`{key=~"a|nobody"}`, `tallyroll_hits`}, at, at)
		if err != nil || len(series) != 2 || series[0]["key"] != "a" || series[1]["key"] != "b" {
			t.Errorf("series: %v %v", series, err)
		}
		build, err := client.Buildinfo(t.Context())
		if err != nil || !strings.Contains(readFile(t, "go.mod"), "github.com/prometheus/prometheus v0."+strings.Replace(build.Version, ".", "", 1)+"\n") {
			t.Errorf("build info: %+v %v", build, err)
		}
		metadata, err := client.Metadata(t.Context(), "", "")
		if err != nil || len(metadata) != 0 {
			t.Errorf("metadata: %v %v", metadata, err)
		}
	})
}

// A line shows the last whole cell, ends soon after as_of, and has no point before the first hit or the
// beginning of counting.
func TestLineEndsWithAsOf(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarterEnd()
	asOf, since := at.Add(20*time.Minute), at.Add(-40*time.Minute) // five minutes into a cell; five minutes before the end of one
	seedFrom(t, redis.Client(), newCursor(since, asOf), counted{"a", at.Add(-time.Minute), 7}, counted{"a", at.Add(16 * time.Minute), 100})
	promql := start(t, redis)
	value, _, _, err := newClient(t, promql).QueryRange(t.Context(), "tallyroll_hits", v1.Range{Start: at.Add(-time.Hour), End: time.Now(), Step: 5 * time.Minute})
	require.NoError(t, err)
	values := value.(model.Matrix)[0].Values
	first, last := values[0].Timestamp.Time(), values[len(values)-1].Timestamp.Time()
	if !first.Equal(at.Add(-30*time.Minute)) || !last.Equal(at.Add(30*time.Minute)) {
		t.Errorf("the line goes from %s to %s, want %s to %s", first, last, at.Add(-30*time.Minute), at.Add(30*time.Minute))
	}
	for _, v := range values {
		want := 0
		if !v.Timestamp.Time().Before(at) && v.Timestamp.Time().Before(at.Add(15*time.Minute)) {
			want = 7
		}
		if int(v.Value) != want {
			t.Errorf("%v, want %d: the hits at the end are in a cell that is not complete", v, want)
		}
	}

	_, young := get(t, promql, "query", url.Values{"query": {"sum_over_time(tallyroll_hits[1h])"}, "time": {at.Format(time.RFC3339)}})
	if len(young.Infos) != 1 || !strings.Contains(young.Infos[0], "counting began at") {
		t.Errorf("notes of a young namespace: %q", young.Infos)
	}
}

// Hits from before counting began are shown, with the note that not all of them may be there.
func TestBackfilledHitsAreAtTheirTimes(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarterEnd()
	seedFrom(t, redis.Client(), newCursor(at.Add(-40*time.Minute), time.Now()), counted{"a", at.Add(-65 * time.Minute), 5}, counted{"a", at.Add(-time.Minute), 7})
	promql := start(t, redis)
	value, warnings, _, err := newClient(t, promql).QueryRange(t.Context(), `sum_over_time(tallyroll_hits{key="a"}[15m])`,
		v1.Range{Start: at.Add(-2 * time.Hour), End: at, Step: 15 * time.Minute})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v %q", err, warnings)
	}
	var got []string
	for _, v := range value.(model.Matrix)[0].Values {
		got = append(got, fmt.Sprintf("%s:%v", v.Timestamp.Time().Sub(at), v.Value))
	}
	if want := "-1h0m0s:5 -45m0s:0 -30m0s:0 -15m0s:0 0s:7"; strings.Join(got, " ") != want {
		t.Errorf("%s, want %s", got, want)
	}
	_, answer := get(t, promql, "query", url.Values{"query": {`sum_over_time(tallyroll_hits{key="a"}[2h])`}, "time": {at.Format(time.RFC3339)}})
	if !strings.Contains(string(answer.Data), `"12"`) || len(answer.Infos) != 1 || !strings.Contains(answer.Infos[0], "counting began at") {
		t.Errorf("%s, notes %q; want 12 and a note", answer.Data, answer.Infos)
	}
}

// An answer has warnings about functions that are wrong for this metric.
func TestAnswersWarnOfWhatIsWrongForTheMetric(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarterEnd()
	cursor := newCursor(at.Add(-240*time.Hour), time.Now())
	cursor.IncompleteBefore = at.Add(-10 * time.Hour).UnixMilli()
	seedFrom(t, redis.Client(), cursor, counted{"a", at.Add(-time.Minute), 7})
	promql := start(t, redis)
	for expr, want := range map[string]string{
		`sum_over_time(tallyroll_hits[12h])`:     "known to be missing",
		`sum_over_time(tallyroll_hits[9h])`:      "",
		`rate(tallyroll_hits[1h])`:               "rate() is wrong for it",
		`max_over_time(tallyroll_hits[10m])`:     "shorter than the cells of 15m",
		`max_over_time(tallyroll_hits[15m])`:     "",
		`sum_over_time(tallyroll_hits[10m])`:     "", // a total, with bounds
		`sum_over_time(tallyroll_hits[1h])/3600`: "",
	} {
		status, answer := get(t, promql, "query", url.Values{"query": {expr}, "time": {at.Format(time.RFC3339)}})
		if status != 200 || want == "" && len(answer.Warnings) > 0 || !strings.Contains(strings.Join(answer.Warnings, "\n"), want) {
			t.Errorf("%s: status %d, warnings %q, want %q", expr, status, answer.Warnings, want)
		}
	}
}

// A panel of the last hour has cells of a minute, though its first windows begin more than an hour ago.
func TestLastHourHasMinutes(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	promql := start(t, redis, stack.NoWait)
	end := time.Now().Truncate(time.Minute)
	var hits []counted
	for i := range 62 {
		hits = append(hits, counted{"a", end.Add(-time.Duration(i)*time.Minute - time.Second), int64(i + 1)})
	}
	seed(t, redis.Client(), time.Now(), hits...)
	promql.WaitReady()
	over := v1.Range{Start: end.Add(-time.Hour), End: end, Step: time.Minute}
	value, warnings, _, err := newClient(t, promql).QueryRange(t.Context(), `sum_over_time(tallyroll_hits{key="a"}[1m])`, over)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v %q", err, warnings)
	}
	values := value.(model.Matrix)[0].Values
	if len(values) != 61 {
		t.Fatalf("%d points, want 61: %v", len(values), values)
	}
	for i, v := range values {
		if want := model.SampleValue(61 - i); v.Value != want {
			t.Errorf("point %d is %v, want %v", i, v, want)
		}
	}
}

// A query that reads on to now warns if no worker has counted lately: what was stored since is unknown.
func TestWarnsWhileNobodyCounts(t *testing.T) {
	t.Parallel()
	redis, asOf := stack.Redis(t), time.Now().Add(-6*time.Second)
	seed(t, redis.Client(), asOf, counted{"a", asOf.Add(-10 * time.Minute), 7})
	promql := start(t, redis)
	for at, want := range map[time.Time]string{
		time.Now(): "hits stored after " + asOf.UTC().Format(time.RFC3339) + " are not counted yet", asOf.Add(4 * time.Second): "",
	} {
		status, answer := get(t, promql, "query", url.Values{"query": {"sum(sum_over_time(tallyroll_hits[1h]))"}, "time": {at.Format(time.RFC3339Nano)}})
		if got := strings.Join(answer.Warnings, "\n"); status != 200 || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("at %s: status %d, warnings %q, want %q", at, status, got, want)
		}
	}
}
