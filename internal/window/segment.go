package window

import "time"

// Summaries of the counters with most hits are kept for segments of time: the
// cells of a few tiers, which are called levels. The finest tiers are none: a
// summary for every second or minute would cost more than it tells.

const (
	// levelAbove is the window that a tier must be longer than to be a level.
	levelAbove = time.Hour
	// maxSegments is how many segments of a level a question reads, of each stream
	// and shard, while there is a coarser level.
	maxSegments = 100
	// summaryCounters is how many counters the summaries of one segment and stream
	// list on all shards together, and leastSummary how many each lists at least.
	summaryCounters, leastSummary = 1000, 16
)

// segment is a cell of a level.
type segment struct {
	tier int
	cell int64
}

// isLevel reports whether summaries are kept for the cells of a tier: of those
// with long windows, or of the coarsest where there is none.
func (l Layout) isLevel(tier int) bool {
	return l.Tiers[tier].Window > levelAbove || tier == len(l.Tiers)-1
}

// summarySize is how many counters a summary lists.
func (l Layout) summarySize() int {
	return max((summaryCounters+l.Shards-1)/l.Shards, leastSummary)
}

// segmentDeadline is the Unix second at which a summary expires: when no window
// of its tier reaches back to it, and the grace that hashes have. That is never
// later than the hashes that its hits are in.
func (t Tier) segmentDeadline(cell int64) int64 {
	end := t.cellStart(cell + 1)
	w := t.Window.Milliseconds()
	return (end + w + t.grace() + 999) / 1000
}

// segments are the segments that hold every hit of a plan's range, and those of
// the cells that its edges cut. They are of the coarsest level whose cells are at
// most a quarter of the range, or else of the finest; or of a coarser one,
// where there would be more than maxSegments.
func (l Layout) segments(p Plan) (tier int, first, last int64) {
	tier = -1
	for i, t := range l.Tiers {
		if !l.isLevel(i) || p.now-p.Range.From > t.Window.Milliseconds() {
			continue
		}
		f, n := t.segmentsOf(p)
		if tier < 0 || 4*t.cellMillis() <= p.Range.To-p.Range.From || last-first >= maxSegments {
			tier, first, last = i, f, n
		}
	}
	return tier, first, last
}

func (t Tier) segmentsOf(p Plan) (first, last int64) {
	from := p.Tier.cellStart(p.Tier.cellAt(p.Range.From))
	to := p.Tier.cellStart(p.Tier.cellAt(p.Range.To-1) + 1)
	return t.cellAt(from), t.cellAt(to - 1)
}
