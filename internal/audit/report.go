package audit

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

type report struct {
	list io.Writer // of differences
	most int       // of them are listed

	hits, counters, differences int64

	incomplete  int64             // cells that differ where cursors mark hits as missing
	erased      int64             // cells that have less, where counters were erased
	goneUnique  int64             // unique cells that have registers that the streams do not show
	gone        int64             // cells that have more than the streams hold
	goneHits    int64             // more
	goneBefore  int64             // Unix milliseconds
	cursors     map[string]bool   // keys of cursors that are listed as differences
	unknown     map[string]uint64 // by stream: the last message whose rules are lost
	missingFrom map[string]string // by stream: why it does not hold all that was counted
	declared    schema.Declaration
	provenFrom  int64 // Unix milliseconds: the streams hold all that was counted in cells that begin later; 0: in all
}

// missing records why a stream lacks counted messages. The first reason is kept.
func (r *report) missing(stream, why string) {
	if r.missingFrom[stream] == "" {
		r.missingFrom[stream] = why
	}
}

// lost records a message whose rules are lost.
func (r *report) lost(stream string, seq uint64) { r.unknown[stream] = seq }

func newReport(list io.Writer, most int) report {
	return report{list: list, most: most, cursors: make(map[string]bool), unknown: make(map[string]uint64),
		missingFrom: make(map[string]string)}
}

func (r *report) differ(format string, a ...any) {
	r.differences++
	switch {
	case r.differences <= int64(r.most):
		fmt.Fprintf(r.list, "difference: "+format+"\n", a...)
	case r.differences == int64(r.most)+1:
		fmt.Fprintf(r.list, "… and more, which are not listed: raise --max-differences, which is %d\n", r.most)
	}
}

func (r *report) cellDiffers(l window.Layout, c *counter, id window.CellID, redis, streams int64) {
	of := fmt.Sprintf("counter %q", c.name)
	if c.name == window.AllHits {
		of = fmt.Sprintf("all hits of shard %d", c.shard)
	}
	if c.isSum {
		of += " and those of its shard with its prefix"
	}
	r.differ("%s, tier %s, cell %s: Redis has %d hits, the streams %d", of, l.Tiers[id.Tier],
		hit.Moment(l.CellStart(id)), redis, streams)
}

// bounds holds the bounds by which the cells of a range are judged.
type bounds struct {
	complete   int64   // Unix milliseconds: cells that begin later are complete in the streams
	incomplete []int64 // by shard, Unix milliseconds: cells that begin earlier may be wrong, and cursors mark them
	uniques    int64   // the same for unique cells
	erased     []int64 // by shard, Unix milliseconds: counters were erased up to then
}

// compare judges a ledger's cells. It returns counters that Redis fails to list, or with unread unique cells.
func (r *report) compare(l *ledger, b bounds) (unread []*counter) {
	for _, c := range l.counters {
		if c.overflow == nil { // whose sum has them
			r.hits = window.AddCounts(r.hits, c.hits)
		}
		if !c.listed {
			unread = append(unread, c)
			continue
		}
		if c.hadCells || len(c.cells) > 0 || len(c.unique) > 0 {
			r.counters++
		}
		r.judgeCells(l, c, b)
		if !c.uniquesRead && len(c.unique) > 0 {
			unread = append(unread, c)
			continue
		}
		uniques := l.layout.Uniques()
		for i := range c.unique {
			u := &c.unique[i]
			if uniques.CellExpires(idOf(u.key), c.hash) > l.snapshots[c.snapshot].at {
				r.judgeUnique(l.layout, c, u, b)
			}
		}
	}
	for _, c := range l.all {
		r.judgeCells(l, c, b)
	}
	return unread
}

func (r *report) judgeCells(l *ledger, c *counter, b bounds) {
	for _, cell := range c.cells {
		id := idOf(cell.key)
		if c.overflow != nil {
			l.cell(&c.overflow.sum, cell.key).addRedis(min(cell.redis, cell.streams))
			if cell.redis < cell.streams { // the overflow must have the others
				continue
			}
		}
		if l.layout.CellExpires(id, c.hash) > l.snapshots[c.snapshot].at {
			r.judge(l.layout, c, id, cell, b)
		}
	}
}

