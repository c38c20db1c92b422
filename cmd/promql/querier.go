package main

import (
	"context"
	"errors"
	"math"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"tallyroll/internal/platform/release"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window"
)

// querier answers one query's selectors, as its own storage.Queryable. The engine calls Select sequentially.
type querier struct {
	service      *service
	layout       window.Layout // empty if no selector needs it
	untilNow     int64         // the moment of a query without a time (Unix milliseconds): it ends now; else 0
	countersRead int           // counters that all selectors have read or scanned
	samplesRead  int           // samples that all selectors have read
}

// newQuerier reads the layout, which also shows whether Redis can answer.
func (s *service) newQuerier(ctx context.Context) (*querier, error) {
	layout, err := readRedis(ctx, s.reader.Look)
	if err != nil {
		return nil, err
	}
	return &querier{service: s, layout: layout}, nil
}

func (q *querier) Querier(int64, int64) (storage.Querier, error) { return q, nil }
func (q *querier) Close() error                                  { return nil }

// lookback is how far back a selector without a range searches for a complete cell: the longest cell and the
// lag allowed for as_of. Stale markers end a series earlier (newStaleMarker). Without a layout, no selector
// needs it.
func (q *querier) lookback() time.Duration {
	if len(q.layout.Tiers) == 0 {
		return 0
	}
	longest := q.layout.Tiers[len(q.layout.Tiers)-1].Cell
	if n := len(q.layout.UniqueTiers); n > 0 {
		longest = max(longest, q.layout.UniqueTiers[n-1].Cell)
	}
	return 2*longest + maxLag
}

// Select reads the cells of the counters that match.
func (q *querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	_, metrics := splitMatchers(matchers, metricName)
	all := &seriesSet{at: -1}
	for _, metric := range q.filterMetrics(ctx, metrics) {
		counters, err := q.findCounters(ctx, metric, matchers)
		if err != nil {
			return storage.ErrSeriesSet(err)
		}
		if len(counters) == 0 {
			continue
		}
		set, err := q.readMetric(ctx, hints, metric, counters)
		if err != nil {
			return storage.ErrSeriesSet(err)
		}
		all.series, all.warnings = append(all.series, set.series...), all.warnings.Merge(set.warnings)
	}
	return all
}

func (q *querier) readMetric(ctx context.Context, hints *storage.SelectHints, metric string,
	counters []string) (*seriesSet, error) {
	if hints.Func != seriesOnly {
		sel := q.newSelection(metric, hints)
		if sel.isTotal() {
			return q.readTotals(ctx, counters, sel)
		}
		return q.readCells(ctx, counters, sel)
	}
	nonEmpty, err := q.filterNonEmpty(ctx, metric, counters)
	set := &seriesSet{}
	for _, counter := range nonEmpty {
		set.series = append(set.series, storage.NewListSeries(seriesLabels(metric, counter), nil))
	}
	return set, err
}

// filterMetrics removes the metrics that the namespace does not have, and the sum of all hits from several if
// the token is only about some counters: a question about that sum alone is refused.
func (q *querier) filterMetrics(ctx context.Context, metrics []string) []string {
	return slices.DeleteFunc(slices.Clone(metrics), func(metric string) bool {
		return metric == uniqueName && len(q.layout.UniqueTiers) == 0 ||
			metric == allName && len(metrics) > 1 && access.From(ctx).HasPrefixes()
	})
}

// seriesOnly, in place of a function, means that samples are not needed.
const seriesOnly = "series"

// LabelValues returns the values of a label in the longest window; it ignores the requested time.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints,
	matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	if name == model.MetricNameLabel {
		_, metrics := splitMatchers(matchers, metricName, uniqueName, allName)
		return q.filterMetrics(ctx, metrics), nil, nil
	}
	keys, metrics := splitMatchers(matchers, metricName)
	if metrics = q.filterMetrics(ctx, metrics); len(metrics) == 0 {
		return nil, nil, nil
	}
	if name == keyLabel && metrics[0] != allName {
		return q.listKeys(ctx, hints.Limit, metrics[0], keys)
	}
	return nil, nil, nil
}

// listKeys lists names to choose from, so it truncates the list where a query would be refused. For uniques
// it lists all counters, because only for listed keys is it checked which have uniques.
func (q *querier) listKeys(ctx context.Context, limit int, metric string,
	matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
	if _, ok := listExactKeys(ctx, matchers); ok {
		counters, err := q.findCounters(ctx, metric, matchers)
		if err != nil {
			return nil, nil, err
		}
		counters, err = q.filterNonEmpty(ctx, metric, counters)
		return counters, nil, err
	}
	maxNames := q.service.settings.MaxCounters - q.countersRead
	if len(matchers) == 0 && limit > 0 {
		maxNames = min(maxNames, limit)
	}
	names, more, err := q.listNames(ctx, findPrefix(matchers), maxNames)
	if err != nil {
		return nil, nil, err
	}
	q.countersRead += len(names)
	var warnings annotations.Annotations
	if more {
		warnings = annotations.New().Add(newRefusal("there are more counters: only the first %d were scanned "+
			"(PROMQL_MAX_COUNTERS, or limit)", maxNames))
	}
	names, err = filterNames(ctx, matchers, names)
	return names, warnings, err
}

