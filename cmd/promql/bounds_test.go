package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// Queries for which the engine allocates before it counts samples are refused at once.
func TestLargeQueriesAreRefused(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), counted{"a", time.Now().Add(-time.Minute), 1})
	promql := start(t, redis)
	for expr, want := range map[string]string{
		`max_over_time(vector(1)[30d:1ms])`: "PROMQL_MAX_SAMPLES", `vector(1)[30d:1ms]`: "PROMQL_MAX_SAMPLES", `max_over_time(vector(1)[30d:1ms] @ 1)`: "PROMQL_MAX_SAMPLES",
		`sum(max_over_time((max_over_time(vector(1)[1h:1ms]))[1h:1h]))`: "PROMQL_MAX_SAMPLES", `vector(scalar(max_over_time(vector(1)[200y:1m])))`: "PROMQL_MAX_SAMPLES",
		`max_over_time(max_over_time(max_over_time(vector(1)[290y:290y])[290y:290y])[290y:1ms])`: "PROMQL_MAX_SAMPLES",
		`max_over_time(vector(1)[1h:0.0001])`:                                                    "1ms or longer",
		`"` + strings.Repeat("x", 80_000) + `"`:                                                  "PROMQL_MAX_QUERY_BYTES",
	} {
		status, answer := post(t, promql, "query", url.Values{"query": {expr}})
		if status != http.StatusUnprocessableEntity || answer.ErrorType != "execution" || !strings.Contains(answer.Error, want) {
			t.Errorf("%.120s: %d %s %.300s, want 422 and %q", expr, status, answer.ErrorType, answer.Error, want)
		}
	}
	for _, step := range []string{"1ms", "0.0019"} {
		end := time.Now()
		status, answer := post(t, promql, "query_range", url.Values{"query": {`1`}, "start": {strconv.FormatInt(end.Unix()-30, 10)}, "end": {strconv.FormatInt(end.Unix(), 10)}, "step": {step}})
		if status != http.StatusBadRequest || !strings.Contains(answer.Error, "at most 11000") {
			t.Errorf("a step of %s: %d %+v", step, status, answer)
		}
	}
}

// Queries that are accepted, but fill the memory step by step, end if it is short. Later ones are answered.
func TestQueriesEndIfMemoryIsShort(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), counted{"a", time.Now().Add(-time.Minute), 1})
	promql := start(t, redis, "GOMEMLIMIT=300MiB", "PROMQL_TIMEOUT=1m", "PROMQL_CONCURRENCY=8")
	// The engine does not count the results of absent_over_time. Each of these holds 3 MB while the next is
	// evaluated.
	absent := `absent_over_time(tallyroll_hits{key="nobody"}[1s])`
	nested := strings.Repeat(absent+" + on () (", 100) + absent + strings.Repeat(")", 100)
	for _, expr := range []string{
		`count_over_time(count_values("v", vector(time()))[10h:1s])`, // a series per step, each with room for 5000 points
		`max_over_time((` + nested + `)[60h:1s])`,
	} {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				status, answer := post(t, promql, "query", url.Values{"query": {expr}})
				if status != http.StatusServiceUnavailable || answer.ErrorType != "unavailable" || !strings.Contains(answer.Error, "GOMEMLIMIT") {
					t.Errorf("%.100s: %d %s %.300s", expr, status, answer.ErrorType, answer.Error)
				}
			})
		}
		all.Wait()
		stack.Eventually(t, "an answer after "+expr[:30], func() (bool, string) {
			status, answer := get(t, promql, "query", url.Values{"query": {`sum(sum_over_time(tallyroll_hits[1h]))`}})
			return status == http.StatusOK, answer.Error
		})
	}
	peak := peakMemory(t, promql.PID())
	t.Logf("the program has held %d MB", peak>>20)
	if peak > 2<<30 { // with the race detector
		t.Errorf("the program has held %d MB with GOMEMLIMIT=300MiB", peak>>20)
	}
}

// slowSettings are settings with which slowQuery is accepted. It would take minutes.
var slowSettings = []string{"PROMQL_MAX_SAMPLES=10000000", "PROMQL_CONCURRENCY=1"}

func slowQuery() url.Values {
	return url.Values{"query": {`max_over_time((vector(time())` + strings.Repeat(" + time()", 700) + `)[800h:1s])`}}
}

// askSlowly sends slowQuery until ctx ends, and again if it is refused.
func askSlowly(ctx context.Context, s *stack.Service) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/api/v1/query?"+slowQuery().Encode(), nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			return fmt.Errorf("a slow query is answered %s", resp.Status)
		}
	}
}

