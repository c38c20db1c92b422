package main

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	hits "tallyroll/internal/hit"
)

// maxSteps is Prometheus's bound on the points of a series.
const maxSteps = 11_000

type queryData struct {
	ResultType parser.ValueType `json:"resultType"`
	Result     parser.Value     `json:"result"`
}

type timeRange struct {
	start, end time.Time
	step       time.Duration // 0: one moment
	endsNow    bool          // that moment is now
}

func (s *service) query(r *http.Request) (result, error) {
	now := time.Now()
	at, err := readTime(r, "time", &now)
	if err != nil {
		return result{}, err
	}
	return s.evaluate(r, timeRange{start: at, end: at, endsNow: r.FormValue("time") == ""})
}

func (s *service) queryRange(r *http.Request) (result, error) {
	start, err := readTime(r, "start", nil)
	if err != nil {
		return result{}, err
	}
	end, err := readTime(r, "end", nil)
	if err != nil {
		return result{}, err
	}
	step, err := readDuration(r, "step", true)
	if err != nil {
		return result{}, err
	}
	period := timeRange{start: start, end: end, step: step}
	switch points := end.Sub(start).Milliseconds() / step.Milliseconds(); {
	case end.Before(start):
		return result{}, newBadData("invalid parameter %q: must not be before start", "end")
	case points > maxSteps:
		return result{}, newBadData("%d points per series: at most %d are allowed: choose a longer step", points,
			maxSteps)
	}
	return s.evaluate(r, period)
}

func (s *service) evaluate(r *http.Request, period timeRange) (result, error) {
	limit, err := readLimit(r)
	if err != nil {
		return result{}, err
	}
	text := r.FormValue("query")
	expr, err := s.parseQuery(text, period)
	if err != nil {
		return result{}, err
	}
	q := &querier{service: s}
	if needsLayout(expr) {
		if q, err = s.newQuerier(r.Context()); err != nil {
			return result{}, err
		}
	}
	if period.endsNow {
		q.untilNow = period.end.UnixMilli()
	}
	query, err := q.newQuery(r.Context(), text, period)
	if err != nil {
		return result{}, newBadData("invalid parameter %q: %v", "query", err)
	}
	defer query.Close()
	output := query.Exec(r.Context())
	if output.Err != nil {
		return result{}, output.Err
	}
	// The engine owns the value's memory until Close, so it is encoded before.
	data, cut, err := encodeValue(output.Value, limit)
	if err != nil {
		return result{}, err
	}
	out := result{data: data, warnings: output.Warnings, query: text}
	if cut {
		out.warnings = out.warnings.Add(errTruncated)
	}
	return out, nil
}

// needsLayout reports whether a query needs the layout before its selectors read: for its lookback, to know
// whether there are uniques, or to show that Redis can answer. That is a round trip which other queries save.
func needsLayout(expr parser.Expr) bool {
	selectors, ranges, uniques := 0, 0, false
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.MatrixSelector:
			ranges++ // of the selector below it
		case *parser.VectorSelector:
			selectors++
			_, metrics := splitMatchers(n.LabelMatchers, metricName)
			uniques = uniques || slices.Contains(metrics, uniqueName)
		}
		return nil
	})
	return selectors == 0 || ranges < selectors || uniques
}

// parseQuery refuses invalid queries, and subqueries with too many steps, which the engine would allocate
// before it counts samples.
func (s *service) parseQuery(text string, period timeRange) (parser.Expr, error) {
	if err := s.checkSize("query", text); err != nil {
		return nil, err
	}
	expr, err := s.parser.ParseExpr(text)
	if err != nil {
		return nil, newBadData("invalid parameter %q: %v", "query", err)
	}
	var refusal error
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		if e, ok := node.(*parser.SubqueryExpr); ok && refusal == nil {
			refusal = s.checkSubquery(e, path, period)
		}
		return refusal
	})
	return expr, refusal
}

const subqueryStep = time.Minute

