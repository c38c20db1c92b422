package audit

import (
	"bytes"
	"context"
	"slices"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
	"tallyroll/internal/window/inspect"
	"tallyroll/internal/window/schema"
)

// overflow is the sum of a shard's counters under a prefix. Redis has their hits in the overflow counters,
// read before the names are listed, and in listed counters. So a counter that was refused needs no memory.
// The streams have all that the cursors show as applied that were read with the overflow counters.
type overflow struct {
	prefix   []byte
	names    []string // of its overflow counters: those of longer prefixes may have some of the same hits
	sum      counter  // without jitter: what is compared has expired nowhere
	later    counter  // its streams are hits of listed counters that were applied after the snapshot
	snapshot snapshot
}

// findOverflows returns the overflows by shard.
func findOverflows(l window.Layout, listed []schema.Overflow) [][]*overflow {
	out := make([][]*overflow, l.Shards)
	for _, listed := range slices.Backward(listed) { // the shortest prefix first
		for shard := range out {
			o, name := overflowOf(out[shard], []byte(listed.Prefix)), l.Overflow(listed.Prefix, shard)
			if o == nil {
				o = &overflow{prefix: []byte(listed.Prefix), sum: counter{name: name, shard: shard, isSum: true}}
				out[shard] = append(out[shard], o)
			}
			o.names = append(o.names, name)
		}
	}
	return out
}

// overflowOf returns the overflow that may have hits of a counter of its shard; nil if none.
func overflowOf(shard []*overflow, counter []byte) *overflow {
	for _, o := range shard {
		if bytes.HasPrefix(counter, o.prefix) {
			return o
		}
	}
	return nil
}

func (a *auditor) loadOverflows(ctx context.Context, l *ledger) error {
	for shard, all := range a.overflows {
		for _, o := range all {
			err := a.inspect(ctx, l, shard, o.names, func(found inspect.FoundCounter, snapshot int) {
				o.snapshot = l.snapshots[snapshot]
				for _, f := range found.Cells {
					l.cell(&o.sum, keyOf(f.CellID)).addRedis(f.N)
				}
				if len(found.Cells) > 0 {
					a.report.counters++
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// subtractFromOverflow is subtract for the sum, which counts in the cells of the hit's counter.
func (l *ledger) subtractFromOverflow(o *overflow, stream int, seq uint64, stored int64, h *hit.Hit) {
	if o.snapshot.positions[stream].Applied(h.Hash) < seq {
		return
	}
	judged := false
	l.scratch = l.layout.AppendCells(l.scratch[:0], h.Hash, h.At, stored)
	for _, id := range l.scratch {
		if l.layout.CellExpires(id, o.sum.hash) > o.snapshot.at && l.layout.CellStart(id) < o.snapshot.until {
			l.cell(&o.sum, keyOf(id)).add(h.N)
			judged = true
		}
	}
	if judged {
		o.sum.hits = window.AddCounts(o.sum.hits, h.N)
	}
}

// compareOverflows judges the sums once all counters are read, by Redis's clock at that time (Unix ms).
func (r *report) compareOverflows(l *ledger, clock int64, b bounds) {
	for _, o := range slices.Concat(l.overflows...) {
		r.hits = window.AddCounts(r.hits, o.sum.hits)
		for _, found := range o.sum.cells {
			id := idOf(found.key)
			if l.layout.CellExpires(id, o.sum.hash)*1000 <= clock {
				continue
			}
			later := l.cell(&o.later, found.key).streams
			found.redis = max(min(found.redis, found.streams), found.redis-later)
			r.judge(l.layout, &o.sum, id, found, b)
		}
	}
}