// A query ends when its client leaves and at its timeout. Then the next one runs.
func TestQueryEndsIfItsClientLeaves(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	var hits []counted
	for i := range 900 { // counters on which a hostile regular expression takes a second each
		hits = append(hits, counted{strings.Repeat("a", 509) + strconv.Itoa(100+i), time.Now().Add(-time.Minute), 1})
	}
	seed(t, redis.Client(), time.Now(), hits...)
	promql := start(t, redis, append(slowSettings, "PROMQL_TIMEOUT=10m")...)
	quick := url.Values{"query": {"1"}, "timeout": {"100ms"}}
	busy := func() (bool, string) {
		status, answer := get(t, promql, "query", quick)
		return status == http.StatusServiceUnavailable && answer.ErrorType == "timeout", fmt.Sprint(status, answer)
	}
	free := func() (bool, string) {
		status, answer := get(t, promql, "query", quick)
		return status == http.StatusOK, fmt.Sprint(status, answer)
	}

	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- askSlowly(ctx, promql) }()
	stack.Eventually(t, "the slow query to run", busy)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the slow query: %v", err)
	}
	stack.Eventually(t, "the slow query to end with its client", free)

	late := slowQuery()
	late.Set("timeout", "200ms")
	hostile := url.Values{"query": {`tallyroll_hits{key=~"` + strings.Repeat("a*", 30_000) + `[bc]"}`}, "timeout": {"1s"}}
	for _, params := range []url.Values{late, hostile} {
		status, answer := post(t, promql, "query", params)
		if status != http.StatusServiceUnavailable || answer.ErrorType != "timeout" {
			t.Errorf("%.100s with a timeout: %d %+v", params.Get("query"), status, answer)
		}
		stack.Eventually(t, "the slow query to end with its time", free)
	}
	if code := promql.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A request beyond the queue is refused at once.
func TestRequestsBeyondTheQueueAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now())
	promql := start(t, redis, append(slowSettings, "PROMQL_MAX_REQUESTS=3", "PROMQL_TIMEOUT=10m")...)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if err := askSlowly(ctx, promql); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	stack.Eventually(t, "three requests to be there", func() (bool, string) {
		status, answer := get(t, promql, "query", url.Values{"query": {"1"}, "timeout": {"1ms"}})
		return status == http.StatusServiceUnavailable && answer.ErrorType == "unavailable" && strings.Contains(answer.Error, "PROMQL_MAX_REQUESTS"), fmt.Sprint(status, answer.Error)
	})

	leave()
	all.Wait()
	stack.Eventually(t, "an answer when they are gone", func() (bool, string) {
		status, answer := get(t, promql, "query", url.Values{"query": {"1"}})
		return status == http.StatusOK, fmt.Sprint(status, answer)
	})
}

// The bounds on scanned names and on samples apply to all selectors of a request together.
func TestSelectorsAreSummed(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarterEnd()
	var hits []counted
	for i := range 6 {
		hits = append(hits, counted{fmt.Sprintf("shop.%d", i), at.Add(-time.Minute), 1}, counted{fmt.Sprintf("web.%d", i), at.Add(-time.Minute), 1})
	}
	seed(t, redis.Client(), time.Now(), hits...)
	promql := start(t, redis, "PROMQL_MAX_COUNTERS=6", "PROMQL_MAX_SAMPLES=100")
	_, answer := get(t, promql, "label/key/values", url.Values{"match[]": {`{key=~"shop.*"}`, `{key=~"web.*"}`}})
	if strings.Count(string(answer.Data), "shop") != 6 || strings.Contains(string(answer.Data), "web") || len(answer.Warnings) != 1 {
		t.Errorf("names of two selectors: %s %q", answer.Data, answer.Warnings)
	}
	one := `sum(max_over_time(tallyroll_hits{key="shop.1"}[18h]))` // 73 cells: those of 15 minutes are held for 24 hours
	for expr, want := range map[string]int{one: http.StatusOK, one + "+" + one: http.StatusUnprocessableEntity} {
		status, answer := get(t, promql, "query", url.Values{"query": {expr}, "time": {at.Format(time.RFC3339)}})
		if status != want || want != http.StatusOK && !strings.Contains(answer.Error, "PROMQL_MAX_SAMPLES") {
			t.Errorf("%s: %d %+v, want %d", expr, status, answer, want)
		}
	}
}