// checkSubquery bounds the steps of a subquery, which also covers the time of enclosing subqueries.
func (s *service) checkSubquery(e *parser.SubqueryExpr, enclosing []parser.Node, period timeRange) error {
	step := cmp.Or(e.Step, subqueryStep)
	if step < time.Millisecond || e.Range < time.Millisecond {
		return newRefusal("a subquery's range and step are 1ms or longer")
	}
	span := period.end.Sub(period.start).Seconds() + e.Range.Seconds() // a sum of durations may overflow
	for _, node := range enclosing {
		if outer, ok := node.(*parser.SubqueryExpr); ok {
			span += outer.Range.Seconds()
		}
	}
	if steps := span / step.Seconds(); steps > float64(s.settings.MaxSamples) {
		return newRefusal("a subquery has %.0f steps: at most %d are allowed (PROMQL_MAX_SAMPLES): choose a shorter "+
			"range or, in brackets [range:step], a longer step", steps, s.settings.MaxSamples)
	}
	return nil
}

func (s *service) checkSize(name string, texts ...string) error {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	if size > s.settings.MaxQuery {
		return newRefusal("parameter %q has %d bytes: at most %d are allowed (PROMQL_MAX_QUERY_BYTES)", name, size,
			s.settings.MaxQuery)
	}
	return nil
}

func (q *querier) newQuery(ctx context.Context, text string, period timeRange) (promql.Query, error) {
	opts, engine := promql.NewPrometheusQueryOpts(false, q.lookback(), nil), q.service.engine
	if period.step == 0 {
		return engine.NewInstantQuery(ctx, q, opts, text, period.start)
	}
	return engine.NewRangeQuery(ctx, q, opts, text, period.start, period.end, period.step)
}

// The forms of Prometheus's API: times are Unix seconds or RFC 3339, durations are seconds or 1h30m.

// maxSeconds is the end of the year 9999: later moments do not fit the engine's milliseconds.
const maxSeconds = 253402300799

// readTime reads a moment. If defaultTime is nil, it is required.
func readTime(r *http.Request, name string, defaultTime *time.Time) (time.Time, error) {
	text := r.FormValue(name)
	if text == "" && defaultTime != nil {
		return *defaultTime, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err == nil && math.Abs(seconds) <= maxSeconds {
		return time.UnixMilli(int64(math.Round(seconds * 1000))).UTC(), nil
	}
	at, err := hits.ParseRFC3339(text)
	if err == nil {
		return at, nil
	}
	return time.Time{}, newBadData("invalid parameter %q: %.64q is not a time: Unix seconds or RFC 3339 are allowed",
		name, text)
}

// readDuration reads a duration above 0. It returns 0 if the parameter is absent and not required.
func readDuration(r *http.Request, name string, required bool) (time.Duration, error) {
	text := r.FormValue(name)
	if text == "" && !required {
		return 0, nil
	}
	var out time.Duration
	seconds, err := strconv.ParseFloat(text, 64)
	if err == nil && seconds*float64(time.Second) < math.MaxInt64 {
		out = time.Duration(seconds * float64(time.Second))
	}
	parsed, err := model.ParseDuration(text)
	if err == nil {
		out = time.Duration(parsed)
	}
	if out < time.Millisecond {
		return 0, newBadData("invalid parameter %q: %.64q is not a duration above 0: seconds or a duration such as "+
			"15s or 1h30m are allowed", name, text)
	}
	return out, nil
}

// readLimit reads the maximal number of results; 0 means all.
func readLimit(r *http.Request) (int, error) {
	text := r.FormValue("limit")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, newBadData("invalid parameter %q: %.64q: a whole number from 0 on is allowed", "limit", text)
	}
	return n, nil
}

// readSelectors reads match[]. Like Prometheus, it refuses a selector that every series would match.
func (s *service) readSelectors(r *http.Request) ([][]*labels.Matcher, error) {
	if err := s.checkSize("match[]", r.Form["match[]"]...); err != nil {
		return nil, err
	}
	sets, err := s.parser.ParseMetricSelectors(r.Form["match[]"])
	if err != nil {
		return nil, newBadData("invalid parameter %q: %v", "match[]", err)
	}
	for _, set := range sets {
		if matchesAll(set, "") {
			return nil, newBadData("invalid parameter %q: a selector needs a matcher that does not match everything, "+
				"such as %s", "match[]", metricName)
		}
	}
	return sets, nil
}
