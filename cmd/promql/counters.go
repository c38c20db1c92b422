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

// counters returns the counters of a selector. Listed keys need not exist. The error is an *apiError if the query
// has now read too many.
func (q *querier) counters(ctx context.Context, matchers []*labels.Matcher) ([]string, error) {
	keys, _ := keyMatchers(matchers)
	if out, ok := spelled(ctx, keys); ok {
		q.touched += len(out)
		if q.touched > q.service.settings.MaxCounters {
			return nil, refused("this query reads %d counters: at most %d are allowed (PROMQL_MAX_COUNTERS): select fewer at once", q.touched, q.service.settings.MaxCounters)
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

// keyMatchers returns a selector's matchers on the key, and the metrics that its other matchers allow. Series have
// no other label. A selector without a metric's name selects hits only, so that sums do not mix hits and uniques.
func keyMatchers(matchers []*labels.Matcher) (keys []*labels.Matcher, metrics []string) {
	return keyMatchersAmong(matchers, metricName)
}

// keyMatchersAmong is keyMatchers with other default metrics for a selector without a name.
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

// spelled returns the counters that the matchers list, or false if they list none. If ctx has ended, the result is
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

// spelledBy returns the keys listed by key="a" or key=~"a|b"; none for other matchers.
func spelledBy(m *labels.Matcher) []string {
	switch m.Type {
	case labels.MatchEqual:
		return []string{m.Value}
	case labels.MatchRegexp:
		return m.SetMatches()
	}
	return nil
}

// prefixOf returns the longest prefix that the matchers require.
func prefixOf(matchers []*labels.Matcher) (prefix string) {
	for _, m := range matchers {
		if p := m.Prefix(); m.Type == labels.MatchRegexp && len(p) > len(prefix) {
			prefix = p
		}
	}
	return prefix
}

// matching returns the names that match. It checks ctx per name, because a hostile regular expression takes up to
// 1 s for one.
func matching(ctx context.Context, matchers []*labels.Matcher, names []string) ([]string, error) {
	out := slices.DeleteFunc(names, func(name string) bool { return ctx.Err() != nil || !matchesAll(matchers, name) })
	return out, ctx.Err()
}

func matchesAll(matchers []*labels.Matcher, counter string) bool {
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(counter) })
}

func tooManyNames(prefix string, most int) error {
	which := "this query scans all counters"
	if prefix != "" {
		which = fmt.Sprintf("this query scans all counters that begin with %q", prefix)
	}
	return refused(`%s, which are more than the %d allowed (PROMQL_MAX_COUNTERS): list them with key="a" or key=~"a|b", or require a longer prefix, as in key=~"shop\\..*"; /v1/top of query has the largest counters`, which, most)
}

// names returns at most limit names with a prefix, in order, and whether there are more.
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

// known returns the counters with hits, or uniques, in the longest window.
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
