package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
)

// maxLag is how far as_of may lag before a line ends. A healthy worker moves it every second.
const maxLag = 10 * time.Second

// selection describes the samples of a selector: stamped after from and up to to (Unix milliseconds).
type selection struct {
	metric   string
	from, to int64
	window   time.Duration // the range of the selector: [1h]; 0 if it has none
	function string        // that is applied to the selector
}

// newSelection returns the samples to read. Without a range, the engine's lookback is undone, so that only
// the latest complete cell is selected, wherever the tier's cells begin.
func (q *querier) newSelection(metric string, hints *storage.SelectHints) selection {
	s := selection{metric: metric, from: hints.Start - 1, to: hints.End,
		window: time.Duration(hints.Range) * time.Millisecond, function: hints.Func}
	if s.window == 0 {
		s.from += (q.lookback() - maxLag).Milliseconds()
	}
	return s
}

func (q *querier) readCells(ctx context.Context, counters []string, sel selection) (*seriesSet, error) {
	parts, err := q.readParts(ctx, counters, sel)
	if err != nil {
		return nil, err
	}
	set := &seriesSet{at: -1}
	if len(parts) == 0 {
		return set, nil
	}
	set.warnings = buildWarnings(sel, parts)
	for i, counter := range counters {
		points, hits := buildPoints(parts, i, sel)
		if hits {
			set.series = append(set.series, &storage.SeriesEntry{Lset: seriesLabels(sel.metric, counter),
				SampleIteratorFn: points.iterator})
		}
	}
	return set, nil
}

// part is a range of whole cells of one tier, for all counters.
type part struct {
	series []window.Series // in the order of the counters
	end    int64           // of its last complete cell
}

// readParts reads the cells of the finest tier that holds the start of the selection. If samples are only
// added up, cells of finer tiers follow its last complete cell, so that the sum reaches as far as as_of. The
// parts do not overlap, so each hit is in at most one of them, whenever they are read.
func (q *querier) readParts(ctx context.Context, counters []string, sel selection) ([]part, error) {
	var out []part
	for start := sel.from; start < min(sel.to, q.now()); {
		p, err := q.readPart(ctx, counters, start, sel)
		var empty *window.EmptyError
		if errors.As(err, &empty) {
			break // it begins after now
		}
		if err != nil {
			return nil, err
		}
		first := p.series[0]
		if len(out) > 0 && (first.Tier.Cell >= out[len(out)-1].series[0].Tier.Cell || first.Range.From != start) {
			break // no finer tier holds the rest
		}
		out = append(out, p)
		q.samplesRead += len(counters) * len(first.Counts)
		if q.samplesRead > q.service.settings.MaxSamples {
			return nil, newTooManySamples(int64(q.samplesRead), q.service.settings.MaxSamples)
		}
		if !sel.isSum() || p.end <= first.Range.From {
			break
		}
		start = p.end
	}
	return out, nil
}

// isSum reports whether samples are only added up. Then each hit must be in one sample, and cells may differ
// in length. Uniques cannot be added up.
func (s selection) isSum() bool {
	return s.window > 0 && s.function == "sum_over_time" && s.metric != uniqueName
}

func (q *querier) readPart(ctx context.Context, counters []string, start int64, sel selection) (part, error) {
	span := window.Between(start, sel.to)
	if sel.to >= q.now() {
		span.To = window.Now
	}
	reach := window.WhileHeld
	if sel.window == 0 {
		reach = window.WhileHeldWithLead
	}
	questions := make([]window.SeriesQuestion, len(counters))
	for i, counter := range counters {
		questions[i] = window.SeriesQuestion{Counter: counter, Span: span, Reach: reach}
	}
	read := q.service.counters.Series
	if sel.metric == uniqueName {
		read = q.service.counters.UniqueSeries
	}
	series, err := readRedis(ctx, func(ctx context.Context) ([]window.Series, error) { return read(ctx, questions) })
	if err != nil {
		return part{}, err
	}
	return part{series, findCompleteEnd(series, sel.to)}, nil
}

// findCompleteEnd returns the end of the last cell that is complete on all shards and ends by the limit. It
// is the same for all counters, so that sums over them miss none.
func findCompleteEnd(series []window.Series, limit int64) int64 {
	first := series[0]
	limit = min(limit, first.Range.To)
	for _, s := range series {
		limit = min(limit, s.AsOf)
	}
	if limit <= first.Range.From {
		return first.Range.From
	}
	return limit - (limit-first.Range.From)%first.Step.Milliseconds()
}

// now is an estimate of Redis's clock, by which keys expire.
func (q *querier) now() int64 {
	ahead, _ := q.service.reader.ClockDifference()
	return time.Now().Add(ahead).UnixMilli()
}

