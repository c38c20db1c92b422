package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"tallyroll/internal/window"
)

const (
	metricName = "tallyroll_hits"
	uniqueName = "tallyroll_uniques"
	keyLabel   = "key"
)

func seriesLabels(metric, counter string) labels.Labels {
	return labels.FromStrings(model.MetricNameLabel, metric, keyLabel, counter)
}

// counters returns the counters of a selector. Those that it spells out need not exist. The error is a
// *apiError if the query has now touched too many.
func (q *querier) counters(ctx context.Context, matchers []*labels.Matcher) ([]string, error) {
	keys, _ := keyMatchers(matchers)
	if out, ok := spelled(ctx, keys); ok {
		q.touched += len(out)
		if q.touched > q.service.settings.MaxCounters {
			return nil, refused("this query touches %d counters: at most %d are allowed (PROMQL_MAX_COUNTERS): ask about fewer at once", q.touched, q.service.settings.MaxCounters)
		}
		return out, nil
	}
	prefix := prefixOf(keys)
	names, more, err := q.names(ctx, prefix, q.service.settings.MaxCounters-q.touched)
	if err != nil {
		return nil, err
	}
	if more {
		return nil, tooManyNames(prefix, q.service.settings.MaxCounters)
	}
	q.touched += len(names)
	return matching(ctx, keys, names)
}

// keyMatchers returns a selector's matchers on the key, and the metrics that the others leave. Series have no
// other label. A selector without a metric's name is about hits only, or its sums would mix hits and uniques.
func keyMatchers(matchers []*labels.Matcher) (keys []*labels.Matcher, metrics []string) {
	return keyMatchersAmong(matchers, metricName)
}

// keyMatchersAmong is keyMatchers with the metrics for a selector without a name.
func keyMatchersAmong(matchers []*labels.Matcher, byDefault ...string) (keys []*labels.Matcher, metrics []string) {
	metrics, named := []string{metricName, uniqueName}, false
	for _, m := range matchers {
		switch m.Name {
		case keyLabel:
			keys = append(keys, m)
		case model.MetricNameLabel:
			named = true
			metrics = slices.DeleteFunc(metrics, func(metric string) bool { return !m.Matches(metric) })
		default:
			if !m.Matches("") {
				return nil, nil
			}
		}
	}
	if !named {
		metrics = byDefault
	}
	return keys, metrics
}

// spelled returns the counters that the matchers spell out, or false if none. After the end of ctx it is
// incomplete.
func spelled(ctx context.Context, matchers []*labels.Matcher) (counters []string, ok bool) {
	for _, m := range matchers {
		set := spelledBy(m)
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

// spelledBy returns the counters of key="a" or key=~"a|b"; none if all names must be searched.
func spelledBy(m *labels.Matcher) []string {
	switch m.Type {
	case labels.MatchEqual:
		return []string{m.Value}
	case labels.MatchRegexp:
		return m.SetMatches()
	}
	return nil
}

// prefixOf is the longest prefix that the matchers require.
func prefixOf(matchers []*labels.Matcher) (prefix string) {
	for _, m := range matchers {
		if p := m.Prefix(); m.Type == labels.MatchRegexp && len(p) > len(prefix) {
			prefix = p
		}
	}
	return prefix
}

// matching returns the names that match. A hostile regular expression takes up to 1 s per name, so it watches
// ctx.
func matching(ctx context.Context, matchers []*labels.Matcher, names []string) ([]string, error) {
	out := slices.DeleteFunc(names, func(name string) bool { return ctx.Err() != nil || !matchesAll(matchers, name) })
	return out, ctx.Err()
}

func matchesAll(matchers []*labels.Matcher, counter string) bool {
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(counter) })
}

func tooManyNames(prefix string, most int) error {
	which := "this query looks through all counters"
	if prefix != "" {
		which = fmt.Sprintf("this query looks through all counters that begin with %q", prefix)
	}
	return refused(`%s, and so touches more than %d, which is the most allowed (PROMQL_MAX_COUNTERS): name them with key="a" or key=~"a|b", or narrow them by a longer beginning, as in key=~"shop\\..*"; the largest counters are at /v1/top of query`, which, most)
}

// names returns at most most names with a prefix, in order, and whether there are more.
func (q *querier) names(ctx context.Context, prefix string, most int) (names []string, more bool, err error) {
	ask := window.NamesQuestion{Prefix: prefix, Limit: min(most+1, namesPage)}
	for {
		page, err := askRedis(ctx, func(ctx context.Context) (window.Names, error) { return q.service.counters.Names(ctx, ask) })
		if err != nil {
			return nil, false, err
		}
		names = append(names, page.Counters...)
		if len(names) > most {
			return names[:most], true, nil
		}
		if page.Next == "" {
			return names, false, nil
		}
		ask.After = page.Next
	}
}

// namesPage is how many names are read at a time; each costs up to four hash reads with the default tiers.
const namesPage = 1000

// known returns the counters that have hits, or uniques, in the longest window.
func (q *querier) known(ctx context.Context, metric string, counters []string) ([]string, error) {
	tiers, ask := q.layout.Tiers, q.service.counters.Answer
	if metric == uniqueName {
		tiers, ask = q.layout.UniqueTiers, q.service.counters.Uniques
	}
	questions := make([]window.Question, len(counters))
	for i, counter := range counters {
		questions[i] = window.Question{Counter: counter, Span: window.Last(tiers[len(tiers)-1].Window)}
	}
	found, err := askRedis(ctx, func(ctx context.Context) (window.Answers, error) { return ask(ctx, questions) })
	if err != nil {
		return nil, err
	}
	var out []string
	for i, a := range found.Answers {
		if a.Upper > 0 {
			out = append(out, counters[i])
		}
	}
	return out, nil
}