// LabelNames returns the names of the labels, which all series have; that of all hits only the first.
func (q *querier) LabelNames(ctx context.Context, _ *storage.LabelHints,
	matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	_, metrics := splitMatchers(matchers, metricName)
	switch metrics = q.filterMetrics(ctx, metrics); {
	case len(metrics) == 0:
		return nil, nil, nil
	case metrics[0] == allName:
		return []string{model.MetricNameLabel}, nil, nil
	}
	return []string{model.MetricNameLabel, keyLabel}, nil, nil
}

type seriesSet struct {
	series   []storage.Series
	warnings annotations.Annotations
	at       int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return s.warnings }

func (s *service) labels(r *http.Request) (result, error) {
	return s.serveList(r, func(q *querier, hints *storage.LabelHints, matchers []*labels.Matcher) ([]string,
		annotations.Annotations, error) {
		return q.LabelNames(r.Context(), hints, matchers...)
	})
}

func (s *service) labelValues(r *http.Request) (result, error) {
	return s.serveList(r, func(q *querier, hints *storage.LabelHints, matchers []*labels.Matcher) ([]string,
		annotations.Annotations, error) {
		return q.LabelValues(r.Context(), r.PathValue("name"), hints, matchers...)
	})
}

// serveList merges the results of all selectors, or of none.
func (s *service) serveList(r *http.Request, list func(*querier, *storage.LabelHints, []*labels.Matcher) ([]string,
	annotations.Annotations, error)) (result, error) {
	sets, limit, err := s.readListParams(r)
	if err != nil {
		return result{}, err
	}
	q, err := s.newQuerier(r.Context())
	if err != nil {
		return result{}, err
	}
	if len(sets) == 0 {
		sets = [][]*labels.Matcher{nil}
	}
	all := []string{}
	var allWarnings annotations.Annotations
	for _, set := range sets {
		names, warnings, err := list(q, &storage.LabelHints{Limit: limit}, set)
		if err != nil {
			return result{}, err
		}
		all = append(all, names...)
		allWarnings = allWarnings.Merge(warnings)
	}
	slices.Sort(all)
	return limitResult(slices.Compact(all), limit, allWarnings), nil
}

func (s *service) series(r *http.Request) (result, error) {
	sets, limit, err := s.readListParams(r)
	if err != nil {
		return result{}, err
	}
	if len(sets) == 0 {
		return result{}, newBadData("no match[] parameter provided: at least one selector is needed, such as %s",
			metricName)
	}
	q, err := s.newQuerier(r.Context())
	if err != nil {
		return result{}, err
	}
	all := []labels.Labels{}
	for _, set := range sets {
		selected := q.Select(r.Context(), true, &storage.SelectHints{Start: math.MinInt64, End: math.MaxInt64,
			Func: seriesOnly}, set...)
		for selected.Next() {
			all = append(all, selected.At().Labels())
		}
		if err := selected.Err(); err != nil {
			return result{}, err
		}
	}
	slices.SortFunc(all, labels.Compare)
	return limitResult(slices.CompactFunc(all, labels.Equal), limit, nil), nil
}

// readListParams reads the parameters of lists but start and end, because lists cover the longest window.
func (s *service) readListParams(r *http.Request) (sets [][]*labels.Matcher, limit int, err error) {
	anyTime := time.Time{}
	for _, name := range []string{"start", "end"} {
		if _, err := readTime(r, name, &anyTime); err != nil {
			return nil, 0, err
		}
	}
	limit, err = readLimit(r)
	if err != nil {
		return nil, 0, err
	}
	sets, err = s.readSelectors(r)
	return sets, limit, err
}

// errTruncated is Prometheus's warning.
var errTruncated = errors.New("results truncated due to limit")

// limitResult returns at most limit elements as a result, with a warning if there are more.
func limitResult[E any](all []E, limit int, warnings annotations.Annotations) result {
	all, cut := truncate(all, limit)
	if cut {
		warnings = warnings.Add(errTruncated)
	}
	return result{data: all, warnings: warnings}
}

// metadata is empty: Prometheus has no type for the hits of a cell.
func metadata(*http.Request) (result, error) {
	return result{data: map[string]any{}}, nil
}

// engineVersion is the release of Prometheus that clients adapt to: that of the engine in go.mod.
const engineVersion = "3.16.0"

func buildInfo(*http.Request) (result, error) {
	return result{data: map[string]string{
		"version": engineVersion, "revision": release.Version(), "branch": "tallyroll",
		"buildUser": "", "buildDate": "", "goVersion": runtime.Version(),
	}}, nil
}
