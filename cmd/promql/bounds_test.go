package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime/debug"
	gometrics "runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"tallyroll/tests/stack"
)

// last are the moments of a query with so many points over the last so many hours.
func last(hours float64, points int) moments {
	span, end := time.Duration(hours*float64(time.Hour)), time.Now()
	return moments{end.Add(-span), end, span / time.Duration(points)}
}

// The queries of dashboards pass, with as many points as a wide screen has.
func TestQueriesOfDashboardsPass(t *testing.T) {
	t.Parallel()
	s := serviceOf(t, stack.Redis(t), func(*Settings) {})
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`shop\\.country-%d\\.checkout\\.page-%d`, i, i)
	}
	all := strings.Join(keys, "|")
	for _, text := range []string{
		`tallyroll_hits`, `sum_over_time(tallyroll_hits{key="/cart"}[1h])`, `sum_over_time(tallyroll_hits{key="/cart"}[1m]) / 60`,
		`topk(10, sum_over_time(tallyroll_hits[1h]))`, `sum(sum_over_time(tallyroll_hits{key=~"shop[.].*"}[30d]))`,
		`sum_over_time(tallyroll_hits{key="/cart"}[1h] offset 1d)`, `sum(sum_over_time(tallyroll_hits{key="/cart"}[1h])) or vector(0)`,
		`max_over_time(sum_over_time(tallyroll_hits[5m])[1d:1m])`, `max_over_time(sum_over_time(tallyroll_hits[5m])[30d:1m])`,
		`quantile_over_time(0.99, sum_over_time(tallyroll_hits[1h])[1d:])`, `avg_over_time((sum(sum_over_time(tallyroll_hits[1m])))[7d:5m])`,
		`max_over_time(avg_over_time(sum_over_time(tallyroll_hits[1m])[1h:1m])[1d:15m])`, `absent_over_time(tallyroll_hits{key="a"}[1h])`,
		`sum_over_time(tallyroll_hits[1h]) > 2 * avg_over_time(sum_over_time(tallyroll_hits[1h])[7d:1h] offset 1d)`,
		`label_replace(sum_over_time(tallyroll_hits[1h]), "shop", "$1-$2", "key", "shop[.](.*)[.](.*)")`,
		`label_replace(label_replace(sum_over_time(tallyroll_hits[1h]), "a", "$1", "key", "(.*)"), "b", "$1", "a", "x(.*)")`,
		`label_join(sum_over_time(tallyroll_hits[1h]), "both", "-", "key", "__name__")`, `count_values("hits", sum_over_time(tallyroll_hits[1h]))`,
		`label_replace(count_values("hits", sum_over_time(tallyroll_hits[1h])), "bucket", "$1", "hits", "(.*)")`,
		`topk by (shop) (3, label_replace(sum_over_time(tallyroll_hits[1h]), "shop", "$1", "key", "shop[.](.*)[.].*"))`,
		`histogram_quantile(0.9, sum by (le) (label_replace(sum_over_time(tallyroll_hits[5m]), "le", "$1", "key", "ms[.](.*)")))`,
		`sum_over_time(tallyroll_hits{key=~"(` + all + `)"}[1h])`, `sum_over_time(tallyroll_hits{key=~"(` + all + `).*"}[1h])`,
		`sum(sum_over_time(tallyroll_hits{key=~"a{1,100}[0-9]+[.]\\d{3}"}[1h]))`,
		`sum(` + strings.Repeat(`sum_over_time(tallyroll_hits{key="a"}[1h]) + on () `, 200) + `vector(0))`,
	} {
		for _, over := range []moments{{start: time.Now(), end: time.Now()}, last(1, 2000), last(24, 2000), last(24*30, 2000)} {
			c, err := s.check(text, over)
			if err != nil {
				t.Errorf("%.200s over %s: %v", text, over.end.Sub(over.start), err)
			}
			if testing.Verbose() {
				t.Logf("%12.0f evaluations: %.100s over %s", c.evaluations, text, over.end.Sub(over.start))
			}
		}
	}
}