func (r *report) judge(layout window.Layout, c *counter, id window.CellID, found cell, b bounds) {
	start := layout.CellStart(id)
	switch {
	case found.redis == found.streams, min(found.redis, found.streams) >= window.Saturated:
	case start < max(b.incomplete[c.shard], layout.Tiers[id.Tier].Since):
		r.incomplete++
	case found.redis < found.streams && start < b.erased[c.shard] &&
		(c.name != window.AllHits || layout.Tiers[id.Tier].Generation > 0): // a change of tiers may have made that sum
		r.erased++
	case found.redis > found.streams && start <= b.complete:
		r.gone++
		r.goneHits = window.AddCounts(r.goneHits, found.redis-found.streams)
		r.goneBefore = max(r.goneBefore, b.complete)
	default:
		r.cellDiffers(layout, c, id, found.redis, found.streams)
	}
}

// judgeUnique judges a unique cell. Some registers can be missing while others are too many.
func (r *report) judgeUnique(layout window.Layout, c *counter, found *uniqueCell, b bounds) {
	missing := found.streams.AppendAbove(nil, &found.redis)
	extra := found.redis.AppendAbove(nil, &found.streams)
	if c.overflow != nil {
		missing = nil // the overflow may have them
	}
	shard, id := layout.ShardOf(c.hash), idOf(found.key)
	start := layout.Uniques().CellStart(id)
	switch {
	case len(missing) == 0 && len(extra) == 0:
	case start < max(b.incomplete[shard], b.uniques):
		r.incomplete++
	case len(missing) > 0 && start >= b.erased[shard], len(extra) > 0 && start > b.complete:
		r.differ("counter %q, unique tier %s, cell %s: Redis has %d registers, the streams %d: %d are lower than in "+
			"the streams or missing, %d are higher",
			c.name, layout.UniqueTiers[id.Tier], hit.Moment(start), found.redis.Len(), found.streams.Len(),
			len(missing), len(extra))
	case len(missing) > 0:
		r.erased++
	default:
		r.goneUnique++
		r.goneBefore = max(r.goneBefore, b.complete)
	}
}

func (r *report) notes() {
	if d := r.declared; d.From > 0 {
		proven := "everything that was counted"
		if r.provenFrom > 0 {
			proven = "only what begins after " + hit.Moment(r.provenFrom)
		}
		fmt.Fprintf(r.list, "declared: complete from %s on, by %s at %s; the streams still hold %s\n",
			hit.Moment(d.From), d.By, hit.Moment(d.At), proven)
	}
	note := func(n int64, format string, more ...any) {
		if n > 0 {
			fmt.Fprintf(r.list, format+"\n", append([]any{n}, more...)...)
		}
	}
	before := hit.Moment(r.goneBefore)
	note(r.gone, "undecided: %d cells have %d hits more than the streams still hold; only what begins after %s is "+
		"whole there", r.goneHits, before)
	note(r.goneUnique, "undecided: %d unique cells have registers that no hit updates that the streams still hold; "+
		"only what begins after %s is whole there", before)
	if r.gone+r.goneUnique > 0 {
		for _, stream := range slices.Sorted(maps.Keys(r.missingFrom)) {
			fmt.Fprintf(r.list, "undecided: stream %s %s\n", stream, r.missingFrom[stream])
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(r.unknown)) {
		fmt.Fprintf(r.list, "undecided: messages up to %d of stream %s cannot be read again: the rules that read them "+
			"first are lost\n", r.unknown[stream], stream)
	}
	note(r.erased, "undecided: %d cells have fewer hits, or registers, than the streams; counters of their shards "+
		"were erased since")
	note(r.incomplete, "incomplete: %d cells differ, and begin before the moment up to which cursors mark hits as "+
		"missing or counted twice")
}

// String is the program's last line.
func (r *report) String() string {
	return fmt.Sprintf("audit: %d hits, %d counters, %d differences", r.hits, r.counters, r.differences)
}

var errUnjudged = errors.New("nothing can be judged")

func moment(nano int64) string { return time.Unix(0, nano).UTC().Format(time.RFC3339Nano) }

// cursorDiffers lists a cursor as a difference once.
func (r *report) cursorDiffers(key, format string, a ...any) {
	if !r.cursors[key] {
		r.cursors[key] = true
		r.differ("cursor %s: %s: it was changed, or the stream was rolled back and no worker has seen it yet", key,
			fmt.Sprintf(format, a...))
	}
}
