package main

import (
	"context"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"tallyroll/internal/window"
)

// querier answers the selectors of one query. It is its own storage.Queryable. The engine calls
// Select for one selector after the other.
type querier struct {
	service *service
	layout  window.Layout
	touched int // counters read or looked through, of all selectors
	points  int // samples read, of all selectors
	cost    cost
}

// newQuerier reads the layout, and so finds out whether Redis can answer.
func (s *service) newQuerier(ctx context.Context) (*querier, error) {
	layout, err := askRedis(ctx, s.reader.Look)
	if err != nil {
		return nil, err
	}
	return &querier{service: s, layout: layout}, nil
}

func (q *querier) Querier(int64, int64) (storage.Querier, error) { return q, nil }
func (q *querier) Close() error                                  { return nil }

// lookback is how far a selector without a range may look for a cell that was complete: the
// longest cell and what as_of may lag behind. Marks of staleness end a series earlier (see end).
func (q *querier) lookback() time.Duration {
	return 2*q.layout.Tiers[len(q.layout.Tiers)-1].Cell + maxLag
}

// Select reads the cells of the counters that match.
func (q *querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	counters, err := q.counters(ctx, matchers)
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	if len(counters) == 0 {
		return storage.EmptySeriesSet()
	}
	if hints.Func == seriesOnly {
		known, err := q.known(ctx, counters)
		if err != nil {
			return storage.ErrSeriesSet(err)
		}
		set := &seriesSet{at: -1}
		for _, counter := range known {
			set.series = append(set.series, storage.NewListSeries(seriesLabels(counter), nil))
		}
		return set
	}
	set, err := q.read(ctx, counters, q.selectionOf(hints))
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	return set
}

// seriesOnly in place of a function says that nobody needs the samples.
const seriesOnly = "series"

// LabelValues returns the values of a label, whatever the time: those of the longest window.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	keys, any := keyMatchers(matchers)
	if !any {
		return nil, nil, nil
	}
	switch name {
	case model.MetricNameLabel:
		return []string{metricName}, nil, nil
	case keyLabel:
		return q.keys(ctx, hints.Limit, keys)
	}
	return nil, nil, nil
}

// keys lists names for people to choose from, so it cuts the list off where a query would be refused.
func (q *querier) keys(ctx context.Context, limit int, matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
	if _, ok := spelled(ctx, matchers); ok {
		counters, err := q.counters(ctx, matchers)
		if err != nil {
			return nil, nil, err
		}
		counters, err = q.known(ctx, counters)
		return counters, nil, err
	}
	most := q.service.settings.MaxCounters - q.touched
	if len(matchers) == 0 && limit > 0 {
		most = min(most, limit)
	}
	names, more, err := q.names(ctx, prefixOf(matchers), most)
	if err != nil {
		return nil, nil, err
	}
	q.touched += len(names)
	var warnings annotations.Annotations
	if more {
		warnings = annotations.New().Add(refused("there are more counters: only the first %d were looked through (PROMQL_MAX_COUNTERS, or limit)", most))
	}
	names, err = matching(ctx, matchers, names)
	return names, warnings, err
}

// LabelNames returns the names of the labels, which all series have.
func (q *querier) LabelNames(_ context.Context, _ *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	if _, any := keyMatchers(matchers); !any {
		return nil, nil, nil
	}
	return []string{model.MetricNameLabel, keyLabel}, nil, nil
}

// seriesSet is a list of series in the order of their labels.
type seriesSet struct {
	series   []storage.Series
	warnings annotations.Annotations
	at       int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return s.warnings }