// hostile are expressions that would take all memory or a processor for long, and what their refusal says.
func hostile() map[string]string {
	double := func(n int) string {
		return strings.Repeat(`label_replace(`, n) + `label_replace(vector(1),"a","xx","","")` + strings.Repeat(`,"a","$1$1","a","(.*)")`, n)
	}
	out := map[string]string{
		`max_over_time(vector(1)[30d:1ms])`: "PROMQL_MAX_SAMPLES", `count_over_time((tallyroll_hits)[30d:1ms])`: "PROMQL_MAX_SAMPLES",
		`absent_over_time(tallyroll_hits{key="x"}[30d:1ms])`: "PROMQL_MAX_SAMPLES", `vector(1)[30d:1ms]`: "PROMQL_MAX_SAMPLES",
		`max_over_time((vector(2) > 1 or vector(1))[30d:1ms] offset 1d)`: "PROMQL_MAX_SAMPLES", `max_over_time(vector(1)[30d:1ms] @ 1)`: "PROMQL_MAX_SAMPLES",
		`sum(max_over_time((max_over_time(vector(1)[1h:1ms]))[1h:1h]))`: "PROMQL_MAX_SAMPLES", `vector(scalar(max_over_time(vector(1)[200y:1m])))`: "PROMQL_MAX_SAMPLES",
		`max_over_time(max_over_time(max_over_time(vector(1)[290y:290y])[290y:290y])[290y:1ms])`: "PROMQL_MAX_SAMPLES",
		`max_over_time(max_over_time(vector(1)[5d:1s])[5d:1s])`:                                  "PROMQL_MAX_EVALUATIONS",
		`max_over_time(quantile_over_time(0.5, vector(1)[1h:1s])[1d:1s])`:                        "PROMQL_MAX_EVALUATIONS",
		`max_over_time(vector(1)[1h:0.0001])`:                                                    "1ms or longer",
		double(40):                                                                               "labels of",
		strings.Repeat(`label_join(`, 30) + `label_replace(vector(1),"a","xx","","")` + strings.Repeat(`,"a","","a","a","a","a")`, 30): "labels of",
		strings.Repeat(`label_replace(`, 100) + `tallyroll_hits{key="a"}` + strings.Repeat(`,"a","$1$1","key","(.*)")`, 100):           "labels of",
		`label_replace(tallyroll_hits, "a", "", "key", "` + strings.Repeat("(a{0,1000})", 20) + `")`:                                   "PROMQL_MAX_EVALUATIONS",
		`tallyroll_hits{key=~"` + strings.Repeat("a{1000}", 200) + `"}`:                                                                "regular expressions",
		`tallyroll_hits{key=~ # a comment` + "\n" + `"` + strings.Repeat("a{1000}", 200) + `"}`:                                        "regular expressions",
		`tallyroll_hits{key!~"` + strings.Repeat(`\\pL`, 10_000) + `"}`:                                                                "regular expressions",
		`tallyroll_hits{key=~"` + strings.Repeat(`(a|b*|`, 3000) + strings.Repeat(")", 3000) + `"}`:                                    "regular expressions",
		`{x=~"` + strings.Repeat(`[a-z]`, 1000) + `"}`:                                                                                 "regular expressions",
		`label_replace(vector(1), "a", "", "", "` + strings.Repeat(`\\PL`, 1000) + `")`:                                                "regular expressions",
		`1` + strings.Repeat("+1", 30_000):                                                                                             "signs", strings.Repeat("(", 30_000) + "1" + strings.Repeat(")", 30_000): "signs", strings.Repeat("-", 60_000) + "vector(1)": "signs",
		strings.Repeat("sum(", 5000) + "x" + strings.Repeat(")", 5000): "signs", `tallyroll_hits{` + strings.Repeat(`x="",`, 8000) + `}`: "signs",
		`"` + strings.Repeat("x", 80_000) + `"`: "PROMQL_MAX_QUERY_BYTES",
	}
	return out
}

