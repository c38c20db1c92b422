package audit

import (
	"cmp"
	"slices"
	"sort"

	"tallyroll/internal/hit"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/inspect"
)

// ledger compares the counters in a range of names: what Redis holds with what the streams show.
type ledger struct {
	layout        window.Layout
	after         string // the range begins behind this name
	to            string // and ends with this one
	open          bool   // the range has no end
	budget        int    // bytes
	bytes         int    // that the counters take, roughly
	snapshotBytes int    // that the snapshots take
	counters      []*counter
	all           []*counter          // by shard: its sum of all hits; nil if another range or none has it
	index         map[uint64]*counter // by hash
	snapshots     []snapshot
	base          []int         // by shard: the snapshot from before the names were listed
	latest        []int         // by shard: the last snapshot
	overflows     [][]*overflow // by shard
	scratch       []window.CellID
}

type counter struct {
	name        string
	hash        uint64
	shard       int
	snapshot    int
	listed      bool   // it was listed, and its cells were read
	hits        int64  // that the streams have shown in cells that are judged
	cells       []cell // by their keys
	unique      []uniqueCell
	next        *counter
	uniquesRead bool // its unique cells were read, too
	hadCells    bool // Redis had cells
	isSum       bool // of an overflow
	overflow    *overflow
}

// uniqueCell holds a unique cell's registers on both sides.
type uniqueCell struct {
	key            uint64 // see keyOf
	redis, streams unique.Sketch
}

func (c *uniqueCell) bytes() int { return uniqueBytes + c.redis.Bytes() + c.streams.Bytes() }

func (c *counter) bytes() int {
	n := counterBytes + len(c.name) + cellBytes*len(c.cells)
	for i := range c.unique {
		n += c.unique[i].bytes()
	}
	return n
}

// cell holds a cell's hits on both sides.
type cell struct {
	key            uint64 // see keyOf
	redis, streams int64
}

func (c *cell) add(n int64)      { c.streams = window.AddCounts(c.streams, n) }
func (c *cell) addRedis(n int64) { c.redis = window.AddCounts(c.redis, n) }

// snapshot is the state when the cells of some counters were read.
type snapshot struct {
	positions []window.Cursor // by stream; only the fields that say what was applied
	at, until int64           // as in inspect.Found
}

// The memory of a ledger's parts, with the overhead of maps and slices.
const (
	counterBytes  = 192
	cellBytes     = 32
	uniqueBytes   = 144 // without the registers
	positionBytes = 160
)

// keyOf orders the cells of a counter.
func keyOf(c window.CellID) uint64 { return uint64(c.Tier)<<56 | uint64(c.Cell)&(1<<56-1) }

func idOf(key uint64) window.CellID {
	return window.CellID{Tier: int(key >> 56), Cell: int64(key<<8) >> 8}
}

func newLedger(layout window.Layout, overflows [][]*overflow, after string, budget int) *ledger {
	return &ledger{
		layout: layout, overflows: overflows, after: after, budget: budget, index: make(map[uint64]*counter),
		base: make([]int, layout.Shards), latest: make([]int, layout.Shards),
	}
}

// addSnapshot stores a snapshot of a shard, and returns its index. Snapshots with equal cursors share them.
func (l *ledger) addSnapshot(shard int, places []inspect.Place, at, until int64, first bool) int {
	kept := make([]window.Cursor, len(places))
	for i, p := range places {
		if p.Exists {
			kept[i] = window.Cursor{Seq: p.Seq, Ahead: p.Ahead}
		}
	}
	if !first && slices.Equal(l.snapshots[l.latest[shard]].positions, kept) {
		kept = l.snapshots[l.latest[shard]].positions
	} else {
		l.snapshotBytes += positionBytes * len(kept)
	}
	l.snapshots = append(l.snapshots, snapshot{kept, at, until})
	l.latest[shard] = len(l.snapshots) - 1
	if first {
		l.base[shard] = l.latest[shard]
	}
	return l.latest[shard]
}

// addListed adds a counter as Redis holds it.
func (l *ledger) addListed(found inspect.FoundCounter, snapshot int, asked bool) {
	c := l.add(found.Name, window.HashCounter([]byte(found.Name)), snapshot)
	c.overflow = overflowOf(l.overflows[c.shard], []byte(c.name))
	l.take(c, found, asked)
}

// take adds to a counter what Redis holds of it.
func (l *ledger) take(c *counter, found inspect.FoundCounter, asked bool) {
	c.listed, c.uniquesRead, c.hadCells = true, asked, len(found.Cells) > 0 || len(found.Uniques) > 0
	c.cells = make([]cell, len(found.Cells))
	for i, f := range found.Cells {
		c.cells[i] = cell{key: keyOf(f.CellID), redis: f.N}
	}
	slices.SortFunc(c.cells, func(a, b cell) int { return cmp.Compare(a.key, b.key) })
	l.bytes += cellBytes * len(c.cells)
	for _, f := range found.Uniques {
		u := uniqueCell{key: keyOf(f.CellID), redis: *f.Sketch}
		c.unique = append(c.unique, u)
		l.bytes += u.bytes()
	}
	slices.SortFunc(c.unique, func(a, b uniqueCell) int { return cmp.Compare(a.key, b.key) })
}

