package window

import (
	"time"
)

// Writers keep summaries of the largest counters per segment of time: one or several cells of some tiers, the
// levels. The finest tiers are not levels: a summary per second or minute would cost more than it is worth.

// Segment is a span of a tier for which summaries are kept: see Tier.SegmentOf.
type Segment struct {
	Tier   int
	Number int64
}

const (
	// levelAbove is the window (exclusive) from which a tier is a level.
	levelAbove = time.Hour
	// maxSegments is the most segments that a question reads per stream and shard, if a level is coarser.
	maxSegments = 100
	// summaryCounters is how many counters the summaries of one segment and stream list on all shards
	// together; leastSummary is how many each may list at least.
	summaryCounters, leastSummary = 1000, 16
)

// HasSummaries reports whether summaries are kept for a tier: one with a long window, or else the coarsest.
func (l Layout) HasSummaries(tier int) bool {
	return l.Tiers[tier].Window > levelAbove || tier == len(l.Tiers)-1
}

// SummarySize returns how many counters the summary of a shard lists.
func (l Layout) SummarySize() int {
	return max((summaryCounters+l.Shards-1)/l.Shards, leastSummary)
}

// segmentCells returns the cells of a segment: as many as hashes that it takes to span two windows. So a
// window has at most half as many segments as a hash has cells.
func segmentCells(t Tier) int64 {
	return (twoWindows(t) + t.CellsPerEpoch() - 1) / t.CellsPerEpoch()
}

// SegmentOf returns the number, since 1970, of the segment that a cell belongs to.
func (t Tier) SegmentOf(cell int64) int64 { return FloorDiv(cell, segmentCells(t)) }

func (t Tier) SegmentMillis() int64 { return segmentCells(t) * t.CellMillis() }

// SegmentDeadline returns the Unix second at which a summary expires: when no window and grace reaches back.
func (t Tier) SegmentDeadline(number int64) int64 {
	end := (number + 1) * t.SegmentMillis()
	w := t.Window.Milliseconds()
	return (end + w + t.Grace() + 999) / 1000
}

// Segments returns the segments that hold every hit of a plan's range and of the cells that its edges cut: of
// the coarsest level with segments of at most a quarter of the range, or else of the finest; of a coarser one
// if they were more than maxSegments. A level whose cells may lack hits is used only if all may; whole is
// then false.
func (l Layout) Segments(p Plan) (tier int, first, last int64, whole bool) {
	tier = -1
	from := p.Tier.CellStart(p.Tier.CellAt(p.Range.From))
	for i, t := range l.Tiers {
		if !l.HasSummaries(i) || !t.reaches(p.Range, p.now) || whole && t.Since > from {
			continue
		}
		f, n := coverSegments(t, p)
		if !whole && t.Since <= from {
			tier, whole = -1, true
		}
		if tier < 0 || 4*t.SegmentMillis() <= p.Range.To-p.Range.From || last-first >= maxSegments {
			tier, first, last = i, f, n
		}
	}
	return tier, first, last, whole
}

func coverSegments(t Tier, p Plan) (first, last int64) {
	from := p.Tier.CellStart(p.Tier.CellAt(p.Range.From))
	to := p.Tier.CellStart(p.Tier.CellAt(p.Range.To-1) + 1)
	return t.SegmentOf(t.CellAt(from)), t.SegmentOf(t.CellAt(to - 1))
}
