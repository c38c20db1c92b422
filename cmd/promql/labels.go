package main

import (
	"errors"
	"math"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"tallyroll/internal/boot"
)

// labels lists the names of labels.
func (s *service) labels(r *http.Request) (found, error) {
	return s.list(r, func(q *querier, hints *storage.LabelHints, matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return q.LabelNames(r.Context(), hints, matchers...)
	})
}

// labelValues lists the values of a label.
func (s *service) labelValues(r *http.Request) (found, error) {
	return s.list(r, func(q *querier, hints *storage.LabelHints, matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return q.LabelValues(r.Context(), r.PathValue("name"), hints, matchers...)
	})
}

// list merges what is found for each of the selectors, or for none.
func (s *service) list(r *http.Request, find func(*querier, *storage.LabelHints, []*labels.Matcher) ([]string, annotations.Annotations, error)) (found, error) {
	sets, limit, err := s.listParams(r)
	if err != nil {
		return found{}, err
	}
	q, err := s.newQuerier(r.Context())
	if err != nil {
		return found{}, err
	}
	if len(sets) == 0 {
		sets = [][]*labels.Matcher{nil}
	}
	all := []string{}
	var out found
	for _, set := range sets {
		some, warnings, err := find(q, &storage.LabelHints{Limit: limit}, set)
		if err != nil {
			return found{}, err
		}
		all = append(all, some...)
		out.warnings = out.warnings.Merge(warnings)
	}
	slices.Sort(all)
	out.limit(slices.Compact(all), limit)
	return out, nil
}

// series lists the counters that match.
func (s *service) series(r *http.Request) (found, error) {
	sets, limit, err := s.listParams(r)
	if err != nil {
		return found{}, err
	}
	if len(sets) == 0 {
		return found{}, badData("no match[] parameter provided: at least one selector is needed, such as %s", metricName)
	}
	q, err := s.newQuerier(r.Context())
	if err != nil {
		return found{}, err
	}
	var names []string
	for _, set := range sets {
		selected := q.Select(r.Context(), true, &storage.SelectHints{Start: math.MinInt64, End: math.MaxInt64, Func: seriesOnly}, set...)
		for selected.Next() {
			names = append(names, selected.At().Labels().Get(keyLabel))
		}
		if err := selected.Err(); err != nil {
			return found{}, err
		}
	}
	slices.Sort(names)
	names, cut := first(slices.Compact(names), limit)
	all := make([]labels.Labels, len(names))
	for i, name := range names {
		all[i] = seriesLabels(name)
	}
	out := found{data: all}
	if cut {
		out.warnings = out.warnings.Add(errTruncated)
	}
	return out, nil
}

// listParams are the parameters of the lists. Whatever start and end are, the lists are
// those of the longest window, because names are kept for no shorter time.
func (s *service) listParams(r *http.Request) (sets [][]*labels.Matcher, limit int, err error) {
	always := time.Time{}
	for _, name := range []string{"start", "end"} {
		if _, err := timeParam(r, name, &always); err != nil {
			return nil, 0, err
		}
	}
	limit, err = limitParam(r)
	if err != nil {
		return nil, 0, err
	}
	sets, err = s.selectorsParam(r)
	return sets, limit, err
}

// errTruncated is a warning, in Prometheus's words.
var errTruncated = errors.New("results truncated due to limit")

func (f *found) limit(all []string, limit int) {
	all, cut := first(all, limit)
	f.data = all
	if cut {
		f.warnings = f.warnings.Add(errTruncated)
	}
}

// metadata has nothing to tell: Prometheus has no type for the hits of a cell.
func (s *service) metadata(*http.Request) (found, error) {
	return found{data: map[string]any{}}, nil
}

// engineVersion is the release of Prometheus that clients adapt to: that of the engine in go.mod.
const engineVersion = "3.15.0"

// buildInfo tells clients what the API can do, by the release that it is compatible with.
func (s *service) buildInfo(*http.Request) (found, error) {
	return found{data: map[string]string{
		"version": engineVersion, "revision": boot.Version(), "branch": "tallyroll",
		"buildUser": "", "buildDate": "", "goVersion": runtime.Version(),
	}}, nil
}