// What would end the program, or keep it busy, is refused at once. The memory of the program hardly grows.
func TestHostileQueriesAreRefused(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), hit{"a", time.Now().Add(-time.Minute), 1})
	promql := start(t, redis)
	before := peakMemory(t, promql.PID())
	for expr, want := range hostile() {
		status, answer := post(t, promql, "query", url.Values{"query": {expr}})
		if status != http.StatusUnprocessableEntity || answer.ErrorType != "execution" || !strings.Contains(answer.Error, want) {
			t.Errorf("%.120s: %d %s %.300s, want 422 and %q", expr, status, answer.ErrorType, answer.Error, want)
		}
	}
	for _, step := range []string{"1ms", "0.0019"} {
		end := time.Now()
		status, answer := post(t, promql, "query_range", url.Values{"query": {`max_over_time(vector(1)[1s:1ms])`}, "start": {strconv.FormatInt(end.Unix()-12, 10)}, "end": {strconv.FormatInt(end.Unix(), 10)}, "step": {step}})
		if status != http.StatusBadRequest || !strings.Contains(answer.Error, "at most 11000") {
			t.Errorf("a step of %s: %d %+v", step, status, answer)
		}
	}
	status, answer := post(t, promql, "series", url.Values{"match[]": strings.Split(strings.Repeat(`tallyroll_hits{key=~"a.*"} `, 1000), " ")})
	if status != http.StatusUnprocessableEntity || !strings.Contains(answer.Error, "signs") {
		t.Errorf("a thousand match[]: %d %+v", status, answer)
	}
	after := peakMemory(t, promql.PID())
	t.Logf("the program has held %d MB before, and %d MB after", before>>20, after>>20)
	if after-before > 200<<20 {
		t.Errorf("the program has held %d MB, and %d MB before", after>>20, before>>20)
	}
}

// Queries that pass, but fill the memory from step to step, end when it is short. Those after them are answered.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now(), hit{"a", time.Now().Add(-time.Minute), 1})
	promql := start(t, redis, "GOMEMLIMIT=300MiB", "PROMQL_TIMEOUT=1m", "PROMQL_CONCURRENCY=8")
	// The engine does not count what absent_over_time gives. Each of these holds 3 MB while the next is evaluated.
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

// slow are settings with which slowQuery passes. It would take minutes.
var slow = []string{"PROMQL_MAX_SAMPLES=10000000", "PROMQL_MAX_EVALUATIONS=1000000000000", "PROMQL_CONCURRENCY=1"}

func slowQuery() url.Values {
	return url.Values{"query": {`max_over_time((vector(time())` + strings.Repeat(" + time()", 700) + `)[800h:1s])`}}
}

// askSlowly asks for slowQuery until ctx ends, again and again if it is refused.
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

// A query ends when its client leaves and when its time is over, and the next one runs then.
func TestWorkEnds(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	var hits []hit
	for i := range 900 { // counters on which a hostile regular expression takes a second each
		hits = append(hits, hit{strings.Repeat("a", 509) + strconv.Itoa(100+i), time.Now().Add(-time.Minute), 1})
	}
	seed(t, redis.Client(), time.Now(), hits...)
	promql := start(t, redis, append(slow, "PROMQL_TIMEOUT=10m")...)
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

// Who comes when too many wait is told so at once.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now())
	promql := start(t, redis, append(slow, "PROMQL_MAX_REQUESTS=3", "PROMQL_TIMEOUT=10m")...)
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

// Clients that read slowly do not fill the memory with their answers.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now())
	s := serviceOf(t, redis, func(*Settings) {})
	s.memory = 1 << 30 // more than this process needs: the watch on memory must not end the queries
	others := int64(s.memory) / 4
	ask := func(points int64) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, fmt.Sprintf("http://promql.test/api/v1/query_range?query=time()&start=0&end=%d&step=1", points), nil)
		s.handler().ServeHTTP(w, r)
		return w
	}
	if w := ask(10_000); w.Code != http.StatusOK || s.unread.Load() != 0 {
		t.Errorf("a large answer: %d; %d bytes are unread afterwards", w.Code, s.unread.Load())
	}
	s.unread.Store(others)
	if w := ask(10_000); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || s.unread.Load() != others {
		t.Errorf("a large answer while others are unread: %d %.300s; %d bytes are unread", w.Code, w.Body, s.unread.Load())
	}
	if w := ask(100); w.Code != http.StatusOK {
		t.Errorf("a small answer while others are unread: %d %.300s", w.Code, w.Body)
	}
}

