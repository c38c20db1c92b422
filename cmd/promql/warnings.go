package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/prometheus/util/annotations"

	"tallyroll/internal/window"
)

// forCounters are the functions that expect a number which only grows.
var forCounters = []string{"rate", "irate", "increase"}

// warningsOf says what a person should know about the numbers of a selection. Grafana shows it beside the panel.
func warningsOf(sel selection, parts []part) annotations.Annotations {
	out := annotations.New()
	if slices.Contains(forCounters, sel.function) {
		out.Add(fmt.Errorf("%s holds the hits of each cell, not a number that only grows, so %s() is wrong for it: use sum_over_time, divided by the seconds of its range for a rate", metricName, sel.function))
	}
	first := parts[0].series[0]
	if sel.window > 0 && sel.window < first.Tier.Cell {
		cell := window.FormatDuration(first.Tier.Cell)
		out.Add(fmt.Errorf("the range %s is shorter than the cells of %s in which this query's time is held: each window has a whole cell or none; use a range of %s or more, or a later start", window.FormatDuration(sel.window), cell, cell))
	}
	if s := slices.MinFunc(parts[0].series, func(a, b window.Series) int { return cmp.Compare(a.AsOf, b.AsOf) }); s.Asked.Outruns(s.AsOf) {
		out.Add(fmt.Errorf("hits stored after %s are not counted yet, and this query reads on: nobody knows how many there are", time.UnixMilli(s.AsOf).UTC().Format(time.RFC3339)))
	}
	for _, s := range parts[0].series {
		if s.Complete {
			continue
		}
		if s.CountingSince > s.Range.From {
			out.Add(fmt.Errorf("%w: counting began at %s, after the beginning of what this query reads: of earlier hits, only those that carried their own time are counted", annotations.PromQLInfo, time.UnixMilli(s.CountingSince).UTC().Format(time.RFC3339)))
			continue
		}
		out.Add(fmt.Errorf("hits are known to be missing from the time that this query reads: complete is false at /v1/total of query"))
	}
	return *out
}