func (l *ledger) add(name string, hash uint64, snapshot int) *counter {
	c := &counter{name: name, hash: hash, shard: l.layout.ShardOf(hash), snapshot: snapshot, next: l.index[hash]}
	l.index[hash] = c
	l.counters = append(l.counters, c)
	l.bytes += counterBytes + len(name)
	return c
}

func (l *ledger) contains(name []byte) bool {
	return string(name) > l.after && (l.open || string(name) <= l.to)
}

func (l *ledger) find(name []byte, hash uint64) *counter {
	c := l.index[hash]
	for c != nil && c.name != string(name) {
		c = c.next
	}
	return c
}

// subtract subtracts a hit of a message from the cells in which it must have counted.
func (l *ledger) subtract(stream int, seq uint64, stored int64, h *hit.Hit) {
	if l.all != nil && !h.Excluded {
		l.subtractFromAll(l.all[l.layout.ShardOf(h.Hash)], stream, seq, stored, h)
	}
	o := overflowOf(l.overflows[l.layout.ShardOf(h.Hash)], h.Counter)
	if o != nil && l.after == "" { // the first range has the sum
		l.subtractFromOverflow(o, stream, seq, stored, h)
	}
	if !l.contains(h.Counter) {
		return
	}
	c := l.find(h.Counter, h.Hash)
	if c == nil && o != nil {
		return
	}
	at := l.base[l.layout.ShardOf(h.Hash)]
	if c != nil {
		at = c.snapshot
	}
	snapshot := &l.snapshots[at]
	if snapshot.positions[stream].Applied(h.Hash) < seq {
		return
	}
	l.scratch = l.layout.AppendCells(l.scratch[:0], h.Hash, h.At, stored)
	judged := false
	for _, id := range l.scratch {
		if l.layout.CellExpires(id, h.Hash) <= snapshot.at || l.layout.CellStart(id) >= snapshot.until {
			continue
		}
		if c == nil {
			c = l.add(string(h.Counter), h.Hash, at)
		}
		l.cell(c, keyOf(id)).add(h.N)
		if o != nil && o.snapshot.positions[stream].Applied(h.Hash) < seq {
			l.cell(&o.later, keyOf(id)).add(h.N)
		}
		judged = true
	}
	if judged {
		c.hits = window.AddCounts(c.hits, h.N)
	}
	if h.Unique == nil || len(l.layout.UniqueTiers) == 0 {
		return
	}
	register, uniques := unique.Of(h.Unique), l.layout.Uniques()
	l.scratch = uniques.AppendCells(l.scratch[:0], h.Hash, h.At, stored)
	for _, id := range l.scratch {
		if uniques.CellExpires(id, h.Hash) <= snapshot.at || uniques.CellStart(id) >= snapshot.until {
			continue
		}
		if c == nil {
			c = l.add(string(h.Counter), h.Hash, at)
		}
		u := l.uniqueCell(c, keyOf(id))
		before := u.streams.Bytes()
		u.streams.Add(register)
		l.bytes += u.streams.Bytes() - before
	}
}

// subtractFromAll is subtract for the sum of all hits, which counts in the cells of the hit's counter.
func (l *ledger) subtractFromAll(c *counter, stream int, seq uint64, stored int64, h *hit.Hit) {
	snapshot := &l.snapshots[c.snapshot]
	if snapshot.positions[stream].Applied(h.Hash) < seq {
		return
	}
	l.scratch = l.layout.AppendCells(l.scratch[:0], h.Hash, h.At, stored)
	for _, id := range l.scratch {
		if l.layout.CellExpires(id, c.hash) > snapshot.at && l.layout.CellStart(id) < snapshot.until {
			l.cell(c, keyOf(id)).add(h.N)
		}
	}
}

func (l *ledger) uniqueCell(c *counter, key uint64) *uniqueCell {
	i := sort.Search(len(c.unique), func(i int) bool { return c.unique[i].key >= key })
	if i == len(c.unique) || c.unique[i].key != key {
		c.unique = slices.Insert(c.unique, i, uniqueCell{key: key})
		l.bytes += uniqueBytes
	}
	return &c.unique[i]
}

// cell returns a cell of a counter, and adds it if Redis lacks it.
func (l *ledger) cell(c *counter, key uint64) *cell {
	i := sort.Search(len(c.cells), func(i int) bool { return c.cells[i].key >= key })
	if i == len(c.cells) || c.cells[i].key != key {
		c.cells = slices.Insert(c.cells, i, cell{key: key})
		l.bytes += cellBytes
	}
	return &c.cells[i]
}

// shorten ends the range earlier if its counters exceed the budget. A later range has what is cut off.
func (l *ledger) shorten() {
	if l.bytes <= l.budget || len(l.counters) < 2 {
		return
	}
	slices.SortFunc(l.counters, func(a, b *counter) int { return cmp.Compare(a.name, b.name) })
	keep := (len(l.counters) + 1) / 2
	l.to, l.open = l.counters[keep-1].name, false
	for _, c := range l.counters[keep:] {
		l.bytes -= c.bytes()
	}
	clear(l.counters[keep:])
	l.counters = l.counters[:keep]
	clear(l.index)
	for _, c := range l.counters {
		c.next = l.index[c.hash]
		l.index[c.hash] = c
	}
}

// upTo returns the last sequence of a stream that any snapshot shows as applied to any counter.
func (l *ledger) upTo(stream int) (last uint64) {
	for i := range l.snapshots {
		last = max(last, l.snapshots[i].positions[stream].Furthest())
	}
	return last
}