// All selectors of a request together look through so many names, and all selectors of a query read so many samples.
func TestSumsOverSelectors(t *testing.T) {
	t.Parallel()
	redis, at := stack.Redis(t), quarter()
	var hits []hit
	for i := range 6 {
		hits = append(hits, hit{fmt.Sprintf("shop.%d", i), at.Add(-time.Minute), 1}, hit{fmt.Sprintf("web.%d", i), at.Add(-time.Minute), 1})
	}
	seed(t, redis.Client(), time.Now(), hits...)
	promql := start(t, redis, "PROMQL_MAX_COUNTERS=6", "PROMQL_MAX_SAMPLES=100")
	_, answer := get(t, promql, "label/key/values", url.Values{"match[]": {`{key=~"shop.*"}`, `{key=~"web.*"}`}})
	if strings.Count(string(answer.Data), "shop") != 6 || strings.Contains(string(answer.Data), "web") || len(answer.Warnings) != 1 {
		t.Errorf("names of two selectors: %s %q", answer.Data, answer.Warnings)
	}
	one := `sum(sum_over_time(tallyroll_hits{key="shop.1"}[18h]))` // 73 cells: those of 15 minutes are held for 24 hours
	for expr, want := range map[string]int{one: http.StatusOK, one + "+" + one: http.StatusUnprocessableEntity} {
		status, answer := get(t, promql, "query", url.Values{"query": {expr}, "time": {at.Format(time.RFC3339)}})
		if status != want || want != http.StatusOK && !strings.Contains(answer.Error, "PROMQL_MAX_SAMPLES") {
			t.Errorf("%s: %d %+v, want %d", expr, status, answer, want)
		}
	}
}

// drawing draws expressions.
type drawing struct{ *rand.Rand }

func oneOf[T any](d drawing, all ...T) T { return all[d.IntN(len(all))] }

// duration is from a millisecond to a month, as often of each length.
func (d drawing) duration() string {
	return strconv.Itoa(int(math.Exp(d.Float64()*math.Log(30*24*3600e3)))) + "ms"
}

func (d drawing) vector(depth int) string {
	if depth == 0 {
		return oneOf(d, `tallyroll_hits`, `tallyroll_hits{key="a"}`, `tallyroll_hits{key=~".*"} offset 1m`, `tallyroll_hits @ end()`,
			`vector(1)`, `vector(time())`, `absent(tallyroll_hits{key="nobody"})`)
	}
	v := func() string { return d.vector(d.IntN(depth)) }
	switch d.IntN(11) {
	case 0, 1, 2:
		return oneOf(d, "max_over_time", "sum_over_time", "count_over_time", "absent_over_time", "stddev_over_time", "last_over_time") + "(" + d.window(depth-1) + ")"
	case 3:
		return "quantile_over_time(" + oneOf(d, "0.5", "scalar("+v()+")") + ", " + d.window(depth-1) + ")"
	case 4:
		return oneOf(d, "sum", "max", "topk", "bottomk", "count_values", "quantile") + d.arguments(v())
	case 5:
		return "(" + v() + oneOf(d, " + ", " or ", " and ", " unless ", " > bool ", " * on (key) group_left (v) ", " + on () group_right (key) ") + v() + ")"
	case 6:
		return "(" + v() + oneOf(d, "+", "*", "^", "%") + oneOf(d, "time()", "2", "scalar("+v()+")") + ")"
	case 7:
		return "label_replace(" + v() + `, "` + oneOf(d, "a", "b", "key") + `", "` + oneOf(d, "$1", "$1$1", "$1$1$1$1", "text") + `", "` + oneOf(d, "a", "b", "key", "v") + `", "` + oneOf(d, "(.*)", "(a+)*(.*)", "([a-z]{1,50})*.*") + `")`
	case 8:
		return "label_join(" + v() + `, "` + oneOf(d, "a", "b") + `", "-", "a", "a", "b", "key")`
	case 9:
		return "-" + v()
	default:
		return oneOf(d, "sort", "abs", "timestamp", "absent", "round") + "(" + v() + ")"
	}
}

// arguments are those of an aggregation of any kind. Those that do not fit make an expression that nobody can parse.
func (d drawing) arguments(v string) string {
	return oneOf(d, "", " by (key)", " without (key)", " by (a, v)") + oneOf(d, "(", "(3, ", "(1e9, ", `("v", `, `("v", `) + v + ")"
}

func (d drawing) window(depth int) string {
	at := oneOf(d, "", "", " offset 1h", " @ end()", " @ 1000")
	if depth == 0 || d.IntN(3) == 0 {
		return "tallyroll_hits" + oneOf(d, "", `{key="a"}`) + "[" + d.duration() + "]" + at
	}
	return "(" + d.vector(depth) + ")[" + d.duration() + ":" + oneOf(d, "", d.duration()) + "]" + at
}

