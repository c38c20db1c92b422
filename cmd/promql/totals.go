package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"tallyroll/internal/window"
)

// A sum_over_time that is evaluated at one moment is a total. So its selector gets the answer of /v1/total,
// as the only sample of the window, and not the cells: the engine adds up one number, also below topk, sum or
// a division. Steps of range queries and of subqueries share cells instead.

// isTotal reports whether one window is all that is selected. A moment before 1970 would be relative to now.
func (s selection) isTotal() bool {
	return s.isSum() && s.to-s.from == s.window.Milliseconds() && s.from >= 0
}

// readTotals answers like /v1/total. A query without a time is about the window that ends now.
func (q *querier) readTotals(ctx context.Context, counters []string, sel selection) (*seriesSet, error) {
	span := window.Between(sel.from, sel.to)
	switch {
	case sel.to == q.untilNow:
		span = window.Last(sel.window)
	case sel.to >= q.now():
		span.To = window.Now
	}
	questions := make([]window.Question, len(counters))
	for i, counter := range counters {
		questions[i] = window.Question{Counter: counter, Span: span}
	}
	found, err := readRedis(ctx, func(ctx context.Context) (window.Answers, error) {
		return q.service.counters.Answer(ctx, questions)
	})
	set := &seriesSet{at: -1}
	var empty *window.EmptyError
	if errors.As(err, &empty) {
		return set, nil // it begins after now
	}
	if err != nil {
		return nil, err
	}
	set.warnings = noteTotals(sel.metric, counters, found)
	for i, a := range found.Answers {
		if a.Upper > 0 {
			total := points{{sel.to, float64(a.Total)}}
			set.series = append(set.series, &storage.SeriesEntry{Lset: seriesLabels(sel.metric, counters[i]),
				SampleIteratorFn: total.iterator})
		}
	}
	return set, nil
}

// maxBounds is how many counters get a note with their bounds; an answer has at most maxNotes notes.
const maxBounds = 5

// noteTotals returns the bounds of totals that are not exact, and warnings about what may be missing.
func noteTotals(metric string, counters []string, found window.Answers) annotations.Annotations {
	out, inexact := annotations.New(), 0
	for i, a := range found.Answers {
		warnIfBehind(out, a.Range, found.AsOf)
		warnOfLosses(out, a.Complete, a.Range.From, a.CountingSince)
		upper := a.Range.AtMost(a.Upper, found.AsOf)
		if upper == window.Bound(a.Lower) {
			continue
		}
		if inexact++; inexact <= maxBounds {
			out.Add(fmt.Errorf("%w: %s: total %d, lower %d, upper %s, as_of %s", annotations.PromQLInfo,
				seriesLabels(metric, counters[i]), a.Total, a.Lower, upper, window.Moment(found.AsOf)))
		}
	}
	if more := inexact - maxBounds; more > 0 {
		out.Add(fmt.Errorf("%w: %d more totals are not exact: for their bounds, select fewer counters, or use "+
			"/v1/total of query", annotations.PromQLInfo, more))
	}
	return *out
}