// buildPoints returns the samples of a counter, and whether any has hits.
func buildPoints(parts []part, counter int, sel selection) (out points, hits bool) {
	for _, p := range parts {
		s := p.series[counter]
		for i := s.Begun(); i < len(s.Counts); i++ {
			cellEnd := s.Start(i + 1)
			if cellEnd > p.end {
				break
			}
			if cellEnd > sel.from || sel.window == 0 {
				out = append(out, point{cellEnd, float64(s.Counts[i])})
				hits = hits || s.Counts[i] > 0
			}
		}
	}
	if sel.window == 0 && len(out) > 0 {
		out = append(out, newStaleMarker(out[len(out)-1], parts[0].series[0].Tier))
	}
	return out, hits
}

// newStaleMarker returns Prometheus's stale marker for when the next cell is overdue. Without it, the last
// value would stay for the lookback.
func newStaleMarker(last point, t window.Tier) point {
	return point{last.t + (t.Cell + maxLag).Milliseconds(), math.Float64frombits(value.StaleNaN)}
}

// point is a sample: a moment (Unix milliseconds) and a value.
type point struct {
	t int64
	f float64
}

func (p point) T() int64 { return p.t }

func (p point) F() float64 { return p.f }

func (p point) ST() int64 { return 0 }

func (p point) H() *histogram.Histogram { return nil }

func (p point) FH() *histogram.FloatHistogram { return nil }

func (p point) Type() chunkenc.ValueType { return chunkenc.ValFloat }

func (p point) Copy() chunks.Sample { return p }

type points []point

func (p points) Get(i int) chunks.Sample { return p[i] }

func (p points) Len() int { return len(p) }

func (p points) iterator(chunkenc.Iterator) chunkenc.Iterator {
	return storage.NewListSeriesIterator(p)
}

// counterFunctions are the functions that expect a number that only grows.
var counterFunctions = []string{"rate", "irate", "increase"}

// buildWarnings returns warnings about the numbers of a selection, which Grafana shows at the panel.
func buildWarnings(sel selection, parts []part) annotations.Annotations {
	out := annotations.New()
	switch {
	case sel.metric == uniqueName && (sel.function == "sum_over_time" ||
		slices.Contains(counterFunctions, sel.function)):
		out.Add(fmt.Errorf("%s has the number of unique values of each cell, and a value that appears in several "+
			"cells is in each, so %s() counts it more than once: use max_over_time or avg_over_time, and /v1/uniques "+
			"of query for a window", uniqueName, sel.function))
	case slices.Contains(counterFunctions, sel.function):
		out.Add(fmt.Errorf("%s has the hits of each cell, not a number that only grows, so %s() is wrong for it: use "+
			"sum_over_time, divided by the seconds of its range for a rate", sel.metric, sel.function))
	}
	first := parts[0].series[0]
	if sel.window > 0 && sel.window < first.Tier.Cell {
		cell := human.FormatDuration(first.Tier.Cell)
		out.Add(fmt.Errorf("the range %s is shorter than the cells of %s that hold this query's time: each window has "+
			"a whole cell or none; use a range of %s or more, or a later start", human.FormatDuration(sel.window), cell,
			cell))
	}
	last := slices.MinFunc(parts[0].series, func(a, b window.Series) int { return cmp.Compare(a.AsOf, b.AsOf) })
	warnIfBehind(out, last.Asked, last.AsOf)
	for _, s := range parts[0].series {
		warnOfLosses(out, s.Complete, s.Range.From, s.CountingSince)
	}
	return *out
}

// warnIfBehind warns if no worker has counted lately.
func warnIfBehind(out *annotations.Annotations, asked window.Range, asOf int64) {
	if asked.Outruns(asOf) {
		out.Add(fmt.Errorf("hits stored after %s are not counted yet, but this query reads on: their number is unknown",
			time.UnixMilli(asOf).UTC().Format(time.RFC3339)))
	}
}

// warnOfLosses warns if an answer that begins at from is not complete.
func warnOfLosses(out *annotations.Annotations, complete bool, from, countingSince int64) {
	switch {
	case complete:
	case countingSince > from:
		out.Add(fmt.Errorf("%w: counting began at %s, after the beginning of what this query reads: of earlier "+
			"hits, only those that carried their own time are counted", annotations.PromQLInfo,
			time.UnixMilli(countingSince).UTC().Format(time.RFC3339)))
	default:
		out.Add(fmt.Errorf("hits are known to be missing from the time that this query reads: /v1/total of query has " +
			"complete false"))
	}
}
