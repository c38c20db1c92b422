package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"tallyroll/tests/stack"
)

// Each sample of tallyroll_uniques is the number of unique values of a cell, stamped with its end.
func TestUniquesOfACellAreStampedWithItsEnd(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), time.Now().Add(-5*time.Hour).Truncate(time.Hour) // so long ago, cells are of an hour
	client := redis.Client()
	seed(t, client, time.Now(), counted{"a", at.Add(-time.Minute), 5}, counted{"b", at.Add(-time.Minute), 40})
	seedUniques(t, client, "a", at.Add(-time.Minute), "ann", "bob")
	seedUniques(t, client, "a", at.Add(-20*time.Minute), "ann")
	seedUniques(t, client, "a", at.Add(-70*time.Minute), "ann", "bob", "cid")
	seedUniques(t, client, "b", at.Add(-70*time.Minute), "ann")
	api := newClient(t, start(t, redis))
	for expr, want := range map[string]string{
		`tallyroll_uniques{key="a"}`:                            `tallyroll_uniques{key="a"} => 2 @[T]`,
		`max_over_time(tallyroll_uniques{key="a"}[2h])`:         `{key="a"} => 3 @[T]`,
		`avg_over_time(tallyroll_uniques{key="a"}[2h])`:         `{key="a"} => 2.5 @[T]`,
		`tallyroll_uniques{key="nobody"}`:                       ``,
		`{__name__=~"tallyroll_.*", key="b"} offset 1h`:         `tallyroll_uniques{key="b"} => 1 @[T]`, // no hits in that quarter
		`sum(count_over_time({key="a"}[1h]))`:                   `{} => 4 @[T]`,                         // without a name, of hits: in quarters
		`topk(1, max_over_time(tallyroll_uniques[2h]))`:         `{key="a"} => 3 @[T]`,
		`sum(max_over_time(tallyroll_uniques{key=~"a|b"}[2h]))`: `{} => 4 @[T]`,
		`max_over_time(tallyroll_uniques{key="a",job="x"}[2h])`: ``,
		`count({__name__=~"tallyroll_hits|tallyroll_uniques"})`: `{} => 4 @[T]`, // of b, the cell before had one
		`sum_over_time(tallyroll_hits{key="a"}[1h])`:            `{key="a"} => 5 @[T]`,
		`count_over_time(tallyroll_uniques{key="a"}[3h])`:       `{key="a"} => 3 @[T]`,
	} {
		value, warnings, err := queryAt(t, api, expr, at)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		if got := value.String(); got != strings.ReplaceAll(want, "T]", model.TimeFromUnix(at.Unix()).String()+"]") || len(warnings) > 0 {
			t.Errorf("%s is %q with %q, want %q", expr, got, warnings, want)
		}
	}
	for _, function := range []string{"sum_over_time", "rate", "increase"} {
		_, warnings, err := queryAt(t, api, function+`(tallyroll_uniques{key="a"}[2h])`, at)
		if err != nil || !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "more than once") }) {
			t.Errorf("%s: %v, warnings %q", function, err, warnings)
		}
	}
	series, _, _, err := api.Series(t.Context(), []string{`tallyroll_uniques{key=~"a|b|nobody"}`, `{key="a"}`}, at, at)
	if err != nil || fmt.Sprint(series) != `[{__name__="tallyroll_hits", key="a"} {__name__="tallyroll_uniques", key="a"} {__name__="tallyroll_uniques", key="b"}]` {
		t.Errorf("series: %v %v", series, err)
	}
}

func queryAt(t *testing.T, api v1.API, expr string, at time.Time) (model.Value, []string, error) {
	t.Helper()
	value, warnings, _, err := api.Query(t.Context(), expr, at)
	return value, warnings, err
}

// The newest cells are five minutes long, and only whole ones have samples.
func TestUniquesOfNowAreOfWholeCells(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), time.Now()
	last := now.Truncate(5 * time.Minute)
	seed(t, redis.Client(), now, counted{"a", now, 1})
	seedUniques(t, redis.Client(), "a", last.Add(-time.Minute), "ann", "bob")
	seedUniques(t, redis.Client(), "a", last.Add(-6*time.Minute), "ann")
	promql := start(t, redis, "PROMQL_MAX_UNIQUE_CELLS=20")
	ask := func(expr string) (int, apiAnswer) {
		return get(t, promql, "query", url.Values{"query": {expr}, "time": {fmt.Sprint(last.Unix() + 1)}})
	}
	if status, got := ask(`tallyroll_uniques{key="a"}`); status != http.StatusOK || !strings.Contains(string(got.Data), `"2"]`) {
		t.Errorf("%d %s %s", status, got.Data, got.Error)
	}
	if status, got := ask(`min_over_time(tallyroll_uniques{key="a"}[10m])`); status != http.StatusOK || !strings.Contains(string(got.Data), `"1"]`) {
		t.Errorf("%d %s %s", status, got.Data, got.Error)
	}
	if status, got := ask(`max_over_time(tallyroll_uniques{key=~"a|b|c"}[1h])`); status != http.StatusUnprocessableEntity || !strings.Contains(got.Error, "at most 20 are allowed (PROMQL_MAX_UNIQUE_CELLS)") {
		t.Errorf("%d %s %s", status, got.Data, got.Error)
	}
}
