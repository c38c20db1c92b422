package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

const (
	metricName = "tallyroll_hits"
	uniqueName = "tallyroll_uniques"
	allName    = "tallyroll_all_hits" // the sum of all hits; it has no key
	keyLabel   = "key"
)

func seriesLabels(metric, counter string) labels.Labels {
	if metric == allName {
		return labels.FromStrings(model.MetricNameLabel, metric)
	}
	return labels.FromStrings(model.MetricNameLabel, metric, keyLabel, counter)
}

// findCounters returns a selector's counters. Listed keys need not exist. A query may not read too many.
func (q *querier) findCounters(ctx context.Context, metric string, matchers []*labels.Matcher) ([]string, error) {
	keys, _ := splitMatchers(matchers, metricName)
	if metric == allName {
		return filterNames(ctx, keys, []string{window.AllHits})
	}
	if out, ok := listExactKeys(ctx, keys); ok {
		q.countersRead += len(out)
		if q.countersRead > q.service.settings.MaxCounters {
			return nil, newRefusal("this query reads %d counters: at most %d are allowed (PROMQL_MAX_COUNTERS): "+
				"select fewer at once", q.countersRead, q.service.settings.MaxCounters)
		}
		return out, nil
	}
	prefix := findPrefix(keys)
	names, more, err := q.listNames(ctx, prefix, q.service.settings.MaxCounters-q.countersRead)
	if err != nil {
		return nil, err
	}
	if more {
		return nil, newTooManyNames(prefix, q.service.settings.MaxCounters)
	}
	q.countersRead += len(names)
	return filterNames(ctx, keys, names)
}

// splitMatchers returns a selector's matchers on the key, and the metrics that its other matchers allow.
// Series have no other label. defaults are the metrics of a selector without a metric's name. To read, that
// is hits only, so that sums do not mix hits and uniques.
func splitMatchers(matchers []*labels.Matcher, defaults ...string) (keys []*labels.Matcher, metrics []string) {
	metrics, hasName := []string{metricName, uniqueName, allName}, false
	for _, m := range matchers {
		switch m.Name {
		case keyLabel:
			keys = append(keys, m)
		case model.MetricNameLabel:
			hasName = true
			metrics = slices.DeleteFunc(metrics, func(metric string) bool { return !m.Matches(metric) })
		default:
			if !m.Matches("") {
				return nil, nil
			}
		}
	}
	if !hasName {
		metrics = defaults
	}
	return keys, metrics
}

// listExactKeys returns the keys that the matchers list, or false. It is incomplete if ctx has ended.
func listExactKeys(ctx context.Context, matchers []*labels.Matcher) (counters []string, ok bool) {
	for _, m := range matchers {
		set := listExactValues(m)
		if len(set) == 0 {
			continue
		}
		for _, counter := range set {
			if counter != "" && ctx.Err() == nil && matchesAll(matchers, counter) {
				counters = append(counters, counter)
			}
		}
		slices.Sort(counters)
		return slices.Compact(counters), true
	}
	return nil, false
}

// listExactValues returns the keys listed by key="a" or key=~"a|b"; none for other matchers.
func listExactValues(m *labels.Matcher) []string {
	switch m.Type {
	case labels.MatchEqual:
		return []string{m.Value}
	case labels.MatchRegexp:
		return m.SetMatches()
	}
	return nil
}

// findPrefix returns the longest prefix that the matchers require.
func findPrefix(matchers []*labels.Matcher) (prefix string) {
	for _, m := range matchers {
		if p := m.Prefix(); m.Type == labels.MatchRegexp && len(p) > len(prefix) {
			prefix = p
		}
	}
	return prefix
}

// filterNames returns the names that match. It checks ctx, as a hostile pattern takes up to 1 s per name.
func filterNames(ctx context.Context, matchers []*labels.Matcher, names []string) ([]string, error) {
	out := slices.DeleteFunc(names, func(name string) bool { return ctx.Err() != nil || !matchesAll(matchers, name) })
	return out, ctx.Err()
}

func matchesAll(matchers []*labels.Matcher, counter string) bool {
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(counter) })
}

func newTooManyNames(prefix string, limit int) error {
	scope := "this query scans all counters"
	if prefix != "" {
		scope = fmt.Sprintf("this query scans all counters that begin with %q", prefix)
	}
	const list = `list them with key="a" or key=~"a|b", or require a longer prefix, as in key=~"shop\\..*"`
	return newRefusal("%s, which are more than the %d allowed (PROMQL_MAX_COUNTERS): "+list+
		"; /v1/top of query has the largest counters", scope, limit)
}

// listNames returns at most limit names with a prefix, in order, and whether there are more.
func (q *querier) listNames(ctx context.Context, prefix string, limit int) (names []string, more bool, err error) {
	found, err := read.AllNames(ctx, func(ctx context.Context, question read.NamesQuestion) (read.Names, error) {
		question.Limit = min(question.Limit, namesPage)
		return readRedis(ctx, func(ctx context.Context) (read.Names, error) {
			return q.service.counters.Names(ctx, question)
		})
	}, read.NamesQuestion{Prefix: prefix}, limit)
	if len(found.Counters) > limit {
		return found.Counters[:limit], true, err
	}
	return found.Counters, false, err
}

// namesPage is how many names are read at a time; each costs up to four hash reads with the default tiers.
const namesPage = 1000

// filterNonEmpty returns the counters with hits, or uniques, in the longest window.
func (q *querier) filterNonEmpty(ctx context.Context, metric string, counters []string) ([]string, error) {
	tiers, read := q.layout.Tiers, q.service.counters.Answer
	if metric == uniqueName {
		tiers, read = q.layout.UniqueTiers, q.service.counters.Uniques
	}
	questions := make([]window.Question, len(counters))
	for i, counter := range counters {
		questions[i] = window.Question{Counter: counter, Span: window.Last(tiers[len(tiers)-1].Window), Part: true}
	}
	answers, err := readRedis(ctx, func(ctx context.Context) (window.Answers, error) { return read(ctx, questions) })
	if err != nil {
		return nil, err
	}
	var out []string
	for i, a := range answers.Answers {
		if a.Upper > 0 {
			out = append(out, counters[i])
		}
	}
	return out, nil
}