// Whatever passes stays below a number of evaluations, and below a part of the memory.
func TestDrawnQueriesAreBounded(t *testing.T) {
	redis := stack.Redis(t)
	var hits []hit
	for i := range 20 {
		for range 50 {
			hits = append(hits, hit{string(rune('a' + i)), time.Now().Add(-time.Duration(rand.Int64N(int64(20 * 24 * time.Hour)))), int64(i)})
		}
	}
	seed(t, redis.Client(), time.Now(), hits...)
	s := serviceOf(t, redis, func(s *Settings) { s.MaxCounters, s.MaxSamples, s.MaxEvaluations = 100, 20_000, 5_000_000 })
	const limit = 100 << 20
	old := debug.SetMemoryLimit(limit)
	defer debug.SetMemoryLimit(old)
	s.memory = limit

	const draws = 2000
	passed, answered, refused, most, largest := 0, 0, 0, int64(0), uint64(0)
	for seed := range uint64(draws) {
		d := drawing{rand.New(rand.NewPCG(seed, 1))}
		text, over := d.vector(1+d.IntN(4)), moments{start: time.Now(), end: time.Now()}
		if d.IntN(2) == 0 {
			over = last(math.Exp(d.Float64()*math.Log(24*30)), maxSteps)
		}
		c, err := s.check(text, over)
		var api *apiError
		switch {
		case err == nil:
		case errors.As(err, &api):
			if api.status == http.StatusUnprocessableEntity {
				refused++
			}
			continue
		default:
			t.Fatalf("%s: %v", text, err)
		}
		passed++
		samples, peak, err := evaluateDrawn(t, s, c, text, over)
		if err == nil {
			answered++
		} else if strings.Contains(err.Error(), "unexpected") {
			t.Errorf("seed %d, %s: %v", seed, text, err)
		}
		// The engine counts the samples in the windows of all series, the bound those of one.
		if samples > s.settings.MaxEvaluations*int64(s.settings.MaxCounters) {
			t.Errorf("seed %d, %s: %d samples", seed, text, samples)
		}
		if peak > 2*limit {
			t.Errorf("seed %d, %s: %d MB", seed, text, peak>>20)
		}
		most, largest = max(most, samples), max(largest, peak)
	}
	t.Logf("%d queries passed, %d of them were answered, %d were refused; most samples: %d, largest heap: %d MB", passed, answered, refused, most, largest>>20)
	if passed < draws/4 || answered < draws/10 || refused < draws/20 {
		t.Errorf("of %d queries %d passed, %d were answered and %d refused: too few", draws, passed, answered, refused)
	}
}

// evaluateDrawn returns how many samples the engine saw, and the most memory that the heap had.
func evaluateDrawn(t *testing.T, s *service, c cost, text string, over moments) (samples int64, peak uint64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ctx, stop := s.memory.watch(ctx)
	defer stop()
	q, err := s.newQuerier(ctx)
	if err != nil {
		t.Fatal(err)
	}
	q.cost = c
	prepared, err := s.prepare(ctx, q, text, over)
	if err != nil {
		return 0, 0, err // a string over a range, for example
	}
	defer prepared.Close()
	done, peaks := make(chan struct{}), make(chan uint64)
	go func() {
		peak, heap := uint64(0), []gometrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for ticker := time.Tick(time.Millisecond); ; {
			gometrics.Read(heap)
			peak = max(peak, heap[0].Value.Uint64())
			select {
			case <-done:
				peaks <- peak
				return
			case <-ticker:
			}
		}
	}()
	result := prepared.Exec(ctx)
	close(done)
	return prepared.Stats().Samples.TotalSamples, <-peaks, result.Err
}

// No text makes the check panic, or says that a query costs nothing.
func FuzzCheck(f *testing.F) {
	for expr := range hostile() {
		if len(expr) < 1000 {
			f.Add(expr)
		}
	}
	f.Add(`topk by (key) (3, label_join(-count_values("v", x{key=~"a|b"} @ 3)[1h:] offset 1m, "a", "$", "b"))`)
	s := &service{settings: Settings{MaxCounters: 1000, MaxSamples: 1_000_000, MaxEvaluations: 100_000_000, MaxQuery: 65536}, parser: parser.NewParser(parser.Options{})}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := s.check(text, last(24, maxSteps))
		if err == nil && (c.evaluations < 1 || c.evaluations > float64(s.settings.MaxEvaluations)) {
			t.Errorf("%q: %v evaluations", text, c.evaluations)
		}
	})
}
